"""The order in which a reader asks bookies for an entry, and when the entry counts as absent.

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
    """Return healthy bookies before suspects, near ones before far ones, then `last_good`.

    `last_good` answered the read before. Apart from that, the order of `bookies` is kept.
    """

    def rank(bookie: BookieId) -> tuple[bool, bool, bool]:
        return bookie in suspects, bookie not in near, bookie != last_good

    return tuple(sorted(bookies, key=rank))


def tail_order(
    ensemble: tuple[BookieId, ...], write_quorum: int, wanted: EntryId
) -> tuple[BookieId, ...]:
    """Return `ensemble`, sorted by how early a bookie can show that entry `wanted` is confirmed.

    The next entry carries that LAC. First come bookies that hold both entries, then those that
    hold only the next one, then all others.
    """
    size = len(ensemble)
    holds = write_set(wanted, size, write_quorum)
    learns = write_set(EntryId(wanted + 1), size, write_quorum)
    order = sorted(range(size), key=lambda index: (index not in learns, index not in holds))
    return tuple(ensemble[index] for index in order)


class ReadPlan:
    """One read of a write set: the next bookie to ask, and the count of negative answers."""

    __slots__ = ("_absent_count", "_bookies", "_needed", "_next")

    def __init__(self, bookies: tuple[BookieId, ...], ack_quorum: int) -> None:
        """`bookies` are asked in this order, each once."""
        self._bookies = bookies
        # The index in `_bookies` to ask next, which only rises.
        self._next = 0
        # After Qw - Qa + 1 negative answers, fewer than Qa bookies can still hold the entry.
        self._needed = coverage_size(len(bookies), ack_quorum)
        # The count of bookies that answered "no such entry". The count only rises.
        self._absent_count = 0

    def next(self) -> BookieId | None:
        """Return the bookie to ask now, or None if all have been asked."""
        if self._next == len(self._bookies):
            return None
        self._next += 1
        return self._bookies[self._next - 1]

    def on_absent(self) -> None:
        """Count a bookie that does not have the entry (NO_ENTRY, NO_LEDGER)."""
        self._absent_count += 1

    @property
    def absent(self) -> bool:
        """True if enough bookies lack the entry that it cannot have been acknowledged.

        Only explicit negative answers count, no other failure. Check it only after every bookie
        was asked: one that has the entry outweighs all negative answers.
        """
        return self._absent_count >= self._needed
