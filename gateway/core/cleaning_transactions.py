"""The transactions that the cleaner meets while it reads a log from its beginning. Pure.

It decides which batches were aborted, and which markers have no record of their transaction left.
A marker is noted before it goes: the cleaning that finds it without records gives it a delete
horizon. Source: Kafka, CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from gateway.core.partition_transactions import AbortedTransaction


class CleanedTransactions:
    """The transactions around the batch that was read last."""

    def __init__(self) -> None:
        # Producers with a batch of a committed transaction since their last marker.
        self._committed: set[int] = set()
        # The aborted transaction of each producer that has begun and whose marker was not read.
        self._aborted: dict[int, AbortedTransaction] = {}
        # The producers in `_aborted` of which a batch was read.
        self._seen: set[int] = set()
        # Aborted transactions that have not begun, by first offset.
        self._ahead: list[tuple[int, AbortedTransaction]] = []

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions that overlap the segment that is read next.

        Those that overlap several segments are added again with each.
        """
        for one in aborted:
            heappush(self._ahead, (one.first_offset, one))

    def aborted_with(self, producer_id: int, last_offset: int) -> AbortedTransaction | None:
        """Read a batch of a transaction. Return the transaction if it was aborted."""
        self._begin_up_to(last_offset)
        one = self._aborted.get(producer_id)
        if one is not None and one.last_offset < last_offset:  # its marker was dropped earlier
            del self._aborted[producer_id]
            self._seen.discard(producer_id)
            one = None
        (self._committed if one is None else self._seen).add(producer_id)
        return one

    def end(self, producer_id: int, offset: int, *, commit: bool) -> bool:
        """Read the marker at `offset`. Return True if no record of its transaction was read."""
        self._begin_up_to(offset)
        if commit:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        self._aborted.pop(producer_id, None)
        had_records = producer_id in self._seen
        self._seen.discard(producer_id)
        return not had_records

    def _begin_up_to(self, offset: int) -> None:
        ahead = self._ahead
        while ahead and ahead[0][0] <= offset:
            one = heappop(ahead)[1]
            if one.last_offset < offset:
                continue  # its marker was read
            known = self._aborted.get(one.producer_id)
            if known is None or known.last_offset < one.first_offset:
                # The marker of the one before, if there was one, was dropped earlier.
                self._aborted[one.producer_id] = one
                self._seen.discard(one.producer_id)
