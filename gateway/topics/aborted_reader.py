"""Finds the aborted transactions that overlap the records of a read_committed fetch.

Those of the segment in progress and of the one before are in memory. Each older list is in the head
snapshot of the next segment. It is read once, and the newest ones are kept. If that head is lost,
the list is rebuilt from the segment itself. A cleaned segment has its own list, in its footer: it
names no transaction whose marker the cleaner dropped.
Source: Kafka, UnifiedLog.addAbortedTransactions and LocalLog.collectAbortedTransactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.core.aborted_lists import AbortedLists, SegmentAborted, overlapping_in_order
from gateway.core.partition_transactions import AbortedTransaction
from gateway.topics.partition_state import aborted_before, aborted_of_footer
from gateway.topics.rebuilt_lists import ListRebuilder, RebuiltLog
from ledger.errors import LedgerError
from ledger.streams.accepted_losses import EntryLost


class _Newest(Protocol):
    @property
    def aborted(self) -> Sequence[AbortedTransaction]: ...


class KnownTransactions(Protocol):
    """The newest transactions of a log: those of its owner, or those that a replica follows."""

    @property
    def since(self) -> int:
        """The list of `transactions` has all that were aborted from this offset on."""
        ...

    @property
    def before(self) -> SegmentAborted:
        """The list of the segment before."""
        ...

    @property
    def transactions(self) -> _Newest: ...


class StoredStates(RebuiltLog, Protocol):
    """The states that the heads of segments store: those of a `Stream`, or of a reader of it."""

    def cleaned_at(self, sequence_id: int) -> bool:
        """Return whether the segment with `sequence_id` was cleaned."""
        ...

    async def aborted_in(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the bounds of the segment with `sequence_id` and the list in its footer.

        Returns None if it was not cleaned. Raises LedgerError.
        """
        ...

    async def state_behind(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the bounds of the segment with `sequence_id` and the owner's state at its end.

        Returns None if no later segment has entries. Raises EntryLost if that state is lost, and
        other LedgerErrors.
        """
        ...


class AbortedReader:
    """The aborted transactions of one partition, in memory and on disk."""

    __slots__ = ("_lists", "_rebuilder", "_rewrites", "_state", "_stream")

    def __init__(
        self,
        state: KnownTransactions,
        stream: StoredStates,
        permits: asyncio.Semaphore | None = None,
    ) -> None:
        """`permits` bounds the lists that the process rebuilds at the same time."""
        self._rebuilder = ListRebuilder(stream, permits)
        self._state = state
        self._stream = stream
        # Lists of older segments. They change only if the segment is cleaned.
        self._lists = AbortedLists()
        # The count of rewrites of the stream for which `_lists` are right.
        self._rewrites: int = 0

    def cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return those that overlap the offsets from `start` up to `end`, below the stable offset.

        Returns None if a list has to be read.
        """
        found: list[AbortedTransaction] = []
        at = self._collect(start, end, found)
        return _each_once(found) if at is None else None

    async def read(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return them as `cached` does, from disk where they are not in memory.

        Raises LedgerError.
        """
        found: list[AbortedTransaction] = []
        rewrites = self._stream.rewrites
        at = self._collect(start, end, found)
        while at is not None:
            try:
                one = await self._list_of(at)
            except LedgerError:
                if rewrites == self._stream.rewrites:
                    raise
                one = None
            if rewrites != self._stream.rewrites:
                return await self.read(start, end)
            if one is None:  # the newest segment with entries
                found += overlapping_in_order(self._state.transactions.aborted, at, end)
                break
            self._lists.add(one)
            at = self._collect(at, end, found)
        return _each_once(found)

    async def _list_of(self, offset: int) -> SegmentAborted | None:
        """Read the list of the segment with `offset`, None if no later segment has entries."""
        footer = await self._stream.aborted_in(offset)
        if footer is not None:
            return aborted_of_footer(*footer)
        try:
            behind = await self._stream.state_behind(offset)
        except EntryLost as error:
            return await self._rebuilder.rebuild(offset, error)
        if behind is None:
            return None
        first, end_offset, state = behind
        one = aborted_before(state, end_offset)
        return one._replace(first_offset=min(one.first_offset, first), end_offset=end_offset)

    def _collect(self, at: int, end: int, found: list[AbortedTransaction]) -> int | None:
        """Add to `found` from the lists in memory, from that of the segment with `at` on.

        Markers below `at` are not looked for: a list may reach back over one that was read before.
        Returns an offset whose list must be read first, or None if `found` is complete.
        """
        state, rewrites = self._state, self._stream.rewrites
        if rewrites != self._rewrites:
            self._lists, self._rewrites = AbortedLists(), rewrites
        while at < state.since:
            before = state.before
            known = before.covers(at) and not self._stream.cleaned_at(at)
            one = before if known else self._lists.covering(at)
            if one is None:
                return at
            found += overlapping_in_order(one.aborted, at, end)
            if one.stable_offset >= end:
                return None
            at = one.end_offset
        found += overlapping_in_order(state.transactions.aborted, at, end)
        return None


def _each_once(found: list[AbortedTransaction]) -> list[AbortedTransaction]:
    """Return each transaction once, which the list of each of its segments may name.

    For each name librdkafka waits for one more abort marker, and drops what comes before it.
    """
    if len(found) < 2:
        return found
    return list({(one.producer_id, one.last_offset): one for one in reversed(found)}.values())[::-1]
