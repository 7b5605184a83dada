"""Find an entry of a segment by bisection, from the last record of each entry that is read.

Pure. Positions and transaction ids never decrease within a segment, and control records repeat
those of the last user record. Lost entries are stepped over: the neighbours are asked instead.
Source: DistributedLog, "Reading from a transaction id" (seed 000, D26).
"""

from __future__ import annotations

from itertools import chain

from ledger.ids import EntryId


class EntrySearch:
    """The search for the first entry that reaches a target.

    Of n entries it asks for at most ceil(log2(n + 1)), and for lost entries besides.
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
        hint = self._hint
        if hint is not None and self._low <= hint < self._high:
            return EntryId(hint)
        middle = (self._low + self._high) // 2
        for at in chain(range(middle, self._high), range(middle - 1, self._low - 1, -1)):
            if at not in self._lost:
                return EntryId(at)
        return None

    @property
    def result(self) -> EntryId:
        """The first entry that reaches the target; or lost entries before it may do."""
        return EntryId(self._low)

    def on_read(self, entry: EntryId, reached: bool) -> None:
        """Note whether the last record of `entry` is at or past the target."""
        self._hint = None
        if reached:
            self._high = entry
        else:
            self._low = entry + 1

    def on_lost(self, entry: EntryId) -> None:
        """Note that `entry` cannot be read."""
        self._hint = None
        self._lost.add(entry)
