"""One storage node: adds, reads and fences of ledger entries over one log and one index.

The log is the store. An add is acknowledged after the sync of its group. A read waits until an
accepted entry is durable. A fence returns once it is durable; by then every earlier add is durable
or has failed. Source: seed 001; BookKeeper's Bookie.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ledger.bookie import directory
from ledger.bookie.answer_room import Share
from ledger.bookie.config import BookieConfig
from ledger.bookie.disk_space import DiskSpaceMonitor, LogFileCount
from ledger.bookie.entry_head import parse_head
from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.fences import FENCED_BYTES_MAX, Fences
from ledger.bookie.journal import Journal
from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor, QueuedRecord
from ledger.bookie.long_poll import LongPolls
from ledger.bookie.repeated_adds import RepeatedAdds
from ledger.bookie.replay import LIMBO_KNOWN, LIMBO_NEW, LogReplay, ReplayResult
from ledger.bookie.storage import BookieStorage
from ledger.bookie.write_cache import WriteCache
from ledger.core.fencing import AddDecision
from ledger.core.journal_format import (
    RECORD_HEADER_BYTES,
    LogPosition,
    RecordType,
)
from ledger.errors import ForeignDirectory
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import (
    BookieStats,
    EntriesReply,
    LocateReply,
    OnAdded,
    ReadManyReply,
    ReadReply,
    Status,
)
from ledger.ports.clock import Clock
from ledger.ports.disk import Disk
from ledger.ports.table import Table
from ledger.tasks import start_once, start_vital

# Above every ledger id. Passed as `next_ledger`, it means that any ledger may exist.
EVERY_LEDGER: Final = LedgerId(2**63 - 1)
_REFUSALS: Final = {
    AddDecision.FENCED: Status.FENCED,
    AddDecision.WRONG_KEY: Status.UNAUTHORIZED,
    AddDecision.DELETED: Status.NO_LEDGER,
}


class Bookie:
    """A bookie with its own disk and index. Call from one event loop only."""

    def __init__(
        self,
        disk: Disk,
        table: Table,
        clock: Clock,
        new_instance: Callable[[], bytes],
        *,
        name: str = "bookie",
        config: BookieConfig | None = None,
        start_id: str = "",
    ) -> None:
        # The `BookieInfo.start` under which this start is registered, empty if it has none.
        self.start_id: Final = start_id
        # Fixed for the life of the bookie. `_index`, `_files` and `_journal` are the attributes of
        # `storage`, kept here because every add uses them.
        self._config = config = config if config is not None else BookieConfig()
        self._disk, self._clock = disk, clock
        self._new_instance = new_instance
        self._name = name
        self.storage = BookieStorage(disk, table, clock, config, self._on_group)
        self._index = self.storage.index
        self._files = self.storage.files
        self._journal = self.storage.journal
        self._written = self.storage.write_cache if config.write_cache_bytes else None
        self._reader = EntryReader(self.storage)
        self._fences = Fences(self.storage, self._authorize, self.read)
        self._repeated = RepeatedAdds(self.storage)
        self._polls = LongPolls(self._index, self._reader, config)
        self._loop = asyncio.get_running_loop()
        # Tasks of running comparisons and index flushes. A task is removed when it ends; `stop`
        # waits for all tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        # True while an index flush runs in the background; there is at most one.
        self._flushing = False
        # Bytes written to the log since the last index flush began.
        self._logged_since_flush = 0
        # Decides by the free disk space whether adds are accepted. `start` ends with the first
        # check.
        self._disk_space = DiskSpaceMonitor(disk, clock, config)
        self._log_files = LogFileCount(disk)
        # Set once the bookie has stopped because of an error; never cleared.
        self._failed = asyncio.Event()
        # Adds refused because their digest does not match: damaged on the way or by the client.
        self.damaged_adds = 0
        # Adds and reads of entries by the status that answered them. Only grow.
        self.adds: Counter[Status] = Counter()
        self.reads: Counter[Status] = Counter()
        # The result of the replay, or None before `start`.
        self.replayed: ReplayResult | None = None

    @property
    def bookie_id(self) -> BookieId:
        """The name and eight hex digits of the instance. Valid after `start`."""
        assert self.storage.instance
        return directory.bookie_id(self._name, self.storage.instance)

    @property
    def limbo_below(self) -> int:
        """The id below which ledgers may have lost entries here, unless their limbo ended. 0 if
        none.
        """
        return self._index.limbo_below

    @property
    def writable(self) -> bool:
        """True if the bookie accepts adds: it has not stopped, and there is free disk space."""
        return self.failure is None and not self._disk_space.full

    @property
    def failure(self) -> OSError | None:
        """The error that stopped this bookie for good, or None."""
        return self.storage.failure

    async def failed(self) -> OSError:
        """Wait until an error stops the bookie, and return the error.

        All pending calls have failed by then.
        """
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    def check_disk_space(self) -> None:
        """Update `writable` from the free disk space, unless statvfs fails."""
        self._disk_space.try_refresh()

    @property
    def disk_space(self) -> tuple[int, int]:
        """Free bytes at the last check, and the bytes required to be writable."""
        return self._disk_space.free_bytes, self._disk_space.needed_bytes

    @property
    def conflicts(self) -> int:
        """Adds refused because a different payload is stored, which indicates a client bug."""
        return self._repeated.conflicts

    @property
    def groups(self) -> int:
        """Groups written and synced since the start."""
        return self._journal.groups

    @property
    def journal(self) -> Journal:
        """The journal, for its counts."""
        return self._journal

    async def start(
        self,
        *,
        boot_id: str = "",
        next_ledger: LedgerId = EVERY_LEDGER,
        lost: bool = False,
        served_before: bool = False,
        refuse_newer: bool = False,
    ) -> None:
        """Replay the log into the index, then serve.

        `next_ledger` is above every existing ledger's id. After a loss (corruption, a power failure
        without syncs, an index lost by a bookie that `served_before`, or `lost`) all ledgers below
        it are fenced and in limbo until `end_limbo`. With `refuse_newer`, a ledger from
        `next_ledger` on proves that the metadata is older than this directory. `boot_id` names this
        boot of the machine. Raises ForeignDirectory, OSError, CorruptFormat.
        """
        storage = self.storage
        instance = await directory.claim_directory(self._disk, self._new_instance)
        await directory.upgrade_directory(self._disk, instance)
        replayed = await LogReplay(self._disk, self._index, instance).run()
        if refuse_newer and (newest := self._index.newest_ledger()) >= next_ledger:
            raise ForeignDirectory(
                f"the metadata is older than {self._name}: its next ledger is {next_ledger}, but "
                f"{self._name} has ledger {newest}; restore the newest metadata of this directory"
            )
        storage.instance = instance
        storage.damaged_files = await directory.remember_damaged(
            self._disk, [corrupt.file_id for corrupt in replayed.corrupt]
        )
        lost = lost or bool(replayed.corrupt) or (served_before and replayed.index_lost)
        lost = lost or await directory.lost_unsynced(self._disk, boot_id)
        if lost:
            # Durable before the first log file, the mark or UNSYNCED hides the loss
            self._index.begin_limbo(next_ledger, again=True)
            await self._index.flush()
        await self._journal.start(instance, replayed.next_file_id, replayed.end)
        await self.storage.log_limbo_bounds(LIMBO_NEW if lost else LIMBO_KNOWN)
        self._index.write_batch(self._journal.end)
        await self._index.flush()
        if self._config.journal_sync == "never":
            await directory.mark_unsynced(self._disk, boot_id)
        else:
            await directory.clear_unsynced(self._disk)
        self.replayed = replayed
        self._disk_space.refresh()

    async def stop(self) -> None:
        """Settle everything accepted, flush the index and close the files.

        The disk and the table stay open; their owner closes them.
        """
        self._polls.close()
        await self._journal.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self.storage.instance and self.failure is None:
            self._index.write_batch(self._journal.end)
            await self._index.flush()
            await directory.clear_unsynced(self._disk)
        self.storage.stopped_by = self.storage.stopped_by or OSError("the bookie was stopped")
        self._files.close_all()

    def add(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        *,
        recovery: bool = False,
    ) -> None:
        """Accept one add, as described at `Bookies.add`."""
        length = sum(map(len, body))
        lac = parse_head(ledger, entry, body)
        if lac is None or length > self._config.entry_bytes_max:
            self._refuse(on_added, Status.BAD_REQUEST)
            return
        refusal = self._refusal_status(length, recovery)
        if refusal is not None:
            self._refuse(on_added, refusal)
            return
        try:
            state = self._index.state(ledger) or self._index.create(ledger, master_key)
            decision = state.check_add(master_key, recovery)
            if decision is not AddDecision.ACCEPT:
                self._refuse(on_added, _REFUSALS[decision])
                return
            if not state.check_digest(body):
                self.damaged_adds += 1
                self._refuse(on_added, Status.BAD_REQUEST)
                return
            if not state.lac_counts:
                lac = -1
            if entry > state.last_entry:
                state.last_entry = entry
            elif (stored_at := self._index.find(state, entry)) is not None:
                whole = b"".join(body)
                work = self._repeated.compare(state, entry, whole, stored_at, on_added, recovery)
                self._track(start_once("a repeated add", work, lambda _: on_added(Status.IO_ERROR)))
                return
        except OSError:
            self._refuse(on_added, Status.IO_ERROR)
            return
        if not state.key_queued:
            self._log_key(state, master_key)
        record = QueuedRecord(RecordType.ADD, state, entry, lac, body, length, on_added)
        state.recent[entry] = record
        self._journal.append(record)

    def _refuse(self, on_added: OnAdded, status: Status) -> None:
        """Answer an add that is not accepted, after this callback."""
        self.adds[status] += 1
        self._loop.call_soon(on_added, status)

    async def fence(self, ledger: LedgerId, master_key: bytes) -> Status:
        """Fence the ledger durably, after every earlier add. It then takes only recovery adds."""
        return await self._fences.fence(ledger, master_key)

    async def fence_many(
        self, ledgers: Sequence[tuple[LedgerId, bytes]], bytes_max: int = FENCED_BYTES_MAX
    ) -> list[ReadReply]:
        """Fence ledgers durably in one group, and read the highest entry of each.

        Beyond `bytes_max` bytes of entries the reply is OVERLOADED. See `Bookies.fence_many`.
        """
        return await self._fences.fence_many(ledgers, bytes_max)

    async def write_lac(self, ledger: LedgerId, master_key: bytes, lac: EntryId) -> Status:
        """Implement `Bookies.write_lac`."""
        if isinstance(state := self._authorize(ledger, master_key), Status):
            return state
        return await self._log(RecordType.EXPLICIT_LAC, state, lac)

    async def enter_limbo(self, ledgers: Iterable[LedgerId], *, fenced_below: LedgerId) -> None:
        """Fence these ledgers and put them into limbo, durably.

        Entries of a ledger in limbo may be missing here, so a missing entry is reported as unknown
        until `end_limbo`. Every ledger below `fenced_below` is fenced, because a fence may have
        been lost too. Call before serving. Raises OSError.
        """
        self.storage.assert_serving()
        self._index.fence_below(fenced_below)
        logged: list[asyncio.Future[Status]] = []
        for ledger in ledgers:
            state = self._index.state(ledger) or self._index.create(ledger, None)
            logged.append(self.storage.append(RecordType.LIMBO, state, 1))
        await self.storage.wait_logged(logged, "the limbo")
        await self.storage.log_limbo_bounds(LIMBO_KNOWN)
        await self.storage.checkpoint()

    async def end_limbo(
        self, ledger: LedgerId, master_key: bytes | None = None, start: str = ""
    ) -> Status:
        """End the ledger's limbo, because its entries are complete again or their loss is accepted.

        The ledger stays fenced. `master_key` is None for calls from the bookie's own process. See
        `Bookies.end_limbo`.
        """
        if start and self.start_id and start != self.start_id:
            return Status.WRONG_INSTANCE
        if master_key is not None:
            authorized = self._authorize(ledger, master_key)
            if isinstance(authorized, Status):
                return authorized
        if self.failure is not None:
            return Status.IO_ERROR
        try:
            state = self._index.state(ledger) or self._index.create(ledger, None)
        except OSError:
            return Status.IO_ERROR
        return await self._log(RecordType.LIMBO, state, 0)

    async def read(self, ledger: LedgerId, entry: EntryId, room: Share = None) -> ReadReply:
        """Read one entry, or the highest stored entry if `entry` is -1.

        If the entry is accepted but not durable yet, the call waits for its sync.
        """
        reply = await self._reader.read(ledger, entry, room)
        self.reads[reply.status] += 1
        return reply

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
        """Implement `Bookies.read_many`."""
        reply = await self._reader.read_many(
            ledger, first, last, max_bytes, room, from_disk=from_disk
        )
        self.reads[reply.status] += 1
        return reply

    async def read_lac(self, ledger: LedgerId) -> ReadReply:
        """Implement `Bookies.read_lac`."""
        return self._reader.read_lac(ledger)

    async def wait_lac(
        self, ledger: LedgerId, previous: EntryId, timeout_s: float, room: Share = None
    ) -> ReadReply:
        """Implement `Bookies.wait_lac`."""
        return await self._polls.wait_lac(ledger, previous, timeout_s, room)

    async def list_entries(self, ledger: LedgerId) -> EntriesReply:
        """Implement `Bookies.list_entries`."""
        return await self._reader.list_entries(ledger)

    async def locate(self, ledger: LedgerId, entry: EntryId) -> LocateReply:
        """Implement `Bookies.locate`."""
        return await self._reader.locate(ledger, entry)

    async def stats(self) -> BookieStats:
        """Implement `Bookies.stats`. The disk size is the sum of log files and free space."""
        try:
            free_bytes = self._disk.free_bytes()
            gone = self._index.files_dropped + self._journal.files_given_back
            logs = self._log_files.at(self._journal.file_id, gone)
            ledgers = self._index.ledger_count()
        except OSError:
            return BookieStats(Status.IO_ERROR)
        disk_bytes = logs * self._config.file_bytes + free_bytes
        now_ms = self._clock.now_ms()
        from ledger.command_line.version import __version__  # a bookie starts without it

        counts, total_us = self._journal.synced.counts, self._journal.synced.total_s * 1e6
        return BookieStats(
            *(Status.OK, disk_bytes, free_bytes, ledgers, self.writable, now_ms, __version__),
            syncs=sum(counts),
            sync_us=round(total_us),
        )

    def ledgers(self) -> list[LedgerId]:
        """List every ledger of this bookie except deleted ones. Raises OSError."""
        return [LedgerId(ledger) for ledger in self._index.ledgers()]

    async def delete_ledgers(self, ledgers: Iterable[LedgerId]) -> None:
        """Delete these ledgers durably. Later adds to them are refused.

        Garbage collection reclaims the disk space later, file by file. Raises OSError.
        """
        self.storage.assert_serving()
        logged: list[asyncio.Future[Status]] = []
        for ledger in ledgers:
            state = self._index.state(ledger) or self._index.create(ledger, None)
            state.fenced = True
            logged.append(self.storage.append(RecordType.DELETED, state, -1))
        await self.storage.wait_logged(logged, "a deletion")

    # -- inside --------------------------------------------------------------------------------

    def _refusal_status(self, length: int, recovery: bool) -> Status | None:
        """Return the status that refuses an add of this length now, or None."""
        if self.storage.stopped_by is not None or self._journal.failed is not None:
            return Status.IO_ERROR
        if self._disk_space.refuses(recovery=recovery):
            return Status.READ_ONLY
        if self._journal.queue_bytes + length > self._config.queue_bytes_max:
            return Status.OVERLOADED
        return None

    def _authorize(self, ledger: LedgerId, master_key: bytes) -> LedgerDescriptor | Status:
        """Return the ledger, created if necessary, or the status that refuses the caller."""
        if self.failure is not None:
            return Status.IO_ERROR
        try:
            state = self._index.state(ledger) or self._index.create(ledger, master_key)
        except OSError:
            return Status.IO_ERROR
        decision = state.check_key(master_key)
        if decision is not AddDecision.ACCEPT:
            return _REFUSALS[decision]
        if not state.key_queued:
            self._log_key(state, master_key)
        return state

    def _log_key(self, state: LedgerDescriptor, master_key: bytes) -> None:
        """Log the master key, which precedes all other records of the ledger."""
        state.master_key = master_key
        state.key_queued = True
        self.storage.append(RecordType.LEDGER_KEY, state, -1, master_key)

    async def _log(self, kind: RecordType, state: LedgerDescriptor, entry: int) -> Status:
        return await self.storage.append(kind, state, entry)

    def _on_group(
        self, records: list[QueuedRecord], first: LogPosition, error: OSError | None
    ) -> None:
        if error is not None:
            self._on_group_failed(records, error)
            return
        file_id, position = first
        index, add, written = self._index, RecordType.ADD, self._written
        deleted: list[int] = []
        added = len(records)  # and one less for each that adds no entry, which are few
        for record in records:
            state, status = record.ledger, Status.OK
            if record.kind is not add:
                added -= 1
                self._on_logged(record, file_id, deleted)
            elif not state.deleted:
                length = record.size - RECORD_HEADER_BYTES
                fresh = state.recent.get(record.entry) is record  # neither moved nor a repair
                index.put(
                    state,
                    record.entry,
                    EntryLocation(file_id, position + RECORD_HEADER_BYTES, length),
                )
                if record.lac > state.lac:
                    state.lac = record.lac
                if written is not None:
                    self._cache(written, record, fresh=fresh)
            else:
                added -= 1
                state.recent.pop(record.entry, None)
                status = Status.NO_LEDGER
            position += record.size
            self._complete(record, status)
        self.adds[Status.OK] += added
        if written is not None:
            written.end_group()
            if deleted:
                written.drop(deleted)
        if self._polls.count:
            self._polls.on_logged(records)
        self._update_index(position - first.position, deleted)

    def _cache(self, written: WriteCache, record: QueuedRecord, *, fresh: bool) -> None:
        """Cache a new entry. What compaction moves is old, and a repaired copy may differ."""
        place = record.ledger.ledger, record.entry
        if fresh:
            written.put(*place, record.body)
        elif place in self.storage.repairs:
            written.forget(*place)

    def _on_logged(self, record: QueuedRecord, file_id: int, deleted: list[int]) -> None:
        """Apply a durable record that is not an add."""
        state, kind = record.ledger, record.kind
        if state.ledger < 0:
            return
        state.busy -= 1
        if kind is RecordType.DELETED:
            state.deleted = True
            deleted.append(state.ledger)
        elif not state.deleted:
            self._index.apply(kind, state, record.entry, record.body[0])
            self._index.add_usage(file_id, state.ledger, record.size)

    def _complete(self, record: QueuedRecord, status: Status) -> None:
        try:
            record.on_done(status)
        except Exception as error:  # noqa: BLE001  one caller must not silence the others
            self._loop.call_exception_handler({"message": "on_added raised", "exception": error})

    def _update_index(self, size: int, deleted: list[int]) -> None:
        """Write an index batch if one is due, and flush the index in the background."""
        index, config = self._index, self._config
        self._logged_since_flush += size
        try:
            if deleted:
                index.delete(deleted)
            if index.batch_due:
                index.write_batch(self._journal.end)
        except OSError as error:
            self._stop_for(error)
            return
        if not self._flushing and (
            self._logged_since_flush >= config.index_flush_bytes
            or index.entries_since_flush >= config.index_flush_entries
        ):
            self._flushing = True
            self._logged_since_flush = 0
            self._track(start_vital("the index flush of a bookie", self._flush()))
        self._disk_space.on_logged(size)

    def _on_group_failed(self, records: list[QueuedRecord], error: OSError) -> None:
        """Fail a group's records, because the disk was full or the bookie has stopped."""
        status = Status.IO_ERROR
        if self._journal.failed is None:
            self._disk_space.on_write_refused()
            status = Status.READ_ONLY
        changed: set[LedgerDescriptor] = set()
        for record in records:
            state = record.ledger
            if record.kind is RecordType.ADD:
                self.adds[status] += 1
                if state.recent.get(record.entry) is record:
                    del state.recent[record.entry]
                changed.add(state)
                continue
            state.busy -= 1
            if record.kind is RecordType.LEDGER_KEY:
                state.key_queued = state.key_logged
        try:
            for state in changed:
                state.last_entry = self._index.find_last_entry(state)
        except OSError as failure:
            self._stop_for(failure)
        for record in records:
            self._complete(record, status)
        if self._journal.failed is not None:
            self._polls.close()
            self._failed.set()

    async def _flush(self) -> None:
        try:
            await self._index.flush()
        except OSError as error:
            self._stop_for(error)
        finally:
            self._flushing = False

    def _stop_for(self, error: OSError) -> None:
        """Stop for good because of `error`. Nothing is acknowledged afterwards."""
        self.storage.stopped_by = error
        self._polls.close()
        self._failed.set()

    def _track(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
