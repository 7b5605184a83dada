"""Searches the records of a topic in rounds, within bounds: backward from the newest, or forward.

A round reads a window of each partition. Windows begin small and grow while little is found. Every
record between the begin and the end of a search is looked at exactly once over all its pages: what
was not looked at, or found and not shown, is in the spans that are left, and these in the cursor.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Final, NamedTuple

from gateway.admin.client import Place
from gateway.admin.consume import visible
from gateway.admin.consume_batches import DamagedBatch, Record
from gateway.admin.consume_bounds import LogRange
from gateway.admin.consume_fetch import Chunk, damaged
from gateway.admin.consume_filters import Filter, matching
from gateway.admin.consume_format import time_of
from gateway.http.record_filter import Conditions
from ledger.tasks import in_thread

WINDOW: Final = 16  # records of a partition in the first round
_WINDOW_MAX: Final = 25_000
_GROWTH: Final = 4
_ROUND_BYTES: Final = 4 * 1024 * 1024  # of all windows of a round, about
_STEP_RECORDS: Final = 1_000  # decoded in one turn of a thread
_STEP_BYTES: Final = 512 * 1024
RECORDS, BYTES, TIME = "records", "bytes", "time"
"""The bounds that can end a search."""


Read = Callable[[Mapping[Place, LogRange]], AsyncGenerator[Chunk]]
"""Reads these offsets of partitions, as `PartitionReader.chunks` does."""


class Bounds(NamedTuple):
    """What one search may read: records, their bytes after decompression, and seconds."""

    records: int = 100_000
    bytes: int = 64 * 1024 * 1024
    seconds: float = 4.0


class Span:
    """The offsets of a partition that are left to be searched: from `first` up to `end`."""

    __slots__ = ("_dropped", "edge_ms", "end", "first", "index", "settled")

    def __init__(self, index: int, first: int, end: int) -> None:
        self.index = index
        self.first = first
        self.end = max(first, end)
        # The time of the record that was read last, in the direction of the search.
        self.edge_ms: int | None = None
        # True if nothing more is read, although offsets are left.
        self.settled = False
        # The offset of the first record that was found and is not shown. None without one.
        self._dropped: int | None = None

    def drop(self, offset: int, *, backward: bool) -> None:
        """Leave this record, and all behind it, to the next page."""
        known = self._dropped
        if known is None or (offset > known if backward else offset < known):
            self._dropped = offset
        self.settled = True

    def rest(self, *, backward: bool) -> Span:
        """Return what the next page has to search."""
        if self._dropped is None:
            return Span(self.index, self.first, self.end)
        if backward:
            return Span(self.index, self.first, self._dropped + 1)
        return Span(self.index, self._dropped, self.end)

    @property
    def length(self) -> int:
        return self.end - self.first


class Step(NamedTuple):
    """Some records of a response, as a thread decoded and filtered them."""

    found: Sequence[Record]
    read: int
    bytes: int
    last_offset: int
    first_ms: int | None
    last_ms: int | None
    done: bool  # the response has no more records


def decode_step(pieces: Iterator[Sequence[Record]], filters: Sequence[Filter]) -> Step:
    """Decode some records, and apply the filters. Raises DamagedBatch."""
    found: list[Record] = []
    read = size = 0
    first: Record | None = None
    last: Record | None = None
    done = True
    for records in pieces:
        if not records:
            continue
        first, last = first or records[0], records[-1]
        read += len(records)
        size += sum(map(_size, records))
        found += matching(filters, records)
        if read >= _STEP_RECORDS or size >= _STEP_BYTES:
            done = False
            break
    last_offset = -1 if last is None else last.offset
    first_ms = None if first is None else time_of(first)
    last_ms = None if last is None else time_of(last)
    return Step(found, read, size, last_offset, first_ms, last_ms, done)


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    if record.headers:
        size += sum(len(name) + len(data or b"") for name, data in record.headers)
    return size


class _Window:
    """The part of a span that one round reads."""

    __slots__ = ("edge_ms", "found", "range", "reached")

    def __init__(self, window: LogRange) -> None:
        self.range = window
        # The offset up to which all records were looked at.
        self.reached = window.first
        self.found: list[Record] = []
        self.edge_ms: int | None = None


class Search:
    """Reads the spans of one topic. `rounds` is called once."""

    def __init__(
        self,
        read: Read,
        topic: str,
        spans: Sequence[Span],
        conditions: Conditions,
        keep: Callable[[Record], Record],
        *,
        backward: bool,
        committed: bool,
        bounds: Bounds,
        window_max: int = _WINDOW_MAX,
    ) -> None:
        self._read = read
        self._topic = topic
        self._spans = {span.index: span for span in spans}
        self._conditions = conditions
        self._keep = keep
        self.backward = backward
        self._committed = committed
        self._bounds = bounds
        self._window_max = min(window_max, _WINDOW_MAX)
        self._width = min(WINDOW, self._window_max)
        # What was read so far. Bytes are those of batches, or of their records if these are more.
        self.records = 0
        self.bytes = 0
        # The bound that ended the search; None if it went to its end, or goes on.
        self.ended_by: str | None = None

    async def rounds(self) -> AsyncGenerator[Mapping[int, Sequence[Record]]]:
        """Yield what each round found, by partition, in the direction of the search.

        Raises AdminError and Unreachable.
        """
        until_s = asyncio.get_running_loop().time() + self._bounds.seconds
        before = self._left
        while self.ended_by is None:
            windows = self._windows()
            if not windows:
                return
            yield await self._round(windows, until_s, self._bounds.bytes)
        if self.ended_by == BYTES and self._left == before:
            # A single record may be larger than the bound, and the search has to go on.
            first = next(span for span in self._spans.values() if span.length)
            window = LogRange(first.end - 1, first.end)
            self.ended_by = None
            yield await self._round({first.index: _Window(window)}, until_s, None)
            self.ended_by = self.ended_by or BYTES

    @property
    def _left(self) -> int:
        return sum(span.length for span in self._spans.values())

    def _windows(self) -> dict[int, _Window]:
        """Return the parts to read next, which hold no more records than may be read."""
        spans = [span for span in self._spans.values() if span.length and not span.settled]
        left = self._bounds.records - self.records
        if not spans:
            return {}
        if left <= 0 or self.bytes >= self._bounds.bytes:
            self.ended_by = RECORDS if left <= 0 else BYTES
            return {}
        width = self._width
        if self.records:
            average = self.bytes / self.records + 1
            width = min(width, int(_ROUND_BYTES / average / len(spans)))
        width = max(1, min(width, left))
        self._width = min(self._width * _GROWTH, self._window_max)
        chosen = spans[: max(1, left // width)]
        return {span.index: _Window(self._window(span, width)) for span in chosen}

    def _window(self, span: Span, width: int) -> LogRange:
        if self.backward:
            return LogRange(max(span.first, span.end - width), span.end)
        return LogRange(span.first, min(span.end, span.first + width))

    async def _round(
        self, windows: Mapping[int, _Window], until_s: float, bytes_max: int | None
    ) -> Mapping[int, Sequence[Record]]:
        try:
            async with asyncio.timeout_at(until_s):
                await self._read_windows(windows, bytes_max)
        except TimeoutError:
            self.ended_by = TIME
        return {index: self._advance(index, window) for index, window in windows.items()}

    async def _read_windows(self, windows: Mapping[int, _Window], bytes_max: int | None) -> None:
        """Read windows to their ends, or to a bound."""
        ranges: dict[Place, LogRange] = {
            (self._topic, index): each.range for index, each in windows.items()
        }
        async with aclosing(self._read(ranges)) as chunks:
            async for chunk in chunks:
                await self._take(chunk, windows[chunk.place[1]], bytes_max)
                if self.ended_by is not None:
                    return
        for window in windows.values():
            window.reached = max(window.reached, window.range.end)

    async def _take(self, chunk: Chunk, window: _Window, bytes_max: int | None) -> None:
        """Look at the records of one response, up to a bound."""
        stored = sum(len(batch.data) for batch in chunk.batches)
        self.bytes += stored
        decoded = 0
        pieces = visible(chunk, committed=self._committed)
        step: Step | None = None
        while step is None or not step.done:
            if bytes_max is not None and self.bytes >= bytes_max and self.records:
                self.ended_by = BYTES
                return
            try:
                step = await in_thread(decode_step, pieces, self._conditions.filters)
            except DamagedBatch as error:
                raise damaged(chunk.place, error) from None
            found = await self._conditions.matching(*chunk.place, step.found)
            window.found += map(self._keep, found)
            self._count(window, step)
            more = max(0, decoded + step.bytes - stored) - max(0, decoded - stored)
            decoded += step.bytes
            self.bytes += more
        last = min(chunk.batches[-1].last_offset + 1, window.range.end)  # a batch may go on
        window.reached = max(window.reached, last)

    def _count(self, window: _Window, step: Step) -> None:
        self.records += step.read
        if not step.read:
            return
        window.reached = step.last_offset + 1
        if not self.backward:
            window.edge_ms = step.last_ms
        elif window.edge_ms is None:
            window.edge_ms = step.first_ms

    def _advance(self, index: int, window: _Window) -> Sequence[Record]:
        """Take a window from its span, and return what was found there.

        Backward, a window that was not read to its end stays: the records near its end come first.
        """
        span = self._spans[index]
        if not self.backward:
            span.first = min(max(span.first, window.reached), span.end)
            span.edge_ms = window.edge_ms if window.edge_ms is not None else span.edge_ms
            return window.found
        if window.reached < window.range.end:
            return ()
        span.end = window.range.first
        span.edge_ms = window.edge_ms if window.edge_ms is not None else span.edge_ms
        return window.found[::-1]


async def found_in(search: Search) -> AsyncGenerator[tuple[int, Sequence[Record]]]:
    """Yield what the rounds of a search find: a partition, and some of its records."""
    async with aclosing(search.rounds()) as rounds:
        async for found in rounds:
            for index, records in found.items():
                yield index, records


Found = tuple[int, Record]
"""A partition, and one of its records."""


async def first_matches(search: Search, spans: Sequence[Span], limit: int) -> list[Found]:
    """Return up to `limit` records in the order of their times, and leave the others to the spans.

    Backward, the newest come first. The order is exact where times rise with offsets.
    """
    kept: dict[int, list[Record]] = {span.index: [] for span in spans}
    shown: list[Found] = []
    async with aclosing(search.rounds()) as rounds:
        async for found in rounds:
            for index, records in found.items():
                kept[index] += records
            shown = _choose(kept, spans, limit, backward=search.backward)
    return shown


def _choose(
    kept: dict[int, list[Record]], spans: Sequence[Span], limit: int, *, backward: bool
) -> list[Found]:
    """Keep the first records of all partitions, and settle the spans that cannot add others."""
    queues = [[(index, each) for each in records] for index, records in kept.items()]
    merged = heapq.merge(*queues, key=lambda each: time_of(each[1]), reverse=backward)
    shown = list(islice(merged, limit))
    counts = dict.fromkeys(kept, 0)
    for index, _ in shown:
        counts[index] += 1
    for span in spans:
        records, count = kept[span.index], counts[span.index]
        if len(records) > count:
            span.drop(records[count].offset, backward=backward)
            del records[count:]
    if len(shown) == limit:
        last_ms = time_of(shown[-1][1])
        for span in spans:
            edge_ms = span.edge_ms
            if edge_ms is not None and (edge_ms < last_ms if backward else edge_ms > last_ms):
                span.settled = True
    return shown
