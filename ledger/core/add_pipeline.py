"""Entries that were sent and are not yet confirmed, and when each is confirmed or fails.

    add ──▶ on_added × Qa ──▶ confirmed, in entry order
        └─▶ on_failed until Qa is out of reach ──▶ that entry and all after it fail, in order

While bookies are being replaced (`hold` to `release`), nothing is confirmed, and acknowledgements
of replaced bookies are forgotten: see `core.ensemble_change`. Bookies are named by their index in
the ensemble. Pure. `client.writer` sends the entries; `item` is all that it needs for a resend and
for reporting the outcome.
Source: BookKeeper, "Ack Quorums" and "Writing to the ledger" (seed 001).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from ledger.core.quorum import write_sets
from ledger.errors import LedgerError
from ledger.ids import NO_ENTRY, EntryId

Item = TypeVar("Item")


class Pending(Generic[Item]):
    """One entry that is neither confirmed nor failed."""

    __slots__ = ("acked", "entry", "item", "length", "refused")

    def __init__(self, entry: EntryId, length: int, item: Item) -> None:
        self.entry = entry
        # Payload bytes of all entries up to this one.
        self.length = length
        self.item = item
        # Bit sets of the ensemble indexes whose bookies acknowledged or refused the entry. Bits of
        # replaced bookies are cleared.
        self.acked = 0
        self.refused = 0


class AddPipeline(Generic[Item]):
    """The pending entries of a ledger, lac+1 .. lap; none once failed entries are taken."""

    __slots__ = (
        "_bytes_max",
        "_entries_max",
        "_error",
        "_failed_from",
        "_held",
        "_pending",
        "_sets",
        "ack_quorum",
        "ensemble_size",
        "lac",
        "lac_length",
        "lap",
        "length",
        "next_entry",
        "write_quorum",
    )

    def __init__(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        entries_max: int,
        bytes_max: int,
        last_confirmed: EntryId = NO_ENTRY,
    ) -> None:
        assert ensemble_size >= write_quorum >= ack_quorum >= 1
        assert entries_max >= 1
        self.ensemble_size = ensemble_size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        # Last add pushed: rises by one with each entry. `next_entry` is always lap + 1.
        self.lap = last_confirmed
        self.next_entry = EntryId(last_confirmed + 1)
        # Last add confirmed: this entry and all before it are on Qa bookies. The LAC never falls,
        # never passes `lap`, and stays below the first failed entry.
        self.lac = last_confirmed
        # Payload bytes of the entries added here: `length` up to `lap`, `lac_length` up to `lac`.
        self.length = 0
        self.lac_length = 0
        self._sets = write_sets(ensemble_size, write_quorum)
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        # Entries lac+1 .. lap. Empty once the failed entries were taken.
        self._pending: deque[Pending[Item]] = deque()
        # True from `hold` to `release`, while an ensemble change is in flight. Nothing is
        # confirmed.
        self._held = False
        # The first failed entry, or None. All later entries fail too. Only an older entry replaces
        # it.
        self._failed_from: EntryId | None = None
        # The first failure, set together with `_failed_from` and kept for good.
        self._error: LedgerError | None = None

    @property
    def full(self) -> bool:
        """True if there is no room for another entry. A single entry always fits."""
        return bool(self._pending) and (
            len(self._pending) >= self._entries_max
            or self.length - self.lac_length >= self._bytes_max
        )

    @property
    def empty(self) -> bool:
        """True if every added entry is confirmed, or failed and taken."""
        return not self._pending

    @property
    def error(self) -> LedgerError | None:
        """The first failure, or None.

        After a failure no entry is accepted, but older entries may still be confirmed.
        """
        return self._error

    def write_set(self, entry: EntryId) -> tuple[int, ...]:
        """Return the ensemble indexes that `entry` is written to."""
        return self._sets[entry % self.ensemble_size]

    def add(self, size: int, item: Item) -> EntryId:
        """Accept an entry of `size` payload bytes, and return its id: `next_entry`."""
        assert self._error is None
        entry = self.lap = self.next_entry
        self.next_entry = EntryId(entry + 1)
        self.length += size
        self._pending.append(Pending(entry, self.length, item))
        return entry

    def on_added(self, index: int, entry: EntryId) -> list[Item]:
        """Count an acknowledgement, and return the items now confirmed, in entry order.

        The bookie at `index` has `entry` durably. Late and repeated answers are normal, and
        change nothing.
        """
        place = entry - self.lac - 1
        pending = self._pending
        if place < 0 or place >= len(pending):
            return []
        one = pending[place]
        one.acked |= 1 << index
        if place or (self.ack_quorum > 1 and one.acked.bit_count() < self.ack_quorum):
            return []
        return self._confirm()

    def _confirm(self) -> list[Item]:
        confirmed: list[Item] = []
        if self._held:
            return confirmed
        pending = self._pending
        ack_quorum = self.ack_quorum
        while pending and pending[0].acked.bit_count() >= ack_quorum:
            if pending[0].entry == self._failed_from:
                break
            one = pending.popleft()
            self.lac = one.entry
            self.lac_length = one.length
            confirmed.append(one.item)
        return confirmed

    def hold(self) -> None:
        """Confirm nothing until `release`: the bookies of pending entries may change."""
        self._held = True

    def release(self) -> list[Item]:
        """End the hold, and return the items confirmed by now, in entry order."""
        self._held = False
        return self._confirm()

    def on_failed(self, index: int, entry: EntryId, error: LedgerError) -> None:
        """Count a refusal by the bookie at `index`, which is not replaced.

        Once Qa is out of reach, `entry` and all after it fail with `error`: see `take_failed`.
        """
        if self.on_refused(index, entry):
            self._fail(entry, error)

    def on_refused(self, index: int, entry: EntryId) -> bool:
        """Count a refusal by the bookie at `index`, which may be replaced.

        Returns True if only a replacement can still confirm `entry`.
        """
        place = entry - self.lac - 1
        if place < 0 or place >= len(self._pending):
            return False
        one = self._pending[place]
        one.refused |= 1 << index
        return self._is_out_of_reach(one)

    def _is_out_of_reach(self, one: Pending[Item]) -> bool:
        if self.write_quorum - one.refused.bit_count() >= self.ack_quorum:
            return False
        return one.acked.bit_count() < self.ack_quorum

    @property
    def out_of_reach(self) -> bool:
        """True if some entry can be confirmed only after a bookie is replaced."""
        return any(map(self._is_out_of_reach, self._pending))

    def fail_out_of_reach(self, error: LedgerError) -> None:
        """Fail the first entry that needs a replacement bookie, and all later entries."""
        for one in self._pending:
            if self._is_out_of_reach(one):
                self._fail(one.entry, error)
                return

    def fail(self, error: LedgerError) -> None:
        """Fail every pending entry with `error`, even those that have acknowledgements."""
        self._fail(EntryId(self.lac + 1), error)

    def _fail(self, entry: EntryId, error: LedgerError) -> None:
        if self._failed_from is None or entry < self._failed_from:
            self._failed_from = entry
        if self._error is None:
            self._error = error

    def take_failed(self) -> list[Item]:
        """Return the failed items once, in entry order. Empty while an older entry may succeed."""
        if self._failed_from != self.lac + 1:
            return []
        failed = [one.item for one in self._pending]
        self._pending.clear()
        return failed

    def pending(self) -> list[Pending[Item]]:
        """Return all pending entries, oldest first, so that a new bookie can get its share."""
        return list(self._pending)

    def forget(self, index: int) -> None:
        """Void all answers of the replaced bookie at `index` for pending entries."""
        keep = ~(1 << index)
        for one in self._pending:
            one.acked &= keep
            one.refused &= keep

    def take_refused(self, index: int) -> list[Pending[Item]]:
        """Return the entries that the bookie at `index` refused, and clear its refusals.

        The caller sends these entries to the bookie again.
        """
        bit = 1 << index
        refused = [one for one in self._pending if one.refused & bit]
        for one in refused:
            one.refused &= ~bit
        return refused
