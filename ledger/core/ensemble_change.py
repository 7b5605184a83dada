"""Bookies that fail while a ledger is written are replaced, and nothing acknowledged is lost by it.

    a bookie fails ─▶ propose spares, hold all confirms ─▶ compare-and-set the metadata
        ─▶ committed: what the replaced ones said of pending entries is void, those entries go to
           the new ones, confirming goes on in order; bookies that failed meanwhile come next
        ─▶ no spare: the ensemble stays; writing goes on where Qa of it answer, spares are awaited

One change at a time. Three rules keep L17 (no entry counts copies that its fragment does not
name): while a change is in flight nothing is confirmed, since its outcome may stay unknown for
long; a bookie holds a *seat*, and what it says counts only while that seat is its own; what is
resent is decided by comparing ensembles place by place, after the store has said what it holds.
Pure. `client.writer` chooses the spares, talks to the store and sends.
Source: seed 001, "Writing to the ledger"; apache/bookkeeper #1591, #3005, #4097, #4459, #4651.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ledger.core.add_pipeline import AddPipeline, Pending
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.core.quorum import write_sets
from ledger.errors import Fenced, LedgerClosed
from ledger.ids import BookieId, EntryId

Item = TypeVar("Item")


class Seat:
    """One place of the ensemble while one bookie holds it; a successor gets a new seat."""

    __slots__ = ("bookie", "failed", "index", "replaced")

    def __init__(self, index: int, bookie: BookieId) -> None:
        self.index = index
        self.bookie = bookie
        self.failed = False  # it did not take an entry, and should be replaced
        self.replaced = False  # whatever is still said from here counts for nothing


class Again(NamedTuple, Generic[Item]):
    """An entry to be sent to the bookie that holds `seat` now."""

    seat: Seat
    entry: EntryId
    item: Item


@dataclass(frozen=True, slots=True)
class Proposal:
    """Entries from `first` on leave the bookies in `failed` for those in `spares`, by index."""

    first: EntryId
    failed: Mapping[int, BookieId]
    spares: Mapping[int, BookieId]

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        """What to store where `current` is stored; None when there is nothing left to replace.

        So one's own success, whose reply was lost, is no defeat; and fragments that others
        changed meanwhile are kept as they are. Raises Fenced or LedgerClosed: this writer is over.
        """
        name = f"ledger {current.ledger}"
        if current.state is LedgerState.IN_RECOVERY:
            raise Fenced(f"{name} is being recovered by a reader")
        if current.closed:
            raise LedgerClosed(f"{name} was closed at {current.last_entry}")
        if current.last_fragment.first > self.first:
            raise Fenced(f"{name} has a fragment that its writer did not make")
        ensemble = list(current.last_fragment.ensemble)
        for index, spare in self.spares.items():
            if ensemble[index] == self.failed[index] and spare not in ensemble:
                ensemble[index] = spare
        if tuple(ensemble) == current.last_fragment.ensemble:
            return None
        return current.with_ensemble(self.first, tuple(ensemble))


class EnsembleChange(Generic[Item]):
    """The seats of one open ledger's last ensemble, over the entries pending there."""

    __slots__ = ("_adds", "_pause_s", "_paused_until_s", "_seats", "metadata", "proposal", "sets")

    def __init__(
        self, metadata: LedgerMetadata, adds: AddPipeline[Item], *, pause_s: float
    ) -> None:
        """`pause_s`: so long a bookie that failed here is not chosen again."""
        self.metadata = metadata  # as last committed or read by this writer
        self.proposal: Proposal | None = None  # under way
        self.sets: tuple[tuple[Seat, ...], ...] = ()  # entry e goes to the seats sets[e % E]
        self._adds = adds
        self._pause_s = pause_s
        self._paused_until_s: dict[BookieId, float] = {}
        self._seats = [
            Seat(index, bookie) for index, bookie in enumerate(metadata.last_fragment.ensemble)
        ]
        self._arrange()

    def _arrange(self) -> None:
        sets = write_sets(self.metadata.ensemble_size, self.metadata.write_quorum)
        self.sets = tuple(tuple(self._seats[index] for index in one) for one in sets)

    @property
    def failed(self) -> list[Seat]:
        """Seats whose bookie should be replaced."""
        return [seat for seat in self._seats if seat.failed]

    def on_failed(self, seat: Seat, now_s: float) -> None:
        """The bookie at `seat` did not take an entry."""
        if not seat.replaced:
            seat.failed = True
            self._paused_until_s[seat.bookie] = now_s + self._pause_s

    def paused(self, now_s: float) -> Collection[BookieId]:
        """Bookies that failed here so lately that they are no spares."""
        self._paused_until_s = {
            bookie: until_s for bookie, until_s in self._paused_until_s.items() if until_s > now_s
        }
        return self._paused_until_s.keys()

    def propose(self, spares: Mapping[int, BookieId]) -> Proposal:
        """What to compare-and-set; until it is settled nothing is confirmed."""
        assert self.proposal is None
        assert spares
        failed = {index: self._seats[index].bookie for index in spares}
        self._adds.hold()
        self.proposal = Proposal(EntryId(self._adds.lac + 1), failed, spares)
        return self.proposal

    def on_committed(self, stored: LedgerMetadata) -> list[Again[Item]]:
        """The store holds `stored`. What to send to the bookies that are new, oldest entry first.

        Then `AddPipeline.release`: entries that leave it before are not resent.
        """
        assert self.proposal is not None
        self.proposal = None
        self.metadata = stored
        new: list[Seat] = []
        for index, bookie in enumerate(stored.last_fragment.ensemble):
            if bookie == self._seats[index].bookie:
                continue
            self._seats[index].replaced = True
            self._seats[index].failed = False
            self._seats[index] = Seat(index, bookie)
            self._adds.forget(index)
            new.append(self._seats[index])
        self._arrange()
        return self._again(new, self._adds.pending())

    def _again(self, seats: list[Seat], pending: list[Pending[Item]]) -> list[Again[Item]]:
        return [
            Again(seat, one.entry, one.item)
            for one in pending
            for seat in seats
            if seat.index in self._adds.write_set(one.entry)
        ]

    def rejoin(self, live: Collection[BookieId]) -> list[Again[Item]]:
        """Failed bookies that are `live` keep their seats: what to send to them once more.

        For want of spares. An add that they may already hold is the same add.
        """
        assert self.proposal is None
        again: list[Again[Item]] = []
        for seat in self.failed:
            if seat.bookie in live:
                seat.failed = False
                again += self._again([seat], self._adds.take_refused(seat.index))
        return sorted(again, key=lambda one: one.entry)
