"""Find an entry of a segment by bisection, from the records of the entries that are read.

Pure. Positions and transaction ids never decrease within a segment, and control records repeat
those of the last user record. Lost entries are stepped over: first their neighbours are asked, then
the ends of their run are bisected, so that a long run costs few reads.
Source: DistributedLog, "Reading from a transaction id" (seed 000, D26).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.records import LogRecord
from ledger.ids import EntryId

LOST_MAX = 64
"""Lost entries that one search asks for. Each costs a request to all of its bookies."""

AWAITED_MAX = 2
"""The same for entries whose bookies do not answer, because each may take seconds."""

Unreadable = EntryLost | EntryAwaited


class EntrySearch:
    """The search for the first entry that reaches a target.

    Of n entries it asks for at most ceil(log2(n + 1)), and for up to `LOST_MAX` lost ones besides.
    """

    __slots__ = ("_high", "_hint", "_lost", "_low")

    def __init__(self, low: int, high: int, hint: int | None = None) -> None:
        """Search from `low` up to `high`, which is the result if no entry before it matches.

        `hint` is asked first.
        """
        assert 0 <= low <= high
        # The result is at least `_low` and at most `_high`. The two only approach each other.
        self._low = low
        self._high = high
        self._hint = hint
        self._lost: set[int] = set()

    @property
    def wanted(self) -> EntryId | None:
        """The entry to read now, or None once the search has ended."""
        hint, low, high = self._hint, self._low, self._high
        if hint is not None and low <= hint < high:
            return EntryId(hint)
        if low == high or len(self._lost) >= LOST_MAX:
            return None
        lost = sorted(at for at in self._lost if low <= at < high)
        return EntryId((low + high) // 2) if not lost else _beside(lost, low, high)

    @property
    def result(self) -> EntryId:
        """The first entry that reaches the target; or lost entries before it may do."""
        return EntryId(self._low)

    @property
    def behind(self) -> EntryId:
        """The first readable entry that reaches the target, or the end of the searched entries."""
        return EntryId(self._high)

    def on_read(self, entry: EntryId, reached: bool) -> None:
        """Note whether the last record of `entry` is at or past the target."""
        self._hint = None
        if reached:
            self._high = entry
        else:
            self._low = entry + 1

    def on_found(self, entry: EntryId) -> None:
        """Note that `entry` has the target, so that no other one is asked for."""
        self._hint = None
        self._low = self._high = entry

    def on_lost(self, entry: EntryId) -> None:
        """Note that `entry` cannot be read."""
        self._hint = None
        self._lost.add(entry)


def _beside(lost: list[int], low: int, high: int) -> EntryId | None:
    """Return the entry to ask for beside `lost` ones in `low` to `high` - 1, None if all are lost.

    First the neighbours of a single one. Then both ends of the run of lost entries are bisected, as
    if it were one run. Last come the entries in between, those of the widest gap first.
    """
    first, last = lost[0], lost[-1]
    if first == last and last + 1 < high:
        return EntryId(last + 1)
    if first == last and low < first:
        return EntryId(first - 1)
    if low < first:
        return EntryId((low + first) // 2)
    if last + 1 < high:
        return EntryId((last + 1 + high) // 2)
    width, before = max(((after - at, at) for at, after in pairwise(lost)), default=(0, 0))
    return EntryId(before + width // 2) if width > 1 else None


class Place(NamedTuple):
    """Where a record of a segment is."""

    entry: EntryId  # the entry that holds it, or the first readable one behind it
    sequence_id: int | None  # the first one in or behind `entry`; None if no entry was readable
    error: Unreadable | None  # None if `entry` holds it; otherwise why it cannot be read


class PlaceSearch:
    """The search for the entry that holds a sequence id, where entries may be lost."""

    __slots__ = ("_awaited", "_behind", "_errors", "_found", "_search", "_start", "_target")

    def __init__(
        self,
        low: int,
        high: int,
        *,
        start_sequence_id: int,
        sequence_id: int,
        error: Unreadable | None = None,
    ) -> None:
        """Search entries `low` to `high` - 1 of the segment that begins at `start_sequence_id`.

        With `error`, entry `low` - 1 was asked for already. Its neighbour is then asked first.
        """
        self._search = EntrySearch(low, max(low, high), low if error is not None else None)
        self._start = start_sequence_id
        self._target = sequence_id
        # Why entries cannot be read, by entry.
        self._errors: dict[int, Unreadable] = {} if error is None else {low - 1: error}
        self._awaited = 0  # entries asked for in vain whose bookies do not answer
        # The first sequence id of the entry that was found, None before.
        self._found: int | None = None
        # The first sequence id in or behind the first readable entry behind the target.
        self._behind: int | None = None

    @property
    def wanted(self) -> EntryId | None:
        """The entry to read now, or None once the search has ended."""
        return None if self._awaited > AWAITED_MAX else self._search.wanted

    def on_records(self, entry: EntryId, records: Sequence[LogRecord]) -> None:
        """Pass the first and the last record of `entry`, or none if it holds none."""
        if not records:
            self._search.on_lost(entry)
            return
        first, last = records[0], records[-1]
        begin = self._start + first.position - (0 if first.control else 1)
        end = self._start + last.position + max(last.records - 1, 0)
        if begin <= self._target < end:
            self._found = begin
            self._search.on_found(entry)
            return
        reached = begin > self._target
        if reached:
            self._behind = begin
        self._search.on_read(entry, reached)

    def on_error(self, entry: EntryId, error: Unreadable) -> None:
        """Note that `entry` cannot be read."""
        self._errors[entry] = error
        self._awaited += isinstance(error, EntryAwaited)
        self._search.on_lost(entry)

    @property
    def place(self) -> Place:
        """The result, once the search has ended.

        It has no error also if no unreadable entry can hold the target: then nothing holds it.
        """
        search = self._search
        if self._found is not None:
            return Place(search.result, self._found, None)
        held = [at for at in sorted(self._errors) if search.result - 1 <= at < search.behind]
        errors = [self._errors[at] for at in held]
        awaited = [error for error in errors if isinstance(error, EntryAwaited)]
        error = next(iter([*awaited, *errors]), None)
        return Place(search.behind, self._behind, error)
