"""Decide from the answers of its bookies whether a confirmed entry is lost.

    answers and statuses of the write set ─▶ DELIVER │ a proof of loss │ a reason to wait

Pure. An entry at or below the LAC, or of a closed ledger, was acknowledged. A sound copy always
wins. The entry is lost only if no bookie of its write set may still hold it. Everything else waits:
silence, errors and wrong digests prove nothing.
Source: seed 002, "Data Loss" and "Authoritative status"; LogDevice, `FailureDomainNodeSet::
isFmajority` and `ClientReadStream::checkFMajority` with `requireFullReadSet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from ledger.errors import EntryUnknown, NoSuchEntry
from ledger.ids import BookieId, EntryId, LedgerId


class CopyAnswer(Enum):
    """The answer of a bookie to a request for its copy of an entry.

    Only an explicit answer to a request for this entry counts. A batch that ended before the entry
    and a tail answer with a lower LAC say nothing about it: they are `UNKNOWN`.
    """

    HELD = "held"  # a copy with a valid digest
    DENIED = "denied"  # the bookie never had the entry, and lost nothing of the ledger
    LOST = "lost"  # the bookie lacks the entry, and may have lost entries of the ledger (limbo)
    EMPTY = "empty"  # the bookie's copies were moved to other bookies
    DAMAGED = "damaged"  # a copy with a wrong digest
    UNKNOWN = "unknown"  # no answer, an error, or an answer without a meaning here


class AuthoritativeStatus(IntEnum):
    """How much the denials of a bookie are worth. The numbers are LogDevice's.

    Source: LogDevice, `AuthoritativeStatus.h`.
    """

    FULLY_AUTHORITATIVE = 0  # lost nothing
    UNDERREPLICATION = 1  # lost entries for certain, or was given up by an operator
    AUTHORITATIVE_EMPTY = 2  # holds nothing, because its entries were moved to other bookies
    UNAVAILABLE = 3  # does not answer, and may return with its entries


class CopyState(NamedTuple):
    """What is known of one bookie's copy of an entry."""

    bookie: BookieId
    answer: CopyAnswer
    status: AuthoritativeStatus

    @property
    def gone(self) -> bool:
        """Return whether this bookie cannot hold the entry any more."""
        if self.answer in (CopyAnswer.DENIED, CopyAnswer.LOST, CopyAnswer.EMPTY):
            return True
        return self.answer is not CopyAnswer.HELD and self.status in (
            AuthoritativeStatus.UNDERREPLICATION,
            AuthoritativeStatus.AUTHORITATIVE_EMPTY,
        )

    @property
    def denies(self) -> bool:
        """Return whether this answer counts as a denial of a bookie that lost nothing."""
        return self.answer is CopyAnswer.DENIED and self.status in (
            AuthoritativeStatus.FULLY_AUTHORITATIVE,
            AuthoritativeStatus.UNAVAILABLE,
        )


class Verdict(Enum):
    """The outcome for one entry. The last four are LogDevice's `FmajorityResult`."""

    DELIVER = "deliver"  # a sound copy was read
    COMPLETE = "complete"  # lost: every bookie answered, and enough of them lost nothing
    NON_AUTHORITATIVE = "non-authoritative"  # lost: every bookie answered, too few denials count
    INCOMPLETE = "incomplete"  # wait: enough denials, but a bookie may still hold the entry
    NONE = "none"  # wait: too few answers

    @property
    def lost(self) -> bool:
        """Return whether the loss of the entry is proved."""
        return self in (Verdict.COMPLETE, Verdict.NON_AUTHORITATIVE)


class EntryLost(NoSuchEntry):
    """No bookie of the entry's write set can hold it any more. `copies` is the evidence."""

    def __init__(
        self, what: str, ledger: LedgerId, entry: EntryId, copies: tuple[CopyState, ...]
    ) -> None:
        super().__init__(what)
        self.ledger = ledger
        self.entry = entry
        self.copies = copies

    def __reduce__(self) -> tuple[type[EntryLost], tuple[object, ...]]:
        """Pickle all arguments: jobs raise this error in processes of their own."""
        return type(self), (str(self), self.ledger, self.entry, self.copies)


class EntryAwaited(EntryUnknown):
    """No replica can be read now, and the loss is not proved. `bookies` may hold the entry."""

    def __init__(self, what: str, bookies: tuple[BookieId, ...] = ()) -> None:
        super().__init__(what)
        self.bookies = bookies


def judge(copies: Sequence[CopyState], ack_quorum: int) -> Verdict:
    """Judge an acknowledged entry by the states of its whole write set, one for each bookie.

    The write set must be that of the metadata as read after the last answer, because repair moves
    entries. Bookies whose copies were moved elsewhere do not count as members.
    """
    assert copies
    if any(copy.answer is CopyAnswer.HELD for copy in copies):
        return Verdict.DELIVER
    members = sum(not _is_empty(copy) for copy in copies)
    needed = max(0, members - ack_quorum + 1)
    enough = sum(copy.denies for copy in copies) >= needed
    if all(copy.gone for copy in copies):
        return Verdict.COMPLETE if enough else Verdict.NON_AUTHORITATIVE
    return Verdict.INCOMPLETE if enough else Verdict.NONE


def state_of(bookie: BookieId, answer: CopyAnswer) -> CopyState:
    """Return the state of a bookie that only its own answer tells about.

    A bookie that answers is trusted. One that does not may return with the entry, however long it
    has been away.
    """
    return CopyState(bookie, answer, _STATUS_OF.get(answer, AuthoritativeStatus.UNAVAILABLE))


def waited_for(copies: Sequence[CopyState]) -> tuple[BookieId, ...]:
    """Return the bookies that may still hold the entry."""
    return tuple(copy.bookie for copy in copies if not copy.gone)


def _is_empty(copy: CopyState) -> bool:
    return copy.answer is CopyAnswer.EMPTY or copy.status is AuthoritativeStatus.AUTHORITATIVE_EMPTY


_STATUS_OF = {
    CopyAnswer.HELD: AuthoritativeStatus.FULLY_AUTHORITATIVE,
    CopyAnswer.DENIED: AuthoritativeStatus.FULLY_AUTHORITATIVE,
    CopyAnswer.DAMAGED: AuthoritativeStatus.FULLY_AUTHORITATIVE,
    CopyAnswer.LOST: AuthoritativeStatus.UNDERREPLICATION,
    CopyAnswer.EMPTY: AuthoritativeStatus.AUTHORITATIVE_EMPTY,
}
