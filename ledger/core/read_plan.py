"""Which bookie to ask for an entry, which next, and what may be concluded when none has it.

Pure. Source: BookKeeper, "Reading" and `PendingReadOp.java`; evidence: seed 001, "Fencing".
"""

from __future__ import annotations

from collections.abc import Collection

from ledger.core.quorum import coverage_size, write_set
from ledger.ids import BookieId, EntryId


def read_order(
    bookies: tuple[BookieId, ...],
    *,
    suspects: Collection[BookieId] = (),
    near: Collection[BookieId] = (),
    last_good: BookieId | None = None,
) -> tuple[BookieId, ...]:
    """Sound before suspect, then near before far, then the one that answered well just before,
    then as the write quorum has them."""

    def rank(bookie: BookieId) -> tuple[bool, bool, bool]:
        return bookie in suspects, bookie not in near, bookie != last_good

    return tuple(sorted(bookies, key=rank))


def tail_order(
    ensemble: tuple[BookieId, ...], write_quorum: int, wanted: EntryId
) -> tuple[BookieId, ...]:
    """Who can show entry `wanted` as soon as it is confirmed: first those that hold it and also
    the next one, which says so; then those that hold the next one, then all others."""
    size = len(ensemble)
    holds = write_set(wanted, size, write_quorum)
    learns = write_set(EntryId(wanted + 1), size, write_quorum)
    order = sorted(range(size), key=lambda index: (index not in learns, index not in holds))
    return tuple(ensemble[index] for index in order)


class ReadPlan:
    """The bookies of one write set, each asked once, and what those said that have no entry."""

    __slots__ = ("_bookies", "_needed", "_next", "_noes")

    def __init__(self, bookies: tuple[BookieId, ...], ack_quorum: int) -> None:
        """`bookies` are asked in this order."""
        self._bookies = bookies
        self._next = 0
        self._needed = coverage_size(len(bookies), ack_quorum)
        self._noes = 0

    def next(self) -> BookieId | None:
        """The bookie to ask now; None when all have been asked."""
        if self._next == len(self._bookies):
            return None
        self._next += 1
        return self._bookies[self._next - 1]

    def on_absent(self) -> None:
        """A bookie says that it does not have the entry (NO_ENTRY, NO_LEDGER)."""
        self._noes += 1

    @property
    def absent(self) -> bool:
        """So many said no that the entry cannot have been acknowledged there.

        Any other failure than an explicit no counts for nothing. One who has the entry is right
        all the same, so this is asked once nobody is left.
        """
        return self._noes >= self._needed
