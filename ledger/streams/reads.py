"""Reads of records that the tail cache no longer holds: find the segment, seek, read ahead.

A cursor keeps the place of a reader that is behind, under the sequence id that it will request
next. The next chunk is read ahead for it. A cursor holds at most two chunks, and a process at most
`cursors_max` cursors and about `read_ahead_bytes` bytes, so a slow reader pauses by itself and
memory stays bounded. Whole messages of bookies count, because a record keeps its message.

An accepted loss is returned in its place as one record without data. Its entries are never read,
so a copy that turns up again changes nothing. A loss that no operator accepted is an error at its
own sequence ids. The records behind it are found by a search that steps over lost entries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from ledger.client.client import LedgerClient
from ledger.client.reader import Entries, LedgerReader
from ledger.core.entry_search import Place, PlaceSearch, Unreadable
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.records import user_records
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
from ledger.ids import EntryId, pinned_bytes
from ledger.streams.config import StreamLimits
from ledger.streams.cursor_limit import CursorLimit
from ledger.streams.place_seek import bounds_between, check_found, find_place
from ledger.streams.read_cursor import (
    PINNED_MAX,
    Chunk,
    Cursor,
    collect_ahead,
    compact,
    drop_ahead,
    lost_record,
    size_of,
    take_ready,
)
from ledger.streams.read_turns import RECORDS_PER_TURN
from ledger.streams.recovery import read_head_snapshot, read_whole_head
from ledger.streams.segment_footers import read_footer
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_once

_TURNS_BEFORE_READING_AHEAD = 4
"""Turns of the loop until the response of the present read has been written to its client."""

_READERS_MAX = 8
_WALK_MAX = 16  # entries that a seek reads from the first one on, where no index says more


class SegmentReads:
    """The reads of one stream's segments. `table` may change whenever a read awaits."""

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
        self._cursor_limit = cursors
        self._timestamp_max = timestamp_max
        # Open ledgers by segment number, at most `_READERS_MAX`, the oldest first.
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        # Idle cursors by the sequence id that their reader will request next. A read removes its
        # cursor and puts it back at the new place; `CursorLimit` may evict it meanwhile.
        self._cursors: dict[int, Cursor] = {}

    async def read(
        self,
        sequence_id: int,
        bytes_max: int,
        on_ledger_gone: Callable[[], Awaitable[None]] | None = None,
    ) -> list[StoredRecord]:
        """Read as `_read` does, also if segments are removed or replaced meanwhile.

        `on_ledger_gone` refreshes the table if a ledger no longer exists. Raises Truncated if
        `sequence_id` is then below the start.
        """
        while True:
            rewrites = self._table.rewrites
            try:
                return await self._read(sequence_id, bytes_max)
            except LedgerError as error:
                if on_ledger_gone is not None and isinstance(error, NoSuchLedger):
                    await on_ledger_gone()
                if sequence_id < self._table.start_sequence_id:
                    raise Truncated(f"{sequence_id} is now below the start") from error
                if not isinstance(error, Truncated) and rewrites == self._table.rewrites:
                    raise
                # The cursor was at the end of a removed segment, or in a ledger that was replaced,
                # so seek again.

    async def _read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read at least one record from the one that holds `sequence_id`, about `bytes_max` in all.

        If a later record cannot be read now, returns those before it. Returns none only if
        `sequence_id` is at or past the readable end. Raises EntryLost if the record is lost and no
        operator accepted that.
        """
        cursor = self._take_cursor(sequence_id)
        if cursor is None or self._is_stale(cursor):
            drop_ahead(cursor)
            cursor = await self._seek(sequence_id)
            if cursor is None:
                return []
        taken: list[StoredRecord] = []
        left = bytes_max
        while left > 0 or not taken:
            try:
                more = bool(cursor.ready) or await self._fill(cursor)
            except LedgerError as error:
                if taken:
                    break  # the read of the next record raises it
                if not isinstance(error, Unreadable):
                    raise
                await self._step_over(cursor, sequence_id, error)
                continue
            if self._is_stale(cursor):  # what was read may be lost or replaced now
                return await self._read(sequence_id, bytes_max)
            if not more:
                break
            left = take_ready(
                cursor, taken[-1].end_sequence_id if taken else sequence_id, left, taken
            )
        if taken:
            self._keep_cursor(cursor, taken, _TURNS_BEFORE_READING_AHEAD)
        return taken

    def _take_cursor(self, sequence_id: int) -> Cursor | None:
        """Return the idle cursor at this place, which is idle no more, or None."""
        self._cursor_limit.taken(self, sequence_id)
        cursor = self._cursors.pop(sequence_id, None)
        if cursor is not None:
            cursor.at = -1
        return cursor

    def read_ready(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """Read without waiting. Returns None if less than `bytes_max` bytes were read ahead."""
        cursor = self._cursors.get(sequence_id)
        if cursor is None or self._is_stale(cursor):
            return None
        collect_ahead(cursor)
        if not cursor.ready or cursor.ready_bytes < bytes_max:
            return None
        taken: list[StoredRecord] = []
        held_bytes = cursor.held_bytes
        try:
            take_ready(cursor, sequence_id, bytes_max, taken)
        except CorruptFormat:
            taken.clear()
        self._cursor_limit.taken(self, sequence_id)
        cursor.at = -1
        if not taken:  # `read` seeks again, and raises the error
            self.forget(sequence_id)
            return None
        del self._cursors[sequence_id]
        self._keep_cursor(cursor, taken, 0)
        return taken if held_bytes <= PINNED_MAX * size_of(taken) else compact(taken)

    def _is_stale(self, cursor: Cursor) -> bool:
        table = self._table
        return cursor.losses is not table.losses or cursor.rewrites != table.rewrites

    def forget(self, sequence_id: int) -> None:
        """Drop the cursor at `sequence_id` and the records that it read ahead."""
        drop_ahead(self._cursors.pop(sequence_id, None))

    def clear(self) -> None:
        """Release all cursors, open ledgers and indexes."""
        for sequence_id in list(self._cursors):
            self._cursor_limit.taken(self, sequence_id)
            self.forget(sequence_id)
        self._readers.clear()
        self._table.forget_indexes()

    def _keep_cursor(self, cursor: Cursor, taken: list[StoredRecord], turns: int) -> None:
        """Store the cursor at the reader's next place, and read ahead if little is ready."""
        sequence_id = taken[-1].end_sequence_id
        if sequence_id in self._cursors:
            self.forget(sequence_id)
        self._cursors[sequence_id] = cursor
        cursor.at = sequence_id
        cursor.forget_taken(sequence_id)
        limits, limit = self._limits, self._cursor_limit
        taken_bytes = size_of(taken)
        now_s = asyncio.get_running_loop().time()
        cursor.adapt(taken_bytes, now_s, limits.read_chunk_bytes, limit.chunk_bytes_max(limits))
        self._start_ahead(cursor, taken_bytes, turns)
        reading = cursor.chunk_bytes if cursor.ahead is not None else 0
        limit.remember(self, sequence_id, cursor.held_bytes + reading)

    def _start_ahead(self, cursor: Cursor, taken_bytes: int, turns: int) -> None:
        """Read the next chunk of an idle cursor ahead, if little is ready.

        Once the chunk has grown, that is less than one chunk: otherwise every second fetch of
        half a chunk would wait for the bookie.
        """
        if cursor.ahead is not None:
            return
        ready, chunk = cursor.ready_bytes, cursor.chunk_bytes
        grown = chunk > self._limits.read_chunk_bytes
        if ready >= chunk or (not grown and ready >= max(taken_bytes, chunk // 2)):
            return
        segment, at = self._table.segment(cursor.number), cursor.next_entry
        if segment is None or cursor.losses.at_entry(cursor.number, at) is not None:
            return
        if at <= self._table.last_readable_entry(segment):
            # The reader may never return to the error of a read ahead.
            cursor.ahead = start_once(
                "a read ahead", self._read_ahead(cursor, turns), expected=LedgerError
            )

    async def _read_ahead(self, cursor: Cursor, turns: int) -> Chunk:
        """Read the next chunk, once the client has the response of the present one."""
        for _ in range(turns):
            await asyncio.sleep(0)
        chunk = await self._read_chunk(cursor)
        if self._cursors.get(cursor.at) is cursor:
            held = cursor.held_bytes + chunk.pinned_bytes
            self._cursor_limit.resize(self, cursor.at, held)
        return chunk

    async def _seek(self, sequence_id: int) -> Cursor | None:
        table = self._table
        losses, rewrites = table.losses, table.rewrites
        lost = losses.at_offset(sequence_id) if losses.ranges else None
        listed = None if lost is None else table.segment(lost.segment)
        if lost is not None and listed is not None and listed.number == lost.segment:
            return Cursor(lost.segment, lost.first, losses, rewrites)
        segment = table.find(sequence_id)
        if segment is None or sequence_id >= table.readable_end(segment):
            self._check_no_jump(segment, sequence_id)
            return None
        index = await self.index_of(segment)
        low, high = self._bounds(segment, index, sequence_id)
        if not len(index) and high - low > _WALK_MAX:
            place = await self._find(segment, sequence_id, low, high)
            check_found(place, sequence_id, f"ledger {segment.ledger}")
            low = place.entry
        return Cursor(segment.number, low, losses, rewrites)

    def _check_no_jump(self, segment: Segment | None, sequence_id: int) -> None:
        """Raise CorruptFormat if `sequence_id` lies between this segment and the next one."""
        following = None if segment is None else self._table.segment(segment.number + 1)
        if segment is not None and following is not None:
            raise CorruptFormat(
                f"no segment and no accepted loss holds record {sequence_id}: segment "
                f"{segment.number} ends at {segment.end_sequence_id}, the next one begins at "
                f"{following.start_sequence_id}"
            )

    def _bounds(self, segment: Segment, index: SparseIndex, sequence_id: int) -> tuple[int, int]:
        """Return the first entry that may hold `sequence_id`, and one past the last one."""
        high = self._table.last_readable_entry(segment) + 1
        behind = index.entry_from(sequence_id + 1)
        if behind is not None:
            high = min(high, behind)
        low = min(index.entry_for(sequence_id), high)
        return bounds_between(self._table.losses, segment, sequence_id, low, high)

    async def _find(
        self,
        segment: Segment,
        sequence_id: int,
        low: int,
        high: int,
        error: Unreadable | None = None,
    ) -> Place:
        """Find the entry that holds `sequence_id`, also if others are lost. See `PlaceSearch`."""
        reader = await self._reader(segment)
        reader.last_add_confirmed = max(
            reader.last_add_confirmed, self._table.last_readable_entry(segment)
        )
        search = PlaceSearch(
            low,
            high,
            start_sequence_id=segment.start_sequence_id,
            sequence_id=sequence_id,
            error=error,
        )
        return await find_place(reader, search, self._cursor_limit.turns.take)

    async def _step_over(self, cursor: Cursor, sequence_id: int, error: Unreadable) -> None:
        """Move past the unreadable entry at the cursor if `sequence_id` lies behind it.

        Raises `error`, or that of a later entry, if such an entry holds it.
        """
        segment = self._listed_segment(cursor.number)
        lost = cursor.losses.at_offset(sequence_id)
        if lost is not None:  # the entry holds no record
            cursor.number, cursor.next_entry = lost.segment, lost.first
            return
        if sequence_id >= self._table.readable_end(segment):  # nor here
            if not self._move_on(cursor):
                raise Truncated(f"segment {cursor.number + 1} is not listed")
            return
        _, high = self._bounds(segment, await self.index_of(segment), sequence_id)
        place = await self._find(segment, sequence_id, cursor.next_entry + 1, high, error)
        check_found(place, sequence_id, f"ledger {segment.ledger}")
        cursor.next_entry = place.entry

    async def _next_readable(self, sequence_id: int, error: EntryLost) -> int:
        """Return the first sequence id behind the lost record at `sequence_id`.

        Behind a long run of lost entries it may be lost too. Raises `error` if the record turned up
        again, EntryAwaited if its loss is not proved any more.
        """
        table = self._table
        segment = table.find(sequence_id)
        if segment is None:
            raise error
        index = await self.index_of(segment)
        low, high = self._bounds(segment, index, sequence_id)
        place = await self._find(segment, sequence_id, low, high)
        if isinstance(place.error, EntryAwaited):
            raise place.error
        if place.sequence_id is not None:
            if place.sequence_id <= sequence_id:
                raise error
            return place.sequence_id
        behind = index.sequence_id_from(sequence_id + 1)
        accepted = table.losses.of_segment(segment.number)
        ends = [table.readable_end(segment), *(lost.offsets.first for lost in accepted)]
        ends += [] if behind is None else [behind]
        found = min((end for end in ends if end > sequence_id), default=None)
        if found is None:
            raise error
        return found

    async def _fill(self, cursor: Cursor) -> bool:
        """Wait until `cursor.ready` holds a record. Returns False at the readable end."""
        while not cursor.ready:
            collect_ahead(cursor)
            if cursor.ready:
                continue
            if cursor.ahead is not None:
                ahead, cursor.ahead = cursor.ahead, None
                cursor.put(await ahead)
                continue
            segment = self._listed_segment(cursor.number)
            lost = cursor.losses.at_entry(cursor.number, cursor.next_entry)
            if lost is not None:
                if lost.record_count:
                    cursor.ready.append(lost_record(lost))
                cursor.next_entry = lost.last + 1
                continue
            if cursor.next_entry <= self._table.last_readable_entry(segment):
                cursor.put(await self._read_chunk(cursor))
                continue
            # The next segment begins at the end of this one, which only a completed one has.
            if not segment.completed or not self._move_on(cursor):
                return False
        return True

    def _move_on(self, cursor: Cursor) -> bool:
        """Move to the beginning of the next segment. Returns False if there is none.

        Raises Truncated if its records begin earlier: it was merged with the segment of the cursor.
        """
        following = self._table.segment(cursor.number + 1)
        if following is None:
            return False
        if following.first_number != cursor.number + 1:
            raise Truncated(f"segment {cursor.number} was merged")
        cursor.number, cursor.next_entry = following.number, 0
        return True

    def _listed_segment(self, number: int) -> Segment:
        """Return the segment of a cursor. Raises Truncated if it was removed or merged."""
        segment = self._table.segment(number)
        if segment is None or segment.number != number:
            raise Truncated(f"segment {number} was removed")
        return segment

    async def _read_chunk(self, cursor: Cursor) -> Chunk:
        await self._cursor_limit.turns.take()
        reader = await self._reader(self._listed_segment(cursor.number))
        segment = self._listed_segment(cursor.number)  # again: it may have been completed meanwhile
        last_entry = self._table.last_readable_entry(segment)
        lost = cursor.losses.first_behind(cursor.number, cursor.next_entry)
        if lost is not None:
            last_entry = min(last_entry, EntryId(lost.first - 1))
        if cursor.next_entry > last_entry:
            raise StreamUnavailable(f"segment {cursor.number} is being recovered")
        if reader.last_add_confirmed < last_entry:
            reader.last_add_confirmed = last_entry
        chunk_bytes = max(cursor.chunk_bytes, self._limits.read_chunk_bytes)
        entries = await reader.read(EntryId(cursor.next_entry), last_entry, chunk_bytes)
        if not entries:
            raise NoSuchEntry(f"ledger {segment.ledger} entry {cursor.next_entry}")
        found = await self._records_of(entries, segment.start_sequence_id - 1)
        cursor.next_entry = entries[-1][0] + 1
        return Chunk(found, pinned_bytes(body for _, body in entries))

    async def _records_of(self, entries: Entries, base: int) -> list[StoredRecord]:
        """Return the user records of these entries. `base` + 1 is the first sequence id."""
        found: list[StoredRecord] = []
        timestamp_max, left = self._timestamp_max, RECORDS_PER_TURN
        for _, body in entries:
            at = 0
            while not at or at < len(body):
                if left <= 0:
                    await self._cursor_limit.turns.take()
                    left = RECORDS_PER_TURN
                records, at = user_records(body, at, left)
                left -= max(1, len(records))
                fields = [
                    (base + it, base + it + count, timestamp_max(data), len(data), (data,), None)
                    for it, count, data in records
                ]
                found += map(StoredRecord._make, fields)  # faster than calls with arguments
        return found

    async def _reader(self, segment: Segment) -> LedgerReader:
        reader = self._readers.get(segment.number)
        if reader is None or reader.metadata.ledger != segment.ledger:
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
        """Find the first record whose greatest timestamp is at least `timestamp`, or return None.

        Only records that end past `first` and past the stream's start count. `read` is the read
        method of the stream, which tries its cache first.
        """
        for segment in self._table.with_timestamp(timestamp, first):
            found = await self.find_in(segment, timestamp, first, read)
            if found is not None:
                return found
        return None

    async def find_in(
        self,
        segment: Segment,
        timestamp: int,
        first: int,
        read: Callable[[int, int], Awaitable[list[StoredRecord]]],
    ) -> StoredRecord | None:
        """Find a record as `find_timestamp` does, in one segment."""
        table = self._table
        index = await self.index_of(segment)
        at = max(segment.start_sequence_id, table.start_sequence_id, first)
        # Only the stretch that holds `at` may have its timestamp from a record before it.
        stretches = index.stretches_with(timestamp, at) if len(index) else [(at, None)]
        for low, following in stretches:
            end = table.readable_end(segment)
            end = end if following is None else min(end, following)
            low = max(low, table.start_sequence_id)
            found = await self._find_between(low, end, timestamp, read)
            if found is not None:
                return found
        return None

    async def _find_between(
        self,
        at: int,
        end: int,
        timestamp: int,
        read: Callable[[int, int], Awaitable[list[StoredRecord]]],
    ) -> StoredRecord | None:
        while at < end:
            try:
                records = await read(at, self._limits.read_chunk_bytes)
            except EntryLost as error:
                at = await self._next_readable(at, error)
                continue
            for record in records:
                matches = record.timestamp_max >= timestamp and record.lost is None
                if matches and record.sequence_id < end:
                    return record
                at = record.end_sequence_id
            at = max(at, self._table.start_sequence_id)  # it may have moved during the read
        return None

    async def index_of(self, segment: Segment) -> SparseIndex:
        """Return the segment's sparse index. It is empty if the next segment stores none.

        It is empty too if the head of the next segment is lost, or cannot be read now.
        """
        table = self._table
        index = table.index(segment.number)
        if index is not None:
            return index
        if segment.cleaned:
            return await self._footer_index(segment)
        index = SparseIndex()
        later = table.next_with_entries(segment.number)
        if later is not None:
            last_entry = table.last_readable_entry(later)
            reader = await self._reader(later)
            reader.last_add_confirmed = max(reader.last_add_confirmed, last_entry)
            try:
                head = await read_head_snapshot(reader, last_entry)
            except EntryAwaited:
                return index  # the next call reads it again
            if head is not None and head.index_before_number == segment.number:
                index = head.index_before
        self._remember_index(segment, index)
        return index

    def _remember_index(self, segment: Segment, index: SparseIndex) -> None:
        """Keep the index, unless the segment was cleaned or removed while it was read."""
        listed = self._table.segment(segment.number)
        if listed is not None and listed.ledger == segment.ledger:
            self._table.remember_index(segment.number, index)

    async def _footer_index(self, segment: Segment) -> SparseIndex:
        """Read the index of a cleaned segment, which is empty if its footer cannot be read now."""
        try:
            index = (await read_footer(await self._reader(segment), segment.last_entry)).index
        except (EntryLost, EntryAwaited):
            return SparseIndex()
        self._remember_index(segment, index)
        return index

    async def aborted_in(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the bounds of the segment with `sequence_id` and its aborted transactions.

        Returns None if it was not cleaned: `state_behind` then has them. Raises EntryLost,
        EntryAwaited.
        """
        segment = self._table.find(sequence_id)
        if segment is None or not segment.cleaned:
            return None
        footer = await read_footer(await self._reader(segment), segment.last_entry)
        return segment.start_sequence_id, segment.end_sequence_id, footer.aborted

    async def state_behind(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the bounds of the segment with `sequence_id` and the owner's state at its end.

        The state is in the head of the next segment with entries. Returns None if there is none.
        Raises EntryLost, also if the loss of the head was accepted, EntryAwaited, and
        StreamUnavailable if the head has no snapshot.
        """
        table = self._table
        segment = table.find(sequence_id)
        later = None if segment is None else table.next_with_entries(segment.number)
        if segment is None or later is None:
            return None
        last_entry = table.last_readable_entry(later)
        reader = await self._reader(later)
        reader.last_add_confirmed = max(reader.last_add_confirmed, last_entry)
        lost = next(iter(table.losses.of_segment(later.number)), None)
        readable = last_entry if lost is None else min(last_entry, lost.first - 1)
        head = await read_whole_head(reader, readable)
        if head is not None:
            return segment.start_sequence_id, later.start_sequence_id, head.owner_state
        what = f"segment {later.number} has no state snapshot at its head"
        if lost is None or readable == last_entry:
            raise StreamUnavailable(what)
        evidence = lost.evidence
        raise EntryLost(f"{what}: it is lost", evidence.ledger, lost.first, evidence.copies)
