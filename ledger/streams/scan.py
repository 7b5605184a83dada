"""Reads a bounded range of a stream, fast and in order, by whoever is not its owner.

    open ─▶ start, end, segments        what there is now, the end by LAC; `refresh` looks again
    cut  ─▶ slices                      about equal shares, each within one segment
    read_slice ─▶ chunks of records     anywhere: a slice and the two ports are all it needs

Never fences, never writes. Whatever cannot be learnt is an error, never an end: a range is read
whole, or who reads it is told. Source: DistributedLog, "Reading" and BKLogSegmentEntryReader
(seed 000).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ledger.client.client import LedgerClient
from ledger.client.reader import Entries, LedgerReader
from ledger.core import records as log_records
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, visible
from ledger.core.sparse_index import ANY_TIMESTAMP, SparseIndex
from ledger.errors import CorruptFormat, NoSuchLedger, StreamUnavailable, Truncated
from ledger.ids import EntryId, LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.streams.config import StreamLimits
from ledger.streams.reads import CursorLimit, SegmentReads
from ledger.streams.segment_list import SegmentList
from ledger.streams.segment_tail import SegmentTail
from ledger.streams.tail_cache import StoredRecord

CHUNK_BYTES = 4 * 1024 * 1024
"""One step of a slice; as much again is on its way meanwhile."""

_TURNS_TO_ASK = 8
"""Turns of the loop after which a question has left, before the caller takes its time."""

_RECORD_BYTES = 1024  # of a segment that says nothing of its size
_LOOKS_MAX = 5  # at a list whose newest segment goes away under our hands


class ScannedRecord(NamedTuple):
    """One stored record: opaque data that holds the user records of these sequence ids."""

    sequence_id: int
    end_sequence_id: int
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSlice:
    """Records `first` up to but not including `end`, all of one segment. May be pickled."""

    stream: str
    number: int  # of the segment
    ledger: LedgerId
    start_sequence_id: int  # of the segment
    first: int
    end: int
    first_entry: EntryId
    last_entry: EntryId  # committed
    size_bytes: int  # an estimate
    timestamp_max: int | None = None  # no record has a greater one; None: not known


class StreamScan:
    """One stream as `open` or `refresh` found it. One task's; `close` it in the end."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        client: LedgerClient,
        timestamp_max: Callable[[memoryview], int] = lambda data: ANY_TIMESTAMP,
        limits: StreamLimits | None = None,
    ) -> None:
        """`timestamp_max` is of one record's data; only `find_timestamp` needs it."""
        self.name = name
        self._client = client
        self._limits = limits or StreamLimits()
        self._timestamp_max = timestamp_max
        self._list = SegmentList(store, name)
        self._table = SegmentTable()
        self._newest: SegmentTail | None = None  # of the last segment that may hold records
        self._reads = SegmentReads(
            client,
            self._table,
            self._limits,
            CursorLimit(1),
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
    ) -> StreamScan:
        """The segments, start and end of the stream are known. Raises as `refresh`."""
        scan = cls(name, store, client, timestamp_max, limits)
        try:
            await scan.refresh()
        except BaseException:
            scan.close()
            raise
        return scan

    def close(self) -> None:
        """Nothing is held any more."""
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

    # -- what there is ------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Start and end are not below what was acknowledged, and told to readers, before the call.

        Raises NoNode (there is no such stream), EntryUnknown (too few bookies tell the end),
        MetadataUnavailable, CorruptFormat.
        """
        await self._list.sync()
        for looks_left in reversed(range(_LOOKS_MAX)):
            await self._list.load()
            try:
                await self._look_at(visible(self._list.segments))
                return
            except NoSuchLedger:
                if not looks_left:
                    raise

    async def _look_at(self, segments: list[Segment]) -> None:
        holding = [s for s in segments if not s.completed or s.last_entry >= 0]
        newest = holding[-1] if holding else None
        if self._newest is not None and (newest is None or newest.number != self._newest.number):
            self._drop_newest()
        end = 0
        if newest is not None:
            tail = await self._tail_of(newest)
            end = tail.end_sequence_id
            if newest.completed and tail.end_sequence_id != newest.end_sequence_id:
                raise CorruptFormat(f"{self.name}: segment {newest.number} lost records")
        table = self._table
        table.relist(segments)
        table.move_start(self._list.start_sequence_id)
        table.move_end(max(end, table.listed_end_sequence_id, table.start_sequence_id))

    async def _tail_of(self, segment: Segment) -> SegmentTail:
        tail = self._newest
        if tail is None:
            tail = SegmentTail(
                self._client, segment, self._limits, self._timestamp_max, self._table.learn
            )
            self._newest = tail
            self._table.follow(tail)
        await tail.open()
        await tail.sync()
        await tail.jump()
        return tail

    # -- slices -------------------------------------------------------------------------------

    async def cut(self, first: int, end: int, slice_bytes: int) -> list[StreamSlice]:
        """`first` up to `end` as slices of about `slice_bytes`, in order, none left out.

        Raises Truncated below the start, StreamUnavailable when not all of it is known to be
        committed, and what reading the index raises.
        """
        assert slice_bytes > 0
        if first >= end:
            return []
        self._table.check_start(first)
        if end > self.end_sequence_id:
            raise StreamUnavailable(
                f"{self.name}: {end} is wanted, known to be committed is {self.end_sequence_id}"
            )
        found: list[StreamSlice] = []
        for segment, low, high in self._table.overlapping(first, end):
            found += await self._cut_segment(segment, low, high, slice_bytes)
        if sum(each.end - each.first for each in found) != end - first:
            raise CorruptFormat(f"{self.name}: no segments hold all of {first} to {end}")
        return found

    async def _cut_segment(
        self, segment: Segment, low: int, high: int, slice_bytes: int
    ) -> list[StreamSlice]:
        last_entry = self._table.last_readable_entry(segment)
        index = await self._index_of(segment)
        record_bytes = await self._record_bytes(segment, index)
        wanted = max(1, round((high - low) * record_bytes / slice_bytes))
        points = _points(index, low, high, wanted)
        slices: list[StreamSlice] = []
        for (first, entry), (after, next_entry) in zip(
            points, [*points[1:], (high, None)], strict=True
        ):
            last = _entry_before(index, after, last_entry, next_entry)
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
        except NoSuchLedger:  # of the segment behind it: truncated meanwhile, with this one
            return SparseIndex()

    async def _record_bytes(self, segment: Segment, index: SparseIndex) -> float:
        """How many bytes one of its records has, on the average."""
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
        """The greatest timestamp that these records may have."""
        bound = index.timestamp_max_between(first, end) if len(index) else None
        if bound is None:
            bound = self._table.timestamp_max_of(segment)
        return bound if 0 <= bound < ANY_TIMESTAMP else None

    # -- single records -----------------------------------------------------------------------

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Records from the one that holds `sequence_id`, about so many bytes; none at the end."""
        self._table.check_start(sequence_id)
        return await self._reads.read(sequence_id, bytes_max, self.refresh)

    async def find_timestamp(self, timestamp: int, first: int = 0) -> StoredRecord | None:
        """The first record whose greatest timestamp is at least `timestamp`; None: there is none.

        Only those that end past `first`. Needs the `timestamp_max` that `open` was given.
        """
        return await self._reads.find_timestamp(timestamp, first, self.read)


