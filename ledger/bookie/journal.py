"""The log being written: queue -> one vectored write -> one sync -> acknowledgements.

One group is under way at a time. No task, no future and no copy per record: a group is a list of
buffers, its header is computed over them, and `on_group` tells its fate.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Final

from ledger.bookie.config import BookieConfig
from ledger.bookie.ledger_descriptor import LedgerDescriptor, LogRecord
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
from ledger.ports.clock import Clock
from ledger.ports.disk import Disk, LogFile

OnGroup = Callable[[list[LogRecord], LogPosition, OSError | None], None]
"""A group's records, where the first of them starts, and why they are not durable."""

_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_TIMER_US_MIN: Final = 1_000  # event loops keep no finer timers: below it, ask at every turn


class Journal:
    """Appends records durably, in order. The first failed sync ends it for good."""

    def __init__(
        self,
        disk: Disk,
        config: BookieConfig,
        clock: Clock,
        on_group: OnGroup,
    ) -> None:
        self._disk = disk
        self._config = config
        # A file of expected size is written past the page cache, durable when the write returns;
        # who does not wait for the disk is better served by the cache.
        self._expected_bytes = config.file_bytes if config.journal_sync == "group" else 0
        self._clock = clock
        self._instance = b""
        self._salt = 0
        self._on_group = on_group
        self._group_commit = GroupCommit(config.group)
        self._queue: list[LogRecord] = []
        self.queue_bytes = 0
        self._in_flight: list[LogRecord] = []
        self._in_flight_bytes = 0
        self._busy = True  # until started
        self._scheduled = False
        self._roll_done: asyncio.Future[OSError | None] | None = None
        self._appended = 0
        self._settled = 0
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self.failed: OSError | None = None
        self._loop = asyncio.get_running_loop()
        self._file: LogFile | None = None
        self.file_id = 0
        self._position = 0
        self._reserved = 0
        self._durable = LogPosition(0, 0)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._groups_since_timer = 0
        self.groups = 0

    @property
    def end(self) -> LogPosition:
        """Where the next group starts; all before it is settled unless a group is under way."""
        return LogPosition(self.file_id, self._position)

    async def start(self, instance: bytes, file_id: int, durable: LogPosition) -> None:
        """A new, empty file stands ready; the log before it ends, durably, at `durable`."""
        self._instance = instance
        self._salt = salt_of(instance)
        self._durable = durable
        await self._roll_and_wait(file_id)

    def append(self, record: LogRecord) -> None:
        """Queue it behind all that was appended before."""
        self._queue.append(record)
        self.queue_bytes += record.size
        self._appended += 1
        if not self._scheduled and (not self._busy or self.failed is not None):
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def when_settled(self, call: Callable[[], None]) -> None:
        """`call` runs once all that was appended before is durable or failed; at once if it is."""
        if self._settled >= self._appended:
            call()
        else:
            self._waiters.append((self._appended, call))

    async def settled(self) -> None:
        """As `when_settled`."""
        if self._settled < self._appended:
            done: asyncio.Future[None] = self._loop.create_future()
            self.when_settled(lambda: None if done.done() else done.set_result(None))
            await done

    async def roll(self) -> None:
        """What is appended from now on goes into a new file. Raises OSError."""
        while self._busy and self.failed is None:
            await (self.settled() if self._roll_done is None else asyncio.wait([self._roll_done]))
        if self.failed is not None:
            raise self.failed
        await self._roll_and_wait(self.file_id + 1)

    async def _roll_and_wait(self, file_id: int) -> None:
        """A roll for which no group waits. Raises OSError."""
        self._roll_done = self._loop.create_future()
        self._roll(file_id)
        error = await self._roll_done
        self._roll_done = None
        if error is not None:
            raise error

    async def stop(self) -> None:
        """All that was appended is settled, the file is closed at its end."""
        await self.settled()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._busy = True
        if self._file is None:
            return
        if self.failed is None:
            try:
                self._file.truncate(self._position)
                await sync_file(self._file)
            except OSError as error:
                self.failed = error
        self._file.close()
        self._file = None

    def _commit(self) -> None:
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
        """The next group is under way; so many bytes are its payload."""
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
        if error is not None:
            self._fail(error)
            return
        records, self._in_flight = self._in_flight, []
        first = LogPosition(self.file_id, self._position + GROUP_HEADER_BYTES)
        self._position = align(first.position + self._in_flight_bytes)
        if self._config.journal_sync == "group":
            self._durable = LogPosition(self.file_id, self._position)
        self.groups += 1
        self._settle_group(records, first, None)
        self._groups_since_timer += 1
        if self._idle_timer is None and records[-1].kind is not RecordType.MARK:
            self._start_idle_timer()
        self._resume()

    def _settle_group(
        self, records: list[LogRecord], first: LogPosition, error: OSError | None
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
        """A full disk refuses this group only: none of it counts, the place is written again."""
        if error.errno in _DISK_FULL:
            self._refuse_group(error)
        else:
            self._fail(error)

    def _refuse_group(self, error: OSError) -> None:
        records, self._in_flight = self._in_flight, []
        self._settle_group(records, LogPosition(self.file_id, self._position), error)
        self._resume()

    def _fail(self, error: OSError) -> None:
        """Nothing is ever written or acknowledged again (what the disk holds is unknown)."""
        self.failed = error
        self._busy = True
        records = self._in_flight + self._queue
        self._in_flight, self._queue, self.queue_bytes = [], [], 0
        self._settle_group(records, LogPosition(self.file_id, self._position), error)

    def _roll(self, file_id: int) -> None:
        """Begin a new file; a group that is under way is written into it."""
        self._busy = True
        try:
            file = self._disk.create(file_name(file_id), self._expected_bytes)
            file.write([encode_file_header(self._instance, file_id)], 0)
            file.preallocate(0, self._config.preallocate_bytes)
            file.sync(lambda error: self._on_rolled(file_id, file, error))
        except OSError as error:
            self._on_roll_failed(file_id, error)

    def _on_rolled(self, file_id: int, file: LogFile, error: OSError | None) -> None:
        try:
            if error is not None:
                raise error
            self._disk.sync_directory()
            if self._file is not None:
                self._file.truncate(self._position)
                self._file.close()
        except OSError as failure:
            self._on_roll_failed(file_id, failure)
            return
        self._file = file
        self.file_id = file_id
        self._position = BLOCK_BYTES
        self._reserved = self._config.preallocate_bytes
        if self._in_flight:
            self._write_group()
        else:
            self._resume()
        self._on_roll_ended(None)

    def _on_roll_failed(self, file_id: int, error: OSError) -> None:
        if error.errno in _DISK_FULL and self._file is not None:
            if file_name(file_id) in self._disk.names():
                self._disk.unlink(file_name(file_id))
            self._refuse_group(error)
        else:
            self._fail(error)
        self._on_roll_ended(error)

    def _on_roll_ended(self, error: OSError | None) -> None:
        if self._roll_done is not None and not self._roll_done.done():
            self._roll_done.set_result(error)

    def _start_idle_timer(self) -> None:
        self._groups_since_timer = 0
        self._idle_timer = self._loop.call_later(
            self._config.idle_mark_ms / 1000, self._on_idle_timer
        )

    def _on_idle_timer(self) -> None:
        self._idle_timer = None
        if self.failed is not None or self._busy:
            return
        if self._groups_since_timer > 0:
            self._start_idle_timer()
        elif self._config.journal_sync == "group":
            self.append(LogRecord(RecordType.MARK, LedgerDescriptor(-1), -1, -1, (), 0, _ignore))


def _ignore(_: Status) -> None:
    """Nobody waits for a mark."""


async def sync_file(file: LogFile) -> None:
    """All that was written to it is durable. Raises OSError."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_synced(error: OSError | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    file.sync(on_synced)
    await done
