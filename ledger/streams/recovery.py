"""Loading of a stream after a takeover, a restart or a crash: recover segments, rebuild state.

Each segment in progress is fenced and recovered, lowest first, and completed before the next one is
touched. The caller completes the last of them, in the same step in which it begins a new segment.
The state is the last complete snapshot plus the records after it, at most about `snapshot_bytes`
of data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core import records as log_records
from ledger.core.records import LogRecord
from ledger.core.segments import EMPTY_TXID, Segment, started_after
from ledger.core.snapshot_format import (
    SegmentSummary,
    StateSnapshot,
    decode_snapshot,
    is_part,
    join,
)
from ledger.core.sparse_index import SparseIndex
from ledger.errors import CorruptFormat
from ledger.ids import EntryId
from ledger.ports.clock import Clock
from ledger.streams.segment_store import SegmentStore

_READ_BYTES = 1024 * 1024
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

    def timestamp_max(self, data: memoryview) -> int:
        """Return the greatest timestamp in one record's data, -1 if it has none."""
        ...


@dataclass(slots=True)
class LoadedStream:
    """A stream as it was loaded."""

    segments: list[Segment]
    summaries: dict[int, SegmentSummary] = field(default_factory=dict[int, SegmentSummary])
    index: SparseIndex = field(default_factory=SparseIndex)  # covers segment `index_number`
    index_number: int = 0
    # A segment that is still to be listed as completed: (before, after).
    left_over: tuple[Segment, Segment] | None = None


async def load_stream(
    store: SegmentStore,
    client: LedgerClient,
    clock: Clock,
    state: OwnerState,
    on_left_over: Callable[[], None] | None = None,
) -> LoadedStream:
    """Recover and close all ledgers, and set `state` to that after the last durable record.

    Lists every recovered segment as completed, except `left_over`. Calls `on_left_over` before the
    first recovery, if one is due.
    """
    segments = await store.load()
    if on_left_over is not None and not all(segment.completed for segment in segments):
        on_left_over()
    left_over: tuple[Segment, Segment] | None = None
    last: _LastEntry | None = None
    for at, segment in enumerate(segments):
        if segment.completed:
            continue
        if left_over is not None:
            await store.complete(*left_over)
        before = started_after(segments[at - 1] if at else None, segment)
        reader = await client.recover(segment.ledger)
        last = await _read_last(reader, reader.last_add_confirmed)
        segments[at] = _complete(last, before, clock.now_ms())
        left_over = before, segments[at]
    loaded = LoadedStream(segments, left_over=left_over)
    await _rebuild(loaded, client, state, last)
    return loaded


class _LastEntry(NamedTuple):
    """The last entry of a closed ledger. `payload` is None if the ledger is empty."""

    reader: LedgerReader
    entry: EntryId
    payload: memoryview | None


async def _read_last(reader: LedgerReader, entry: EntryId) -> _LastEntry:
    if entry < 0:
        return _LastEntry(reader, entry, None)
    [(_, payload)] = await reader.read(entry, entry, _READ_BYTES)
    return _LastEntry(reader, entry, payload)


def _complete(last: _LastEntry, segment: Segment, now_ms: int) -> Segment:
    """Complete the segment from the last entry of its closed ledger."""
    if last.payload is None:
        return segment.complete(
            record_count=0,
            last_txid=EMPTY_TXID,
            last_entry=last.entry,
            last_slot=-1,
            completion_ms=now_ms,
        )
    records = list(log_records.parse_entry(last.payload))
    if not records:
        raise CorruptFormat(f"ledger {segment.ledger} entry {last.entry}: it holds no record")
    final = records[-1]
    return segment.complete(
        record_count=final.position + max(final.records - 1, 0),
        last_txid=final.txid,
        last_entry=last.entry,
        last_slot=final.slot + max(final.records, 1) - 1,
        completion_ms=now_ms,
    )


async def _rebuild(
    loaded: LoadedStream, client: LedgerClient, state: OwnerState, recovered: _LastEntry | None
) -> None:
    """Rebuild the state from the newest complete snapshot. Segments after it hold no record.

    `recovered` is what was read of the segment that was recovered last. A takeover does not read
    its metadata and its last entry again: the store would answer behind the new ledger's creation.
    """
    await _load_state(state, b"")
    for segment in reversed(loaded.segments):
        if segment.last_entry < 0:
            continue
        if recovered is not None and recovered.reader.metadata.ledger == segment.ledger:
            last = recovered
        else:
            reader = await client.open(segment.ledger)
            last = await _read_last(reader, segment.last_entry)
        if await _load_segment(loaded, last, segment, state):
            return
        if segment.record_count:
            raise CorruptFormat(f"ledger {segment.ledger}: no state snapshot precedes its records")


async def _load_segment(
    loaded: LoadedStream, last: _LastEntry, segment: Segment, state: OwnerState
) -> bool:
    reader = last.reader
    assert last.payload is not None and last.entry == segment.last_entry
    first = segment.last_entry - log_records.snapshot_distance(last.payload)
    if first == segment.last_entry:
        first = 0  # the last entry is part of the head snapshot itself
    snapshot: StateSnapshot | None = None
    parts: list[memoryview] = []
    replayed = 0
    async for entry, body in read_entries(reader, first, segment.last_entry):
        if snapshot is not None:
            replayed = await _replay_entry(loaded, segment, entry, body, state, replayed)
            continue
        parts += _snapshot_parts(body)
        snapshot = _try_join(parts)
        if snapshot is not None:
            await _apply_snapshot(loaded, snapshot, segment, state)
    if snapshot is None:
        return False
    _summarise(loaded, segment, reader)
    return True


async def read_entries(
    reader: LedgerReader, first: int, last: int
) -> AsyncGenerator[tuple[EntryId, memoryview]]:
    """Yield entries `first` to `last` in order, with their payloads."""
    while first <= last:
        for entry, body in await reader.read(EntryId(first), EntryId(last), _READ_BYTES):
            yield entry, body
            first = entry + 1


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
    known = loaded.summaries.get(segment.number)
    loaded.summaries[segment.number] = SegmentSummary(
        number=segment.number,
        timestamp_max=loaded.index.timestamp_max,
        size_bytes=reader.metadata.length,
        epoch=known.epoch if known else segment.number,
        start_sequence_id=segment.start_sequence_id,
    )


def _snapshot_parts(body: memoryview) -> list[memoryview]:
    """Return the parts among control records. A user record may begin with the same bytes."""
    return [r.data for r in log_records.parse_entry(body) if r.control and is_part(r.data)]


def user_records(body: memoryview) -> Iterator[LogRecord]:
    return (record for record in log_records.parse_entry(body) if not record.control)


async def read_head_snapshot(reader: LedgerReader, last_entry: int) -> StateSnapshot | None:
    """Read the snapshot at the head of a segment. Returns None if it is incomplete."""
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
