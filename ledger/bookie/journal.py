"""The write-ahead log: queue, one vectored write, one sync, acknowledgements.

One group is in flight at a time. No record has a task, future or copy of its own. A group is a list
of buffers with one header, and `on_group` reports its outcome.
"""

from __future__ import annotations

import asyncio
import errno
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from ledger.bookie.config import BookieConfig
from ledger.bookie.directory import note_lost_sync
from ledger.bookie.ledger_descriptor import LedgerDescriptor, QueuedRecord
from ledger.bookie.sync_file import sync_file
from ledger.core.group_commit import GroupCommit
from ledger.core.journal_format import (
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    LogPosition,
    RecordType,
    align,
    encode_file_header,
    encode_group_header,
    file_name,
    padding,
    salt_of,
)
from ledger.ids import Buffer
from ledger.ports.bookies import Status
from ledger.ports.clock import SECONDS, Clock, Histogram, measured_s
from ledger.ports.disk import Disk, LogFile
from ledger.tasks import Guard

OnGroup = Callable[[list[QueuedRecord], LogPosition, OSError | None], None]
"""Called with a group's records, the position of the first one, and the error or None."""

_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
GROUP_BYTES: Final = tuple(4**power * 1024 for power in range(8))
"""Upper bounds of the classes of group sizes: 1 KiB to 16 MiB."""
# Shorter waits run on every turn of the loop, whose timers are no finer
_TIMER_US_MIN: Final = 1_000


