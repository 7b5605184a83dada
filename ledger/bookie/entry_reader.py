"""Reads of entries that are durable or queued in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.bookie.answer_room import Share
from ledger.bookie.entry_lister import EntryLister
from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor, QueuedRecord
from ledger.bookie.read_ahead import ReadAhead
from ledger.bookie.storage import BookieStorage
from ledger.core.extents import Extent
from ledger.errors import CorruptFormat
from ledger.ids import Buffer, EntryId, LedgerId
from ledger.ports.bookies import (
    EntriesReply,
    LocateReply,
    ReadManyReply,
    ReadReply,
    Status,
)


class EntryReader:
    """The reader of one bookie. It reports an entry as missing only if that is certain."""

    def __init__(self, storage: BookieStorage) -> None:
        self._index = storage.index
        self._files = storage.files
        self._journal = storage.journal
        self._config = storage.config
        self._written = storage.write_cache
        self._lister = EntryLister(storage.index)
        self._ahead = ReadAhead(storage.files, storage.journal, storage.config.read_ahead_bytes)

    async def read(self, ledger: LedgerId, entry: EntryId, room: Share = None) -> ReadReply:
        """Read one entry, or the highest entry accepted before the call if `entry` is -1.

        Its bytes are taken from `room` first. OVERLOADED if there is none. In limbo the highest
        entry is unknown: a recovery that took an older one for it would begin below the LAC.
        Source: BookKeeper, `SingleDirectoryDbLedgerStorage.getLastEntry`.
        """
        try:
            state = self._index.state(ledger)
            if state is None or state.deleted or (entry < 0 and self._in_limbo(ledger, state)):
                return ReadReply(self._absent_status(ledger, state))
            wanted = EntryId(entry if entry >= 0 else state.last_entry)
            location: EntryLocation | None = None
            size = self._written.measure(ledger, wanted, wanted, 0)
            if not size:
                location = await self._locate(state, wanted)
                if location is None:
                    return ReadReply(self._absent_status(ledger, state))
                size = location.length
            if room is not None and not await room.take(size):
                return ReadReply(Status.OVERLOADED)
            body = await self._read_body(state, wanted, location)
            if body is None or state.deleted:
                return ReadReply(self._absent_status(ledger, state))
            return ReadReply(Status.OK, body, EntryId(state.lac))
        except (OSError, CorruptFormat):
            return ReadReply(Status.IO_ERROR)

    async def _read_body(
        self, state: LedgerDescriptor, entry: EntryId, location: EntryLocation | None
    ) -> bytes | None:
        """Read an entry at its location. Without one, it was in memory before the room was taken.

        Returns None if it is gone from there and from the index. Raises OSError, CorruptFormat.
        """
        ledger = state.ledger
        if location is None:
            cached = self._written.find(ledger, entry, entry, 0)
            if cached:
                return bytes(cached[0])
            location = await self._locate(state, entry)
            if location is None:
                return None
        try:
            return await self._files.read_entry(ledger, entry, location)
        except FileNotFoundError:
            location = await self._relocated(state, entry, location)
            return await self._files.read_entry(ledger, entry, location)

    async def read_many(
        self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: int,
        room: Share = None,
        *,
        from_disk: bool = False,
    ) -> ReadManyReply:
        """Read durable, consecutive entries. Waits only if `first` is not durable yet, or for room.

        Their bytes are taken from `room` first. OVERLOADED if there is none. With `from_disk` they
        are those of the log files, whatever memory has.
        """
        if first < 0 or last < first:
            return ReadManyReply(Status.BAD_REQUEST)
        try:
            state = self._index.state(ledger)
            if state is None or state.deleted:
                return ReadManyReply(self._absent_status(ledger, state))
            bound = min(max_bytes, self._config.read_bytes_max)
            size = 0 if from_disk else self._written.measure(ledger, first, last, bound)
            if not size:
                return await self._read_files(state, first, last, bound, room, not from_disk)
            # A read that waits for room keeps no message in memory: bodies are taken behind it.
            if room is not None and not await room.take(size):
                return ReadManyReply(Status.OVERLOADED)
            cached = self._written.find(ledger, first, last, size)
            if not cached:  # evicted meanwhile; the bytes are taken
                return await self._read_files(state, first, last, size, None, True)
            return self._found(state, cached)
        except (OSError, CorruptFormat):
            return ReadManyReply(Status.IO_ERROR)

    async def _read_files(
        self,
        state: LedgerDescriptor,
        first: EntryId,
        last: EntryId,
        max_bytes: int,
        room: Share,
        ahead: bool,
    ) -> ReadManyReply:
        """Read as `read_many`, from the log files; `ahead` tells the disk what may follow."""
        ledger = LedgerId(state.ledger)
        locations = self._locations(state, first, last, max_bytes)
        if not locations:
            location = await self._locate(state, first)
            if location is None:
                return ReadManyReply(self._absent_status(ledger, state))
            locations = self._locations(state, first, last, max_bytes)
        if room is not None and not await room.take(sum([at.length for at in locations])):
            return ReadManyReply(Status.OVERLOADED)
        try:
            if ahead:
                self._ahead.on_read(ledger, first, locations)
            bodies = await self._files.read_entries(ledger, first, locations)
        except FileNotFoundError:
            await self._relocated(state, first, locations[0])
            locations = self._locations(state, first, last, max_bytes)
            bodies = await self._files.read_entries(ledger, first, locations)
        return self._found(state, bodies)

    def _found(self, state: LedgerDescriptor, bodies: Sequence[Buffer]) -> ReadManyReply:
        """Return the entries, unless their ledger was deleted while the read waited."""
        if state.deleted:
            return ReadManyReply(Status.NO_LEDGER)
        return ReadManyReply(Status.OK, bodies, EntryId(state.lac))

    def read_lac(self, ledger: LedgerId) -> ReadReply:
        """Return the highest LAC that is durable here."""
        try:
            state = self._index.state(ledger)
        except OSError:
            return ReadReply(Status.IO_ERROR)
        if state is None or state.deleted or self._in_limbo(ledger, state):
            return ReadReply(self._absent_status(ledger, state))
        return ReadReply(Status.OK, lac=EntryId(state.lac))

    async def list_entries(self, ledger: LedgerId) -> EntriesReply:
        """Implement `Bookies.list_entries`: all entries durable at the call, possibly more."""
        try:
            state = self._index.state(ledger)
            if state is None or state.deleted or self._in_limbo(ledger, state):
                return EntriesReply(self._absent_status(ledger, state))
            runs = await self._lister.runs_of(state)
        except OSError:
            return EntriesReply(Status.IO_ERROR)
        return EntriesReply(Status.NO_LEDGER) if state.deleted else EntriesReply(Status.OK, runs)

    async def locate(self, ledger: LedgerId, entry: EntryId) -> LocateReply:
        """Implement `Bookies.locate`: no place is returned that the log file does not confirm.

        Compaction and repairs move entries, so a place that is not confirmed is looked up again.
        """
        if entry < 0:
            return LocateReply(Status.BAD_REQUEST)
        try:
            state = self._index.state(ledger)
            if state is None or state.deleted:
                return LocateReply(self._absent_status(ledger, state))
            location = await self._locate(state, entry)
            while location is not None and not await self._files.holds(ledger, entry, location):
                stale, location = location, await self._locate(state, entry)
                if location == stale:
                    return LocateReply(Status.IO_ERROR)
            if location is None or state.deleted:
                return LocateReply(self._absent_status(ledger, state))
            return LocateReply(Status.OK, *location)
        except OSError:
            return LocateReply(Status.IO_ERROR)

    async def _locate(self, state: LedgerDescriptor, entry: int) -> EntryLocation | None:
        """Return the entry's location, once it is durable. Raises OSError if its add failed."""
        found = self._index.find(state, entry)
        if not isinstance(found, QueuedRecord):
            return found
        await self._journal.settled()
        settled = self._index.find(state, entry)
        if isinstance(settled, EntryLocation):
            return settled
        raise OSError("the add on its way failed")

    async def _relocated(
        self, state: LedgerDescriptor, entry: int, gone: EntryLocation | Extent
    ) -> EntryLocation:
        """Return the entry's location after its file was compacted.

        Raises OSError if the location has not changed, because the file is then missing.
        """
        location = await self._locate(state, entry)
        if location is None or location[:2] == (gone.file_id, gone.position):
            raise OSError(f"log file {gone.file_id} is missing")
        return location

    def _locations(
        self, state: LedgerDescriptor, first: int, last: int, max_bytes: int
    ) -> list[Extent]:
        """Return places of durable entries from `first` on, within the byte limits.

        If `first` is durable, its place is returned even above the limits.
        """
        return self._index.extents(state, first, last, max_bytes)

    def _absent_status(self, ledger: int, state: LedgerDescriptor | None) -> Status:
        """Return the status for an entry or ledger that was not found."""
        if self._journal.failed is not None:
            return Status.IO_ERROR
        if state is not None and state.deleted:
            return Status.NO_LEDGER
        if self._in_limbo(ledger, state):
            return Status.UNKNOWN_LEDGER_STATE
        return Status.NO_LEDGER if state is None else Status.NO_ENTRY

    def _in_limbo(self, ledger: int, state: LedgerDescriptor | None) -> bool:
        return state.limbo if state is not None else ledger < self._index.limbo_below
