"""The list of ledgers that lack copies: marked by auditors and people, worked off by repairers.

    mark ──▶ lock ──▶ repair ──▶ done (with the version seen at locking) ──▶ the mark is gone
      ▲                              └── a new mark came meanwhile: it stays, and so does the work
      └── marking again merges the lost bookies and raises the version

A lock only saves double work: it is ephemeral and may be lost at any time; what is safe rests on
the compare-and-set of the ledger's metadata. Beside Apache BookKeeper's nodes, which are written
as it writes them, there are two of our own: a note per marked ledger (what is suspect, what
cannot be mended and why) and the list of bookies that are being emptied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from ledger.errors import BadVersion, CorruptFormat, NodeExists, NoNode, NotEmpty
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.clock import Clock
from ledger.ports.metadata import ANY_VERSION, MetadataStore
from ledger.registry.layout import UNDERREPLICATION
from ledger.registry.underreplication_format import (
    DISABLED,
    ELECTION,
    LAYOUT,
    LOCKS,
    MISSING,
    decode_lock,
    decode_missing,
    encode_layout,
    encode_lock,
    encode_missing,
    ledger_of_node,
    ledger_path_of,
    lock_path,
)
from ledger.repair.entry_ranges import EMPTY, EntryRanges, merged

NOTES = f"{UNDERREPLICATION}/notes"
DRAINING = f"{UNDERREPLICATION}/draining"

_REASONS_MAX = 20  # a note stays small, whatever is wrong
_RUNS_MAX = 500


class UnderreplicatedLedger(NamedTuple):
    """A ledger lacks copies. `version` rises with every mark."""

    ledger: LedgerId
    missing: frozenset[BookieId]  # whose copies are lost; empty: see the ledger itself
    since_ms: int | None
    version: int


@dataclass(frozen=True, slots=True)
class RepairNote:
    """What is known of a marked ledger beyond the mark."""

    suspects: frozenset[BookieId] = frozenset()  # their copies are to be read, not only listed
    lost: EntryRanges = EMPTY  # no live bookie has these entries, and enough deny them
    unreadable: EntryRanges = (
        EMPTY  # no live bookie shows these entries now (hopeless ones included)
    )
    reasons: tuple[str, ...] = ()  # why it could not be mended at the last attempt
    at_ms: int = 0  # when that was


NO_NOTE = RepairNote()


class UnderreplicatedLedgers:
    """The list in a metadata store. Every call may raise MetadataUnavailable: call again.

    `owner` names this process in its locks; no other process may use the same name.
    """

    def __init__(self, store: MetadataStore, clock: Clock, owner: BookieId) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner

    @property
    def store(self) -> MetadataStore:
        return self._store

    async def prepare(self) -> None:
        """The nodes that everything else is made below exist, as Apache BookKeeper makes them."""
        nodes = ((LAYOUT, encode_layout()), (MISSING, b""), (LOCKS, b""), (ELECTION, b""))
        for path, data in nodes:
            if not await self._store.exists(path):
                await self._create_if_missing(path, data)

    async def mark(self, ledger: LedgerId, missing: Iterable[BookieId]) -> None:
        """The ledger is on the list with these bookies among the lost; its version has risen."""
        path = ledger_path_of(ledger)
        lost = frozenset(missing)
        while True:
            known = await self.get(ledger)
            try:
                if known is None:
                    data = encode_missing(tuple(sorted(lost)), self._clock.now_ms())
                    await self._store.create(path, data, parents=True)
                else:
                    both = tuple(sorted(lost | known.missing))
                    data = encode_missing(both, known.since_ms)
                    await self._store.set(path, data, known.version)
            except (NodeExists, BadVersion, NoNode):
                continue  # somebody marked or finished it in the same moment: look again
            return

    async def get(self, ledger: LedgerId) -> UnderreplicatedLedger | None:
        """The mark, or None. One that does not parse names no bookie."""
        try:
            node = await self._store.get(ledger_path_of(ledger))
        except NoNode:
            return None
        try:
            missing, since_ms = decode_missing(node.data)
        except CorruptFormat:
            missing, since_ms = (), None
        return UnderreplicatedLedger(
            ledger, frozenset(map(BookieId, missing)), since_ms, node.version
        )

    async def ledgers(self) -> list[LedgerId]:
        """Every marked ledger, rising."""
        found = map(ledger_of_node, await self._store.paths(MISSING))
        return sorted(ledger for ledger in found if ledger is not None)

    async def done(self, mark: UnderreplicatedLedger) -> bool:
        """The mark is gone; False when the ledger was marked again since `mark` was read."""
        path = ledger_path_of(mark.ledger)
        try:
            await self._store.delete(path, mark.version)
        except BadVersion:
            return False
        except NoNode:
            pass  # our own delete, whose reply was lost, or a rival's: gone all the same
        await self.set_note(mark.ledger, NO_NOTE)
        await self._remove_empty_parents(path)
        return True

    async def _remove_empty_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        try:
            while parent != MISSING:
                await self._store.delete(parent)
                parent = parent.rpartition("/")[0]
        except (NotEmpty, NoNode):
            return

    # -- locks -----------------------------------------------------------------------------------

    async def lock(self, ledger: LedgerId) -> bool:
        """This process works on the ledger until `release` or its session's end.

        False: another one does.
        """
        try:
            await self._store.create(
                lock_path(ledger), encode_lock(self._owner), ephemeral=True, parents=True
            )
        except NodeExists:
            return await self.locked_by(ledger) == self._owner
        return True

    async def release(self, ledger: LedgerId) -> None:
        """This process does not hold the lock."""
        if await self.locked_by(ledger) == self._owner:
            try:
                await self._store.delete(lock_path(ledger))
            except NoNode:
                return

    async def locked_by(self, ledger: LedgerId) -> BookieId | None:
        """Who works on the ledger now."""
        try:
            return decode_lock((await self._store.get(lock_path(ledger))).data)
        except NoNode:
            return None
        except CorruptFormat:
            return BookieId("")

    # -- the switch ------------------------------------------------------------------------------

    async def disable(self) -> None:
        """Nobody marks or mends anything until `enable`, in the whole cluster."""
        await self._create_if_missing(DISABLED, b"")

    async def enable(self) -> None:
        """Auditor and workers go on."""
        try:
            await self._store.delete(DISABLED)
        except NoNode:
            return

    async def enabled(self) -> bool:
        return not await self._store.exists(DISABLED)

    # -- notes -----------------------------------------------------------------------------------

    async def note(self, ledger: LedgerId) -> RepairNote:
        """What was written down of the ledger, `NO_NOTE` if nothing."""
        try:
            return _decode_note((await self._store.get(_note_path(ledger))).data)
        except NoNode:
            return NO_NOTE

    async def set_note(self, ledger: LedgerId, note: RepairNote) -> None:
        """The note says this; nothing is written when it says it already, but for the time."""
        known = await self.note(ledger)
        if _without_time(known) == _without_time(note):
            return
        path = _note_path(ledger)
        try:
            if note == NO_NOTE:
                await self._store.delete(path)
            elif known == NO_NOTE:
                await self._store.create(path, _encode_note(note), parents=True)
            else:
                await self._store.set(path, _encode_note(note), ANY_VERSION)
        except (NodeExists, NoNode):
            return  # a rival writes the same note: it is advice, and is written again

    async def report_corrupt(self, ledger: LedgerId, bookies: Iterable[BookieId]) -> None:
        """The ledger is marked, and these bookies' copies will be read through."""
        known = await self.note(ledger)
        suspects = known.suspects | frozenset(bookies)
        await self.set_note(
            ledger, RepairNote(suspects, known.lost, known.unreadable, known.reasons, known.at_ms)
        )
        await self.mark(ledger, suspects)

    # -- bookies that are being emptied ----------------------------------------------------------

    async def drain(self, bookie: BookieId) -> None:
        """Repairers take the bookie for lost, though what it holds may still be read."""
        await self._create_if_missing(f"{DRAINING}/{bookie}", b"")

    async def end_drain(self, bookie: BookieId) -> None:
        try:
            await self._store.delete(f"{DRAINING}/{bookie}")
        except NoNode:
            return

    async def draining(self) -> frozenset[BookieId]:
        """Bookies that are being emptied."""
        try:
            return frozenset(map(BookieId, await self._store.children(DRAINING)))
        except NoNode:
            return frozenset()

    async def _create_if_missing(self, path: str, data: bytes) -> None:
        try:
            await self._store.create(path, data, parents=True)
        except NodeExists:
            return


