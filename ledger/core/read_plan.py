"""The order in which a reader asks bookies for an entry, and the answers that it received.

Pure. Source: BookKeeper, "Reading" and `PendingReadOp.java`; evidence: seed 001, "Fencing".
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from ledger.core.loss import CopyAnswer, CopyState, Verdict, judge, state_of
from ledger.core.quorum import write_set
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


class Lateness:
    """What one request to several bookies says of those that have not answered."""

    __slots__ = ("_found_s", "_over_at_s")

    def __init__(self, over_at_s: float = inf) -> None:
        """The request is given up at `over_at_s`."""
        self._over_at_s = over_at_s
        # How long the bookie took that had what was asked for, None before that.
        self._found_s: float | None = None

    def on_found(self, seconds: float) -> None:
        """Record that a bookie returned what was asked for after this time."""
        self._found_s = seconds

    def is_late(self, asked_at_s: float, now_s: float, late_s: float) -> bool:
        """Return whether a bookie that has not answered failed.

        It did if it had more time than `late_s` and than the bookie that had the answer, or until
        the request is given up. Who cancels it earlier knows nothing about the bookie.
        """
        if now_s >= self._over_at_s:
            return now_s - asked_at_s >= late_s
        return self._found_s is not None and now_s - asked_at_s > max(late_s, self._found_s)


class ReadPlan(Lateness):
    """One read of a write set: the next bookie to ask, and the answers so far."""

    __slots__ = ("_ack_quorum", "_answers", "_next", "bookies")

    def __init__(
        self, bookies: tuple[BookieId, ...], ack_quorum: int, over_at_s: float = inf
    ) -> None:
        """`bookies` are asked in this order, each once. The read is given up at `over_at_s`."""
        super().__init__(over_at_s)
        self.bookies = bookies
        self._ack_quorum = ack_quorum
        # The index in `bookies` to ask next, which only rises.
        self._next = 0
        # The answer of each bookie about the first entry. A bookie without one is unknown.
        self._answers: dict[BookieId, CopyAnswer] = {}

    def next(self) -> BookieId | None:
        """Return the bookie to ask now, or None if all have been asked."""
        if self._next == len(self.bookies):
            return None
        self._next += 1
        return self.bookies[self._next - 1]

    def on_answer(self, bookie: BookieId, answer: CopyAnswer) -> None:
        """Record what the bookie said about the first entry of the read."""
        self._answers[bookie] = answer

    @property
    def copies(self) -> tuple[CopyState, ...]:
        """Return what is known of each bookie's copy."""
        unknown = CopyAnswer.UNKNOWN
        return tuple(state_of(each, self._answers.get(each, unknown)) for each in self.bookies)

    @property
    def verdict(self) -> Verdict:
        """Return what the answers prove, if the entry was acknowledged."""
        return judge(self.copies, self._ack_quorum)
