"""Load that remembers: idempotent producers that know every acknowledgement, and the judge."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)

from tests.peers.processes import wait_until


@dataclass
class Acknowledged:
    """What one producer was told: (partition, offset) of each value, and what failed for good."""

    offsets: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Load:
    """One idempotent producer in a thread of its own; values `<name>-<number>` rise.

    It sends as fast as it can, or waits `pause_s` after each 50 records.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        value_bytes: int = 300,
        *,
        pause_s: float = 0.0,
    ) -> None:
        self.told = Acknowledged()
        self._topic = topic
        self._name = name
        self._pause_s = pause_s
        self._padding = b"." * value_bytes
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "delivery.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            try:
                self._producer.produce(
                    self._topic,
                    b"%s-%09d%s" % (self._name.encode(), number, self._padding),
                    on_delivery=self._delivered,
                )
                number += 1
            except BufferError:
                self._producer.poll(0.01)
            if number % 50 == 0:
                self._producer.poll(0.002)
                self._ending.wait(self._pause_s)

    def _delivered(self, error: KafkaError | None, message) -> None:
        if error is not None:
            self.told.failed.append(str(error))
        else:
            value = message.value()[: -len(self._padding)]
            self.told.offsets[value] = (message.partition(), message.offset())

    def end(self) -> Acknowledged:
        """Everything sent has its answer."""
        self._ending.set()
        self._thread.join(60)
        left = self._producer.flush(120.0)
        assert left == 0, f"{left} records of {self._name} were never answered"
        return self.told


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes]]]:
    """(offset, value without padding) of every record, by partition, from start to end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    try:
        assigned = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)]
        consumer.assign(assigned)
        ended: set[int] = set()

        def read_on() -> bool:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    found[message.partition()].append(
                        (message.offset(), message.value().rstrip(b"."))
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise AssertionError(str(error))
            return len(ended) == partitions

        wait_until(read_on, "the judge to reach every partition's end", 120.0)
    finally:
        consumer.close()
    return found


def judge(found: dict[int, list[tuple[int, bytes]]], told: list[Acknowledged]) -> int:
    """Nothing acknowledged is lost, moved or doubled, order and offsets are whole. Records read."""
    place: dict[bytes, tuple[int, int]] = {}
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(len(records))), "offsets are dense"
        newest: dict[bytes, bytes] = {}
        for offset, value in records:
            assert value not in place, f"{value!r} is there twice: {place[value]}, {offset}"
            place[value] = (partition, offset)
            name = value.rpartition(b"-")[0]
            assert newest.get(name, b"") < value, f"{value!r} came after {newest[name]!r}"
            newest[name] = value
    for each in told:
        assert not each.failed, each.failed[:3]
        for value, where in each.offsets.items():
            assert place.get(value) == where, (
                f"{value!r}: acknowledged at {where}, is at {place.get(value)}"
            )
    return len(place)
