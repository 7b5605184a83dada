"""The disk, journal, entry index and open log files of one bookie, and operations across them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

from ledger.bookie.config import BookieConfig
from ledger.bookie.entry_index import EntryIndex
from ledger.bookie.journal import Journal, OnGroup
from ledger.bookie.ledger_descriptor import LedgerDescriptor, QueuedRecord
from ledger.bookie.log_file_cache import LogFileCache
from ledger.bookie.replay import LIMBO_BODY, LIMBO_FENCED
from ledger.bookie.write_cache import WriteCache
from ledger.core.journal_format import RecordType
from ledger.ports.bookies import Status
from ledger.ports.clock import Clock
from ledger.ports.disk import Disk
from ledger.ports.table import Table


class BookieStorage:
    """The disk, journal, index and open files of one bookie. `Bookie` starts and stops them."""

    def __init__(
        self, disk: Disk, table: Table, clock: Clock, config: BookieConfig, on_group: OnGroup
    ) -> None:
        # Fixed for the life of the bookie.
        self.config = config
        self.disk = disk
        self.index = EntryIndex(table, config)
        self.files = LogFileCache(disk, config.open_files_max, config.read_gap_bytes_max)
        self.write_cache = WriteCache(config.write_cache_bytes)
        self.journal = Journal(disk, config, clock, on_group)
        self._loop = asyncio.get_running_loop()
        # The 16-byte instance that owns the directory. Empty before `Bookie.start`, constant after.
        self.instance = b""
        # Ids of log files in which this replay or an earlier one found corruption. Set once by
        # `Bookie.start`. Never deleted, because they may hold entries that the index lacks.
        self.damaged_files: frozenset[int] = frozenset()
        # The error outside the journal that stopped the bookie. None while it serves; set once.
        self.stopped_by: OSError | None = None
        # Repairs queued in the journal: for a corrupt entry, by ledger and entry, the newest record
        # with a sound copy. Compaction must not append the corrupt copy behind it. Removed when the
        # record is durable or has failed.
        self.repairs: dict[tuple[int, int], QueuedRecord] = {}
        # Held while ledgers are deleted and log files removed, so that two collections do not
        # overlap.
        self.gc_lock = asyncio.Lock()

    @property
    def failure(self) -> OSError | None:
        """The error that stopped this bookie for good, or None while it serves."""
        return self.stopped_by or self.journal.failed

    def assert_serving(self) -> None:
        """Raise the OSError that stopped the bookie, if it has stopped."""
        failure = self.failure
        if failure is not None:
            raise failure

    def append(
        self, kind: RecordType, ledger: LedgerDescriptor, entry: int, body: bytes = b""
    ) -> asyncio.Future[Status]:
        """Queue a record that is not an add. The future resolves once it is durable or failed."""
        done: asyncio.Future[Status] = self._loop.create_future()
        limbo_ends = int(kind is RecordType.LIMBO and entry == 0)

        def on_done(status: Status) -> None:
            ledger.limbo_ends_queued -= limbo_ends
            if not done.done():
                done.set_result(status)

        ledger.busy += 1
        ledger.limbo_ends_queued += limbo_ends
        self.journal.append(QueuedRecord(kind, ledger, entry, -1, (body,), len(body), on_done))
        return done

    async def wait_logged(self, records: Sequence[asyncio.Future[Status]], what: str) -> None:
        """Wait until all of `records` are durable. Raises OSError, which names `what` for a full
        disk.
        """
        if any([await done is not Status.OK for done in records]):
            raise self.failure or OSError(errno.ENOSPC, f"no room to log {what}")

    async def log_limbo_bounds(self, kind: int) -> None:
        """Repeat the bookie-wide limbo and fence bounds in the newest log file. Raises OSError.

        `kind` is LIMBO_NEW or LIMBO_KNOWN.
        """
        limbo, fenced = self.index.limbo_below, self.index.fenced_below
        logged = [
            self.append(RecordType.LIMBO, LedgerDescriptor(-1), which, LIMBO_BODY.pack(below))
            for which, below in ((kind, limbo), (LIMBO_FENCED, fenced))
            if below > 0
        ]
        await self.wait_logged(logged, "the limbo")

    async def checkpoint(self) -> None:
        """Flush everything that the log holds so far into the index. Raises OSError."""
        await self.journal.settled()
        self.assert_serving()
        self.index.write_batch(self.journal.end)
        await self.index.flush()
