"""What is still needed of a mostly dead file moves into the live log, so that it can go."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final

from ledger.bookie.entries import EntryIndex
from ledger.bookie.journal import Journal
from ledger.bookie.state import LedgerState, LogRecord, Place
from ledger.core.journal_format import (
    BLOCK_BYTES,
    Group,
    RecordType,
    file_name,
    records_of,
    salt_of,
    scan_file,
)
from ledger.errors import CorruptFormat
from ledger.world.bookies import Status
from ledger.world.disk import Disk, LogFile

Append = Callable[[RecordType, LedgerState, int, bytes], asyncio.Future[Status]]
_BATCH_BYTES: Final = 4 * 1024 * 1024  # moved before the log is waited for


class Rewriter:
    """Moves one file's living entries. Used once."""

    def __init__(self, disk: Disk, index: EntryIndex, journal: Journal, append: Append) -> None:
        self._disk = disk
        self._index = index
        self._journal = journal
        self._append = append
        self._groups: list[Group] = []
        self._failed: Status | None = None
        self._bytes = 0

    async def run(self, file_id: int, instance: bytes) -> None:
        """All that is needed of the file stands in the log again, durably.

        Raises OSError when it could not be written, CorruptFormat when the file does not parse
        from end to end; the file stays needed then.
        """
        await self._move_states(file_id)
        file = self._disk.open(file_name(file_id))
        try:
            await self._move_entries(file, file_id, instance)
        finally:
            file.close()
        await self._settle()

    async def _move_states(self, file_id: int) -> None:
        """Keys before fences before the rest, as they came."""
        for ledger in self._index.users(file_id):
            state = self._index.state(ledger)
            if state is None or state.deleted:
                continue
            if state.master_key is not None:
                self._append(RecordType.LEDGER_KEY, state, -1, state.master_key)
            if state.fence_logged:
                self._append(RecordType.FENCE, state, -1, b"")
            if state.lac >= 0:
                self._append(RecordType.EXPLICIT_LAC, state, state.lac, b"")
            if state.limbo or state.limbo_ended:
                self._append(RecordType.LIMBO, state, int(state.limbo), b"")
        await self._settle()

    async def _move_entries(self, file: LogFile, file_id: int, instance: bytes) -> None:
        size = file.size()
        scan = scan_file(file_id, BLOCK_BYTES, size, salt_of(instance), self._groups.append)
        try:
            span = next(scan)
            while True:
                span = scan.send(await file.read(*span))
                for group in self._groups:
                    self._move_group(group, file_id)
                self._groups.clear()
                if self._bytes >= _BATCH_BYTES:
                    await self._settle()
        except StopIteration as stop:
            for group in self._groups:
                self._move_group(group, file_id)
            if stop.value.rot or stop.value.torn or stop.value.position < size:
                raise CorruptFormat(f"{file_name(file_id)}: not whole") from None

    def _move_group(self, group: Group, file_id: int) -> None:
        for kind, ledger, entry, position, body in records_of(group):
            if kind != RecordType.ADD:
                continue
            state = self._index.state(ledger)
            place = Place(file_id, position, len(body))
            if state is None or state.deleted or self._index.find(state, entry) != place:
                continue
            record = LogRecord(
                RecordType.ADD, state, entry, -1, (bytes(body),), len(body), self._on_moved
            )
            self._journal.append(record)
            self._bytes += record.size

    def _on_moved(self, status: Status) -> None:
        if status is not Status.OK:
            self._failed = status

    async def _settle(self) -> None:
        self._bytes = 0
        await self._journal.settled()
        if self._journal.failed is not None:
            raise self._journal.failed
        if self._failed is not None:
            raise OSError(errno.ENOSPC, "no room to rewrite a log file")
