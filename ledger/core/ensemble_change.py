"""Replacing bookies that fail while a ledger is written, without losing an acknowledged entry.

    a bookie fails ─▶ propose spares, hold all confirms ─▶ compare-and-set the metadata
        ─▶ stored: acknowledgements of the replaced bookies are void for pending entries, which
           are sent to the new bookies; confirming goes on in order
        ─▶ no spare: the ensemble stays; writing goes on while Qa members of a write set answer

One change runs at a time. Three rules keep L17 (an entry never counts a copy on a bookie that its
fragment does not name):
- While a change is in flight, no entry is confirmed: the change may stay undecided for long.
- An acknowledgement belongs to an `EnsembleSlot`, and is ignored once the slot is replaced.
- The entries to send again follow from comparing the stored ensemble with the slots, index by
  index, and not from the proposal.
Pure. `core.ledger_writing` decides when to change the ensemble.
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


class EnsembleSlot:
    """One index of the ensemble while one bookie holds it. A new bookie gets a new slot."""

    __slots__ = ("bookie", "failed", "index", "replaced")

    def __init__(self, index: int, bookie: BookieId) -> None:
        self.index = index
        self.bookie = bookie
        # True if the bookie did not take an entry and should be replaced. Cleared by
        # `retry_failed`.
        self.failed = False
        # True once another bookie has the index, never reset. Answers to adds of this slot are
        # ignored.
        self.replaced = False


class Resend(NamedTuple, Generic[Item]):
    """The effect to send a pending entry to the bookie in `slot`."""

    slot: EnsembleSlot
    entry: EntryId
    item: Item


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of the ensemble from entry `first` on: `spares` replace `failed`, both by index."""

    first: EntryId
    failed: Mapping[int, BookieId]
    spares: Mapping[int, BookieId]

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        """Return the metadata to store in place of `current`, or None if nothing is to be replaced.

        After a lost reply, `current` already has this change; None then counts as a success.
        Fragments that other clients changed meanwhile stay as they are. Raises Fenced or
        LedgerClosed if this writer has lost the ledger.
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
    """The slots of an open ledger's last ensemble, and the change of it that is in flight."""

    __slots__ = ("_adds", "_pause_s", "_paused_until_s", "_slots", "metadata", "proposal", "sets")

    def __init__(
        self, metadata: LedgerMetadata, adds: AddPipeline[Item], *, pause_s: float
    ) -> None:
        """A bookie that fails here is not chosen again for `pause_s` seconds."""
        # The metadata as this writer last read or stored them. The last ensemble names the bookies
        # of `_slots`.
        self.metadata = metadata
        # The change in flight, or None. While it is set, `_adds` is held and confirms nothing.
        self.proposal: Proposal | None = None
        # Entry e goes to the slots sets[e % E]. Rebuilt from `_slots` after each change.
        self.sets: tuple[tuple[EnsembleSlot, ...], ...] = ()
        self._adds = adds
        self._pause_s = pause_s
        # For each failed bookie, the time until which it is no spare. `paused` drops expired ones.
        self._paused_until_s: dict[BookieId, float] = {}
        # The E current slots by index; none is `replaced`. A stored change installs new slots.
        self._slots = [
            EnsembleSlot(index, bookie)
            for index, bookie in enumerate(metadata.last_fragment.ensemble)
        ]
        self._arrange()

    def _arrange(self) -> None:
        sets = write_sets(self.metadata.ensemble_size, self.metadata.write_quorum)
        self.sets = tuple(tuple(self._slots[index] for index in one) for one in sets)

    @property
    def failed(self) -> list[EnsembleSlot]:
        """Slots whose bookie should be replaced."""
        return [slot for slot in self._slots if slot.failed]

    def on_failed(self, slot: EnsembleSlot, now_s: float) -> None:
        """Note that the bookie in `slot` did not take an entry."""
        if not slot.replaced:
            slot.failed = True
            self._paused_until_s[slot.bookie] = now_s + self._pause_s

    def paused(self, now_s: float) -> Collection[BookieId]:
        """Return the bookies that failed here less than `pause_s` seconds ago: no spares."""
        self._paused_until_s = {
            bookie: until_s for bookie, until_s in self._paused_until_s.items() if until_s > now_s
        }
        return self._paused_until_s.keys()

    def propose(self, spares: Mapping[int, BookieId]) -> Proposal:
        """Return the change to compare-and-set, and hold all confirms until it is settled."""
        assert self.proposal is None
        assert spares
        failed = {index: self._slots[index].bookie for index in spares}
        self._adds.hold()
        self.proposal = Proposal(EntryId(self._adds.lac + 1), failed, spares)
        return self.proposal

    def on_committed(self, stored: LedgerMetadata) -> list[Resend[Item]]:
        """Adopt `stored`, and return the entries to resend to the new bookies, oldest first.

        Call `AddPipeline.release` only afterwards, because the entries that it confirms are no
        longer pending and would not be resent.
        """
        assert self.proposal is not None
        self.proposal = None
        self.metadata = stored
        new: list[EnsembleSlot] = []
        for index, bookie in enumerate(stored.last_fragment.ensemble):
            if bookie == self._slots[index].bookie:
                continue
            self._slots[index].replaced = True
            self._slots[index].failed = False
            self._slots[index] = EnsembleSlot(index, bookie)
            self._adds.forget(index)
            new.append(self._slots[index])
        self._arrange()
        return self._resends(new, self._adds.pending())

    def _resends(
        self, slots: list[EnsembleSlot], pending: list[Pending[Item]]
    ) -> list[Resend[Item]]:
        return [
            Resend(slot, one.entry, one.item)
            for one in pending
            for slot in slots
            if slot.index in self._adds.write_set(one.entry)
        ]

    def retry_failed(self, live: Collection[BookieId]) -> list[Resend[Item]]:
        """Keep failed bookies that are `live`, and return the refused entries to send to them.

        Used when there are no spares. A bookie that already holds such an entry accepts it again.
        """
        assert self.proposal is None
        resends: list[Resend[Item]] = []
        for slot in self.failed:
            if slot.bookie in live:
                slot.failed = False
                resends += self._resends([slot], self._adds.take_refused(slot.index))
        return sorted(resends, key=lambda one: one.entry)
