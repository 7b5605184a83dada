"""Writes the records that the cleaner keeps of a segment, or of several, into a new ledger.

    begin ─▶ add … ─▶ finish ─▶ Stream.replace        the segment names the new ledger
                └──▶ abandon                           the new ledger is deleted

Several segments are merged: they are clean already, follow each other, and become one segment.

The ledger is not listed before `Stream.replace`. If the process ends, or another one owns the
stream meanwhile, the search for orphans finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ledger.client.reader import Entries, LedgerReader
from ledger.client.writer import LedgerWriter
from ledger.core import records as log_records
from ledger.core.epoch_table import EpochStart
from ledger.core.segment_footer import SegmentFooter, split
from ledger.core.segments import EMPTY_TXID, Segment, can_merge, merged_segment
from ledger.core.sparse_index import SparseIndex
from ledger.errors import CorruptFormat, LedgerError
from ledger.ids import Buffer, EntryId
from ledger.streams.config import StreamLimits
from ledger.streams.read_turns import RECORDS_PER_TURN
from ledger.streams.recovery import user_records
from ledger.streams.services import StreamServices
from ledger.tasks import start_once

REWRITE_S_MAX = 1_200.0
"""Much shorter than the time after which another process deletes a ledger that no stream lists."""

ENTRY_BYTES = 256 * 1024
"""Bytes that are written as one entry; a larger batch has an entry of its own. A megabyte would
hold up clients for milliseconds in the journal."""

IN_FLIGHT_BYTES_MAX = 512 * 1024
"""Bytes that are sent to the bookies and not confirmed, beyond which `add` waits. Clients' entries
wait behind them in the journal."""

_ENVELOPE_AND_HEAD = log_records.ENVELOPE_BYTES + log_records.SET_HEAD_BYTES


@dataclass(frozen=True, slots=True)
class CleanedRecord:
    """One record of a cleaned segment.

    It covers `count` sequence ids: the gap in front of its data, and those of the data.
    """

    count: int
    timestamp_max: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSegment:
    """A segment whose cleaned records are durable in a ledger that no stream lists yet."""

    before: tuple[Segment, ...]  # one, or those that are merged
    after: Segment
    footer: SegmentFooter
    size_bytes: int
    began_s: float  # monotonic time of the creation of the ledger


class RewritableStream(Protocol):
    """The part of an owner's stream that a rewriting needs; `Stream` implements it."""

    services: StreamServices

    def epoch_at(self, sequence_id: int) -> int: ...

    def epochs_between(self, first: int, end: int) -> tuple[EpochStart, ...]: ...

    async def create_ledger(self) -> LedgerWriter: ...


