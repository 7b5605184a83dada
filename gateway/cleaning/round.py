"""One round of cleaning of one log: pass 1 reads its dirty part, pass 2 rewrites all of it.

Segments are replaced one at a time, oldest first. So a round can end at any point: what was
replaced is clean, and the next round begins behind it. Segments that retention removes meanwhile
are skipped: they are the oldest ones, so no record that is left depends on them.

The event loop only moves bytes between ledgers and the cleaner process, in pieces of 1 MiB, at the
configured pace. At the end small clean neighbours are merged: their batches are copied, which needs
no cleaner process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple, Protocol, TypeVar

from gateway.cleaning import frames
from gateway.cleaning.frames import Kind
from gateway.cleaning.report import Progress
from gateway.cleaning.settings import CleanerSettings
from gateway.cleaning.slots import SLOTS
from gateway.core.aborted_lists import SegmentAborted
from gateway.core.cleaning_choice import IoPace, MergePart, MergeRules, Rests, merge_groups
from gateway.core.cleaning_results import COUNT_MAX, NOT_FULL, CleanedBatch, PoisonedBatch
from gateway.core.partition_transactions import ABORTED_MAX, AbortedTransaction
from gateway.topics.partition import Partition
from gateway.topics.partition_state import aborted_of_footer
from gateway.wire import batches
from ledger.errors import (
    EntryUnknown,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    NotOwner,
    Truncated,
)
from ledger.ids import Buffer
from ledger.ports.clock import Clock
from ledger.streams.listed_stream import Segment
from ledger.streams.read_turns import RECORDS_PER_TURN
from ledger.streams.segment_rewriter import (
    REWRITE_S_MAX,
    Batch,
    CleanedRecord,
    SegmentRewriter,
    can_merge,
    read_segment,
)
from ledger.streams.writer import SEGMENT_RECORDS_MAX
from ledger.tasks import start_once, to_the_end

T = TypeVar("T")

_ASKED_BYTES = 1024 * 1024  # of a request to the process
_EXPECTED = (LedgerError, PoisonedBatch)
# The errors of a segment that was removed after the round looked at it.
_REMOVED = (Truncated, NoSuchLedger, NoSuchEntry, EntryUnknown)


class RoundEnded(Exception):
    """The topic is not compacted any more. Source: Kafka, LogCleaningAbortedException."""


class Asks(Protocol):
    """The cleaner process."""

    async def ask(self, kind: Kind, *payload: Buffer) -> Buffer:
        """Send a request whose payload may come in parts, and return the payload of its reply.

        Up to `SLOTS` requests may be under way. The buffer returned is valid until the `SLOTS`-th
        request after this one is sent.
        """
        ...


class _Copies:
    """The batches of a merged segment. Each also covers the empty ones before it."""

    __slots__ = ("_covered", "_empty")

    def __init__(self) -> None:
        # The offsets that no returned batch covers, and the last of the empty batches that do.
        self._covered = 0
        self._empty = b""

    def of(self, chunk: Sequence[Batch]) -> list[CleanedRecord]:
        """Return those of the next stored records."""
        found: list[CleanedRecord] = []
        for _, count, data in chunk:
            header = batches.read_header(data)
            if self._covered + count > COUNT_MAX:
                found += self.rest()
            self._covered += count
            if not header.records:
                self._empty = bytes(data)
                continue
            found.append(CleanedRecord(self._covered, header.max_timestamp, bytes(data)))
            self._covered = 0
        return found

    def rest(self) -> list[CleanedRecord]:
        """Return the last empty batch, if no batch followed it."""
        covered, self._covered = self._covered, 0
        return [CleanedRecord(covered, -1, self._empty)] if covered else []


class _Piece(NamedTuple):
    """Batches that the process is asked about at once."""

    size: int  # in bytes
    data: list[memoryview]


class _Pieces:
    """Collects batches to pieces for the process, which works faster on many records at once."""

    __slots__ = ("_size", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[memoryview] = []
        self._size = 0

    def of(self, chunk: Sequence[Batch]) -> Iterator[_Piece]:
        """Yield the pieces that the next batches fill. A batch of a producer can be one alone."""
        for _, _, data in chunk:
            if self._waiting and self._size + len(data) > _ASKED_BYTES:
                yield self.rest()
            self._waiting.append(data)
            self._size += len(data)

    def rest(self) -> _Piece:
        """Return what is left, which may be nothing."""
        piece = _Piece(self._size, self._waiting)
        self._waiting, self._size = [], 0
        return piece


class LogRound:
    """The cleaning of `partition` from its start up to `end`, which `run` carries out once."""

    def __init__(
        self,
        partition: Partition,
        process: Asks,
        pace: IoPace,
        settings: Callable[[], CleanerSettings],
        clock: Clock,
        progress: Progress,
        compacts: Callable[[], bool],
    ) -> None:
        self._partition = partition
        self._process = process
        self._pace = pace
        self._settings = settings
        self._clock = clock
        self._progress = progress
        # Returns False once the topic has another policy.
        self._compacts = compacts
        self._rests = Rests()

    async def run(self, end: int, delete_retention_ms: int) -> None:
        """Clean the segments below `end`, of which the first ones may be clean already.

        If their keys do not fit into the map, only the first of them are cleaned. Raises
        LedgerError, RoundEnded, and PoisonedBatch for a batch that no later round can clean.
        """
        stream = self._partition.stream
        segments = [s for s in stream.cleanable_segments() if s.end_sequence_id <= end]
        clean = list(takewhile(lambda segment: segment.cleaned, segments))
        dirty = segments[len(clean) :]
        if not dirty:
            return
        size = stream.segment_bytes
        self._progress.bytes_total = 2 * sum(map(size, dirty)) + sum(map(size, clean))
        await self._process.ask(Kind.DROP_MARKS)
        mapped, large, full_at = await self._map(dirty)
        if large is not None and not mapped:
            mapped = await self._map_in_parts(large, full_at, clean, delete_retention_ms)
        await self._rewrite([*clean, *mapped], delete_retention_ms)
        await self._process.ask(Kind.DROP_MARKS)

    # -- segments that are removed meanwhile ----------------------------------------------------

    async def _unless_removed(
        self, segment: Segment, work: Callable[[Segment], Awaitable[T]]
    ) -> T | None:
        """Carry out `work` on a segment as it is listed now. Returns None if it was removed.

        Removed segments are always the oldest ones. What the process learned of their records may
        stay: it concerns no record behind them, and a marker whose records are gone is kept for
        one more round.
        """
        if self._is_removed(segment):
            return None
        try:
            return await work(self._listed(segment))
        except _REMOVED:
            if self._is_removed(segment):
                return None
            raise

    def _is_removed(self, segment: Segment) -> bool:
        """True if no record of the segment is left in the log. It may still be listed."""
        return segment.end_sequence_id <= self._partition.log_start_offset

    def _listed(self, segment: Segment) -> Segment:
        """Return the segment as it is listed now: cleaned, or with a later first record."""
        listed = self._partition.stream.segments
        return next((each for each in listed if each.number == segment.number), segment)

    # -- pass 1 -------------------------------------------------------------------------------

    async def _map(self, dirty: Sequence[Segment]) -> tuple[list[Segment], Segment | None, int]:
        """Map the keys of segments. Return those whose keys all fit, and the next one.

        The last value is where the map was full in it. Without a next one, all keys fit.
        """
        first = dirty[0].start_sequence_id
        first = max(first, self._partition.log_start_offset)
        await self._begin_map(first, dirty[-1].end_sequence_id)
        mapped: list[Segment] = []
        for segment in dirty:
            full_at = await self._unless_removed(segment, self._map_segment)
            if full_at == NOT_FULL:
                mapped.append(segment)
            elif full_at is not None:
                # Keys of this segment are in the map too. Their older records may go, because
                # their newer ones are in a segment that stays as it is.
                return mapped, segment, full_at
        return mapped, None, NOT_FULL

    async def _begin_map(self, from_offset: int, end: int) -> None:
        payload = frames.MAP.pack(self._settings().map_bytes, from_offset, end)
        await self._process.ask(Kind.BEGIN_MAP, payload)

    async def _map_segment(self, segment: Segment) -> int:
        await self._begin_segment(segment)
        async with aclosing(self._ask_each(Kind.MAP_BATCHES, segment)) as replies:
            async for reply in replies:
                full_at: int = frames.OFFSET.unpack(reply)[0]
                if full_at != NOT_FULL:
                    return full_at
        return NOT_FULL

    async def _begin_segment(self, segment: Segment) -> list[AbortedTransaction]:
        """Return the aborted transactions that the segment, or a later one, names for it."""
        start, end = segment.start_sequence_id, segment.end_sequence_id
        aborted = await self._partition.aborted(start, end)
        payload = frames.encode_segment(start, end, aborted)
        await self._process.ask(Kind.BEGIN_SEGMENT, payload)
        return aborted

    async def _map_in_parts(
        self, large: Segment, full_at: int, clean: Sequence[Segment], delete_retention_ms: int
    ) -> list[Segment]:
        """Map a segment whose keys do not fit, and mark its outdated records, part by part.

        Returns the segment, to be rewritten, or nothing if it was removed meanwhile.
        """
        while full_at != NOT_FULL:
            part = partial(
                self._clean_part_of,
                full_at=full_at,
                clean=clean,
                delete_retention_ms=delete_retention_ms,
            )
            behind = await self._unless_removed(large, part)
            if behind is None:
                return []
            full_at = behind
        return [large]

    async def _clean_part_of(
        self, large: Segment, full_at: int, clean: Sequence[Segment], delete_retention_ms: int
    ) -> int:
        """Use a map that holds the keys of a segment up to `full_at` only, and begin the next map.

        Return where the next one was full, or NOT_FULL.
        """
        marks = frames.RANGE.pack(large.start_sequence_id, large.end_sequence_id)
        await self._process.ask(Kind.BEGIN_MARKS, marks)
        async with aclosing(self._ask_each(Kind.MARK_BATCHES, large)) as replies:
            async for _ in replies:
                pass
        await self._rewrite(clean, delete_retention_ms)
        await self._begin_map(full_at, large.end_sequence_id)
        return await self._map_segment(large)

    # -- pass 2 -------------------------------------------------------------------------------

    async def _rewrite(self, segments: Sequence[Segment], delete_retention_ms: int) -> None:
        payload = frames.FILTER.pack(self._clock.now_ms(), delete_retention_ms)
        await self._process.ask(Kind.BEGIN_FILTER, payload)
        for segment in segments:
            await self._unless_removed(segment, self._rewrite_one)

    async def _rewrite_one(self, segment: Segment) -> None:
        stream = self._partition.stream
        named = await self._begin_segment(segment)
        self._begin_rests([segment])
        rewriter = await SegmentRewriter.begin(stream, segment)
        try:
            async with aclosing(self._ask_each(Kind.FILTER_BATCHES, segment)) as replies:
                async for reply in replies:
                    await self._add(rewriter, frames.iter_batches(reply))
            ended = frames.decode_end(await self._process.ask(Kind.END_SEGMENT))
            # A transaction must not stay named when its marker, in a later segment, may go.
            if segment.cleaned and not ended.changed and len(named) == len(ended.aborted):
                return  # the present ledger is as good
            await self._add(rewriter, iter(ended.batches))
            end = segment.end_sequence_id
            aborted = SegmentAborted(segment.start_sequence_id, end, end, tuple(ended.aborted))
            rewritten = await rewriter.finish(aborted.encode())
            self._check_due()
            # Cancelled half way, it would leave an owner that does not know its own list.
            await to_the_end("a swap", stream.replace(rewritten), expected=LedgerError)
        finally:
            self._rests.end()
            await rewriter.abandon()
        progress = self._progress
        progress.segments_replaced += 1
        progress.records_read += ended.records_read
        progress.records_kept += ended.records_kept

    async def _add(self, rewriter: SegmentRewriter, found: Iterator[CleanedBatch]) -> None:
        while some := [CleanedRecord(*one) for one in islice(found, RECORDS_PER_TURN)]:
            await rewriter.add(some)
            await self._spend(sum(len(one.data) for one in some))

    # -- merging ------------------------------------------------------------------------------

    async def merge(self, segment_bytes: int) -> None:
        """Merge clean segments that follow each other, up to `segment_bytes`.

        Call it after `run`. Each group is replaced in one step, so it too can end at any point.
        Raises LedgerError, RoundEnded.
        """
        stream = self._partition.stream
        runs: list[list[Segment]] = [[]]
        for segment in stream.cleanable_segments():
            if segment.start_sequence_id < self._partition.log_start_offset:
                continue
            if not can_merge([*runs[-1][-1:], segment]):
                runs.append([])
            runs[-1].append(segment)
        rules = MergeRules(segment_bytes, SEGMENT_RECORDS_MAX)
        for run in runs:
            parts = [MergePart(stream.segment_bytes(each), each.record_count) for each in run]
            for group in merge_groups(parts, rules):
                await self._merge_unless_removed([run[at] for at in group])

    async def _merge_unless_removed(self, segments: Sequence[Segment]) -> None:
        """Merge segments, unless records of the first ones are removed before or meanwhile."""
        start = segments[0].start_sequence_id
        if start < self._partition.log_start_offset:
            return
        try:
            await self._merge(segments)
        except _REMOVED:
            if start >= self._partition.log_start_offset:
                raise

    async def _merge(self, segments: Sequence[Segment]) -> None:
        stream = self._partition.stream
        aborted = await self._aborted_of(segments)
        if len(aborted) > ABORTED_MAX:
            return
        self._begin_rests(segments)
        rewriter = await SegmentRewriter.begin(stream, *segments)
        try:
            async with aclosing(self._copies(segments)) as copies:
                async for records in copies:
                    await rewriter.add(records)
                    await self._spend(sum(len(one.data) for one in records))
            start, end = segments[0].start_sequence_id, segments[-1].end_sequence_id
            merged = await rewriter.finish(SegmentAborted(start, end, end, aborted).encode())
            self._check_due()
            await to_the_end("a swap", stream.replace(merged), expected=LedgerError)
        finally:
            self._rests.end()
            await rewriter.abandon()
        self._progress.segments_merged += len(segments)

    async def _aborted_of(self, segments: Sequence[Segment]) -> tuple[AbortedTransaction, ...]:
        """Return the transactions that the lists of these segments name, each once."""
        found: dict[AbortedTransaction, None] = {}
        for segment in segments:
            footer = None
            if segment.record_count:
                footer = await self._partition.stream.aborted_in(segment.start_sequence_id)
            if footer is not None:
                found.update(dict.fromkeys(aborted_of_footer(*footer).aborted))
        return tuple(found)

    async def _copies(self, segments: Sequence[Segment]) -> AsyncGenerator[list[CleanedRecord]]:
        """Yield the batches of the segments. A batch also covers the empty ones before it."""
        copies = _Copies()
        async with aclosing(self._read_all(segments)) as chunks:
            async for chunk in chunks:
                for at in range(0, len(chunk), RECORDS_PER_TURN):
                    some = chunk[at : at + RECORDS_PER_TURN]
                    size = sum(len(data) for _, _, data in some)
                    self._rests.on_read(size)
                    await self._spend(size)
                    yield copies.of(some)
        yield copies.rest()

    async def _read_all(self, segments: Sequence[Segment]) -> AsyncGenerator[list[Batch]]:
        """Yield the stored records of the segments, in chunks. Raises LedgerError, RoundEnded."""
        for segment in segments:
            async with aclosing(read_segment(self._partition.stream, segment)) as chunks:
                async for chunk in chunks:
                    self._check_due()
                    yield chunk

    # -- pace ---------------------------------------------------------------------------------

    async def _ask_each(self, kind: Kind, segment: Segment) -> AsyncGenerator[Buffer]:
        """Yield the replies of the process to all pieces of a segment.

        The process has the next two pieces while a reply is yielded, unless they are large. A
        caller that stops waits until they are answered.
        """
        asked: deque[asyncio.Task[Buffer]] = deque()
        pieces = self._read(segment)
        try:
            async for piece in pieces:
                work = self._process.ask(kind, *piece.data)
                asked.append(start_once("a request to the cleaner", work, expected=_EXPECTED))
                while len(asked) >= (SLOTS if piece.size <= _ASKED_BYTES else 1):
                    yield await asked.popleft()
            while asked:
                yield await asked.popleft()
        except (LedgerError, PoisonedBatch, RoundEnded, GeneratorExit):
            this = asyncio.current_task()
            if asked and not (this is not None and this.cancelling()):
                await asyncio.wait(asked)
            raise
        finally:
            for request in asked:
                request.cancel()  # ends the process, if it is still under way
            if asked:
                await asyncio.wait(asked)
            await pieces.aclose()

    async def _read(self, segment: Segment) -> AsyncGenerator[_Piece]:
        """Yield the batches of a segment, in pieces of `_ASKED_BYTES`. Raises LedgerError."""
        stream, progress = self._partition.stream, self._progress
        whole = progress.bytes_done + stream.segment_bytes(segment)
        pieces = _Pieces()
        async with aclosing(read_segment(stream, segment)) as chunks:
            async for chunk in chunks:
                self._check_due()
                for piece in pieces.of(chunk):
                    yield piece
                    progress.bytes_done = min(progress.bytes_done + piece.size, whole)
                    self._rests.on_read(piece.size)
                    await self._spend(piece.size)
        rest = pieces.rest()
        if rest.size:
            yield rest
            self._rests.on_read(rest.size)
            await self._spend(rest.size)
        progress.bytes_done = whole  # a ledger has more than its batches

    def _check_due(self) -> None:
        if not self._partition.is_leader:
            raise NotOwner(self._partition.name)
        if not self._compacts():
            raise RoundEnded

    async def _spend(self, size: int) -> None:
        """Wait until `size` bytes more may be read or written, and while clients need the loop."""
        loop = asyncio.get_running_loop()
        rate = self._settings().io_bytes_per_s
        pause_s = self._pace.pause_s(size, rate, self._clock.monotonic_s())
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        if not self._rests.is_look_due(size):
            await asyncio.sleep(0)
            return
        began_s = loop.time()
        await asyncio.sleep(0)
        rest_s = self._rests.rest_s(loop.time() - began_s, self._clock.monotonic_s())
        if rest_s > 0:
            await asyncio.sleep(rest_s)

    def _begin_rests(self, segments: Sequence[Segment]) -> None:
        """Begin a rewriting, whose deadline limits the rests."""
        size = sum(map(self._partition.stream.segment_bytes, segments))
        self._rests.begin(size, self._clock.monotonic_s(), REWRITE_S_MAX)