class Journal:
    """The writer of the log: records in order, durably. The first failed sync stops it for good."""

    def __init__(self, disk: Disk, config: BookieConfig, clock: Clock, on_group: OnGroup) -> None:
        # Fixed for the life of the journal.
        self._disk = disk
        self._config = config
        # The size to which `disk.create` may prepare a file, so that writes bypass the page cache
        # and are durable when they return. 0 without syncs, because the page cache is faster.
        self._expected_bytes = config.file_bytes if config.journal_sync == "group" else 0
        self._clock = clock
        # The bookie's instance and the CRC salt derived from it. Set once by `start`.
        self._instance = b""
        self._salt = 0
        self._on_group = on_group
        self._group_commit = GroupCommit(config.group)
        # Records appended and not yet taken into a group, oldest first. The callers bound it: they
        # refuse adds above `queue_bytes_max`. Emptied by `_take_group`, and by `_fail`.
        self._queue: list[QueuedRecord] = []
        self.queue_bytes = 0  # sum of the sizes in `_queue`
        # The records of the group being written or synced, and the sum of their sizes. Set by
        # `_take_group`; cleared when the group is durable, refused or failed.
        self._in_flight: list[QueuedRecord] = []
        self._in_flight_bytes = 0
        # True while a group or a roll is in flight, before `start` and after `stop` or a failure.
        self._busy = True
        # True while a call of `_commit` is queued in the loop. There is at most one such call.
        self._scheduled = False
        # Done when a roll of `_roll_and_wait`, cancelled or not, ends. None between rolls.
        self._roll_done: asyncio.Future[OSError | None] | None = None
        # Records appended since the start, and how many of these are durable or failed. Both
        # numbers are equal when nothing is queued or in flight.
        self._appended = 0
        self._settled = 0
        # Callbacks of `when_settled`, each removed and called once `_settled` reaches its number.
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        # The error that stopped the journal, or None. Set once, never reset.
        self.failed: OSError | None = None
        self._loop = asyncio.get_running_loop()
        # Around every callback: after a surprise, what is in flight would never be answered.
        self._guard = Guard("the journal of a bookie")
        # The file being written. None before `start` and after `stop`. Replaced by each roll.
        self._file: LogFile | None = None
        # Syncs of complete files, each done when its file is closed. Empty if groups are synced.
        # Few: the kernel makes writes wait when too many bytes are not on disk.
        self._finishing: set[asyncio.Future[None]] = set()
        # The id of `_file`, which rises by one with each roll, and the rolls that were given back.
        self.file_id = self.files_given_back = 0
        # The position of the next group in `_file`: a block boundary after all settled groups.
        self._position = 0
        # The end of the space allocated in `_file`. Never below the end of a group being written.
        self._reserved = 0
        # The position up to which the log was synced, written into each group header. Never falls.
        # Does not advance if `journal_sync` is `never`.
        self._durable = LogPosition(0, 0)
        # The timer for MARK records, started by a group if it is None. After `idle_mark_ms` without
        # groups it appends a MARK; after further groups it is started again.
        self._idle_timer: asyncio.TimerHandle | None = None
        self._groups_since_timer = 0  # groups written since `_idle_timer` was set
        self.groups = 0  # groups written since the start
        # Seconds from the write of each group until it was synced, and the bytes of the groups.
        self.synced, self.group_sizes = Histogram(), Histogram(GROUP_BYTES)
        self._written_s = 0.0  # when the group in flight was written

    @property
    def end(self) -> LogPosition:
        """The position of the next group. If no group is in flight, all records before it are
        settled.
        """
        return LogPosition(self.file_id, self._position)

    async def start(self, instance: bytes, file_id: int, durable: LogPosition) -> None:
        """Begin a new file. The existing log is durable and ends at `durable`. Raises OSError."""
        self._instance = instance
        self._salt = salt_of(instance)
        self._durable = durable
        await self._roll_and_wait(file_id)

    def append(self, record: QueuedRecord) -> None:
        """Append a record to the queue."""
        self._queue.append(record)
        self.queue_bytes += record.size
        self._appended += 1
        if not self._scheduled and (not self._busy or self.failed is not None):
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call `call` when all records appended so far are durable or failed, or at once if they
        are.
        """
        if self._settled >= self._appended:
            call()
        else:
            self._waiters.append((self._appended, call))

    async def settled(self) -> None:
        """Wait until everything appended so far is durable or failed."""
        if self._settled < self._appended:
            done: asyncio.Future[None] = self._loop.create_future()
            self.when_settled(lambda: None if done.done() else done.set_result(None))
            await done

    async def roll(self) -> None:
        """Write everything appended from now on into a new file. Raises OSError."""
        while self._busy and self.failed is None:
            if self._file is None:
                raise OSError("the log is not open")
            await (self.settled() if self._roll_done is None else asyncio.wait([self._roll_done]))
        if self.failed is not None:
            raise self.failed
        await self._roll_and_wait(self.file_id + 1)

    async def sync(self) -> None:
        """Make everything settled durable, also if groups are not synced. Raises OSError."""
        if self._config.journal_sync == "group":
            return
        file = self._file
        try:
            if file is not None:
                await sync_file(file)
        except OSError as error:
            self._fail(error)
            note_lost_sync(self._disk)
        while self._finishing:
            await asyncio.wait(self._finishing)
        if self.failed is not None:
            raise self.failed

    async def _roll_and_wait(self, file_id: int) -> None:
        """Begin a roll and wait for its end. No group may be in flight. Raises OSError."""
        done = self._roll_done = self._loop.create_future()
        self._roll(file_id)
        await asyncio.wait([done])
        error = done.result()
        if error is not None:
            raise error

    async def stop(self) -> None:
        """Wait until everything appended is settled and complete files are synced, then close the
        file at its end.
        """
        while self._roll_done is not None or self._settled < self._appended:
            await (self.settled() if self._roll_done is None else asyncio.wait([self._roll_done]))
        while self._finishing:
            await asyncio.wait(self._finishing)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._busy = True
        file, self._file = self._file, None
        if file is None:
            return
        if self.failed is None:
            try:
                file.truncate(self._position)
                await sync_file(file)
            except OSError as error:
                self.failed = error
                note_lost_sync(self._disk)
        file.close()

    def _commit(self) -> None:
        with self._guard:
            self._begin_group()

    def _begin_group(self) -> None:
        self._scheduled = False
        if self.failed is not None:
            self._fail(self.failed)
        if self._busy or not self._queue:
            return
        wait_us = self._group_commit.wait_us(
            self._clock.monotonic_s(), len(self._queue), self.queue_bytes
        )
        if wait_us > 0:
            self._schedule_commit(wait_us)
            return
        self._take_group()
        self._group_commit.on_written(len(self._in_flight))
        self._busy = True
        end = self._position + GROUP_HEADER_BYTES + self._in_flight_bytes
        if end > self._config.file_bytes and self._position > BLOCK_BYTES:
            self._roll(self.file_id + 1)
        else:
            self._write_group()

    def _schedule_commit(self, wait_us: int) -> None:
        self._scheduled = True
        if wait_us < _TIMER_US_MIN:
            self._loop.call_soon(self._commit)
        else:
            self._loop.call_later(wait_us / 1e6, self._commit)

    def _take_group(self) -> None:
        """Take the next group from the queue, within the limits of `GroupCommitLimits`."""
        limits = self._config.group
        queue = self._queue
        if self.queue_bytes <= limits.group_bytes_max and len(queue) <= limits.group_entries_max:
            self._in_flight, self._queue = queue, []
            self._in_flight_bytes, self.queue_bytes = self.queue_bytes, 0
            return
        size = count = 0
        for record in queue:
            if count and size + record.size > limits.group_bytes_max:
                break
            size += record.size
            count += 1
            if count == limits.group_entries_max:
                break
        self._in_flight = queue[:count]
        del queue[:count]
        self._in_flight_bytes = size
        self.queue_bytes -= size

    def _write_group(self) -> None:
        payload: list[Buffer] = []
        size = self._in_flight_bytes
        for record in self._in_flight:
            payload.append(record.header)
            payload += record.body
        start = LogPosition(self.file_id, self._position)
        header = encode_group_header(
            self._salt, start, self._durable, len(self._in_flight), size, payload
        )
        file = self._file
        assert file is not None
        self._written_s = measured_s()
        try:
            self._reserve(file, align(self._position + GROUP_HEADER_BYTES + size))
            file.write([header, *payload, padding(size)], self._position)
        except OSError as error:
            self._on_write_failed(error)
            return
        if self._config.journal_sync == "never":
            self._on_synced(None)
        else:
            file.sync(self._on_synced)

    def _reserve(self, file: LogFile, end: int) -> None:
        while self._reserved < end:
            file.preallocate(self._reserved, self._config.preallocate_bytes)
            self._reserved += self._config.preallocate_bytes

    def _on_synced(self, error: OSError | None) -> None:
        with self._guard:
            self._end_group(error)

    def _end_group(self, error: OSError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        records, self._in_flight = self._in_flight, []
        first = LogPosition(self.file_id, self._position + GROUP_HEADER_BYTES)
        self._position = align(first.position + self._in_flight_bytes)
        if self._config.journal_sync == "group":
            self._durable = LogPosition(self.file_id, self._position)
        self.groups += 1
        synced, sizes, size = self.synced, self.group_sizes, self._in_flight_bytes
        seconds = measured_s() - self._written_s
        synced.counts[bisect_left(SECONDS, seconds)] += 1  # as `Histogram.add`, without a call
        synced.total_s += seconds
        sizes.counts[bisect_left(GROUP_BYTES, size)] += 1
        sizes.total_s += size
        self._settle_group(records, first, None)
        self._groups_since_timer += 1
        if self._idle_timer is None and records[-1].kind is not RecordType.MARK:
            self._start_idle_timer()
        self._resume()

    def _settle_group(
        self, records: list[QueuedRecord], first: LogPosition, error: OSError | None
    ) -> None:
        self._settled += len(records)
        self._on_group(records, first, error)
        waiters = self._waiters
        while waiters and waiters[0][0] <= self._settled:
            waiters.popleft()[1]()

    def _resume(self) -> None:
        self._busy = False
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def _on_write_failed(self, error: OSError) -> None:
        """Refuse the group if the disk is full; stop the journal for any other error.

        After a refusal, the next group is written at the same position.
        """
        if error.errno in _DISK_FULL:
            self._refuse_group(error)
        else:
            self._fail(error)

    def _refuse_group(self, error: OSError) -> None:
        records, self._in_flight = self._in_flight, []
        self._settle_group(records, LogPosition(self.file_id, self._position), error)
        self._resume()

    def _fail(self, error: OSError) -> None:
        """Stop for good, because the content of the disk is now unknown.

        Nothing is written or acknowledged again.
        """
        self.failed = error
        self._busy = True
        records = self._in_flight + self._queue
        self._in_flight, self._queue, self.queue_bytes = [], [], 0
        self._settle_group(records, LogPosition(self.file_id, self._position), error)

    def _roll(self, file_id: int) -> None:
        """Begin a new file. A group in flight is written into the new file."""
        with self._guard:
            self._begin_file(file_id)

    def _begin_file(self, file_id: int) -> None:
        self._busy = True
        file: LogFile | None = None
        try:
            file = self._disk.create(file_name(file_id), self._expected_bytes)
            file.write([encode_file_header(self._instance, file_id)], 0)
            file.preallocate(0, self._config.preallocate_bytes)
            file.sync(partial(self._on_rolled, file_id, file))
        except OSError as error:
            self._on_roll_failed(file_id, file, error)

    def _on_rolled(self, file_id: int, file: LogFile, error: OSError | None) -> None:
        with self._guard:
            self._use_file(file_id, file, error)

    def _use_file(self, file_id: int, file: LogFile, error: OSError | None) -> None:
        try:
            if error is not None:
                raise error
            self._disk.sync_directory()
            if self._file is not None:
                self._file.truncate(self._position)
        except OSError as failure:
            self._on_roll_failed(file_id, file, failure)
            return
        complete, self._file = self._file, file
        self.file_id = file_id
        self._position = BLOCK_BYTES
        self._reserved = self._config.preallocate_bytes
        if complete is not None:
            self._finish_file(complete)
        if self.failed is None:  # a sync of a complete file may have failed
            if self._in_flight:
                self._write_group()
            else:
                self._resume()
        self._on_roll_ended(self.failed)

    def _finish_file(self, file: LogFile) -> None:
        """Close a complete file once it is on disk."""
        if self._config.journal_sync == "group":
            file.close()
            return
        finished: asyncio.Future[None] = self._loop.create_future()
        self._finishing.add(finished)
        file.sync(partial(self._on_finished, file, finished))

    def _on_finished(
        self, file: LogFile, finished: asyncio.Future[None], error: OSError | None
    ) -> None:
        with self._guard:
            file.close()
            self._finishing.discard(finished)
            finished.set_result(None)
            if error is None:
                return
            if self.failed is None:
                self._fail(error)
            note_lost_sync(self._disk)

    def _on_roll_failed(self, file_id: int, file: LogFile | None, error: OSError) -> None:
        """Give the new file back and refuse the group if the disk is full; otherwise stop."""
        full = error.errno in _DISK_FULL
        stopped_by = self._give_back(file_id, file, remove=full)
        if full and stopped_by is None and self._file is not None:
            self._refuse_group(error)
        else:
            self._fail(stopped_by or error)
        self._on_roll_ended(error)

    def _give_back(self, file_id: int, file: LogFile | None, *, remove: bool) -> OSError | None:
        """Close a new log file and remove it, if it exists. Returns the error that prevents it."""
        try:
            if file is not None:
                file.close()  # open, it would keep its space and a descriptor
            if remove and file_name(file_id) in self._disk.names():
                self.files_given_back += 1
                self._disk.unlink(file_name(file_id))
        except OSError as error:
            return error
        return None

    def _on_roll_ended(self, error: OSError | None) -> None:
        done, self._roll_done = self._roll_done, None
        if done is not None:
            done.set_result(error)

    def _start_idle_timer(self) -> None:
        self._groups_since_timer = 0
        self._idle_timer = self._loop.call_later(
            self._config.idle_mark_ms / 1000, self._on_idle_timer
        )

    def _on_idle_timer(self) -> None:
        with self._guard:
            self._mark_if_idle()

    def _mark_if_idle(self) -> None:
        self._idle_timer = None
        if self.failed is not None or self._busy:
            return
        if self._groups_since_timer > 0:
            self._start_idle_timer()
        elif self._config.journal_sync == "group":
            self.append(QueuedRecord(RecordType.MARK, LedgerDescriptor(-1), -1, -1, (), 0, _ignore))


def _ignore(_: Status) -> None:
    """Do nothing, because a MARK has no caller to notify."""
