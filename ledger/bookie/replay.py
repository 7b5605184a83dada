"""Replay the log into the index at the start of a bookie, and detect corruption."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from ledger.bookie.directory import note_lost_sync
from ledger.bookie.entry_index import EntryIndex
from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor
from ledger.bookie.sync_file import sync_file
from ledger.core.journal_format import (
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    CorruptRange,
    FileEnd,
    JournalGroup,
    JournalRecord,
    LogPosition,
    RecordType,
    check_end,
    check_file_header,
    file_name,
    parse_file_name,
    records_of,
    salt_of,
    scan_file,
)
from ledger.errors import CorruptFormat
from ledger.ports.disk import Disk, LogFile

LIMBO_BODY: Final = Struct(">q")
LIMBO_NEW: Final = 1  # bookie-wide LIMBO record: this start detected a loss
# Bookie-wide LIMBO record of an earlier loss; repaired ledgers stay repaired
LIMBO_KNOWN: Final = 2
LIMBO_FENCED: Final = 3  # bookie-wide LIMBO record that fences ledgers without limbo
_LAC: Final = Struct(">q")
_LAC_AT: Final = 16


class ReplayResult(NamedTuple):
    """The result of a replay."""

    next_file_id: int
    end: LogPosition  # end of the log, durable up to here
    groups: int
    corrupt: tuple[CorruptRange, ...]  # ranges where durable bytes are lost
    incomplete: bool = False  # True if the index was new and log files are missing
    new_index: bool = False

    @property
    def index_lost(self) -> bool:
        """True if the index is new, and the log does not begin with the bookie's first start.

        For a bookie that served before, entries may then be lost.
        """
        return self.new_index and (self.incomplete or self.next_file_id == 1)


class LogReplay:
    """One pass over the log, from the replay mark to its end. Used once."""

    def __init__(self, disk: Disk, index: EntryIndex, instance: bytes) -> None:
        self._disk = disk
        self._index = index
        self._instance = instance
        self._salt = salt_of(instance)
        # The highest durable position that any group or the replay mark claims, by file.
        self._durable_claims: dict[int, LogPosition] = {}
        # The end of each scanned file, by file id.
        self._ends: dict[int, FileEnd] = {}
        # Corrupt ranges found so far.
        self._corrupt: list[CorruptRange] = []
        # The last valid group found so far. It may not be durable.
        self._last: JournalGroup | None = None
        # Valid groups found so far.
        self._groups = 0
        # The index's replay mark, or the start of the log for a new index.
        self._mark = LogPosition(0, 0)

    async def run(self) -> ReplayResult:
        """Replay the log, cut off its torn tail and make the log durable.

        Raises OSError if the disk cannot be read, written or synced.
        """
        mark = self._index.load()
        ids = sorted(
            file_id for name in self._disk.names() if (file_id := parse_file_name(name)) is not None
        )
        if mark is not None:
            self._mark = mark
            self._claim(mark)
            self._find_missing_files(ids, mark)
            ids = [file_id for file_id in ids if file_id >= mark.file_id]
        elif ids:
            self._mark = LogPosition(ids[0], BLOCK_BYTES)
        for file_id in ids:
            await self._replay_file(file_id, file_id == ids[-1])
        self._write_batch()
        for file_id, end in self._ends.items():
            self._corrupt += end.corrupt
            await self._finish_file(file_id, end)
        incomplete = mark is None and ids != list(range(1, len(ids) + 1))
        last = max([*self._ends, mark.file_id if mark is not None else 0])
        tail = self._ends.get(last)
        position = tail.position if tail is not None else 0
        return ReplayResult(
            last + 1,
            LogPosition(last, position),
            self._groups,
            tuple(self._corrupt),
            incomplete=incomplete,
            new_index=mark is None,
        )

    def _find_missing_files(self, ids: list[int], mark: LogPosition) -> None:
        """Report missing files as corrupt. Files from the mark on are never deleted."""
        last = max([*ids, mark.file_id])
        present = set(ids)
        self._corrupt += [
            CorruptRange(file_id, 0, BLOCK_BYTES)
            for file_id in range(mark.file_id, last + 1)
            if file_id not in present
        ]

    async def _replay_file(self, file_id: int, newest: bool) -> None:
        file = self._disk.open(file_name(file_id))
        try:
            header_is_valid = await self._header_is_valid(file, file_id)
            start = self._mark.position if file_id == self._mark.file_id else BLOCK_BYTES
            groups_before = self._groups
            end = await self._scan(file, file_id, start)
            if header_is_valid:
                self._ends[file_id] = end
                return
            if not newest or self._groups > groups_before or file_id in self._durable_claims:
                self._corrupt.append(CorruptRange(file_id, 0, BLOCK_BYTES))
                self._ends[file_id] = end
                return
        finally:
            file.close()
        # A crash interrupted the creation of this file, so no record was written into it.
        self._disk.unlink(file_name(file_id))
        self._disk.sync_directory()

    async def _header_is_valid(self, file: LogFile, file_id: int) -> bool:
        try:
            check_file_header(await file.read(0, BLOCK_BYTES), self._instance, file_id)
        except CorruptFormat:
            return False
        return True

    async def _scan(self, file: LogFile, file_id: int, start: int) -> FileEnd:
        scan = scan_file(file_id, start, file.size(), self._salt, self._apply_group)
        try:
            span = next(scan)
            while True:
                span = scan.send(await file.read(*span))
        except StopIteration as stop:
            return stop.value

    def _apply_group(self, group: JournalGroup) -> None:
        self._claim(group.header.durable)
        self._last = group
        self._groups += 1
        for record in records_of(group):
            self._apply_record(group.header.file_id, record)
        if self._index.batch_due:
            self._write_batch()

    def _write_batch(self) -> None:
        """Write what was replayed so far to the index, whose mark stays where it is.

        A mark would hide from the next start that a new index may lack entries. The start of the
        bookie writes it, after the limbo that follows from that.
        """
        self._index.write_batch(None)

    def _apply_record(self, file_id: int, record: JournalRecord) -> None:
        kind, ledger = record.type, record.ledger
        if kind == RecordType.MARK:
            return
        if ledger < 0:
            if kind == RecordType.LIMBO:
                self._apply_limbo(record.entry, LIMBO_BODY.unpack(record.body)[0])
            return
        state = self._index.state(ledger) or self._index.create(ledger, None)
        if kind == RecordType.DELETED:
            self._index.delete([ledger])
        elif state.deleted:
            return
        elif kind == RecordType.ADD:
            self._apply_entry(file_id, state, record)
        else:
            self._index.apply(kind, state, record.entry, record.body)
            self._index.add_usage(file_id, ledger, RECORD_HEADER_BYTES + len(record.body))

    def _apply_limbo(self, kind: int, below: int) -> None:
        if kind == LIMBO_FENCED:
            self._index.fence_below(below)
        else:
            self._index.begin_limbo(below, again=kind == LIMBO_NEW)

    def _apply_entry(self, file_id: int, state: LedgerDescriptor, record: JournalRecord) -> None:
        location = EntryLocation(file_id, record.position, len(record.body))
        if self._index.find(state, record.entry) != location:
            self._index.put(state, record.entry, location)
        state.last_entry = max(state.last_entry, record.entry)
        if state.check_digest((record.body,)) and state.lac_counts:
            state.lac = max(state.lac, _LAC.unpack_from(record.body, _LAC_AT)[0])

    def _claim(self, durable: LogPosition) -> None:
        highest = self._durable_claims.get(durable.file_id)
        if highest is None or highest < durable:
            self._durable_claims[durable.file_id] = durable

    async def _finish_file(self, file_id: int, end: FileEnd) -> None:
        """Cut off a torn tail, or report corruption and keep the file's length; then sync the file.

        After a failed sync, the last group may seem to be on disk without being there. So it is
        written again before the bookie answers from it.
        """
        corrupt = check_end(end, file_id, list(self._durable_claims.values()))
        if corrupt is not None:
            self._corrupt.append(corrupt)
        file = self._disk.open(file_name(file_id))
        try:
            if self._last is not None and self._last.header.file_id == file_id:
                await self._rewrite_last_group(file, self._last)
            if corrupt is None and file.size() > end.position:
                file.truncate(end.position)
            await sync_file(file)
        except OSError:
            note_lost_sync(self._disk)  # the kernel reports once what the last run lost
            raise
        finally:
            file.close()

    async def _rewrite_last_group(self, file: LogFile, group: JournalGroup) -> None:
        size = GROUP_HEADER_BYTES + group.header.length
        whole = await file.read(group.header.position, size)
        file.write([whole], group.header.position)
