"""Entries sent and not yet confirmed: who acknowledged what, and what is confirmed or lost.

    add ──▶ on_added × Qa ──▶ Confirmed, in entry order
        └─▶ on_failed until Qa is out of reach ──▶ that entry and all after it fail, in order

While bookies are being replaced (`hold` to `release`) nothing is confirmed, and what the replaced
ones said is forgotten: see `core.ensemble_change`. Pure. `client.writer` sends the bytes and brings
the news; it keeps what it needs for a confirm or a resend in `item`. Bookies are named by their
index in the ensemble.
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
    """One entry on its way. `acked` and `refused` are bit sets of ensemble indexes."""

    __slots__ = ("acked", "entry", "item", "length", "refused")

    def __init__(self, entry: EntryId, length: int, item: Item) -> None:
        self.entry = entry
        self.length = length
        self.item = item
        self.acked = 0
        self.refused = 0


class AddPipeline(Generic[Item]):
    """Invariant: entries lac+1 .. lap are pending, oldest first, or failed and taken out."""

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
        self.lap = last_confirmed  # last add pushed
        self.next_entry = EntryId(last_confirmed + 1)
        self.lac = last_confirmed  # last add confirmed
        self.length = 0  # payload bytes of the entries added here, 0..lap for a writer
        self.lac_length = 0  # the same up to lac
        self._sets = write_sets(ensemble_size, write_quorum)
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._pending: deque[Pending[Item]] = deque()
        self._held = False
        self._failed_from: EntryId | None = None
        self._error: LedgerError | None = None

    @property
    def full(self) -> bool:
        """No room for another entry now. A single entry always fits, whatever its size."""
        return bool(self._pending) and (
            len(self._pending) >= self._entries_max
            or self.length - self.lac_length >= self._bytes_max
        )

    @property
    def empty(self) -> bool:
        """Every entry that was added is confirmed, or failed and taken out."""
        return not self._pending

    @property
    def error(self) -> LedgerError | None:
        """Why no further entry is taken; entries before the failed one may still be confirmed."""
        return self._error

    def write_set(self, entry: EntryId) -> tuple[int, ...]:
        """Ensemble indexes that `entry` goes to."""
        return self._sets[entry % self.ensemble_size]

    def add(self, size: int, item: Item) -> EntryId:
        """Accept one entry of `size` payload bytes; ids rise by one in call order."""
        assert self._error is None
        entry = self.lap = self.next_entry
        self.next_entry = EntryId(entry + 1)
        self.length += size
        self._pending.append(Pending(entry, self.length, item))
        return entry

    def on_added(self, index: int, entry: EntryId) -> list[Item]:
        """The bookie at `index` has `entry` durably. Items now confirmed, in entry order.

        Late, repeated and unexpected news is normal and changes nothing.
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
        """Nothing is confirmed until `release`: where pending entries belong is being decided."""
        self._held = True

    def release(self) -> list[Item]:
        """Confirming goes on. Items confirmed by now, in entry order."""
        self._held = False
        return self._confirm()

    def on_failed(self, index: int, entry: EntryId, error: LedgerError) -> None:
        """The bookie at `index` will not acknowledge `entry`, and nobody takes its place.

        Once Qa is out of reach, `entry` and all after it fail with `error`: see `take_failed`.
        """
        if self.on_refused(index, entry):
            self._fail(entry, error)

    def on_refused(self, index: int, entry: EntryId) -> bool:
        """The bookie at `index` will not acknowledge `entry`, but another may take its place.

        True: without another, `entry` cannot be confirmed.
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
        """Some entry can be confirmed only after a bookie was replaced."""
        return any(map(self._is_out_of_reach, self._pending))

    def fail_out_of_reach(self, error: LedgerError) -> None:
        """Nobody takes the place of those who refused: the first entry that needs it fails."""
        for one in self._pending:
            if self._is_out_of_reach(one):
                self._fail(one.entry, error)
                return

    def fail(self, error: LedgerError) -> None:
        """Every pending entry fails with `error`, whoever may still acknowledge it."""
        self._fail(EntryId(self.lac + 1), error)

    def _fail(self, entry: EntryId, error: LedgerError) -> None:
        if self._failed_from is None or entry < self._failed_from:
            self._failed_from = entry
        if self._error is None:
            self._error = error

    def take_failed(self) -> list[Item]:
        """Items that failed, in entry order, each once; none while an older entry may succeed."""
        if self._failed_from != self.lac + 1:
            return []
        failed = [one.item for one in self._pending]
        self._pending.clear()
        return failed

    def pending(self) -> list[Pending[Item]]:
        """What is on its way, oldest first: for sending again to a replaced bookie."""
        return list(self._pending)

    def forget(self, index: int) -> None:
        """The bookie at `index` was replaced: what the old one said of pending entries is void."""
        keep = ~(1 << index)
        for one in self._pending:
            one.acked &= keep
            one.refused &= keep

    def take_refused(self, index: int) -> list[Pending[Item]]:
        """What the bookie at `index` had refused is asked of it again: these entries."""
        bit = 1 << index
        refused = [one for one in self._pending if one.refused & bit]
        for one in refused:
            one.refused &= ~bit
        return refused
