"""The log files of a bookie over time: checkpoints, what each is still needed for, letting go.

For `collect`, and for whoever starts and stops the bookie.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ledger.bookie.config import BookieConfig
from ledger.bookie.entries import EntryIndex
from ledger.bookie.files import LogFiles
from ledger.bookie.journal import Journal
from ledger.bookie.replay import I64, LIMBO_FENCED, LIMBO_STILL
from ledger.bookie.rewrite import Append, Rewriter
from ledger.bookie.state import LedgerState
from ledger.core.journal_format import (
    BLOCK_BYTES,
    RecordType,
    check_file_header,
    file_name,
    parse_file_name,
)
from ledger.errors import CorruptFormat
from ledger.ports.bookies import Status
from ledger.ports.disk import Disk


class FileUse(NamedTuple):
    """One log file: how much of it somebody still needs."""

    file_id: int
    bytes_used: int


class Upkeep:
    """Works on the parts of one bookie, beside its adds and reads."""

    def __init__(
        self,
        disk: Disk,
        index: EntryIndex,
        files: LogFiles,
        journal: Journal,
        append: Append,
        config: BookieConfig,
        failure: Callable[[], OSError | None],
    ) -> None:
        self._disk = disk
        self._index = index
        self._files = files
        self._journal = journal
        self._append = append
        self._config = config
        self._failure = failure
        self._damaged: frozenset[int] = frozenset()
        self._instance = b""
        self.cleaning = asyncio.Lock()  # held by who deletes ledgers and drops files

    def begin(self, instance: bytes, damaged: frozenset[int]) -> None:
        """The bookie starts; these files are damaged and are never given back by this process."""
        self._instance = instance
        self._damaged = damaged

    @property
    def file_bytes(self) -> int:
        """Length at which a log file is left."""
        return self._config.file_bytes

    @property
    def spare_bytes(self) -> int:
        """Free space that rewriting may use. Raises OSError."""
        return self._disk.free_bytes() - self._config.reserve_bytes

    def assert_serving(self) -> None:
        """Raises the OSError that ended the bookie."""
        failure = self._failure()
        if failure is not None:
            raise failure

    def files(self) -> list[FileUse]:
        """Every log file but the live one, oldest first. Call `checkpoint` before."""
        return [
            FileUse(file_id, self._index.used_bytes(file_id))
            for name in self._disk.names()
            if (file_id := parse_file_name(name)) is not None and file_id < self._journal.file_id
        ]

    async def is_sound(self, file_id: int) -> bool:
        """Its header is its own, and no replay found rot in it.

        Of a file that is not sound the index may know less than it holds: nothing about it is
        believed, least of all that nobody needs it. Source: BookKeeper's garbage collector, which
        once believed a broken header.
        """
        if file_id in self._damaged:
            return False
        try:
            header = await self._files.get(file_id).read(0, BLOCK_BYTES)
            check_file_header(header, self._instance, file_id)
        except (OSError, CorruptFormat):
            return False
        return True

    async def checkpoint(self) -> None:
        """The index holds, durably, all that the log says. Raises OSError."""
        await self._journal.settled()
        self.assert_serving()
        self._index.write_batch(self._journal.end)
        await self._index.flush()

    async def log_limbo(self, which: int) -> None:
        """What holds for every ledger below an id stands in the newest file too. Raises OSError."""
        limbo, fenced = self._index.limbo_below, self._index.fenced_below
        logged = [
            self._append(RecordType.LIMBO, LedgerState(-1), kind, I64.pack(below))
            for kind, below in ((which, limbo), (LIMBO_FENCED, fenced))
            if below > 0
        ]
        await self.all_logged(logged, "the limbo")

    async def all_logged(self, records: Sequence[asyncio.Future[Status]], what: str) -> None:
        """These records are durable. Raises OSError."""
        if any([await done is not Status.OK for done in records]):
            raise self._failure() or OSError(errno.ENOSPC, f"no room to log {what}")

    async def roll_if_dead(self) -> bool:
        """The live file was left behind because most of it is dead. Raises OSError."""
        await self._journal.settled()
        self.assert_serving()
        self._index.write_batch(self._journal.end)
        used = self._index.used_bytes(self._journal.file_id)
        dead = self._journal.end.position - used
        if dead < self._config.roll_dead_bytes_min or used > dead:
            return False
        await self._journal.roll()
        return True

    async def rewrite_file(self, file_id: int) -> None:
        """What is needed of a file stands in the live log too, durably.

        Raises OSError, CorruptFormat; then the file is needed as before.
        """
        assert file_id < self._journal.file_id
        self.assert_serving()
        await Rewriter(file_id, self._index, self._files, self._journal, self._append).run()
        await self.checkpoint()
        self._index.drop_file(file_id)

    async def drop_files(self, file_ids: Sequence[int]) -> None:
        """These files, which nobody needs, are gone. Raises OSError."""
        self.assert_serving()
        await self.log_limbo(LIMBO_STILL)
        if max(file_ids, default=0) >= self._index.flushed.file_id:
            await self.checkpoint()
        for file_id in file_ids:
            assert file_id < self._journal.file_id
            assert self._index.used_bytes(file_id) == 0
            self._files.close(file_id)
            self._index.drop_file(file_id)
            self._disk.unlink(file_name(file_id))
