"""The records of a bounded read in order, with the accepted losses between them.

    entries ─▶ runs without lost entries, which are read
    records ─▶ losses and records, each offset once and in order

Pure. The entries of an accepted loss are not read, and records at its offsets are not delivered,
even if a copy turned up again: all readers must see one log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ledger.core.accepted_losses import LostRange
from ledger.errors import CorruptFormat
from ledger.ids import EntryId


class EntryRun(NamedTuple):
    """Consecutive entries, both ends inclusive."""

    first: EntryId
    last: EntryId


class SliceOrder:
    """The progress of a read of offsets `first` to `end` - 1, all of one segment."""

    def __init__(self, stream: str, first: int, end: int) -> None:
        # The offset that follows all that was passed. Never decreases.
        self.following = first
        # The accepted losses of the segment, in order. One that is known stays, although truncation
        # removes it from the stored list.
        self.losses: tuple[LostRange, ...] = ()
        # The index of the first loss that is not passed.
        self._next = 0
        self._stream = stream
        self._first = first
        self._end = end

    def learn(self, losses: Iterable[LostRange]) -> None:
        """Add the accepted losses of the segment."""
        known = {each.first: each for each in (*self.losses, *losses)}
        self.losses = tuple(known[entry] for entry in sorted(known))
        self._next = 0

    def is_lost(self, entry: EntryId) -> bool:
        return any(each.first <= entry <= each.last for each in self.losses)

    def next_run(self, entry: EntryId, last: EntryId) -> EntryRun | None:
        """Return the first run of entries from `entry` to `last` that are to be read, or None."""
        for each in self.losses:
            if each.last < entry:
                continue
            if each.first > entry:
                last = min(last, EntryId(each.first - 1))
                break
            entry = EntryId(each.last + 1)
        return EntryRun(entry, last) if entry <= last else None

    def before(self, sequence_id: int) -> list[LostRange]:
        """Pass the losses that begin at or before `sequence_id`, and return them."""
        passed: list[LostRange] = []
        while self._next < len(self.losses):
            lost = self.losses[self._next]
            first, last = lost.offsets.first, lost.offsets.last
            if first <= last and last >= self.following:
                if first > min(sequence_id, self.following):
                    break
                passed.append(lost)
                self.following = last + 1
            self._next += 1
        return passed

    def take(self, sequence_id: int, end_sequence_id: int) -> bool:
        """Pass a record, after `before`. Returns False if its offsets are lost.

        Raises CorruptFormat if an offset before it is missing, or was passed.
        """
        following = self.following
        if end_sequence_id <= following and self.loss_at(sequence_id) is not None:
            return False
        inside = sequence_id < self._first < end_sequence_id
        if sequence_id != following and not (following == self._first and inside):
            raise CorruptFormat(f"{self._stream}: expected record {following}, read {sequence_id}")
        self.following = end_sequence_id
        return True

    def rest(self) -> list[LostRange]:
        """Pass the losses up to the end of the slice, and return them."""
        return self.before(self._end - 1)

    @property
    def complete(self) -> bool:
        """True if every offset of the slice was passed."""
        return self.following >= self._end

    def loss_at(self, sequence_id: int) -> LostRange | None:
        """Return the accepted loss that holds `sequence_id`, or None."""
        for each in self.losses:
            if each.offsets.first <= sequence_id <= each.offsets.last:
                return each
        return None
