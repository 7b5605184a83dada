"""The list of under-replicated ledgers: marked by auditors and operators, repaired by workers.

    mark ──▶ lock ──▶ repair ──▶ mark_replicated (with the version read after locking)
      ▲                              └── marked again meanwhile: the mark and the work stay
      └── marking again merges the lost bookies and raises the version

A lock only saves double work: it is ephemeral and may be lost at any time. Safety rests on the
compare-and-set of the ledger's metadata. The nodes are Apache BookKeeper's, except two: a note per
marked ledger (suspect bookies, and why it is not repaired) and the list of bookies being drained.
Source: BookKeeper LedgerUnderreplicationManager.
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

_REASONS_MAX = 20  # most reasons stored in a note, to keep notes small
_RUNS_MAX = 500


class UnderreplicatedLedger(NamedTuple):
    """One ledger on the list. `version` rises with each mark."""

    ledger: LedgerId
    missing: frozenset[BookieId]  # bookies whose copies are lost; may be empty
    since_ms: int | None
    version: int


@dataclass(frozen=True, slots=True)
class RepairNote:
    """Details of a marked ledger: suspect bookies, lost entries, and the last repair's outcome."""

    suspects: frozenset[BookieId] = frozenset()  # bookies whose copies are read, not only listed
    lost: EntryRanges = EMPTY  # entries that no bookie of their write set can hold
    unreadable: EntryRanges = EMPTY  # entries that no live bookie shows now; includes `lost`
    reasons: tuple[str, ...] = ()  # why the last attempt left the ledger unfinished
    at_ms: int = 0  # time of the last attempt


NO_NOTE = RepairNote()


class UnderreplicatedLedgers:
    """The list in a metadata store. Every call may raise MetadataUnavailable and can be repeated.

    `owner` names this process in its locks and must be unique among processes.
    """

    def __init__(self, store: MetadataStore, clock: Clock, owner: BookieId) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self._store

    async def prepare(self) -> None:
        """Create the parent nodes, as Apache BookKeeper does."""
        nodes = ((LAYOUT, encode_layout()), (MISSING, b""), (LOCKS, b""), (ELECTION, b""))
        for path, data in nodes:
            if not await self._store.exists(path):
                await self._create_if_missing(path, data)

    async def mark(self, ledger: LedgerId, missing: Iterable[BookieId]) -> None:
        """Mark a ledger with lost bookies. If it is marked already, add the bookies to the mark."""
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
                continue  # another process marked or repaired the ledger at the same moment
            return

    async def get(self, ledger: LedgerId) -> UnderreplicatedLedger | None:
        """Return the mark, or None. If the mark does not parse, it names no bookie."""
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
        """List every marked ledger, ascending."""
        found = map(ledger_of_node, await self._store.paths(MISSING))
        return sorted(ledger for ledger in found if ledger is not None)

    async def mark_replicated(self, mark: UnderreplicatedLedger) -> bool:
        """Delete the mark. False if the ledger was marked again since `mark` was read."""
        path = ledger_path_of(mark.ledger)
        try:
            await self._store.delete(path, mark.version)
        except BadVersion:
            return False
        except NoNode:
            pass  # another worker deleted the mark, or the reply to this worker was lost
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
        """Lock the ledger for this process, until `release` or the end of its session.

        Returns False if another process has the lock.
        """
        try:
            await self._store.create(
                lock_path(ledger), encode_lock(self._owner), ephemeral=True, parents=True
            )
        except NodeExists:
            return await self.locked_by(ledger) == self._owner
        return True

    async def release(self, ledger: LedgerId) -> None:
        """Release the lock if this process has it."""
        if await self.locked_by(ledger) == self._owner:
            try:
                await self._store.delete(lock_path(ledger))
            except NoNode:
                return

    async def locked_by(self, ledger: LedgerId) -> BookieId | None:
        """Return the owner of the ledger's lock, or None."""
        try:
            return decode_lock((await self._store.get(lock_path(ledger))).data)
        except NoNode:
            return None
        except CorruptFormat:
            return BookieId("")

    # -- disable ---------------------------------------------------------------------------------

    async def disable(self) -> None:
        """Disable marking and repair in the whole cluster, until `enable`."""
        await self._create_if_missing(DISABLED, b"")

    async def enable(self) -> None:
        """Enable marking and repair again."""
        try:
            await self._store.delete(DISABLED)
        except NoNode:
            return

    async def enabled(self) -> bool:
        """True unless repair is disabled in the cluster."""
        return not await self._store.exists(DISABLED)

    # -- notes -----------------------------------------------------------------------------------

    async def note(self, ledger: LedgerId) -> RepairNote:
        """Return the ledger's note, or `NO_NOTE`."""
        try:
            return _decode_note((await self._store.get(_note_path(ledger))).data)
        except NoNode:
            return NO_NOTE

    async def set_note(self, ledger: LedgerId, note: RepairNote) -> None:
        """Store the note, unless only its time differs from the stored one."""
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
            return  # another worker wrote the note; notes are only advice

    async def report_corrupt(self, ledger: LedgerId, bookies: Iterable[BookieId]) -> None:
        """Mark the ledger, so that workers read these bookies' copies in full."""
        known = await self.note(ledger)
        suspects = known.suspects | frozenset(bookies)
        await self.set_note(
            ledger, RepairNote(suspects, known.lost, known.unreadable, known.reasons, known.at_ms)
        )
        await self.mark(ledger, suspects)

    # -- bookies being drained ----------------------------------------------------------

    async def drain(self, bookie: BookieId) -> None:
        """Start draining the bookie: workers replace it, although its copies may still be read."""
        await self._create_if_missing(f"{DRAINING}/{bookie}", b"")

    async def end_drain(self, bookie: BookieId) -> None:
        """Stop draining the bookie."""
        try:
            await self._store.delete(f"{DRAINING}/{bookie}")
        except NoNode:
            return

    async def draining(self) -> frozenset[BookieId]:
        """List the bookies being drained."""
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
    """Parse a note. Invalid data counts as an empty note, because notes are only advice."""
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
