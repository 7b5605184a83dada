"""Which bookie to ask for an entry, which next, and what may be concluded when none has it.

Pure. Source: BookKeeper, "Reading" and `PendingReadOp.java`; evidence: seed 001, "Fencing".
"""

from __future__ import annotations

from enum import Enum

from ledger.core.quorum import coverage_size
from ledger.ids import BookieId


class Absence(Enum):
    """What the answers so far allow to say of an entry that nobody has shown."""

    UNDECIDED = "ask the next bookie"
    NO_SUCH_ENTRY = "so many said no that it cannot have been acknowledged"
    UNKNOWN = "not enough said no, and nobody is left to ask"


class ReadPlan:
    """The order in which the bookies of one write set are asked, one after another."""

    __slots__ = ("_left", "_needed", "_noes")

    def __init__(
        self, bookies: tuple[BookieId, ...], ack_quorum: int, last_good: BookieId | None
    ) -> None:
        """`last_good` answered well just before: it is asked first when it is in the write set."""
        self._left = list(reversed(bookies))
        self._needed = coverage_size(len(bookies), ack_quorum)
        self._noes = 0
        if last_good is not None and last_good in bookies:
            self._left.remove(last_good)
            self._left.append(last_good)

    def next(self) -> BookieId | None:
        """The bookie to ask now; None when all have been asked."""
        return self._left.pop() if self._left else None

    def on_absent(self) -> None:
        """The bookie just asked says that it does not have the entry (NO_ENTRY, NO_LEDGER)."""
        self._noes += 1

    @property
    def absence(self) -> Absence:
        """Any other failure than an explicit no counts for nothing."""
        if self._noes >= self._needed:
            return Absence.NO_SUCH_ENTRY
        return Absence.UNDECIDED if self._left else Absence.UNKNOWN
