"""Loading of a stream after a takeover, a restart or a crash: recover segments, rebuild state.

Each segment in progress is fenced and recovered, lowest first, and completed before the next one is
touched. The caller completes the last of them, in the same step in which it begins a new segment.
The state is the last complete snapshot plus the records after it, at most about `snapshot_bytes`
of data. If that snapshot was lost and its loss accepted, it is an older one. The state learns which
sequence ids are missing from the replay. A cleaned segment is never replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core import records as log_records
from ledger.core.accepted_losses import NO_LOSSES, LostRange, StreamLosses
from ledger.core.epoch_table import EpochStart
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.records import LogRecord
from ledger.core.segments import EMPTY_TXID, Segment, started_after
from ledger.core.snapshot_format import (
    SegmentSummary,
    StateSnapshot,
    decode_snapshot,
    is_part,
    join,
)
from ledger.core.sparse_index import ANY_TIMESTAMP, NO_TIMESTAMP, SparseIndex
from ledger.errors import CorruptFormat
from ledger.ids import EntryId
from ledger.ports.clock import Clock
from ledger.streams.segment_footers import footer_summary, read_footer
from ledger.streams.segment_store import SegmentStore

_READ_BYTES = 1024 * 1024
_AWAITED_MAX = 2  # heads that are asked for although their bookies do not answer
REPLAYED_PER_STEP = 500  # records that are replayed before other tasks run: a few milliseconds


class OwnerState(Protocol):
    """The state that a stream's owner keeps beside its records; opaque to streams."""

    def encode(self, end_sequence_id: int) -> bytes:
        """Encode the state after the records below `end_sequence_id` and no other.

        Later records may have been accepted already. They follow the snapshot in the log, or are
        lost in a crash, so the state must not contain them.
        """
        ...

    def load(self, data: bytes) -> Iterator[None]:
        """Replace the state by one that `encode` returned; b"" is the empty state.

        Yields between steps of bounded length, so that other tasks can run.
        """
        ...

    def replay(self, sequence_id: int, data: memoryview) -> None:
        """Apply a durable record that follows the loaded state. Called in order."""
        ...

    def pass_loss(self, first: int, last: int) -> None:
        """Apply that the records with these sequence ids, if there were any, are lost.

        Called in order with `replay`.
        """
        ...

    def timestamp_max(self, data: memoryview) -> int:
        """Return the greatest timestamp in one record's data, -1 if it has none."""
        ...


@dataclass(slots=True)
class LoadedStream:
    """A stream as it was loaded."""

    segments: list[Segment]
    losses: StreamLosses = NO_LOSSES
    epoch_base: int = 0
    summaries: dict[int, SegmentSummary] = field(default_factory=dict[int, SegmentSummary])
    index: SparseIndex = field(default_factory=SparseIndex)  # covers segment `index_number`
    index_number: int = 0
    # The epochs that no summary shows.
    epochs: list[EpochStart] = field(default_factory=list[EpochStart])
    # A segment that is still to be listed as completed: (before, after).
    left_over: tuple[Segment, Segment] | None = None
    # The entry that hides a part of the state: lost until an operator accepts it, or awaited until
    # a bookie returns it. Nothing may be written without the whole state; all segments and their
    # ends are known.
    blocked: EntryLost | EntryAwaited | None = None


def recency(segments: Sequence[Segment]) -> int:
    """Return the ledger of the newest segment in progress, -1 if there is none.

    Ledger ids rise, so streams with higher ones began their segments more recently.
    """
    return max((each.ledger for each in segments if not each.completed), default=-1)


async def load_stream(
    store: SegmentStore,
    segments: list[Segment],
    client: LedgerClient,
    clock: Clock,
    state: OwnerState,
    *,
    whole: bool = True,
) -> LoadedStream:
    """Recover and close all ledgers, and set `state` to that after the last durable record.

    `segments` are those that `store` has loaded. Lists every recovered segment as completed, except
    `left_over`. Raises EntryLost if the end of the stream lies in a loss that nobody accepted. For
    `whole` see `load_state`.
    """
    left_over: tuple[Segment, Segment] | None = None
    last: _LastEntry | None = None
    for at, segment in enumerate(segments):
        if segment.completed:
            continue
        if left_over is not None:
            await store.complete(*left_over)
        before = started_after(segments[at - 1] if at else None, segment)
        reader = await client.recover(segment.ledger)
        lost = store.losses.of_segment(segment.number)
        last = await _read_last(reader, reader.last_add_confirmed, lost)
        segments[at] = _complete(last, before, lost, clock.now_ms())
        left_over = before, segments[at]
    loaded = LoadedStream(segments, store.losses, store.epoch_base, left_over=left_over)
    await load_state(loaded, client, state, last, whole=whole)
    return loaded


