"""The transactions of a log as its batches show them, for a gateway that does not lead it. Pure.

The owner's snapshots and the batches behind them have all that readers of committed records need:
which transactions are open, and which were aborted. Epochs and sequences need no check here: what
is in the log was checked by its owner.

    batch of a transaction ─▶ open ─(marker)▶ committed: forgotten │ aborted: in the list

Source: Apache Kafka 4.3, UnifiedLog.rebuildProducerState on followers, and TransactionIndex.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.aborted_lists import SegmentAborted
from gateway.core.partition_transactions import NO_OFFSET, AbortedTransaction, stored_rows

_ROWS_PER_STEP = 2_000
_NOTHING_BEFORE = SegmentAborted(0, 0, 0)


class LogTransactions:
    """The open transactions of a log, and those that were aborted in its newest segment."""

    __slots__ = ("_first_offsets", "_open", "aborted")

    def __init__(self) -> None:
        # The first offset of the open transaction of each producer.
        self._first_offsets: dict[int, int] = {}
        # The producers of open transactions by first offset, ascending: batches come in order.
        self._open: dict[int, int] = {}
        # The aborted transactions of this segment, in the order of their markers.
        self.aborted: list[AbortedTransaction] = []

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def stable_offset(self, end: int) -> int:
        """Return the first offset of the oldest open transaction, or `end` if none is open."""
        return next(iter(self._open), end)

    def on_batch(self, producer_id: int, base_offset: int) -> None:
        """Apply a batch of a transaction."""
        if producer_id not in self._first_offsets:
            self._first_offsets[producer_id] = base_offset
            self._open[base_offset] = producer_id

    def on_marker(self, producer_id: int, offset: int, *, commit: bool) -> None:
        """Apply a marker. One without an open transaction changes nothing."""
        first = self._first_offsets.pop(producer_id, None)
        if first is None:
            return
        del self._open[first]
        if not commit:
            stable = self.stable_offset(offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, offset, stable))

    def load(self, rows: bytes) -> Iterator[None]:
        """Add stored transactions. Yields between steps of bounded length. Raises ValueError."""
        producers, aborted = stored_rows(rows)
        found: list[tuple[int, int]] = []
        for count, (producer_id, _, _, first_offset, *_) in enumerate(producers, 1):
            if first_offset != NO_OFFSET:
                found.append((first_offset, producer_id))
            if count % _ROWS_PER_STEP == 0:
                yield
        found.sort()
        self._open.update(found)
        self._first_offsets.update((producer_id, first) for first, producer_id in found)
        for count, row in enumerate(aborted, 1):
            self.aborted.append(AbortedTransaction(*row))
            if count % _ROWS_PER_STEP == 0:
                yield


class FollowedState:
    """The transactions in all batches below `end`."""

    __slots__ = ("before", "end", "since", "transactions")

    def __init__(self, end: int, since: int, before: SegmentAborted = _NOTHING_BEFORE) -> None:
        # Every batch below it was applied. Never falls.
        self.end = end
        self.transactions = LogTransactions()
        # The list of `transactions` has all that were aborted from this offset on.
        self.since = since
        # The list of the segment before.
        self.before = before

    @property
    def stable_offset(self) -> int:
        """The offset below which the outcome of every record is known here."""
        return self.transactions.stable_offset(self.end)

    def begin_segment(self, start: int) -> None:
        """Begin the list of a segment that begins at `start`, which is `end`."""
        assert start == self.end
        aborted = self.transactions.aborted
        self.before = SegmentAborted(self.since, start, self.stable_offset, tuple(aborted))
        self.transactions.aborted = []
        self.since = start
