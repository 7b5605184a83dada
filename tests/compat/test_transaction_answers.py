"""Goal: the coordinator's core answers as Apache Kafka 4.3 does, whatever a client asks.

Method: random scripts of requests, each for a transactional id of its own, are sent to a broker and
to the core. Error codes and epochs are equal; producer ids are equal by their order.
"""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from gateway.core.transaction_states import TopicPartition
from gateway.wire.messages import decode_response, encode_request
from tests.compat.differential.connection import Connection
from tests.gateway.coordinator_log import Log
from tests.peers.broker import Broker
from tests.peers.processes import wait_until

pytestmark = pytest.mark.compat

INIT, ADD, END = 22, 24, 26
TOPIC = "orders"
SCRIPTS, STEPS = 40, 14
AGAIN = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


class Kafka:
    """The broker's side of a script."""

    def __init__(self, broker: Broker, name: str) -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        self._connection = Connection((host, int(port)))
        self._name = name
        self.ids: list[int] = []

    def close(self) -> None:
        self._connection.close()

    def _ask(self, key: int, version: int, body: dict):
        self._connection.send(encode_request(key, version, 7, None, body))
        answer = self._connection.receive()
        assert answer is not None
        return decode_response(key, version, answer).body

    def init(self, producer_id: int, epoch: int, timeout_ms: int):
        body = {"transaction_timeout": timeout_ms, "producer_id": producer_id}
        body |= {"producer_epoch": epoch, "transactional_id": self._name}
        found = self._ask(INIT, 5, body)
        return found.error_code, found.producer_id, found.producer_epoch

    def add(self, producer_id: int, epoch: int, version: int, *, verify: bool):
        topics = [{"name": TOPIC, "partitions": [0]}]
        if version < 4:
            body = {"v3_and_below_producer_id": producer_id, "v3_and_below_topics": topics}
            body |= {"v3_and_below_producer_epoch": epoch}
            found = self._ask(ADD, version, {**body, "v3_and_below_transactional_id": self._name})
            (topic,) = found.results_by_topic_v3_and_below
        else:
            body = {"transactional_id": self._name, "producer_id": producer_id}
            body |= {"producer_epoch": epoch, "verify_only": verify, "topics": topics}
            found = self._ask(ADD, version, {"transactions": [body]})
            (topic,) = found.results_by_transaction[0].topic_results
        return topic.results_by_partition[0].partition_error_code, -1, -1

    def end(self, producer_id: int, epoch: int, version: int, *, commit: bool):
        body = {"transactional_id": self._name, "producer_id": producer_id}
        found = self._ask(END, version, {**body, "producer_epoch": epoch, "committed": commit})
        if version < 5:
            return found.error_code, -1, -1
        return found.error_code, found.producer_id, found.producer_epoch


class Core:
    """The core's side of a script; its markers are written at once."""

    def __init__(self) -> None:
        self._log = Log()
        self.ids: list[int] = []

    def _settle(self, found, *, ids=True):
        while self._log.markers:
            self._log.mark()
        return (found.error, *((found.producer_id, found.epoch) if ids else (-1, -1)))

    def init(self, producer_id: int, epoch: int, timeout_ms: int):
        return self._settle(self._log.init(producer_id, epoch, timeout_ms))

    def add(self, producer_id: int, epoch: int, version: int, *, verify: bool):
        where = TopicPartition(TOPIC, 0)
        if verify and version >= 4:
            return self._log.verify(producer_id, epoch, where)[where], -1, -1
        words = {"version": 2 if version > 3 else 0}
        return self._settle(self._log.add(producer_id, epoch, where, **words), ids=False)

    def end(self, producer_id: int, epoch: int, version: int, *, commit: bool):
        words = {"commit": commit, "version": 2 if version > 4 else 0}
        return self._settle(self._log.end(producer_id, epoch, **words))


def ask(side, name, which, epoch, words):
    """Send one request until it is not to be sent again. Returns the answer with its id's place."""
    producer_id = {-1: -1, 99: 10**9}.get(which)
    if producer_id is None:
        producer_id = side.ids[which] if which < len(side.ids) else 10**9

    def answered():
        found = getattr(side, name)(producer_id, epoch, **words)
        return None if found[0] in AGAIN else found

    error, given, bumped = wait_until(answered, "an answer that is not to be retried")
    if given >= 0 and given not in side.ids:
        side.ids.append(given)
    return error, side.ids.index(given) if given >= 0 else -1, bumped


def drawn(draw, step, epoch):
    """One request: its name, which producer id, the epoch, and the other words."""
    which = draw.choice((0, 0, 0, 0, 0, 99))
    near = epoch + draw.choice((0, 0, 0, 0, -1, 1))
    kind = "init" if step == 0 else draw.choice(("init", "add", "add", "add", "end", "end", "end"))
    if kind == "init":
        timeout_ms = draw.choice((60_000, 60_000, 60_000, 0, 900_001))
        known = step and draw.random() < 0.6
        return kind, *((which, near) if known else (-1, -1)), {"timeout_ms": timeout_ms}
    if kind == "add":
        version = draw.choice((3, 4, 5))
        return kind, which, near, {"version": version, "verify": draw.random() < 0.3}
    return kind, which, near, {"version": draw.choice((4, 5)), "commit": draw.random() < 0.5}


@pytest.fixture(scope="module")
def topic_on_oracle(oracle: Broker) -> Broker:
    """Apache Kafka with the topic of the scripts."""
    producer = Producer({"bootstrap.servers": oracle.bootstrap})
    producer.produce(TOPIC, b"the topic exists", partition=0)
    assert producer.flush(60) == 0
    # Kafka creates the transaction log for the first client that looks for its coordinator.
    Producer({"bootstrap.servers": oracle.bootstrap, "transactional.id": "a"}).init_transactions(60)
    return oracle


def test_the_core_answers_random_scripts_as_kafka_does(topic_on_oracle: Broker) -> None:
    seen: set[str] = set()
    for seed in range(SCRIPTS):
        draw = random.Random(seed)
        kafka, core = Kafka(topic_on_oracle, f"script-{seed}"), Core()
        epoch, script = 0, []
        for step in range(STEPS):
            name, which, near, words = drawn(draw, step, epoch)
            script.append((name, which, near, words))
            if near < 0 and which != -1:
                near = 0
            ours = ask(core, name, which, near, words)
            theirs = ask(kafka, name, which, near, words)
            assert ours == theirs, f"script {seed}: {script}"
            seen.add(f"{name} {ours[0].name}")
            if ours[0] is ErrorCode.none and ours[2] >= 0:
                epoch = ours[2]
        kafka.close()
    assert len(seen) > 10, seen  # kinds of answers
