"""The part of a partition that read_committed readers of format("ledger") see, without its owner.

The last stable offset and the aborted transactions are those of the log: the newest state snapshot
and the headers of the batches after it. The driver plans with them, and each task carries the
aborted transactions of its slice. An accepted loss may have held markers. If a transaction was open
there, its outcome is unknown until the owner has stored a snapshot behind the loss.
Source: Kafka, FetchResponse.abortedTransactions and CompletedFetch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gateway.topics.aborted_reader import AbortedReader
from gateway.topics.partition_state import PartitionState
from gateway.wire import batches
from ledger.adapters.system.clock import SystemClock
from ledger.errors import StreamUnavailable
from ledger.ids import Buffer
from ledger.streams.scan import StreamScan


class AbortedPart(NamedTuple):
    """The offsets that hold an aborted transaction: from its first record up to its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int


class _LogState(PartitionState):
    """The state of a partition as its log shows it, of which a loss may hide a part."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        # The first offset whose outcome may be hidden by a loss. None if no loss was passed since
        # the last snapshot while a transaction was open.
        self.hidden_from: int | None = None

    def load(self, data: bytes) -> Iterator[None]:
        self.hidden_from = None
        return super().load(data)

    def pass_loss(self, first: int, last: int) -> None:
        super().pass_loss(first, last)
        stable = self.transactions.stable_offset(first)
        if self.hidden_from is None and stable < first:
            self.hidden_from = stable


class CommittedView:
    """The transactions of one partition as of the last `advance`."""

    def __init__(self, scan: StreamScan) -> None:
        self._scan = scan
        self._state = _LogState(SystemClock().now_ms)
        self._reader = scan.read_state(self._state)
        self._aborted = AbortedReader(self._state, self._reader)
        # All transactions below it have ended, with an outcome that the log shows. Never falls.
        self.stable_offset = 0

    async def advance(self) -> None:
        """Read the outcome of transactions up to the end of the scan. Raises LedgerError."""
        end = await self._reader.advance()
        self._state.cover(self._reader.covered_from)
        state, start = self._state, self._scan.start_sequence_id
        if state.hidden_from is not None:
            end = max(state.hidden_from, start)
        self.stable_offset = max(self.stable_offset, state.transactions.stable_offset(end, start))

    @property
    def undecided(self) -> str:
        """Why the outcome of the record at the stable offset is not known, if the log has one."""
        if self._state.hidden_from is None:
            return "a transaction that began there is still open"
        return (
            "a lost range may have held the end of a transaction that began there; "
            "read on once the partition's leader has begun another segment"
        )

    async def aborted(self, first: int, end: int) -> list[AbortedPart]:
        """Return the aborted transactions with offsets from `first` up to `end`.

        `end` is not above the stable offset. Raises LedgerError.
        """
        assert end <= self.stable_offset, (end, self.stable_offset)
        hidden_from = self._state.hidden_from
        if hidden_from is not None and end > hidden_from:  # read again, it shows less than before
            raise StreamUnavailable(f"at {hidden_from} {self.undecided}")
        found = await self._aborted.read(first, end)
        return [
            AbortedPart(each.producer_id, each.first_offset, each.last_offset) for each in found
        ]


def overlapping(parts: Iterable[AbortedPart], first: int, end: int) -> tuple[AbortedPart, ...]:
    """Return the parts that have offsets from `first` up to `end`."""
    return tuple(each for each in parts if each.marker_offset >= first and each.first_offset < end)


def is_control(batch: Buffer) -> bool:
    """Return whether the batch holds a marker, and so no record."""
    return batches.read_header(batch).attributes & batches.CONTROL != 0


class AbortedBatches:
    """Separates the batches of aborted transactions from others, which come in any order."""

    def __init__(self, parts: Iterable[AbortedPart]) -> None:
        # The parts of each producer, which do not overlap, by their first offsets.
        self._parts: dict[int, list[AbortedPart]] = {}
        for each in sorted(parts):
            self._parts.setdefault(each.producer_id, []).append(each)

    def hold(self, batch: Buffer) -> bool:
        """Return whether a transaction that holds the records of this batch was aborted."""
        if not self._parts:
            return False
        header = batches.read_header(batch)
        if not header.attributes & batches.TRANSACTIONAL:
            return False
        parts = self._parts.get(header.producer_id, [])
        at = bisect_right(parts, header.base_offset, key=lambda each: each.first_offset) - 1
        return at >= 0 and header.base_offset < parts[at].marker_offset
