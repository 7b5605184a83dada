"""Goal: a quota slows a real producer and consumer down as on Apache Kafka, and not the others.

Method: librdkafka on the gateway and on Apache Kafka, with the quota of one client id. The first
ten seconds' worth of bytes pass at once, and the rest takes the time of its bytes.
"""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

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


def created(admin: AdminClient, topic: str, partitions: int) -> str:
    """Return Kafka's name of the error and its text, or "" if the topic was created."""
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    except KafkaException as failed:
        error = failed.args[0]
        return f"{error.name()}: {error.str()}"
    return ""


def test_partitions_beyond_the_quota_are_refused_with_kafkas_words(broker: Broker, oracle: Broker):
    found: list[list[str]] = []
    for server in (broker, oracle):
        alter(server, "mutator", "--add-config", "controller_mutation_rate=1")
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "client.id": "mutator"})
        found.append([created(admin, f"mutated-{at}", 12) for at in range(3)])
        alter(server, "mutator", "--delete-config", "controller_mutation_rate")
    assert found[0] == found[1]
    assert found[0][0] == ""
    assert found[0][1].startswith("THROTTLING_QUOTA_EXCEEDED")
