"""The parts of cases in transactions: a transactional producer, its writes, its ends.

The methods send in protocol 1, in which a client adds partitions itself, and are not compared.
The first epoch is 0, and only EndTxn v5 and InitProducerId raise it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.compat.differential.script import NOT_YET, Answer, Script, Topic, batch
from tests.compat.differential.steps import Batch, Taken

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
BUSY = ("concurrent_transactions", *NOT_YET)
"""Errors of a transaction whose markers are on their way."""
TRANSACTIONAL = 0x10
MINUTE_MS = 60_000


@dataclass(slots=True)
class Writer:
    """A transactional producer of one case."""

    script: Script
    name: str
    producer: Taken
    epoch: Any = 0
    """A number, or a placeholder."""

    @property
    def ref(self) -> dict[str, Any]:
        """The id, the producer and its epoch, as most requests name them."""
        return {
            "transactional_id": self.name,
            "producer_id": self.producer,
            "producer_epoch": self.epoch,
        }

    @property
    def old_ref(self) -> dict[str, Any]:
        """As `ref`, with the names that AddPartitionsToTxn has until v3."""
        return {f"v3_and_below_{name}": value for name, value in self.ref.items()}

    def batch(self, count: int, sequence: int, **header: Any) -> Batch:
        """Return a transactional batch of this producer."""
        wanted = {"producer": self.producer, "epoch": self.epoch, "sequence": sequence}
        return batch(count, **{**wanted, "attributes": TRANSACTIONAL, **header})

    def add(self, topic: Topic, *partitions: int) -> Answer:
        """Add partitions to the transaction, partition 0 if none is named."""
        topics = [{"name": topic.name, "partitions": list(partitions or (0,))}]
        return self.script.prepare(
            ADD_PARTITIONS, 3, again=BUSY, **self.old_ref, v3_and_below_topics=topics
        )

    def write(self, topic: Topic, count: int, sequence: int, partition: int = 0) -> Answer:
        """Append a batch to a partition that was added."""
        records = self.batch(count, sequence)
        rows = [{"name": topic.name, "partition_data": [{"index": partition, "records": records}]}]
        fields = {"acks": -1, "timeout": 10_000, "topic_data": rows}
        return self.script.prepare(PRODUCE, 11, transactional_id=self.name, **fields)

    def end(self, *, commit: bool) -> None:
        """End the transaction, and wait until all markers are written."""
        for _ in range(2):
            self.script.prepare(END_TXN, 3, again=BUSY, **self.ref, committed=commit)

    def one(self, topic: Topic, count: int, sequence: int, *, commit: bool) -> None:
        """Write a transaction of one batch."""
        self.add(topic)
        self.write(topic, count, sequence)
        self.end(commit=commit)

    def add_group(self, group: str) -> Answer:
        """Add the offsets of a group to the transaction."""
        return self.script.prepare(ADD_OFFSETS, 3, again=BUSY, **self.ref, group_id=group)


def writer(script: Script, word: str = "id", timeout_ms: int = MINUTE_MS) -> Writer:
    """Initialise a producer of a new transactional id."""
    name = script.name(word)
    coordinated(script, name)
    found = initialise(script, name, timeout_ms)
    return Writer(script, name, found.take("producer_id"))


def coordinated(script: Script, name: str) -> None:
    """Wait until the coordinator of a transactional id is known."""
    script.prepare(FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[name])


def initialise(script: Script, name: str, timeout_ms: int = MINUTE_MS) -> Answer:
    """Initialise a transactional id again, which raises its epoch."""
    timeout = {"transaction_timeout": timeout_ms, "producer_id": -1, "producer_epoch": -1}
    return script.prepare(INIT_PRODUCER_ID, 4, again=BUSY, transactional_id=name, **timeout)


def reading(
    name: str, offset: int = 0, *, partition: int = 0, isolation: int = 1, **fields: Any
) -> dict[str, Any]:
    """Return the fields of a Fetch v11 of one partition, in read_committed."""
    wanted = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": name, "partitions": [wanted]}],
        "forgotten_topics_data": [],
        "rack_id": "",
        **fields,
    }


def producers_of(script: Script, topic: Topic) -> Answer:
    """Compare the producers of partition 0."""
    return script.other(61, 0, topics=[{"name": topic.name, "partition_indexes": [0]}])
