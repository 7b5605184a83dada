"""A gateway with transactions, stock transactional producers, and both sources over one topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.pipelines.direct.batch import LedgerBatchReader
from gateway.pipelines.direct.options import parse
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

SECONDS_MAX = 60
OPTIONS = ("--journal-sync", "never")


@contextmanager
def transactional_gateway(data: Path) -> Iterator[Gateway]:
    with Gateway(data, OPTIONS) as gateway:
        yield gateway


def create(gateway: Gateway, topic: str, partitions: int = 1, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
    made[topic].result(SECONDS_MAX)
    return topic


class Writer:
    """One transactional producer of librdkafka."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        settings = {"bootstrap.servers": gateway.bootstrap, "transactional.id": name}
        more = {"linger.ms": 0, "transaction.timeout.ms": 900_000}  # no job is slower
        self._producer = Producer({**settings, **more})
        self._producer.init_transactions(SECONDS_MAX)

    def write(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        """Write records that are stored, in a transaction that stays open."""
        for value in values:
            self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(SECONDS_MAX) == 0

    def begin(self, topic: str, values: Iterable[bytes], partition: int = 0) -> Writer:
        self._producer.begin_transaction()
        self.write(topic, values, partition)
        return self

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS_MAX)


def plain(gateway: Gateway, topic: str, values: Iterable[bytes]) -> None:
    """Write records outside of transactions."""
    producer = Producer({"bootstrap.servers": gateway.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def consumed(
    gateway: Gateway, topic: str, count: int, partition: int = 0
) -> list[tuple[int, bytes]]:
    """Return what a stock read_committed consumer gets, once there are `count` records."""
    settings = {"bootstrap.servers": gateway.bootstrap, "group.id": "reader"}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[int, bytes]] = []

    def enough() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append((message.offset(), message.value()))
        return len(found) >= count

    try:
        wait_until(enough, f"{count} committed records", SECONDS_MAX)
        return found
    finally:
        consumer.close()


def read_direct(gateway: Gateway, topic: str, **options: Any) -> list[tuple[int, bytes]]:
    """Return offset and value of all rows of format("ledger"), read without Spark."""
    given = {"metadata": gateway.ledgers, "path": topic, "kafka.isolation.level": "read_committed"}
    reader = LedgerBatchReader(parse(given | {name: str(each) for name, each in options.items()}))
    rows: list[tuple[int, bytes]] = []
    for partition in reader.partitions():
        for part in reader.read(partition):
            rows += zip(part["offset"].to_pylist(), part["value"].to_pylist(), strict=True)
    return rows