def _note_path(ledger: LedgerId) -> str:
    return f"{NOTES}/{lock_path(ledger).rpartition('/')[2]}"


def _without_time(note: RepairNote) -> tuple[object, ...]:
    return note.suspects, note.lost, note.unreadable, note.reasons


def _encode_note(note: RepairNote) -> bytes:
    fields = {
        "suspects": sorted(note.suspects),
        "hopeless": note.lost[:_RUNS_MAX],
        "unshown": note.unreadable[:_RUNS_MAX],
        "reasons": note.reasons[:_REASONS_MAX],
        "at_ms": note.at_ms,
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _decode_note(data: bytes) -> RepairNote:
    """Only advice: one that does not parse says nothing."""
    try:
        fields = cast("dict[str, Any]", json.loads(data))
        return RepairNote(
            suspects=frozenset(map(BookieId, fields["suspects"])),
            lost=_runs(fields["hopeless"]),
            unreadable=_runs(fields["unshown"]),
            reasons=tuple(map(str, fields["reasons"])),
            at_ms=int(fields["at_ms"]),
        )
    except (ValueError, KeyError, TypeError):
        return NO_NOTE


def _runs(pairs: Iterable[tuple[int, int]]) -> EntryRanges:
    return merged((EntryId(first), EntryId(last)) for first, last in pairs)