class SegmentRewriter:
    """The rewriting of one segment, or of several as one.

    Used by one task, which ends it by `finish` or `abandon`.
    """

    def __init__(
        self,
        stream: RewritableStream,
        segments: tuple[Segment, ...],
        writer: LedgerWriter,
        began_s: float,
    ) -> None:
        self._stream = stream
        self._segments = segments
        self._start = segments[0].start_sequence_id
        self._writer = writer
        # Monotonic time of the creation of the ledger.
        self._began_s = began_s
        limits: StreamLimits = stream.services.limits
        self._entry_bytes_max = min(limits.entry_bytes_max, ENTRY_BYTES)
        self._index = SparseIndex(limits.index_stride_bytes)
        self._timestamp_max = -1
        # Sequence ids that the records so far cover, also those in `_waiting`.
        self._position = 0
        # Records of the next entry as buffers, their bytes, and its first sequence id.
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._waiting_first = self._start
        self._waiting_timestamp_max = -1
        # Bytes of entries that the bookies have not confirmed.
        self._in_flight_bytes = 0
        # Set at each confirmation. `_room` clears it.
        self._confirmed = asyncio.Event()
        # The first error of an entry. Never reset.
        self._failed: LedgerError | None = None
        # True once `finish` or `abandon` was called.
        self._ended = False

    @classmethod
    async def begin(cls, stream: RewritableStream, *segments: Segment) -> SegmentRewriter:
        """Create the ledger. Raises as `LedgerClient.create`.

        Several segments must be ones that `can_merge` allows.
        """
        assert segments[0].completed if len(segments) == 1 else can_merge(segments)
        services = stream.services
        began_s = services.clock.monotonic_s()
        writer = await stream.create_ledger()
        services.keep_unlisted(writer.ledger, REWRITE_S_MAX)
        return cls(stream, segments, writer, began_s)

    async def add(self, records: Sequence[CleanedRecord]) -> None:
        """Add records in order. Waits while too much is under way. Raises the error of an entry."""
        assert not self._ended
        room = self._entry_bytes_max - _ENVELOPE_AND_HEAD
        start = self._start
        for record in records:
            size = len(record.data)
            assert record.count > 0
            if self._waiting and self._waiting_bytes + size > room:
                await self._send_waiting()
            if not self._waiting:
                self._waiting_first = start + self._position
            first, self._position = self._position + 1, self._position + record.count
            txid = start + self._position - 1
            self._waiting.append(log_records.set_head(first, txid, record.count, size))
            self._waiting.append(record.data)
            self._waiting_bytes += log_records.SET_HEAD_BYTES + size
            self._waiting_timestamp_max = max(self._waiting_timestamp_max, record.timestamp_max)

    async def finish(self, aborted: bytes) -> RewrittenSegment:
        """Write the footer and close the ledger, for `Stream.replace`.

        `aborted` holds the aborted transactions that end in the segment, in the owner's format.
        Raises CorruptFormat if the records do not cover the segment. After an error the ledger is
        deleted.
        """
        try:
            return await self._finish(aborted)
        except BaseException:
            await self.abandon()
            raise

    async def _finish(self, aborted: bytes) -> RewrittenSegment:
        last, end = self._segments[-1], self._segments[-1].end_sequence_id
        if self._start + self._position != end:
            raise CorruptFormat(
                f"segment {last.number} covers {end - self._start} sequence ids, "
                f"its cleaned records cover {self._position}"
            )
        if self._waiting:
            await self._send_waiting()
        epoch = self._stream.epoch_at(self._start)
        epochs: tuple[EpochStart, ...] = ()
        if len(self._segments) > 1 or last.merged:
            epochs = self._stream.epochs_between(self._start, end)
        footer = SegmentFooter(self._index, self._timestamp_max, epoch, aborted, epochs)
        txid = max(each.last_txid for each in self._segments) if self._position else EMPTY_TXID
        for distance, part in enumerate(split(footer.encode())):
            record = log_records.control_record(self._position, txid, part)
            await self._send([record], len(record), distance)
        last_entry = await self._writer.close()
        self._ended = True
        return RewrittenSegment(
            before=self._segments,
            after=self._after(last_entry),
            footer=footer,
            size_bytes=self._writer.length,
            began_s=self._began_s,
        )

    def _after(self, last_entry: EntryId) -> Segment:
        segments, ledger = self._segments, self._writer.ledger
        first = segments[0]
        if len(segments) == 1:
            return first.with_ledger(ledger, last_entry, 0)
        return merged_segment(segments, ledger, last_entry, 0)

    async def abandon(self) -> None:
        """Delete the ledger. After `finish` returned, this does nothing.

        If it cannot be deleted now, it is deleted later as an orphan.
        """
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        await self._stream.services.delete_unlisted(self._writer.ledger)

    async def _send_waiting(self) -> None:
        buffers, size = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        timestamp_max, self._waiting_timestamp_max = self._waiting_timestamp_max, -1
        entry = await self._send(buffers, size, 0)
        self._index.add(self._waiting_first, entry, size, timestamp_max)
        self._timestamp_max = max(self._timestamp_max, timestamp_max)

    async def _send(self, buffers: list[Buffer], size: int, distance: int) -> EntryId:
        """Send one entry once there is room for it. Raises the first error of an entry."""
        while self._failed is None and self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            self._confirmed.clear()
            await self._confirmed.wait()
        await self._writer.room()
        if self._failed is not None:
            raise self._failed

        def on_confirmed(error: LedgerError | None) -> None:
            self._failed = self._failed or error
            self._in_flight_bytes -= size
            self._confirmed.set()

        entry = self._writer.add([log_records.envelope(size, distance), *buffers], on_confirmed)
        self._in_flight_bytes += size
        return entry


Batch = tuple[int, int, memoryview]
"""First sequence id, number of sequence ids that it covers, and the data, of one stored record."""


async def read_segment(stream: RewritableStream, segment: Segment) -> AsyncGenerator[list[Batch]]:
    """Yield the records of a completed segment in order, in chunks.

    While the caller has one chunk, the next one is read. Raises NoSuchLedger if the segment was
    replaced or removed long ago, EntryLost, EntryAwaited.
    """
    reader = await stream.services.client.open(segment.ledger)
    reader.last_add_confirmed = max(reader.last_add_confirmed, segment.last_entry)
    async with aclosing(_chunks(reader, segment, stream.services.limits)) as chunks:
        async for entries in chunks:
            base = segment.start_sequence_id - 1
            found: list[Batch] = []
            records = (record for _, payload in entries for record in user_records(payload))
            while some := list(islice(records, RECORDS_PER_TURN)):
                found += [(base + one.position, one.records, one.data) for one in some]
                await asyncio.sleep(0)
            if found:
                yield found


async def _chunks(
    reader: LedgerReader, segment: Segment, limits: StreamLimits
) -> AsyncGenerator[Entries]:
    """Yield all entries, with the next chunk read ahead."""
    last = segment.last_entry
    if last < 0:
        return

    def read_from(first: int) -> asyncio.Task[Entries]:
        reading = reader.read(EntryId(first), last, limits.read_chunk_bytes)
        return start_once("a read ahead", reading, expected=LedgerError)

    ahead: asyncio.Task[Entries] | None = read_from(0)
    try:
        while ahead is not None:
            entries = await ahead
            following = entries[-1][0] + 1
            ahead = read_from(following) if following <= last else None
            yield entries
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
