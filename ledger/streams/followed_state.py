"""The newest state of the owner that a reader finds in the log: a snapshot at or below its end, or
at or below the end of an older segment.

Each entry names the distance to the newest snapshot before it, so one entry, the snapshot and the
metadata of a ledger are read. A snapshot of which a part is lost is passed: the one before it, or
that of an earlier segment, is older and as good, because the records since then follow it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core import records as log_records
from ledger.core.loss import EntryLost
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment
from ledger.core.snapshot_format import StateSnapshot, decode_snapshot, is_part, join
from ledger.errors import StreamUnavailable
from ledger.ids import EntryId

_LOST_STEPS = 64  # lost entries that are stepped over one by one


OpenLedger = Callable[[Segment], Awaitable[LedgerReader]]
"""Opens the ledger of a segment. The LAC need not be read."""


class SnapshotPlace(NamedTuple):
    """The first entry of a snapshot."""

    number: int  # of the segment
    entry: EntryId


class StoredState(NamedTuple):
    """The owner's state after all records below `sequence_id`, and the start of its segment."""

    sequence_id: int
    segment_start: int
    data: bytes
    place: SnapshotPlace | None = None  # None for a stream without records


class StateWithin(NamedTuple):
    """The newest state that can be read up to the end of one segment."""

    # The bounds of that segment.
    first: int
    end: int
    state: StoredState
    # Where the segments from that of the state on end, ascending, up to `end`. Those without
    # records repeat an end.
    borders: tuple[int, ...]


async def read_newest_state(client: LedgerClient, table: SegmentTable) -> StoredState:
    """Read the newest state below the readable end. It is b"" for a stream without records.

    Raises EntryAwaited, NoSuchLedger, CorruptFormat, MetadataUnavailable, and StreamUnavailable if
    no snapshot precedes the end.
    """
    found = await read_newer_state(_opener(client), table, None)
    assert found is not None  # no place is known
    return found


async def read_newer_state(
    open_ledger: OpenLedger, table: SegmentTable, known: SnapshotPlace | None
) -> StoredState | None:
    """Read as `read_newest_state`, but return None if the newest state is that at `known`."""
    found = await _newest_of(open_ledger, table, table.segments, known)
    if found is not None:
        return found if isinstance(found, StoredState) else None
    end = table.end_sequence_id
    if table.segments and table.segments[0].start_sequence_id < end:
        raise StreamUnavailable("no readable state snapshot precedes the end of the stream")
    return StoredState(end, end, b"")


async def read_state_within(
    client: LedgerClient, table: SegmentTable, sequence_id: int
) -> StateWithin | None:
    """Read the newest state up to the end of the segment with `sequence_id`.

    It may be a state of an earlier segment, if no snapshot of this one can be read. All records
    between the state and the end are listed, and none of them was cleaned. Returns None if no such
    state is left, or if no later segment has entries. Raises as `read_newest_state`.
    """
    segment = table.find(sequence_id)
    later = None if segment is None else table.next_with_entries(segment.number)
    if segment is None or later is None:
        return None
    end = later.start_sequence_id
    segments = [each for each in table.segments if each.number <= segment.number]
    found = await _newest_of(_opener(client), table, segments, None)
    assert not isinstance(found, SnapshotPlace)  # no place is known
    if found is None and segments[0].start_sequence_id == 0 and not _any_cleaned(segments):
        found = StoredState(0, 0, b"")  # the whole log is listed
    if found is None:
        return None
    starts = (each.start_sequence_id for each in segments)
    borders = (*(start for start in starts if start > found.segment_start), end)
    return StateWithin(segment.start_sequence_id, end, found, borders)


def _opener(client: LedgerClient) -> OpenLedger:
    return lambda segment: client.open(segment.ledger, read_lac=False)


async def _newest_of(
    open_ledger: OpenLedger,
    table: SegmentTable,
    segments: Sequence[Segment],
    known: SnapshotPlace | None,
) -> StoredState | SnapshotPlace | None:
    """Return the newest readable state of these segments, or None if there is none.

    Returns `known` if the state is that one, which is not read. No state before a cleaned segment
    is returned: the records there do not show what follows it.
    """
    for segment in reversed(segments):
        if segment.cleaned:
            return None
        last = table.last_readable_entry(segment)
        if last < 0:
            continue
        reader = await open_ledger(segment)
        reader.last_add_confirmed = max(reader.last_add_confirmed, last)
        found = await _newest_in(reader, table, segment, last, known)
        if found is not None:
            return found
    return None


def _any_cleaned(segments: Sequence[Segment]) -> bool:
    return any(segment.cleaned for segment in segments)


async def _newest_in(
    reader: LedgerReader,
    table: SegmentTable,
    segment: Segment,
    last: EntryId,
    known: SnapshotPlace | None,
) -> StoredState | SnapshotPlace | None:
    """Return the newest readable state of one segment, or None. Returns `known` if it is there."""
    async with aclosing(_places(reader, table, segment, last)) as places:
        async for place in places:
            if place == known:
                return known
            found = await _read_snapshot(reader, table, place, last)
            if found is not None:
                snapshot, position = found
                start = segment.start_sequence_id
                return StoredState(start + position, start, snapshot.owner_state, place)
    return None


async def _places(
    reader: LedgerReader, table: SegmentTable, segment: Segment, last: EntryId
) -> AsyncGenerator[SnapshotPlace]:
    """Yield where the snapshots of a segment begin, from the newest one on.

    Each readable entry names one. Perhaps a part of it cannot be read.
    """
    at, asked = last, 0
    while at >= 0:
        accepted = table.losses.at_entry(segment.number, at)
        if accepted is not None:
            at = EntryId(accepted.first - 1)
            continue
        try:
            [(_, payload)] = await reader.read(at, at, 1)
        except EntryLost:
            asked += 1
            at = EntryId(at - max(1, asked - _LOST_STEPS))
            continue
        distance = log_records.snapshot_distance(payload)
        # Without a distance the entry is part of the head snapshot itself.
        first = EntryId(at - distance if distance else 0)
        yield SnapshotPlace(segment.number, first)
        at = EntryId(first - 1)


async def _read_snapshot(
    reader: LedgerReader, table: SegmentTable, place: SnapshotPlace, last: EntryId
) -> tuple[StateSnapshot, int] | None:
    """Read the snapshot at `place`, with the number of records before it in its segment.

    Returns None if a part of it is lost or follows `last`.
    """
    parts: list[memoryview] = []
    for entry in range(place.entry, last + 1):
        if table.losses.at_entry(place.number, EntryId(entry)) is not None:
            return None
        try:
            [(_, payload)] = await reader.read(EntryId(entry), EntryId(entry), 1)
        except EntryLost:
            return None
        for record in log_records.parse_entry(payload):
            if not record.control or not is_part(record.data):
                return None
            parts.append(record.data)
            whole = join(parts)
            if whole is not None:
                return decode_snapshot(whole), record.position
    return None
