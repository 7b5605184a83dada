"""Reads of a bounded range of a stream, fast and in order, by processes that do not own it.

    open ─▶ start, end, segments        as of now, the end by LAC; `refresh` updates them, and
                                        `refresh_end` the end alone
    cut  ─▶ slices                      about equal shares, each within one segment
    read_slice ─▶ chunks of records     in any process: it takes a slice and the two ports

A scan never fences and never writes. If the end cannot be determined, that is an error, never an
earlier end. A range is read completely, or reading it raises. Offsets whose loss was accepted are
covered by the accepted loss, which `read_slice` reads itself and follows by watch.
Source: DistributedLog, "Reading" and BKLogSegmentEntryReader (seed 000).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ledger.client.client import LedgerClient
from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, visible
from ledger.core.sparse_index import ANY_TIMESTAMP, SparseIndex
from ledger.errors import CorruptFormat, NoSuchLedger, StreamUnavailable, Truncated
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.streams.config import StreamLimits
from ledger.streams.cursor_limit import CursorLimit
from ledger.streams.reads import SegmentReads
from ledger.streams.recovery import OwnerState
from ledger.streams.segment_list import SegmentList
from ledger.streams.segment_tail import SegmentTail
from ledger.streams.state_reader import StateReader
from ledger.streams.tail_cache import StoredRecord

CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes in one chunk of a slice. Meanwhile the next chunk is read."""

_RECORD_BYTES = 1024  # the assumed size of a record in a segment of unknown size
_REFRESHES_MAX = 5  # attempts, if the newest segment is removed after the list was read


class ScannedRecord(NamedTuple):
    """One stored record: opaque data with the user records of these sequence ids.

    Or, without data, the accepted loss that covers these sequence ids.
    """

    sequence_id: int
    end_sequence_id: int
    data: memoryview
    lost: LostRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSlice:
    """Records `first` up to and excluding `end`, all of one segment. It can be pickled.

    A slice of offsets that are reserved behind a segment has no entries.
    """

    stream: str
    number: int  # segment number
    ledger: LedgerId
    start_sequence_id: int  # start of the segment
    first: int
    end: int
    first_entry: EntryId
    last_entry: EntryId  # at or below the LAC; below `first_entry` in a slice without entries
    size_bytes: int  # an estimate
    timestamp_max: int | None = None  # upper bound of the timestamps; None if unknown


