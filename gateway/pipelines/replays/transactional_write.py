"""The records of a plan as transactions: one for each chunk of all partitions.

A run begins behind the last committed transaction, whose positions were committed with its records.
So each record is committed once, whenever a run dies, and a reader of committed records sees whole
chunks only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.pipelines.replays.plan import PartitionPlan, ReplayChunk, ReplayPlan, next_chunk
from gateway.pipelines.replays.target import ProducerId
from gateway.pipelines.replays.transactional_writer import Sending
from gateway.pipelines.replays.transactions import (
    Position,
    ReplayTransactions,
    check_nothing_written,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers

WriteChunks = Callable[[Sequence[ReplayChunk], Sending], list[Any]]
"""A function that writes chunks and returns one row of `RESULT` for each partition with records."""


class TransactionalWrite:
    """The write of one plan. `begin` fences other runs and finds the positions; then `run`."""

    def __init__(
        self,
        plan: ReplayPlan,
        bootstrap: KafkaServers,
        transactions: ReplayTransactions,
        write: WriteChunks,
        offsets_at_once: int,
    ) -> None:
        self._plan = plan
        self._bootstrap = bootstrap
        self._transactions = transactions
        self._write = write
        self._offsets_at_once = offsets_at_once
        self._ranges = plan.selection.by_partition()
        self._producer = ProducerId(-1, -1)
        # Where each partition continues, as of the last committed transaction.
        self.positions: dict[int, Position] = {}

    def begin(self) -> dict[int, int]:
        """Fence other runs. Returns the number of records that each partition already has."""
        plan, transactions = self._plan, self._transactions
        self._producer = transactions.begin()
        partitions = [each.partition for each in plan.partitions]
        found = transactions.positions(plan.target, partitions)
        if not found:
            bases = {each.partition: each.base_offset for each in plan.partitions}
            check_nothing_written(self._bootstrap, plan.target, bases)
        elif len(found) < len(partitions):
            raise JobError(
                f"{transactions.name}: positions of some partitions are missing: they have expired;"
                " use another --state, and another topic",
                "POSITION_LOST",
            )
        self.positions = {
            each.partition: found.get(each.partition, Position(0, each.first))
            for each in plan.partitions
        }
        return {partition: each.number for partition, each in self.positions.items()}

    def run(self, on_chunk: Callable[[], None]) -> None:
        """Write what is left. Calls `on_chunk` after each committed transaction."""
        first = {partition: each.number for partition, each in self.positions.items()}
        sending = Sending(self._transactions.name, self._producer, first)
        while chunks := self._next_chunks():
            self._transactions.open(
                self._producer, self._plan.target, [each.partition for each in chunks]
            )
            try:
                after = self._written(chunks, self._write(chunks, sending))
            except BaseException:
                self._abort()
                raise
            self._transactions.at_step("written")
            self._transactions.commit(self._producer, self._plan.target, after)
            self.positions = after
            on_chunk()

    def _next_chunks(self) -> list[ReplayChunk]:
        return [
            next_chunk(
                self._ranges[each.partition], each, at.source, at.number, self._offsets_at_once
            )
            for each in self._plan.partitions
            if (at := self.positions[each.partition]).source <= each.last
        ]

    def _written(self, chunks: Sequence[ReplayChunk], rows: Sequence[Any]) -> dict[int, Position]:
        """Return the positions of all partitions behind the chunks. Raises JobError."""
        failed = sorted(
            (row["partition"], row["error"], row["code"]) for row in rows if row["code"]
        )
        if failed:
            raise JobError(failed[0][1], failed[0][2])
        numbers: Mapping[int, int] = {row["partition"]: row["number"] for row in rows}
        after = dict(self.positions)
        partitions = {each.partition: each for each in self._plan.partitions}
        for each in chunks:
            number = numbers.get(each.partition, each.number)
            self._check(partitions[each.partition], each, number)
            after[each.partition] = Position(number, each.end)
        return after

    def _check(self, partition: PartitionPlan, chunk: ReplayChunk, number: int) -> None:
        """Raise JobError unless the chunk had the records that the plan counted."""
        dense = partition.dense and number != chunk.end - partition.first
        if dense or (chunk.last and number != partition.count):
            raise JobError(
                f"partition {partition.partition}: the archive had {partition.count} records when"
                f" the replay began; {number} were found up to offset {chunk.end}",
                "SOURCE_CHANGED",
            )

    def _abort(self) -> None:
        """Abort the transaction, if the coordinator answers. Otherwise the next run does."""
        try:
            self._transactions.abort(self._producer)
        except JobError:
            return
