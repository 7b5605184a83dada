"""Random producers on one topic: sequences in and out of order, epochs, deletions, reads."""

from __future__ import annotations

from typing import ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

from tests.compat.differential.script import Topic, batch
from tests.compat.differential.sequences import Compared, versions
from tests.compat.differential.steps import Batch, Taken

PARTITIONS = PRODUCERS = 2
MB = 1 << 20
PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS, INIT_PRODUCER_ID = 0, 1, 2, 21, 22

partitions = st.integers(0, PARTITIONS - 1)
producers = st.integers(0, PRODUCERS - 1)
counts = st.integers(1, 3)


class Producers(Compared):
    """Two idempotent producers, and others without an id, write to two partitions."""

    name: ClassVar[str] = "producers"
    key: ClassVar[int] = PRODUCE

    def __init__(self) -> None:
        super().__init__()
        self._topic: Topic = self.script.topic("one", PARTITIONS)
        self._ids: list[Taken] = []
        # By producer and partition: what was sent, as (epoch, sequence, count).
        self._sent: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    @initialize()
    def begin(self) -> None:
        self._ids = [self.script.producer().take("producer_id") for _ in range(PRODUCERS)]

    def _write(self, partition: int, records: Batch, version: int) -> None:
        rows = [{"index": partition, "records": records}]
        topics = [{**self._topic.ref, "partition_data": rows}]
        self.script.other(PRODUCE, version, acks=-1, timeout=10_000, topic_data=topics)

    @rule(
        producer=producers,
        partition=partitions,
        count=counts,
        gap=st.sampled_from((0, 0, 0, 0, 1, -1, 5)),
        epochs=st.sampled_from((0, 0, 0, 0, 1, -1)),
        version=versions(3, 13),
    )
    def write(
        self, producer: int, partition: int, count: int, gap: int, epochs: int, version: int
    ) -> None:
        """Send the next batch, or one that leaves a gap or has another epoch."""
        sent = self._sent.setdefault((producer, partition), [])
        epoch, last, of_last = sent[-1] if sent else (0, 0, 0)
        epoch = max(0, epoch + epochs)
        sequence = 0 if epochs > 0 else max(0, last + of_last + gap)
        sent.append((epoch, sequence, count))
        self._send(producer, partition, sent[-1], version)

    @rule(
        producer=producers,
        partition=partitions,
        back=st.integers(1, 7),
        more=st.sampled_from((0, 0, 0, 1)),
        version=versions(3, 13),
    )
    def repeat(self, producer: int, partition: int, back: int, more: int, version: int) -> None:
        """Send an earlier batch again, perhaps with one record more."""
        sent = self._sent.get((producer, partition), [])
        if back <= len(sent):
            epoch, sequence, count = sent[-back]
            self._send(producer, partition, (epoch, sequence, count + more), version)

    def _send(
        self, producer: int, partition: int, sent: tuple[int, int, int], version: int
    ) -> None:
        epoch, sequence, count = sent
        header = {"producer": self._ids[producer], "epoch": epoch, "sequence": sequence}
        self._write(partition, batch(count, **header), version)

    @rule(partition=partitions, count=counts, base=st.integers(0, 5), version=versions(3, 13))
    def write_without_an_id(self, partition: int, count: int, base: int, version: int) -> None:
        self._write(partition, batch(count, base_timestamp=base * 1_000), version)

    @rule(partition=partitions, offset=st.integers(-1, 12), version=versions(0, 2))
    def delete(self, partition: int, offset: int, version: int) -> None:
        rows = [{"partition_index": partition, "offset": offset}]
        topics = [{"name": self._topic.name, "partitions": rows}]
        self.script.other(DELETE_RECORDS, version, topics=topics, timeout=10_000)

    @rule(
        partition=partitions,
        offset=st.integers(-1, 12),
        isolation=st.integers(0, 1),
        version=versions(4, 18),
    )
    def fetch(self, partition: int, offset: int, isolation: int, version: int) -> None:
        row = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": MB,
        }
        self.script.other(
            FETCH,
            version,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=50 * MB,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[{**self._topic.ref, "partitions": [row]}],
            forgotten_topics_data=[],
            rack_id="",
        )

    @rule(
        partition=partitions,
        timestamp=st.sampled_from((-1, -2, -4, 0, 1_000, 1_001, 2_000, 5_002)),
        version=versions(8, 11),
    )
    def list_offsets(self, partition: int, timestamp: int, version: int) -> None:
        row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": self._topic.name, "partitions": [row]}]
        wanted = {"replica_id": -1, "isolation_level": 0, "timeout": 10_000}
        self.script.other(LIST_OFFSETS, version, topics=topics, **wanted)

    @rule(producer=producers, epoch=st.integers(0, 2), version=versions(3, 5))
    def initialise_again(self, producer: int, epoch: int, version: int) -> None:
        """Ask for a new id in place of one, which leaves the old one as it was."""
        old = {"producer_id": self._ids[producer], "producer_epoch": epoch}
        fields = {"transactional_id": None, "transaction_timeout": 60_000}
        self.script.other(INIT_PRODUCER_ID, version, **fields, **old)