class StreamScan:
    """A stream as of the last `open` or `refresh`. Used by one task, which must `close` it."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        client: LedgerClient,
        timestamp_max: Callable[[memoryview], int] = lambda data: ANY_TIMESTAMP,
        limits: StreamLimits | None = None,
    ) -> None:
        """`timestamp_max` returns a record's greatest timestamp, for `find_timestamp`."""
        self.name = name
        self._client = client
        self._limits = limits or StreamLimits()
        self._timestamp_max = timestamp_max
        self._list = SegmentList(store, name)
        # The segments, start and end as of the last refresh. Start and end never decrease.
        self._table = SegmentTable()
        # Follows the last segment that may hold records, also if it is completed. Replaced by
        # `refresh` when a newer segment has entries, closed by `close`.
        self._newest: SegmentTail | None = None
        self._reads = SegmentReads(
            client,
            self._table,
            self._limits,
            CursorLimit(1, self._limits.read_ahead_bytes),
            timestamp_max,
        )

    @classmethod
    async def open(
        cls,
        name: str,
        store: MetadataStore,
        client: LedgerClient,
        timestamp_max: Callable[[memoryview], int] = lambda data: ANY_TIMESTAMP,
        limits: StreamLimits | None = None,
        *,
        synced: bool = False,
    ) -> StreamScan:
        """Create a scan and refresh it. Raises as `refresh`."""
        scan = cls(name, store, client, timestamp_max, limits)
        try:
            await scan.refresh(synced=synced)
        except BaseException:
            scan.close()
            raise
        return scan

    def close(self) -> None:
        """Release all ledgers and indexes."""
        self._reads.clear()
        self._drop_newest()

    def _drop_newest(self) -> None:
        if self._newest is not None:
            self._newest.close()
            self._newest = None
            self._table.follow(None)

    @property
    def start_sequence_id(self) -> int:
        return self._table.start_sequence_id

    @property
    def end_sequence_id(self) -> int:
        return self._table.end_sequence_id

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._table.segments

    @property
    def losses(self) -> StreamLosses:
        """The accepted losses as of the last refresh."""
        return self._table.losses

    # -- segments, start and end --------------------------------------------------------------

    async def refresh(self, *, synced: bool = False) -> None:
        """Update segments, start and end.

        The end is at or past every record that was acknowledged and readable before the call. With
        `synced`, before the caller's last `sync` of the metadata store: one is enough for many
        scans. Raises NoNode if the stream does not exist, EntryUnknown if too few bookies return
        their LAC, MetadataUnavailable, CorruptFormat.
        """
        if not synced:
            await self._list.sync()
        for attempts_left in reversed(range(_REFRESHES_MAX)):
            await self._list.load()
            try:
                await self._update(visible(self._list.segments))
                return
            except NoSuchLedger:
                if not attempts_left:
                    raise

    async def refresh_end(self) -> None:
        """Update the end after a `sync` of the metadata store, as `refresh(synced=True)` does.

        While the ledger of the newest segment is open, no later segment has records. Then its LAC
        is the end, and the list is not read: start and losses stay as they were. Raises as
        `refresh`.
        """
        tail, table = self._newest, self._table
        if tail is not None and table.in_progress is not None:
            try:
                if not await tail.sync():
                    await tail.jump()
                    table.move_end(max(tail.end_sequence_id, table.end_sequence_id))
                    return
            except NoSuchLedger:
                pass  # the list tells what became of it
        await self.refresh(synced=True)

    async def _update(self, segments: list[Segment]) -> None:
        holding = [s for s in segments if not s.completed or s.last_entry >= 0]
        newest = holding[-1] if holding else None
        before, tail = self._newest, None
        if newest is not None:
            same = before is not None and before.number == newest.number
            tail = before if same else self._tail_of(newest)
        try:
            end = await self._end_of(tail, newest)
        except BaseException:
            if tail is not None and tail is not before:
                tail.close()
            raise
        # All at once: a refresh that fails leaves the segments with the end that belongs to them.
        if tail is not before:
            self._drop_newest()
            self._newest = tail
            self._table.follow(tail)
        table = self._table
        table.relist(segments, self._list.losses)
        table.move_start(self._list.start_sequence_id)
        table.move_end(max(end, table.listed_end_sequence_id, table.start_sequence_id))

    def _tail_of(self, segment: Segment) -> SegmentTail:
        return SegmentTail(
            self._client,
            segment,
            self._limits,
            self._timestamp_max,
            self._table.learn,
            lambda: self._list.losses,
        )

    async def _end_of(self, tail: SegmentTail | None, segment: Segment | None) -> int:
        """Return the end of the segment as of now, 0 without one."""
        if tail is None or segment is None:
            return 0
        await tail.sync()
        await tail.jump()
        # Behind a loss at the end of the segment only its node tells the number of records.
        whole = tail.count == segment.record_count
        if segment.completed and not whole and not tail.behind_loss:
            raise CorruptFormat(
                f"{self.name}: segment {segment.number} is listed with {segment.record_count} "
                f"records, its ledger holds {tail.count}"
            )
        return tail.end_sequence_id

    # -- slices -------------------------------------------------------------------------------

    async def cut(self, first: int, end: int, slice_bytes: int) -> list[StreamSlice]:
        """Cut records `first` up to `end` into consecutive slices of about `slice_bytes`.

        Raises Truncated below the start, StreamUnavailable if `end` is past the known end, and
        the errors of reading an index.
        """
        assert slice_bytes > 0
        if first >= end:
            return []
        if first < self.start_sequence_id:
            raise Truncated(f"{self.name}: {first} is below the start {self.start_sequence_id}")
        if end > self.end_sequence_id:
            raise StreamUnavailable(
                f"{self.name}: {end} is past the known end {self.end_sequence_id}; refresh the scan"
            )
        found: list[StreamSlice] = []
        for segment, low, high in self._table.overlapping(first, end):
            found += await self._cut_segment(segment, low, high, slice_bytes)
        found = self._with_reserved(found, first, end)
        if sum(each.end - each.first for each in found) != end - first:
            raise CorruptFormat(f"{self.name}: the segments lack records between {first} and {end}")
        return found

    def _with_reserved(
        self, pieces: Sequence[StreamSlice], first: int, end: int
    ) -> list[StreamSlice]:
        """Add slices without entries where an accepted loss covers offsets of no segment."""
        found: list[StreamSlice] = []
        at = first
        for piece in [*pieces, None]:
            until = end if piece is None else piece.first
            while at < until and (lost := self.losses.at_offset(at)) is not None:
                after = min(until, lost.offsets.last + 1)
                found.append(_reserved_slice(self.name, lost, at, after))
                at = after
            if piece is not None:
                found.append(piece)
                at = piece.end
        return found

    async def _cut_segment(
        self, segment: Segment, low: int, high: int, slice_bytes: int
    ) -> list[StreamSlice]:
        last_entry = self._table.last_readable_entry(segment)
        index = await self._index_of(segment)
        record_bytes = await self._record_bytes(segment, index)
        wanted = max(1, round((high - low) * record_bytes / slice_bytes))
        points = index.slice_points(low, high, wanted)
        slices: list[StreamSlice] = []
        for (first, entry), (after, next_entry) in zip(
            points, [*points[1:], (high, None)], strict=True
        ):
            last = entry_before(index, after, last_entry, next_entry)
            slices.append(
                StreamSlice(
                    stream=self.name,
                    number=segment.number,
                    ledger=segment.ledger,
                    start_sequence_id=segment.start_sequence_id,
                    first=first,
                    end=after,
                    first_entry=EntryId(entry),
                    last_entry=last,
                    size_bytes=max(1, int((after - first) * record_bytes)),
                    timestamp_max=self._timestamp_bound(segment, index, first, after),
                )
            )
        return slices

    async def _index_of(self, segment: Segment) -> SparseIndex:
        try:
            return await self._reads.index_of(segment)
        except NoSuchLedger:  # the next segment was removed meanwhile, and therefore this one
            return SparseIndex()

    async def _record_bytes(self, segment: Segment, index: SparseIndex) -> float:
        """Return the average size of a user record in the segment."""
        if segment.completed:
            size = self._table.size_of(segment)
            if not size:
                try:
                    size = (await self._client.read_metadata(segment.ledger)).length or 0
                except NoSuchLedger:
                    size = 0
            return max(1.0, size / segment.record_count) if size else float(_RECORD_BYTES)
        if len(index) < 2:
            return float(_RECORD_BYTES)
        strides = len(index) - 1
        records = max(1, index.sequence_ids[-1] - index.sequence_ids[0])
        return max(1.0, strides * self._limits.index_stride_bytes / records)

    def _timestamp_bound(
        self, segment: Segment, index: SparseIndex, first: int, end: int
    ) -> int | None:
        """Return an upper bound of the timestamps of these records, None if unknown.

        It is unknown where a loss was accepted, so that nobody leaves out the slice unread.
        """
        losses = self.losses.of_segment(segment.number)
        if any(lost.offsets.first < end and lost.offsets.last >= first for lost in losses):
            return None
        bound = index.timestamp_max_between(first, end) if len(index) else None
        if bound is None:
            bound = self._table.timestamp_max_of(segment)
        return bound if 0 <= bound < ANY_TIMESTAMP else None

    # -- single records -----------------------------------------------------------------------

    def read_state(self, state: OwnerState) -> StateReader:
        """Return a reader that brings `state` up to the end of this scan."""
        return StateReader(self._client, self._table, self._reads, self.refresh, state)

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read records from the one that holds `sequence_id`, about `bytes_max` bytes in all.

        Returns no record at the end. Raises Truncated below the start.
        """
        self._table.check_start(sequence_id)
        return await self._reads.read(sequence_id, bytes_max, self.refresh)

    async def find_timestamp(self, timestamp: int, first: int = 0) -> StoredRecord | None:
        """Find the first record whose greatest timestamp is at least `timestamp`, or return None.

        Only records that end past `first` count. Call it only if `open` received `timestamp_max`.
        """
        return await self._reads.find_timestamp(timestamp, first, self.read)


def entry_before(
    index: SparseIndex, end: int, last_entry: EntryId, next_entry: int | None
) -> EntryId:
    """Return an entry past which no record below `end` lies."""
    if next_entry is not None:
        return EntryId(next_entry - 1)
    after = index.entry_from(end)
    return last_entry if after is None else EntryId(min(last_entry, after - 1))


def _reserved_slice(stream: str, lost: LostRange, first: int, end: int) -> StreamSlice:
    return StreamSlice(
        stream=stream,
        number=lost.segment,
        ledger=lost.evidence.ledger,
        start_sequence_id=lost.offsets.first,
        first=first,
        end=end,
        first_entry=EntryId(0),
        last_entry=NO_ENTRY,
        size_bytes=1,
    )
