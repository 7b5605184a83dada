"""Finds the aborted transactions that overlap the records of a read_committed fetch.

Those of the segment in progress and of the one before are in memory. Each older list is in the head
snapshot of the next segment. It is read once, and the newest ones are kept.
Source: Kafka, UnifiedLog.addAbortedTransactions and LocalLog.collectAbortedTransactions.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.aborted_lists import AbortedLists, overlapping
from gateway.core.partition_transactions import AbortedTransaction
from gateway.topics.partition_state import PartitionState, aborted_before


class StoredStates(Protocol):
    """The states of the stream that its heads store: those of a `Stream`, or of a reader of it."""

    async def state_behind(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the bounds of the segment with `sequence_id` and the owner's state at its end.

        Returns None if no later segment has entries. Raises LedgerError.
        """
        ...


class AbortedReader:
    """The aborted transactions of one partition, in memory and on disk."""

    __slots__ = ("_lists", "_state", "_stream")

    def __init__(self, state: PartitionState, stream: StoredStates) -> None:
        self._state = state
        self._stream = stream
        # Lists of older segments, which never change.
        self._lists = AbortedLists()

    def cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return those that overlap the offsets from `start` up to `end`, below the stable offset.

        Returns None if a list has to be read.
        """
        found: list[AbortedTransaction] = []
        at = self._collect(start, start, end, found)
        return found if at is None else None

    async def read(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return them as `cached` does, from disk where they are not in memory.

        Raises LedgerError.
        """
        found: list[AbortedTransaction] = []
        at = self._collect(start, start, end, found)
        while at is not None:
            behind = await self._stream.state_behind(at)
            if behind is None:  # the newest segment with entries
                found += overlapping(self._state.transactions.aborted, start, end)
                return found
            first, end_offset, state = behind
            one = aborted_before(state, end_offset)
            one = one._replace(first_offset=min(one.first_offset, first), end_offset=end_offset)
            self._lists.add(one)
            at = self._collect(at, start, end, found)
        return found

    def _collect(
        self, at: int, start: int, end: int, found: list[AbortedTransaction]
    ) -> int | None:
        """Add to `found` from the lists in memory, from that of the segment with `at` on.

        Returns an offset whose list must be read first, or None if `found` is complete.
        """
        state = self._state
        while at < state.since:
            before = state.before
            one = before if before.covers(at) else self._lists.covering(at)
            if one is None:
                return at
            found += overlapping(one.aborted, start, end)
            if one.stable_offset >= end:
                return None
            at = one.end_offset
        found += overlapping(state.transactions.aborted, start, end)
        return None
