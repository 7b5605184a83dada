"""Reading what the tail cache no longer holds: find the segment, seek, read ahead.

A reader that is behind is remembered by the sequence id that it will ask for next, with the next
chunk read already, or on its way. At most two chunks per reader, `cursors_max` readers in all; so a
slow reader pauses by itself and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core import records as log_records
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment
from ledger.core.sparse_index import SparseIndex
from ledger.errors import (
    CorruptFormat,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    StreamUnavailable,
    Truncated,
)
from ledger.ids import EntryId
from ledger.streams.config import StreamLimits
from ledger.streams.recovery import read_head_snapshot
from ledger.streams.tail_cache import StoredRecord

_TURNS_BEFORE_READING_AHEAD = 4
"""Turns of the loop after which the answer that a read was for is on its way to the client."""

_READERS_MAX = 8


@dataclass(slots=True)
class _Cursor:
    number: int  # of the segment; its `Segment` changes when it is completed
    next_entry: int
    ready: deque[StoredRecord] = field(default_factory=deque[StoredRecord])
    ahead: asyncio.Task[list[StoredRecord]] | None = None


class CursorLimit:
    """Cursors of all streams of a process, the least recently used goes first."""

    def __init__(self, cursors_max: int) -> None:
        self._cursors_max = cursors_max
        self._used: OrderedDict[tuple[SegmentReads, int], None] = OrderedDict()

    def remember(self, owner: SegmentReads, sequence_id: int) -> None:
        self._used[owner, sequence_id] = None
        self._used.move_to_end((owner, sequence_id))
        while len(self._used) > self._cursors_max:
            (victim, at), _ = self._used.popitem(last=False)
            victim.forget(at)

    def taken(self, owner: SegmentReads, sequence_id: int) -> None:
        self._used.pop((owner, sequence_id), None)


class SegmentReads:
    """Reads of one stream's segments. `table` changes between any two steps of a read."""

    def __init__(
        self,
        client: LedgerClient,
        table: SegmentTable,
        limits: StreamLimits,
        cursors: CursorLimit,
        timestamp_max: Callable[[memoryview], int],
    ) -> None:
        self._client = client
        self._table = table
        self._limits = limits
        self._limit = cursors
        self._timestamp_max = timestamp_max
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._cursors: dict[int, _Cursor] = {}

    async def read(
        self,
        sequence_id: int,
        bytes_max: int,
        on_ledger_gone: Callable[[], Awaitable[None]] | None = None,
    ) -> list[StoredRecord]:
        """As `_read`. Segments may be removed under our hands, but only those below the start.

        `on_ledger_gone` looks again where the start is now. Raises Truncated below it.
        """
        while True:
            try:
                return await self._read(sequence_id, bytes_max)
            except LedgerError as error:
                if on_ledger_gone is not None and isinstance(error, NoSuchLedger):
                    await on_ledger_gone()
                if sequence_id < self._table.start_sequence_id:
                    raise Truncated(f"{sequence_id} is now below the start") from error
                if not isinstance(error, Truncated):
                    raise
                # Its cursor stood at the end of a removed segment: look for the place anew.

    async def _read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Records from the one that holds `sequence_id`; at least one, about `bytes_max` in all, or
        those before one that cannot be read now.

        Empty only when no segment holds it (it is at or past the readable end).
        """
        self._limit.taken(self, sequence_id)
        cursor = self._cursors.pop(sequence_id, None)
        if cursor is None:
            cursor = await self._seek(sequence_id)
            if cursor is None:
                return []
        taken: list[StoredRecord] = []
        left = bytes_max
        while left > 0 or not taken:
            try:
                if not cursor.ready and not await self._fill(cursor):
                    break
            except LedgerError:
                if not taken:
                    raise
                break  # whoever asks for what follows is told why
            left = _take(cursor, taken[-1].end_sequence_id if taken else sequence_id, left, taken)
        if taken:
            self._keep(cursor, taken, _TURNS_BEFORE_READING_AHEAD)
        return taken

    def read_ready(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """As `read`, if `bytes_max` were read ahead already; None: ask `read`."""
        cursor = self._cursors.get(sequence_id)
        if cursor is None:
            return None
        _gather(cursor)
        if not cursor.ready or _size(cursor.ready) < bytes_max:
            return None
        taken: list[StoredRecord] = []
        try:
            _take(cursor, sequence_id, bytes_max, taken)
        except CorruptFormat:
            taken.clear()
        self._limit.taken(self, sequence_id)
        if not taken:  # `read` looks for the place anew, and says what is wrong
            self.forget(sequence_id)
            return None
        del self._cursors[sequence_id]
        self._keep(cursor, taken, 0)
        return taken

    def forget(self, sequence_id: int) -> None:
        """The cursor there is gone, with what it had read ahead."""
        cursor = self._cursors.pop(sequence_id, None)
        if cursor is not None and cursor.ahead is not None:
            cursor.ahead.cancel()

    def clear(self) -> None:
        """No cursor, open ledger or index is held any more."""
        for sequence_id in list(self._cursors):
            self._limit.taken(self, sequence_id)
            self.forget(sequence_id)
        self._readers.clear()
        self._table.forget_indexes()

    def _keep(self, cursor: _Cursor, taken: list[StoredRecord], turns: int) -> None:
        """The reader's next place is remembered; what it will ask for is here or on its way."""
        sequence_id = taken[-1].end_sequence_id
        if sequence_id in self._cursors:
            self.forget(sequence_id)
        self._cursors[sequence_id] = cursor
        self._limit.remember(self, sequence_id)
        if cursor.ahead is not None:
            return
        ready = _size(cursor.ready)
        chunk = self._limits.read_chunk_bytes
        if 2 * ready >= chunk and (ready >= chunk or ready >= _size(taken)):
            return
        segment = self._table.segment(cursor.number)
        if segment is not None and cursor.next_entry <= self._table.last_readable_entry(segment):
            cursor.ahead = asyncio.get_running_loop().create_task(self._read_ahead(cursor, turns))
            cursor.ahead.add_done_callback(_look_at)

    async def _read_ahead(self, cursor: _Cursor, turns: int) -> list[StoredRecord]:
        """The next chunk, read while the reader digests what it has just been given."""
        for _ in range(turns):
            await asyncio.sleep(0)
        return await self._read_chunk(cursor)

    async def _seek(self, sequence_id: int) -> _Cursor | None:
        segment = self._table.find(sequence_id)
        if segment is None or sequence_id >= self._table.readable_end(segment):
            return None
        index = await self.index_of(segment)
        return _Cursor(segment.number, index.entry_for(sequence_id))

    async def _fill(self, cursor: _Cursor) -> bool:
        """`cursor.ready` holds something; False at the readable end."""
        while not cursor.ready:
            _gather(cursor)
            if cursor.ready:
                continue
            if cursor.ahead is not None:
                ahead, cursor.ahead = cursor.ahead, None
                cursor.ready.extend(await ahead)
                continue
            segment = self._listed(cursor.number)
            if cursor.next_entry <= self._table.last_readable_entry(segment):
                cursor.ready.extend(await self._read_chunk(cursor))
                continue
            # Only a completed segment has an end; the next one begins there.
            if not segment.completed or self._table.segment(cursor.number + 1) is None:
                return False
            cursor.number, cursor.next_entry = cursor.number + 1, 0
        return True

    def _listed(self, number: int) -> Segment:
        segment = self._table.segment(number)
        if segment is None:
            raise Truncated(f"segment {number} is gone")
        return segment

    async def _read_chunk(self, cursor: _Cursor) -> list[StoredRecord]:
        reader = await self._reader(self._listed(cursor.number))
        segment = self._listed(cursor.number)  # it may have been completed while we waited
        last_entry = self._table.last_readable_entry(segment)
        if cursor.next_entry > last_entry:
            raise StreamUnavailable(f"segment {cursor.number} is being recovered")
        if reader.last_add_confirmed < last_entry:
            reader.last_add_confirmed = last_entry
        entries = await reader.read(
            EntryId(cursor.next_entry), last_entry, self._limits.read_chunk_bytes
        )
        if not entries:
            raise NoSuchEntry(f"ledger {segment.ledger} entry {cursor.next_entry}")
        found: list[StoredRecord] = []
        for _, body in entries:
            self._parse(segment, body, found)
        cursor.next_entry = entries[-1][0] + 1
        return found

    def _parse(self, segment: Segment, body: memoryview, found: list[StoredRecord]) -> None:
        base = segment.start_sequence_id - 1
        for record in log_records.parse_entry(body):
            if record.control:
                continue
            first = base + record.position
            data = record.data
            found.append(
                StoredRecord(
                    first, first + record.records, self._timestamp_max(data), len(data), (data,)
                )
            )

    async def _reader(self, segment: Segment) -> LedgerReader:
        reader = self._readers.get(segment.number)
        if reader is None:
            reader = await self._client.open(segment.ledger)
            self._readers[segment.number] = reader
            while len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
        return reader

    async def find_timestamp(
        self,
        timestamp: int,
        first: int,
        read: Callable[[int, int], Awaitable[list[StoredRecord]]],
    ) -> StoredRecord | None:
        """The first record, of those that end past `first` and past the stream's start, whose
        greatest timestamp is at least `timestamp`; None: there is none.

        `read` is the stream's own, with its cache in front.
        """
        for segment in self._table.with_timestamp(timestamp, first):
            found = await self._find_in(segment, timestamp, first, read)
            if found is not None:
                return found
        return None

    async def _find_in(
        self,
        segment: Segment,
        timestamp: int,
        first: int,
        read: Callable[[int, int], Awaitable[list[StoredRecord]]],
    ) -> StoredRecord | None:
        table = self._table
        index = await self.index_of(segment)
        at = max(segment.start_sequence_id, table.start_sequence_id, first)
        if len(index):
            from_point = index.sequence_id_for_timestamp(timestamp, at)
            if from_point is None:
                return None
            at = from_point
        end = table.readable_end(segment)
        while at < end:
            for record in await read(at, self._limits.read_chunk_bytes):
                if record.timestamp_max >= timestamp and record.sequence_id < end:
                    return record
                at = record.end_sequence_id
            at = max(at, table.start_sequence_id)  # it may move while we read
        return None

    async def index_of(self, segment: Segment) -> SparseIndex:
        """The segment's sparse index; empty (search from its start) when none was written."""
        table = self._table
        index = table.index(segment.number)
        if index is not None:
            return index
        index = SparseIndex()
        later = table.next_with_entries(segment.number)
        if later is not None:
            last_entry = table.last_readable_entry(later)
            reader = await self._reader(later)
            reader.last_add_confirmed = max(reader.last_add_confirmed, last_entry)
            head = await read_head_snapshot(reader, last_entry)
            if head is not None and head.index_before_number == segment.number:
                index = head.index_before
        table.remember_index(segment.number, index)
        return index


