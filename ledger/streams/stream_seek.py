"""Positions in a stream that this process does not own, and how they are found.

    EARLIEST, LATEST            the start, or the end by LAC
    Offset, Time, TransactionId the first record at or past it
    Dlsn, After                 a record, or the one that follows it

With the segment list loaded, a DLSN costs one read of metadata, the ledger's. An offset or a
transaction id is found by bisection: the segment from the list, the entry by few reads.
Source: DistributedLog, "Reading" (seed 000: D25, D26, D47).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core.deliveries import ReadRange
from ledger.core.entry_search import AWAITED_MAX, EntrySearch
from ledger.core.gaps import FIRST_POSITION, Position
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.records import LogRecord, parse_entry
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, Truncation, visible
from ledger.errors import InvalidArgument
from ledger.ids import Dlsn, EntryId, LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.streams.config import StreamLimits
from ledger.streams.cursor_limit import CursorLimit
from ledger.streams.reads import SegmentReads
from ledger.streams.recovery import read_head_snapshot
from ledger.streams.scan import StreamScan
from ledger.streams.segment_list import SegmentList
from ledger.streams.tail_cache import StoredRecord


class Edge(Enum):
    """An end of a stream: `EARLIEST` is its first readable record, `LATEST` its end."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Offset:
    """A Kafka offset; of a stream without a topic, the number of records before it."""

    value: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first record whose greatest timestamp is at least `ms`, in ms since 1970."""

    ms: int


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The first record whose transaction id is at least `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class After:
    """The record that follows the one at `dlsn`."""

    dlsn: Dlsn


First = Edge | Offset | Time | TransactionId | Dlsn | After
Until = Offset | Dlsn | None

_Judge = Callable[[LogRecord], bool]

TimestampMax = Callable[[memoryview], int]
"""Returns the greatest timestamp in the data of one stored record, -1 if it has none."""


class StreamView:
    """The stored list of a stream, and its ledgers, as one reader sees them."""

    def __init__(self, name: str, store: MetadataStore, client: LedgerClient) -> None:
        self.name = name
        self.list = SegmentList(store, name)
        # The listed segments up to the first in progress, the accepted losses and the start.
        # Changed by `load` only.
        self.table = SegmentTable()
        self._store = store
        self._client = client
        # The ledger that was read last.
        self._reader: tuple[LedgerId, LedgerReader] | None = None
        # The start for which `start_position` was found, its ledger, and that position.
        self._start: tuple[int, LedgerId, Position] | None = None

    async def load(self) -> None:
        """Read what changed of the list. Raises NoNode if the stream does not exist."""
        await self.list.load()
        self.table.relist(visible(self.list.segments), self.list.losses)
        self.table.move_start(self.list.start_sequence_id)

    def close(self) -> None:
        self.list.unwatch()
        self._reader = None

    @property
    def next_number(self) -> int:
        """The number of the segment that follows the listed ones."""
        return self.list.segments[-1].number + 1 if self.list.segments else 1

    async def reader_of(self, segment: Segment) -> LedgerReader:
        """Return the reader of the segment's ledger, with the LAC that the list shows."""
        if self._reader is None or self._reader[0] != segment.ledger:
            self._reader = segment.ledger, await self._client.open(segment.ledger)
        reader = self._reader[1]
        if segment.completed:
            reader.last_add_confirmed = max(reader.last_add_confirmed, segment.last_entry)
        return reader

    async def last_readable(self, segment: Segment) -> EntryId:
        """Return the last entry of the segment that may be read, -1 if there is none.

        Raises EntryUnknown if too few bookies return their LAC.
        """
        if segment.completed:
            return segment.last_entry
        return await (await self.reader_of(segment)).read_lac()

    async def records_of(self, segment: Segment, entry: EntryId) -> list[LogRecord]:
        """Read one entry. Raises EntryLost, and EntryAwaited if that is not proved."""
        reader = await self.reader_of(segment)
        [(_, payload)] = await reader.read(entry, entry, 1)
        return list(parse_entry(payload))

    # -- the start ----------------------------------------------------------------------------

    def start_segment(self) -> Segment | None:
        """Return the segment that holds the start, or the first one that begins there.

        Offsets that are reserved behind a segment belong to it.
        """
        start, losses = self.table.start_sequence_id, self.table.losses
        for segment in self.table.segments:
            end = segment.end_sequence_id
            if not segment.completed or start < losses.end_after(segment.number, end):
                return segment
            if segment.start_sequence_id >= start:
                return segment
        return None

    async def start_position(self) -> Position:
        """Return the entry of the first readable record, Min-Active-DLSN.

        The start decides; a stored mark only says where to look first, because it may lag behind.
        """
        start = self.table.start_sequence_id
        segment = self.start_segment()
        if segment is None:
            return Position(self.next_number, EntryId(0))
        if self._start is not None and self._start[:2] == (start, segment.ledger):
            return self._start[2]
        found = Position(segment.number, await self._entry_of_offset(segment, start))
        if segment.completed:
            self._start = start, segment.ledger, found
        return found  # further entries of an open segment may be below the start

    async def _entry_of_offset(self, segment: Segment, offset: int) -> EntryId:
        if offset <= segment.start_sequence_id:
            return EntryId(0)
        forced = self.table.losses.forced_in(segment.number)
        if forced is not None and offset >= forced.offsets.first:
            return forced.first
        last = await self.last_readable(segment)
        partly = segment.truncation is Truncation.PARTIALLY_TRUNCATED
        low = min(segment.min_active_entry, last) if partly else 0
        position = offset - segment.start_sequence_id + 1
        high = last if segment.completed else last + 1
        search = EntrySearch(max(low, 0), max(high, 0), low if partly else None)

        def reaches(last: LogRecord) -> bool:
            return last.position + max(last.records, 1) > position

        def follows(first: LogRecord) -> bool:  # a control record repeats an earlier position
            return first.position + first.control <= position

        return await self._search(segment, search, reaches, follows)

    async def _search(
        self, segment: Segment, search: EntrySearch, reaches: _Judge, follows: _Judge
    ) -> EntryId:
        """Read the entries that the search asks for.

        `reaches` tells from the last record of an entry whether the target is there or before.
        `follows` tells from the first one whether no entry before it can have the target. Raises
        EntryAwaited if an entry that may have the target cannot be read now.
        """
        awaited: dict[EntryId, EntryAwaited] = {}
        while (entry := search.wanted) is not None and len(awaited) <= AWAITED_MAX:
            records = await self._searched(segment, entry, awaited)
            if not records:
                search.on_lost(entry)
            elif reaches(records[-1]) and follows(records[0]):
                search.on_found(entry)
            else:
                search.on_read(entry, reaches(records[-1]))
        for entry, error in awaited.items():
            if search.result <= entry < search.behind:
                raise error
        return search.result

    async def _searched(
        self, segment: Segment, entry: EntryId, awaited: dict[EntryId, EntryAwaited]
    ) -> list[LogRecord]:
        """Read an entry on the way of a search. Returns no records if it cannot be read."""
        if self.table.losses.at_entry(segment.number, entry) is not None:
            return []  # also if a damaged copy is left, or one was found again
        try:
            return await self.records_of(segment, entry)
        except EntryLost:
            return []
        except EntryAwaited as error:
            awaited[entry] = error
            return []

    # -- the first position -------------------------------------------------------------------

    async def find(self, first: First, timestamp_max: TimestampMax | None) -> ReadRange:
        """Return where reading begins. Raises InvalidArgument for a position that cannot be.

        Raises EntryUnknown if an entry on the way cannot be read now and is not proved lost.
        """
        if first is Edge.EARLIEST:
            return ReadRange(await self.start_position())
        if first is Edge.LATEST:
            return ReadRange(await self._end())
        if isinstance(first, Dlsn):
            return self._at_dlsn(first, after=False)
        if isinstance(first, After):
            return self._at_dlsn(first.dlsn, after=True)
        if isinstance(first, TransactionId):
            return await self._at_txid(first.value)
        if isinstance(first, Time):
            return await self._at_time(first.ms, timestamp_max)
        assert isinstance(first, Offset)
        return await self._at_offset(first.value)

    async def _end(self) -> Position:
        segment = self.table.in_progress
        if segment is None:
            return Position(self.next_number, EntryId(0))
        return Position(segment.number, EntryId(await self.last_readable(segment) + 1))

    def _at_dlsn(self, dlsn: Dlsn, *, after: bool) -> ReadRange:
        check_dlsn(dlsn)
        following = (self.next_number, 0, 0)
        if dlsn.segment >= self.next_number and (dlsn != following or after):
            raise InvalidArgument(
                f"{self.name}: DLSN {tuple(dlsn)}: the last segment is {self.next_number - 1}"
            )
        segment = self.table.segment(dlsn.segment)
        within = dlsn.entry or dlsn.slot or after
        if segment is not None and segment.cleaned and (within or segment.merged):
            raise InvalidArgument(
                f"{self.name}: DLSN {tuple(dlsn)}: this segment was cleaned, and its records have "
                "other positions now; pass an offset"
            )
        forced = self.table.losses.forced_in(dlsn.segment)
        if segment is not None and segment.completed and forced is None:
            last = segment.last_entry
            if dlsn.entry > last + 1 or (dlsn.entry == last + 1 and dlsn.slot):
                raise InvalidArgument(
                    f"{self.name}: DLSN {tuple(dlsn)}: the last entry of this segment is {last}"
                )
        at = Position(dlsn.segment, dlsn.entry)
        return ReadRange(at, slot=dlsn.slot + after, after=after)

    async def _at_offset(self, offset: int) -> ReadRange:
        if offset < 0:
            raise InvalidArgument(f"{self.name}: offset {offset} is negative")
        if offset < self.table.start_sequence_id:  # one TRIM reports what is left out
            segment = self.table.find(offset)
            at = Position(segment.number, EntryId(0)) if segment else FIRST_POSITION
            return ReadRange(at, offset=offset)
        lost = self.table.losses.at_offset(offset)
        if lost is not None and self.table.segment(lost.segment) is not None:
            return ReadRange(lost.first_position, offset=offset)
        segment = self.table.find(offset)
        if segment is None or (segment.completed and offset >= segment.end_sequence_id):
            end = self.table.listed_end_sequence_id
            if offset > max(end, self.table.start_sequence_id):
                raise InvalidArgument(f"{self.name}: offset {offset} is past the end {end}")
            return ReadRange(await self._end(), offset=offset)
        found = await self._entry_of_offset(segment, offset)
        return ReadRange(Position(segment.number, found), offset=offset)

    async def _at_txid(self, txid: int) -> ReadRange:
        if txid < 0:
            raise InvalidArgument(f"{self.name}: transaction id {txid} is negative")
        completed = [s for s in self.table.segments if s.completed and s.record_count]
        at = bisect_left(completed, txid, key=lambda each: each.last_txid)
        if at < len(completed):
            segment = completed[at]
            search = EntrySearch(0, segment.last_entry)
        else:
            segment = self.table.in_progress
            if segment is None:
                return ReadRange(await self._end(), txid=txid)
            search = EntrySearch(0, await self.last_readable(segment) + 1)
        if segment.end_sequence_id <= self.table.start_sequence_id and segment.completed:
            return ReadRange(await self.start_position(), txid=txid)
        found = await self._search(
            segment, search, lambda last: last.txid >= txid, lambda first: first.txid < txid
        )
        start = await self.start_position()
        return ReadRange(max(Position(segment.number, found), start), txid=txid)

    async def _at_time(self, ms: int, timestamp_max: TimestampMax | None) -> ReadRange:
        """Find the record as a Kafka broker does. Past the end, reading begins at the end."""
        if timestamp_max is None:
            raise InvalidArgument(
                f"{self.name}: its records have no timestamps; pass `timestamp_max`, or a "
                "transaction id"
            )
        found = await self._find_completed(ms, timestamp_max)
        if found is None:
            found = await self._find_time(ms, timestamp_max)
        if found is None:
            return ReadRange(await self._end())
        return await self._at_offset(max(found.sequence_id, self.table.start_sequence_id))

    async def _find_completed(self, ms: int, timestamp_max: TimestampMax) -> StoredRecord | None:
        """Find the record in the first segment that was completed at `ms` or later.

        Most records are there if their timestamps follow the clock. One head snapshot, that of the
        next segment, tells whether this segment is right, and has its index. Returns None if it is
        not, or if no completed segment follows.
        """
        table = self.table
        completed = [segment for segment in table.segments if segment.completed]
        at = bisect_left(completed, ms, key=lambda each: each.completion_ms)
        later = table.next_with_entries(completed[at].number) if at < len(completed) else None
        if later is None:
            return None
        segment = completed[at]
        head = await read_head_snapshot(await self.reader_of(later), later.last_entry)
        if head is None:
            return None
        table.learn(later.number, head)
        start = table.start_sequence_id
        first = next(table.with_timestamp(ms, start), None)
        if first is None or first.number != segment.number:
            return None
        reads = SegmentReads(
            self._client,
            table,
            StreamLimits(),
            CursorLimit(1, StreamLimits().read_ahead_bytes),
            timestamp_max,
        )
        try:
            return await reads.find_in(segment, ms, start, reads.read)
        finally:
            reads.clear()

    async def _find_time(self, ms: int, timestamp_max: TimestampMax) -> StoredRecord | None:
        """Find the record from the summaries that the newest snapshot has."""
        scan = await StreamScan.open(self.name, self._store, self._client, timestamp_max)
        try:
            return await scan.find_timestamp(ms)
        finally:
            scan.close()


def check_dlsn(dlsn: Dlsn) -> None:
    if dlsn.segment < 1 or dlsn.entry < 0 or dlsn.slot < 0:
        raise InvalidArgument(
            f"DLSN {tuple(dlsn)}: the segment is at least 1, entry and slot at least 0"
        )


def limited(wanted: ReadRange, first: First, until: Until) -> ReadRange:
    """Return `wanted` up to `until`. Raises InvalidArgument if that is before `first`."""
    if until is None:
        return wanted
    if isinstance(until, Offset):
        if until.value < 0 or (isinstance(first, Offset) and first.value > until.value):
            raise InvalidArgument(f"first {first} is past until {until}")
        return wanted._replace(until_offset=until.value)
    check_dlsn(until)
    end = Position(until.segment, until.entry)
    if (wanted.first, wanted.slot - wanted.after) > (end, until.slot):
        raise InvalidArgument(f"first {first} is past until {tuple(until)}")
    return wanted._replace(until=end, until_slot=until.slot)