async def load_state(
    loaded: LoadedStream,
    client: LedgerClient,
    state: OwnerState,
    recovered: _LastEntry | None = None,
    *,
    whole: bool,
) -> None:
    """Set `state` to that after the last durable record, or `blocked` if a part of it is lost.

    With `whole`, raises EntryAwaited if an entry cannot be read now. Otherwise `blocked` is set.
    """
    try:
        await _rebuild(loaded, client, state, recovered)
    except (EntryLost, EntryAwaited) as error:
        if whole and isinstance(error, EntryAwaited):
            raise
        loaded.blocked = error
        loaded.index, loaded.index_number = SparseIndex(), 0
        await _load_summaries(loaded, client)


def _complete(
    last: _LastEntry, segment: Segment, lost: Sequence[LostRange], now_ms: int
) -> Segment:
    """Complete the segment from the last readable entry of its closed ledger.

    Offsets that are lost behind it count as its own, except reserved ones.
    """
    count, last_txid, slot = 0, EMPTY_TXID, -1
    if last.payload is not None:
        records = list(log_records.parse_entry(last.payload))
        if not records:
            raise CorruptFormat(f"ledger {segment.ledger} entry {last.readable}: it has no record")
        final = records[-1]
        count = final.position + max(final.records - 1, 0)
        last_txid, slot = final.txid, final.slot + max(final.records, 1) - 1
    for each in lost:
        if each.forced:
            segment = segment.with_jump
        elif last.readable < each.first <= last.entry:
            count = max(count, each.offsets.last + 1 - segment.start_sequence_id)
    return segment.complete(
        record_count=count,
        last_txid=last_txid,
        last_entry=last.entry,
        last_slot=slot,
        completion_ms=now_ms,
    )


async def _load_summaries(loaded: LoadedStream, client: LedgerClient) -> None:
    """Load the newest summaries that a head snapshot has, for readers."""
    loaded.summaries, loaded.epochs = {}, []
    awaited = 0
    for segment in reversed(loaded.segments):
        if segment.last_entry < 0 or segment.cleaned or awaited > _AWAITED_MAX:
            continue
        try:
            head = await read_head_snapshot(await client.open(segment.ledger), segment.last_entry)
        except EntryAwaited:
            awaited += 1
            continue
        if head is not None:
            loaded.epochs = head.epochs
            loaded.summaries = {
                # It was written before the records of its own segment.
                each.number: each
                if each.number < segment.number
                else replace(each, timestamp_max=ANY_TIMESTAMP, size_bytes=0)
                for each in head.summaries
            }
            break
    if not loaded.summaries:
        await _load_cleaned(loaded, loaded.segments, client)
    for segment in loaded.segments:
        if segment.number not in loaded.summaries:
            _add_summary(loaded, segment, ANY_TIMESTAMP, 0)


async def _load_cleaned(
    loaded: LoadedStream, segments: Sequence[Segment], client: LedgerClient
) -> None:
    """Load the summaries of cleaned segments from their footers, where they can be read."""
    for segment in segments:
        if not segment.cleaned:
            continue
        reader = await client.open(segment.ledger)
        try:
            footer = await read_footer(reader, segment.last_entry)
        except (EntryLost, EntryAwaited):
            _add_summary(loaded, segment, ANY_TIMESTAMP, 0)
            continue
        loaded.summaries[segment.number] = footer_summary(segment, footer, reader)
        loaded.epochs = [*loaded.epochs, *footer.epochs]


class _LastEntry(NamedTuple):
    """The last entry of a closed ledger that belongs to its segment, -1 if there is none."""

    reader: LedgerReader
    entry: EntryId
    # The last entry at or below it that was not given up, -1 if there is none, and its payload.
    readable: EntryId
    payload: memoryview | None


async def _read_last(reader: LedgerReader, entry: EntryId, lost: Sequence[LostRange]) -> _LastEntry:
    for each in lost:
        if each.forced:  # what lies behind is given up, whatever the ledger holds
            entry = min(entry, EntryId(each.first - 1))
    readable = _readable_up_to(entry, lost)
    if readable < 0:
        return _LastEntry(reader, entry, readable, None)
    [(_, payload)] = await reader.read(readable, readable, _READ_BYTES)
    return _LastEntry(reader, entry, readable, payload)