def _take(cursor: _Cursor, following: int, bytes_max: int, taken: list[StoredRecord]) -> int:
    """What is ready from `following` on is `taken`, at least one record in all, else up to
    `bytes_max`. Gives the bytes that may follow, 0 when the next record does not fit."""
    ready = cursor.ready
    left = bytes_max
    while ready and (left > 0 or not taken):
        record = ready[0]
        if record.end_sequence_id <= following and not taken:
            ready.popleft()
            continue
        if record.sequence_id != following and (taken or record.sequence_id > following):
            raise CorruptFormat(f"{following} is wanted, {record.sequence_id} comes next")
        if taken and record.size_bytes > left:
            return 0
        taken.append(ready.popleft())
        left -= record.size_bytes
        following = record.end_sequence_id
    return max(left, 0)


def _gather(cursor: _Cursor) -> None:
    """What was read ahead is ready, if reading is over. If it failed it is as never begun: that
    was then, and now all may be well again."""
    ahead = cursor.ahead
    if ahead is None or not ahead.done():
        return
    cursor.ahead = None
    if not ahead.cancelled() and ahead.exception() is None:
        cursor.ready.extend(ahead.result())


def _size(records: Iterable[StoredRecord]) -> int:
    size = 0
    for record in records:
        size += record.size_bytes
    return size


def _look_at(ahead: asyncio.Task[list[StoredRecord]]) -> None:
    """A failure of reading ahead is the reader's to see, if it ever comes back."""
    if not ahead.cancelled():
        ahead.exception()
