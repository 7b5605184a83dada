"""Lists of a ledger's entries as ranges, read from the rows of the index, a few in each turn.

The cost of a list grows with the rows, not with the entries: an extent has up to 1,024 of them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from ledger.bookie.entry_index import EntryIndex
from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor
from ledger.ids import EntryId

_ROWS: Final = 512  # rows in one turn of the loop, which take about 2 ms

EntryRuns = tuple[tuple[EntryId, EntryId], ...]
"""First and last entry of each range, rising. No two ranges touch."""


class EntryLister:
    """The lists that callers of one bookie wait for.

    Only the newest list of a ledger reads the index: a caller that has given up asks again, and its
    older call may still be here. Older calls return the ranges of the newest one.
    """

    def __init__(self, index: EntryIndex) -> None:
        self._index = index
        # The newest list of each ledger that is being listed. Removed when the list ends.
        self._newest: dict[int, asyncio.Future[EntryRuns]] = {}

    async def runs_of(self, state: LedgerDescriptor) -> EntryRuns:
        """Return the ranges of all entries durable at the call, possibly more. Raises OSError."""
        ledger, loop = state.ledger, asyncio.get_running_loop()
        runs: asyncio.Future[EntryRuns] = loop.create_future()
        self._newest[ledger] = runs
        try:
            runs.set_result(await self._read(state, runs))
            return runs.result()
        finally:
            if self._newest.get(ledger) is runs:
                del self._newest[ledger]
            runs.cancel()  # unless it has ended: an older list then reads on

    async def _read(self, state: LedgerDescriptor, mine: asyncio.Future[EntryRuns]) -> EntryRuns:
        """Read the index, except while a newer list of the ledger does so."""
        listing = _Listing(self._index, state)
        while not listing.complete:
            await asyncio.sleep(0)
            newest = self._newest.setdefault(state.ledger, mine)
            if newest is mine:
                listing.read_some()
                continue
            await asyncio.wait([newest])
            if not newest.cancelled():
                return newest.result()
        return tuple(listing.runs)


class _Listing:
    """One list, from the first row to the last."""

    def __init__(self, index: EntryIndex, state: LedgerDescriptor) -> None:
        self._index = index
        self._ledger = state.ledger
        # Ranges of the durable entries that the index did not have when the list began, rising.
        # Removed once `runs` has them. Entries only move from memory to the index, so a list
        # that begins with those in memory misses none.
        held = sorted(entry for entry, it in state.recent.items() if type(it) is EntryLocation)
        self._held: list[tuple[EntryId, EntryId]] = []
        _extend(self._held, ((entry, entry) for entry in held))
        # The ranges found so far. Only the last one still grows.
        self.runs: list[tuple[EntryId, EntryId]] = []
        # The entry from which on rows are read.
        self._next = 0
        # True once no row is left.
        self.complete = False

    def read_some(self) -> None:
        """Read the next rows. Raises OSError."""
        spans: list[tuple[int, int]] = self._index.spans(self._ledger, self._next, _ROWS)
        if spans:
            self._next = spans[-1][1] + 1
            at = bisect_left(self._held, self._next, key=itemgetter(0))
            spans += self._held[:at]
            spans.sort()
            del self._held[:at]
        else:
            self.complete = True
            spans += self._held
        _extend(self.runs, spans)


def _extend(runs: list[tuple[EntryId, EntryId]], spans: Iterable[tuple[int, int]]) -> None:
    """Add spans, which rise by their first id and may overlap or touch the last range."""
    for first, last in spans:
        if runs and first <= runs[-1][1] + 1:
            before = runs[-1]
            if last > before[1]:
                runs[-1] = before[0], EntryId(last)
        else:
            runs.append((EntryId(first), EntryId(last)))