def _points(index: SparseIndex, low: int, high: int, wanted: int) -> list[tuple[int, int]]:
    """At most `wanted` places to begin a slice at: (sequence id, entry), the first one at `low`."""
    points = [(low, index.entry_for(low))]
    if wanted > len(index):  # every one of them, however small slices are wanted
        places = list(zip(index.sequence_ids, index.entries, strict=True))
    else:
        shares = range(1, wanted)
        places = [index.point_before(low + (high - low) * n // wanted) for n in shares]
    for at, entry in places:
        if at >= high:
            break
        if at > points[-1][0] and entry > points[-1][1]:
            points.append((at, entry))
    return points


def _entry_before(
    index: SparseIndex, end: int, last_entry: EntryId, next_entry: int | None
) -> EntryId:
    """No record below `end` lies behind this entry."""
    if next_entry is not None:
        return EntryId(next_entry - 1)
    after = index.entry_from(end)
    return last_entry if after is None else EntryId(min(last_entry, after - 1))


# -- reading a slice ------------------------------------------------------------------------------


async def read_slice(
    store: MetadataStore, client: LedgerClient, piece: StreamSlice, chunk_bytes: int = CHUNK_BYTES
) -> AsyncGenerator[list[ScannedRecord]]:
    """Every stored record that holds any of the slice's records, in order, chunk by chunk.

    The first and the last one may hold others too. While the caller has one chunk, the next is on
    its way; there are never more than these two. Raises Truncated when retention or truncation
    took the segment away, NoNode when the whole stream is gone, NoSuchLedger and NoSuchEntry when
    it is there and its data are not, EntryUnknown when no replica could be read now,
    CorruptFormat when a record is missing between others.
    """
    try:
        reader = await client.open(piece.ledger)
        reader.last_add_confirmed = max(reader.last_add_confirmed, piece.last_entry)
        following = piece.first
        async for entries in _entries(reader, piece, chunk_bytes):
            records = _records_of(entries, piece)
            following = _checked(records, following, piece)
            if records:
                yield records
        if following < piece.end:
            raise CorruptFormat(f"{piece.stream}: ledger {piece.ledger} lacks {following}")
    except NoSuchLedger as error:
        await _raise_gone(store, piece, error)


async def _entries(
    reader: LedgerReader, piece: StreamSlice, chunk_bytes: int
) -> AsyncGenerator[Entries]:
    last = piece.last_entry
    asking = asyncio.ensure_future(reader.read(piece.first_entry, last, chunk_bytes))
    try:
        while True:
            entries = await asking
            following = EntryId(entries[-1][0] + 1)
            if following > last:
                yield entries
                return
            asking = asyncio.ensure_future(reader.read(following, last, chunk_bytes))
            for _ in range(_TURNS_TO_ASK):
                await asyncio.sleep(0)
            yield entries
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def _records_of(
    entries: Sequence[tuple[EntryId, memoryview]], piece: StreamSlice
) -> list[ScannedRecord]:
    base = piece.start_sequence_id - 1
    first, end = piece.first, piece.end
    found: list[ScannedRecord] = []
    for _, payload in entries:
        for record in log_records.parse_entry(payload):
            at = base + record.position
            if not record.control and at < end and at + record.records > first:
                found.append(ScannedRecord(at, at + record.records, record.data))
    return found


def _checked(records: list[ScannedRecord], following: int, piece: StreamSlice) -> int:
    """They follow each other from `following` on; one past the last."""
    for record in records:
        if record.sequence_id != following and (
            record.sequence_id > following or following != piece.first
        ):
            raise CorruptFormat(
                f"{piece.stream}: {following} is wanted, {record.sequence_id} comes next"
            )
        following = record.end_sequence_id
    return following


async def _raise_gone(store: MetadataStore, piece: StreamSlice, error: NoSuchLedger) -> NoReturn:
    """Says why the ledger is not there."""
    listed = SegmentList(store, piece.stream)
    await listed.sync()
    await listed.load()
    if piece.first < listed.start_sequence_id or not listed.segments:
        raise Truncated(
            f"{piece.stream}: {piece.first} to {piece.end - 1} were removed under the read; "
            f"the start is {listed.start_sequence_id} now"
        ) from error
    if all(segment.number != piece.number for segment in listed.segments):
        raise Truncated(f"{piece.stream}: segment {piece.number} was removed") from error
    raise error