def _readable_up_to(entry: EntryId, lost: Sequence[LostRange]) -> EntryId:
    """Return the last entry at or below `entry` that was not given up, -1 if there is none."""
    for each in reversed(lost):
        if each.first <= entry <= each.last:
            entry = EntryId(each.first - 1)
    return entry


# -- the state -------------------------------------------------------------------------------------


async def _rebuild(
    loaded: LoadedStream, client: LedgerClient, state: OwnerState, recovered: _LastEntry | None
) -> None:
    """Rebuild the state from the newest readable snapshot and the records after it.

    Segments behind it hold no record, unless their own snapshots were given up.

    `recovered` is what was read of the segment that was recovered last. A takeover does not read
    its metadata and its last entry again: the store would answer behind the new ledger's creation.
    """
    await _load_state(state, b"")
    segments = loaded.segments
    oldest = 0  # the first segment to replay if no snapshot is found
    for at in reversed(range(len(segments))):
        segment = segments[at]
        lost = loaded.losses.of_segment(segment.number)
        if segment.cleaned:  # no snapshot is before it, and its records do not show the state
            if not loaded.losses.ranges:
                raise CorruptFormat(f"no state snapshot follows cleaned segment {segment.number}")
            _pass_loss(state, 0, segment.end_sequence_id - 1)
            await _load_cleaned(loaded, segments[: at + 1], client)
            oldest = at + 1
            break
        if segment.last_entry < 0:
            continue
        if recovered is not None and recovered.reader.metadata.ledger == segment.ledger:
            last = recovered
        else:
            reader = await client.open(segment.ledger)
            last = await _read_last(reader, segment.last_entry, lost)
        if await _load_segment(loaded, last, segment, state):
            oldest = at + 1
            break
        if segment.record_count and not lost:
            raise CorruptFormat(f"ledger {segment.ledger}: no state snapshot precedes its records")
    else:
        if segments and loaded.losses.ranges:  # who wrote before the oldest segment is unknown
            _pass_loss(state, 0, segments[0].start_sequence_id - 1)
    for segment in segments[oldest:]:
        await _replay_segment(loaded, segment, client, state)


async def _load_segment(
    loaded: LoadedStream, last: _LastEntry, segment: Segment, state: OwnerState
) -> bool:
    """Load the newest readable snapshot of the segment, and replay the rest. False without one."""
    reader, at, payload = last.reader, last.readable, last.payload
    assert last.entry == segment.last_entry
    lost = loaded.losses.of_segment(segment.number)
    while payload is not None:
        distance = log_records.snapshot_distance(payload)
        # Without a distance the entry is part of the head snapshot itself.
        first = EntryId(at - distance if distance else 0)
        async with aclosing(_read_around(reader, first, segment.last_entry, lost)) as items:
            snapshot = await _take_snapshot(items)
            if snapshot is not None:
                await _apply_snapshot(loaded, snapshot, segment, state)
                await _replay(loaded, segment, items, state)
                _summarise(loaded, segment, reader)
                return True
        _, _, at, payload = await _read_last(reader, EntryId(first - 1), lost)
    return False


async def _replay_segment(
    loaded: LoadedStream, segment: Segment, client: LedgerClient, state: OwnerState
) -> None:
    """Replay a whole segment whose snapshots were given up."""
    if segment.record_count:
        loaded.index, loaded.index_number = SparseIndex(), segment.number
    lost = loaded.losses.of_segment(segment.number)
    if segment.last_entry < 0 and not lost:
        return
    reader = await client.open(segment.ledger)
    async with aclosing(_read_around(reader, EntryId(0), segment.last_entry, lost)) as items:
        await _replay(loaded, segment, items, state)
    _summarise(loaded, segment, reader)


_Items = AsyncGenerator[tuple[EntryId, memoryview] | LostRange]
"""Entries with their payloads, and in between what was given up."""


async def _read_around(
    reader: LedgerReader, first: EntryId, last: EntryId, lost: Sequence[LostRange]
) -> _Items:
    """Yield entries `first` to `last` in order, and each range given up from `first` on."""
    for each in lost:
        if each.last < first:
            continue
        async for item in read_entries(reader, first, min(last, each.first - 1)):
            yield item
        yield each
        first = EntryId(each.last + 1)
    async for item in read_entries(reader, first, last):
        yield item


async def _take_snapshot(items: _Items) -> StateSnapshot | None:
    """Take the snapshot that the next items hold. Returns None if a part of it was given up."""
    parts: list[memoryview] = []
    async for item in items:
        if isinstance(item, LostRange):
            return None
        parts += _snapshot_parts(item[1])
        snapshot = _try_join(parts)
        if snapshot is not None:
            return snapshot
    return None


