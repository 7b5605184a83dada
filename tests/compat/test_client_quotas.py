"""Goal: a quota slows a real producer and consumer down as on Apache Kafka, and not the others.

Method: librdkafka on the gateway and on Apache Kafka, with the quota of one client id. The first
ten seconds' worth of bytes pass at once, and the rest takes the time of its bytes.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.wire.messages import decode_response, encode_request
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.java_tools import run

pytestmark = [pytest.mark.compat, pytest.mark.process, pytest.mark.proof]
RATE = 100_000  # bytes a second
WINDOW_S = 10
MESSAGE, EXTRA_S = b"x" * 10_000, 2


def alter(broker: Broker, client: str, *change: str) -> None:
    place = ("--entity-type", "clients", "--entity-name", client)
    run(java_tools.CONFIGS, "--bootstrap-server", broker.bootstrap, "--alter", *place, *change)


def produced_s(broker: Broker, topic: str, client: str) -> tuple[float, float]:
    """Return the seconds that the messages took, and the longest throttle time in seconds."""
    longest: list[float] = [0.0]

    def on_stats(text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        longest.append(max(each["throttle"]["max"] / 1000 for each in brokers))

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client,
            "statistics.interval.ms": 200,
            "stats_cb": on_stats,
            "batch.num.messages": 5,
        }
    )
    begun_s = time.monotonic()
    for _ in range((WINDOW_S + EXTRA_S) * RATE // len(MESSAGE)):
        producer.produce(topic, MESSAGE)
        producer.poll(0)
    assert producer.flush(60) == 0
    taken_s = time.monotonic() - begun_s
    producer.poll(0.5)
    return taken_s, max(longest)


def consumed_s(broker: Broker, topic: str, client: str) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client,
            "group.id": client,
            "auto.offset.reset": "earliest",
            "fetch.max.bytes": 1_000_000,
            "max.partition.fetch.bytes": 200_000,
        }
    )
    consumer.subscribe([topic])
    first = consumer.poll(60)
    begun_s, count = time.monotonic(), 1
    assert first is not None
    while count < (WINDOW_S + EXTRA_S) * RATE // len(MESSAGE):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        count += 1
    taken_s = time.monotonic() - begun_s
    consumer.close()
    return taken_s


@pytest.mark.parametrize("server", ["broker", "oracle"])
def test_a_client_within_a_quota_takes_the_time_of_its_bytes(
    server: str, request: pytest.FixtureRequest
):
    server_under_test: Broker = request.getfixturevalue(server)
    topic, client = f"quota-{server}", f"limited-{server}"
    admin = AdminClient({"bootstrap.servers": server_under_test.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    alter(
        server_under_test,
        client,
        *("--add-config", f"producer_byte_rate={RATE},consumer_byte_rate={RATE}"),
    )
    taken_s, throttled_s = produced_s(server_under_test, topic, client)
    assert EXTRA_S * 0.5 < taken_s < 60
    assert throttled_s > 0
    others_s, free_s = produced_s(server_under_test, topic, "others")
    assert others_s < EXTRA_S
    assert free_s == 0
    # What is beyond the quota is not sent, and waits until the first bytes leave the window.
    assert WINDOW_S * 0.5 < consumed_s(server_under_test, topic, client) < 60
    alter(server_under_test, client, "--delete-config", "producer_byte_rate,consumer_byte_rate")
    _, again_s = produced_s(server_under_test, topic, client)
    assert again_s == 0


MUTATOR = "mutator"
# A burst of 0.11 partitions: the first request passes, and then none for the time of the test.
RATE_OF_PARTITIONS = 0.01
# The newest version that only makes its client wait, and the first one that refuses.
CREATES, ADDS, DELETES = (19, 4, 6), (37, 1, 3), (20, 4, 5)


def asked(broker: Broker, key: int, version: int, body: dict[str, Any]) -> list[Any]:
    """Return the rows of the answer, each with code and text, and how many minutes to wait."""
    frame = encode_request(key, version, 1, MUTATOR, body)
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        peer.sendall(len(frame).to_bytes(4, "big") + frame)
        stream = peer.makefile("rb")
        size = int.from_bytes(stream.read(4), "big")
        reply = decode_response(key, version, stream.read(size)).body
    rows = reply.results if key == ADDS[0] else getattr(reply, "topics", None) or reply.responses
    found = [(int(row.error_code), getattr(row, "error_message", None)) for row in rows]
    return [found, round(reply.throttle_time.total_seconds() / 60)]


def create(topic: str, partitions: int, *, only: bool = False) -> dict[str, Any]:
    one = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    one |= {"assignments": [], "configs": []}
    return {"topics": [one], "timeout": 30_000, "validate_only": only}


def add(topic: str, partitions: int) -> dict[str, Any]:
    one = {"name": topic, "count": partitions, "assignments": None}
    return {"topics": [one], "timeout": 30_000, "validate_only": False}


def delete(topic: str) -> dict[str, Any]:
    return {"topic_names": [topic], "timeout": 30_000}


def mutations(server: Broker) -> list[Any]:
    create_old, create_new = CREATES[1:]
    return [
        asked(server, 19, create_new, create("mutated-1", 12)),
        asked(server, 19, create_new, create("mutated-2", 1)),
        asked(server, 19, create_new, create("mutated-2", 1, only=True)),
        asked(server, 19, create_new, create("mutated-1", 1)),  # it exists
        asked(server, 19, create_new, create("mutated-2", 0)),  # as if there were no quota
        asked(server, 19, create_old, create("mutated-2", 6)),
        asked(server, 19, create_old, create("mutated-3", 6, only=True)),
        asked(server, 37, ADDS[2], add("mutated-1", 13)),
        asked(server, 37, ADDS[1], add("mutated-1", 18)),
        asked(server, 20, DELETES[2], delete("mutated-1")),
        asked(server, 20, DELETES[2], delete("unknown")),
        asked(server, 20, DELETES[1], delete("mutated-1")),
        asked(server, 19, create_new, create("mutated-2", 1)),
    ]


def test_partitions_beyond_the_quota_are_refused_as_by_kafka(broker: Broker, oracle: Broker):
    """Old versions of requests only make their clients wait."""
    found: list[list[Any]] = []
    for server in (broker, oracle):
        alter(server, MUTATOR, "--add-config", f"controller_mutation_rate={RATE_OF_PARTITIONS}")
        found.append(mutations(server))
        alter(server, MUTATOR, "--delete-config", "controller_mutation_rate")
    assert found[0] == found[1]
    first, second = found[0][:2]
    assert first == [[(0, None)], 0]
    assert second[0] == [(89, None)]
    assert second[1] > 0
