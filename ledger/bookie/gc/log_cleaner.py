"""Log files that may be compacted or deleted: their live bytes and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger.bookie.gc.compactor import LogCompactor
from ledger.bookie.replay import LIMBO_KNOWN
from ledger.bookie.storage import BookieStorage
from ledger.core.journal_format import (
    BLOCK_BYTES,
    check_file_header,
    file_name,
    parse_file_name,
)
from ledger.errors import CorruptFormat, LedgerError


class LogFileInUse(LedgerError):
    """A log file that was chosen for deletion has live bytes, or is still being written."""


class LogFileUsage(NamedTuple):
    """The bytes of one log file that belong to existing ledgers."""

    file_id: int
    bytes_used: int


class LogCleaner:
    """Compaction and deletion of a bookie's log files while it serves adds and reads."""

    def __init__(self, storage: BookieStorage) -> None:
        self._storage = storage
        self._index = storage.index
        self._journal = storage.journal

    @property
    def file_bytes(self) -> int:
        """The length at which the journal begins a new file."""
        return self._storage.config.file_bytes

    @property
    def spare_bytes(self) -> int:
        """Free disk space that compaction may use. Raises OSError."""
        return self._storage.disk.free_bytes() - self._storage.config.reserve_bytes

    def files(self) -> list[LogFileUsage]:
        """List every log file that the durable index covers wholly, oldest first.

        Entries of a later file may be in memory only, so the file can look unused. Call
        `index_complete_files` first, so that only the files of the last moments are left out.
        """
        return [
            LogFileUsage(file_id, self._index.used_bytes(file_id))
            for name in self._storage.disk.names()
            if (file_id := parse_file_name(name)) is not None and self._is_indexed(file_id)
        ]

    async def index_complete_files(self) -> None:
        """Flush the index unless it covers every log file that is complete. Raises OSError."""
        if not self._is_indexed(self._journal.file_id - 1):
            await self._storage.checkpoint()

    def _is_indexed(self, file_id: int) -> bool:
        """True if the durable index covers the whole file, which is never written again."""
        return file_id < self._index.flushed.file_id

    async def is_intact(self, file_id: int) -> bool:
        """True if the file has its own valid header and no replay found corruption in it.

        A damaged file may hold entries that the index lacks, so such a file never counts as unused.
        Source: BookKeeper's garbage collector, which once trusted a broken header.
        """
        storage = self._storage
        if file_id in storage.damaged_files:
            return False
        try:
            header = await storage.files.get(file_id).read(0, BLOCK_BYTES)
            check_file_header(header, storage.instance, file_id)
        except (OSError, CorruptFormat):
            return False
        return True

    async def roll_if_mostly_dead(self) -> bool:
        """Begin a new log file if most of the current one is dead. Raises OSError."""
        await self._journal.settled()
        self._storage.assert_serving()
        self._index.write_batch(self._journal.end)
        used = self._index.used_bytes(self._journal.file_id)
        dead = self._journal.end.position - used
        if dead < self._storage.config.roll_dead_bytes_min or used > dead:
            return False
        await self._journal.roll()
        return True

    async def compact_file(self, file_id: int) -> None:
        """Copy the live part of a file into the current log file, durably.

        Raises OSError, CorruptFormat or LogFileInUse; after an error the file is still needed.
        """
        storage = self._storage
        storage.assert_serving()
        if not self._is_indexed(file_id):
            raise LogFileInUse(f"{file_name(file_id)} is not indexed yet; it was not compacted")
        await LogCompactor(file_id, storage).run()
        await self._journal.sync()  # the copies replace entries that may be on disk for long
        await storage.checkpoint()
        self._index.drop_file(file_id)

    async def delete_files(self, file_ids: Sequence[int]) -> None:
        """Delete log files without live bytes.

        Raises OSError, or LogFileInUse before a file that is needed is deleted.
        """
        storage = self._storage
        storage.assert_serving()
        await storage.log_limbo_bounds(LIMBO_KNOWN)
        for file_id in file_ids:
            used = self._index.used_bytes(file_id)
            if used or not self._is_indexed(file_id):
                raise LogFileInUse(
                    f"{file_name(file_id)} was chosen for deletion, but {used} bytes of it are in "
                    f"use, and the index covers the log up to {self._index.flushed}; it was kept"
                )
            storage.files.close(file_id)
            self._index.drop_file(file_id)
            storage.disk.unlink(file_name(file_id))