async def _replay(loaded: LoadedStream, segment: Segment, items: _Items, state: OwnerState) -> None:
    replayed = 0
    async for item in items:
        if isinstance(item, LostRange):
            _pass_loss(state, item.offsets.first, item.offsets.last)
        else:
            replayed = await _replay_entry(loaded, segment, *item, state, replayed)


def _pass_loss(state: OwnerState, first: int, last: int) -> None:
    if first <= last:
        state.pass_loss(first, last)


def _try_join(parts: Sequence[memoryview]) -> StateSnapshot | None:
    whole = join(parts)
    return None if whole is None else decode_snapshot(whole)


async def _load_state(state: OwnerState, data: bytes) -> None:
    for _ in state.load(data):
        await asyncio.sleep(0)


async def _apply_snapshot(
    loaded: LoadedStream, snapshot: StateSnapshot, segment: Segment, state: OwnerState
) -> None:
    loaded.summaries = {summary.number: summary for summary in snapshot.summaries}
    loaded.index, loaded.index_number = snapshot.index, segment.number
    loaded.epochs = snapshot.epochs
    await _load_state(state, snapshot.owner_state)


async def _replay_entry(
    loaded: LoadedStream,
    segment: Segment,
    entry: int,
    body: memoryview,
    state: OwnerState,
    replayed: int,
) -> int:
    """Replay the records of an entry. Returns `replayed` plus their number."""
    first, timestamp_max, size = -1, -1, 0
    for record in user_records(body):
        sequence_id = segment.start_sequence_id + record.position - 1
        first = sequence_id if first < 0 else first
        timestamp_max = max(timestamp_max, state.timestamp_max(record.data))
        size += log_records.SET_HEAD_BYTES + len(record.data)
        state.replay(sequence_id, record.data)
        replayed += 1
        if replayed % REPLAYED_PER_STEP == 0:
            await asyncio.sleep(0)
    if first >= 0:
        loaded.index.add(first, entry, size, timestamp_max)
    return replayed


def _summarise(loaded: LoadedStream, segment: Segment, reader: LedgerReader) -> None:
    timestamp_max = loaded.index.timestamp_max if segment.record_count else NO_TIMESTAMP
    _add_summary(loaded, segment, timestamp_max, reader.metadata.length)


def _add_summary(
    loaded: LoadedStream, segment: Segment, timestamp_max: int, size_bytes: int
) -> None:
    """Add the summary of a segment.

    If no snapshot names its epoch, it counts as that of the segment before: rolls are far more
    frequent than takeovers, and a client that knows a higher epoch finds no earlier end.
    """
    known = loaded.summaries
    before = max((number for number in known if number <= segment.number), default=None)
    known[segment.number] = SegmentSummary(
        number=segment.number,
        timestamp_max=timestamp_max,
        size_bytes=size_bytes,
        epoch=segment.number - loaded.epoch_base if before is None else known[before].epoch,
        start_sequence_id=segment.start_sequence_id,
    )


# -- entries ---------------------------------------------------------------------------------------


async def read_entries(
    reader: LedgerReader, first: int, last: int
) -> AsyncGenerator[tuple[EntryId, memoryview]]:
    """Yield entries `first` to `last` in order, with their payloads."""
    while first <= last:
        for entry, body in await reader.read(EntryId(first), EntryId(last), _READ_BYTES):
            yield entry, body
            first = entry + 1


def _snapshot_parts(body: memoryview) -> list[memoryview]:
    """Return the parts among control records. A user record may begin with the same bytes."""
    return [r.data for r in log_records.parse_entry(body) if r.control and is_part(r.data)]


def user_records(body: memoryview) -> Iterator[LogRecord]:
    return (record for record in log_records.parse_entry(body) if not record.control)


async def read_head_snapshot(reader: LedgerReader, last_entry: int) -> StateSnapshot | None:
    """Read the snapshot at the head of a segment. Returns None if it is incomplete, or lost."""
    try:
        return await read_whole_head(reader, last_entry)
    except EntryLost:
        return None


async def read_whole_head(reader: LedgerReader, last_entry: int) -> StateSnapshot | None:
    """Read the snapshot at the head of a segment. Returns None if the segment has none.

    Raises EntryLost.
    """
    parts: list[memoryview] = []
    at = 0
    while at <= last_entry:
        [(entry, body)] = await reader.read(EntryId(at), EntryId(at), _READ_BYTES)
        found = _snapshot_parts(body)
        if not found:
            return None
        parts += found
        snapshot = _try_join(parts)
        if snapshot is not None:
            return snapshot
        at = entry + 1
    return None
