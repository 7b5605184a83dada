"""Reads a stream that somebody else writes: whatever is committed, soon after it is.

Never fences, never writes. What it shows is at or below the LAC that bookies tell, or in a
completed segment. Two tasks while it is open: one keeps the list of segments (told by watch), one
follows the segment in progress:

    pulling    readers are at the end: every entry comes as it is confirmed, into the tail cache
    lagging    readers are behind, or read nothing more: only the end is learnt, once a second

Readers that are behind read by `SegmentReads`, at their own pace, at most a chunk ahead.
Source: DistributedLog, "Read-ahead", "Tailing reads", "Notifications" (seed 000).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, visible
from ledger.errors import (
    CorruptFormat,
    LedgerError,
    NoNode,
    NoSuchLedger,
    StreamUnavailable,
)
from ledger.streams.reads import SegmentReads
from ledger.streams.recovery import read_head_snapshot
from ledger.streams.segment_list import SegmentList
from ledger.streams.segment_tail import SegmentTail
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import StoredRecord, StreamTail

_PULL_S = 30.0  # one wait for the next entry; news about the segment end it earlier
_LAG_S = 1.0  # readers are behind: so often the end is looked at
_CHUNKS_AHEAD = 4  # pulled and not yet read; then pulling pauses
_PAUSE_S, _PAUSE_S_MAX = 0.02, 1.0  # after an error, doubling


class FollowedStream:
    """`end_sequence_id` and `start_sequence_id` never fall, also over `close` and `open`."""

    def __init__(
        self,
        name: str,
        services: StreamServices,
        timestamp_max: Callable[[memoryview], int],
        on_advanced: Callable[[int], None],
        on_trouble: Callable[[LedgerError], None] = lambda error: None,
    ) -> None:
        """`on_advanced` is called with the end when it moved, and when `failed` was set;
        `on_trouble` with each error that is only tried again."""
        self.name = name
        self.failed: LedgerError | None = None  # it is closed, and why
        self._services = services
        self._timestamp_max = timestamp_max
        self._on_advanced = on_advanced
        self._on_trouble = on_trouble
        self._list = SegmentList(services.metadata, name)
        self._list_changed = asyncio.Event()  # the store told; not yet read
        self._news = asyncio.Event()  # `segments` changed, or readers came to the end
        self._table = SegmentTable()
        self._live: SegmentTail | None = None
        self._tail = StreamTail(services.cache)
        self._pulled_end = -1  # of the last record in the tail cache
        self._ahead: deque[tuple[int, int]] = deque()  # (end, bytes) pulled and not yet read
        self._ahead_bytes = 0
        self._pulling = True
        self._following: asyncio.Task[None] | None = None
        self._change = asyncio.Lock()
        self._listing = asyncio.Lock()  # a later list never loses against an earlier one
        self._reads = SegmentReads(
            services.client,
            self._table,
            services.limits,
            services.cursors,
            timestamp_max,
        )

    @property
    def epoch(self) -> int:
        """The newest one that a segment was seen of."""
        return self._table.epoch

    @property
    def start_sequence_id(self) -> int:
        return self._table.start_sequence_id

    @property
    def end_sequence_id(self) -> int:
        return self._table.end_sequence_id

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._table.segments

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._following is not None and not self._following.done()

    async def open(self) -> None:
        """Followed: the segments are listed, and the end is known if bookies answer.

        Raises NoNode (there is no such stream), CorruptFormat, MetadataUnavailable, and what
        reading the newest completed segment raises.
        """
        async with self._change:
            if self.is_open:
                return
            self.failed = None
            self._list_changed.clear()
            self._list.watch(self._list_changed.set)
            try:
                await self._list.sync()
                await self._relist()
                await self._find_end()
            except BaseException:
                self._let_go()
                raise
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Nothing is watched, asked or held any more; it may be opened again."""
        async with self._change:
            following, self._following = self._following, None
            if following is not None:
                following.cancel()
                await asyncio.wait([following])
                self._let_go()  # it may never have begun

    async def _find_end(self) -> None:
        """The end is at or past everything that was shown to anyone before, if bookies answer."""
        try:
            segment = self._table.in_progress
            if segment is not None:
                live = await self._live_tail(segment)
                await live.jump()
                self._advanced_live(live)
        except CorruptFormat:
            raise
        except LedgerError as error:
            self._on_trouble(error)  # `_keep_tail` goes on trying

    async def _follow(self) -> None:
        """Until it is cancelled, or one of its two tasks cannot go on: then `failed` tells."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._keep_list()), loop.create_task(self._keep_tail())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._let_go()
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                known = isinstance(error, LedgerError)
                self.failed = error if known else StreamUnavailable(f"{self.name}: {error!r}")
                self._on_advanced(self.end_sequence_id)
                if not known:
                    raise error

    def _let_go(self) -> None:
        self._list.unwatch()
        self._drop_live()
        self._reads.clear()
        self._clear_tail()
        self._pulling = True

    def _drop_live(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None
            self._table.follow(None)

    async def _until_over(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeats `step`. What may pass is tried again; CorruptFormat and NoNode are raised."""
        pause_s = _PAUSE_S
        while True:
            try:
                await step()
                pause_s = _PAUSE_S
            except (CorruptFormat, NoNode):
                raise
            except LedgerError as error:
                self._on_trouble(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    # -- the list -----------------------------------------------------------------------------

    async def _keep_list(self) -> None:
        await self._until_over(self._list_round)

    async def _list_round(self) -> None:
        await self._list_changed.wait()
        self._list_changed.clear()
        try:
            await self._relist()
        except LedgerError:
            self._list_changed.set()  # whatever it was, it was not taken in
            raise

    async def _relist(self) -> None:
        """`segments` are as listed now; the epochs of those that are completed are known."""
        async with self._listing:
            await self._relist_now()

    async def _relist_now(self) -> None:
        await self._list.load()
        segments = visible(self._list.segments)
        await self._learn_epochs(segments)
        self._check_live(segments)
        table = self._table
        table.relist(segments)
        table.move_start(self._list.start_sequence_id)
        self._news.set()
        self._advance(max(table.listed_end_sequence_id, table.start_sequence_id))

    def _check_live(self, segments: list[Segment]) -> None:
        """Nothing that was shown as committed is missing where its segment was completed."""
        live = self._live
        for segment in segments:
            if live is None or segment.number != live.number or not segment.completed:
                continue
            if segment.record_count < live.count:
                raise CorruptFormat(f"{self.name}: segment {segment.number} lost records")

    async def _learn_epochs(self, segments: list[Segment]) -> None:
        """From the head of the newest segment that has records; it names those before it."""
        for segment in reversed(segments):
            if not segment.record_count or self._table.knows(segment.number):
                continue
            try:
                reader = await self._services.client.open(segment.ledger)
                head = await read_head_snapshot(reader, segment.last_entry)
            except NoSuchLedger:
                head = None  # truncated, or a change of the list is on its way
            if head is not None:
                self._table.learn(segment.number, head)
            self._table.learn_own_epoch(segment.number, segment.start_sequence_id)

    # -- the tail -----------------------------------------------------------------------------

    async def _keep_tail(self) -> None:
        await self._until_over(self._tail_round)

    async def _tail_round(self) -> None:
        """One step further in the segment that is followed, or on to the next one."""
        self._news.clear()
        live, segment = self._live, self._table.in_progress
        if live is not None and (segment is None or segment.number != live.number):
            if await self._pull_rest(live):
                return
            self._table.remember_index(live.number, live.index)
            self._drop_live()
        if segment is None:
            await self._news.wait()
            return
        live = await self._live_tail(segment)
        if live.ended:
            await self._news.wait()  # closed; how it counts is listed soon
        elif self._pulling:
            await self._pull(live)
        else:
            await self._lag(live)

    async def _pull_rest(self, live: SegmentTail) -> bool:
        """Readers at the end of a segment that was completed get the rest as they got the others.

        False: there is no more of it, or whoever wants it has to read it from the segment.
        """
        listed = self._table.segment(live.number)
        if listed is None or live.last_entry >= listed.last_entry or not self._pulling:
            return False
        live.confirmed(listed.last_entry)
        try:
            await self._pull(live)
        except CorruptFormat:
            raise
        except LedgerError:
            return False
        return True

    async def _live_tail(self, segment: Segment) -> SegmentTail:
        """What follows this segment, its ledger open."""
        live = self._live
        if live is None:
            services = self._services
            live = SegmentTail(
                services.client,
                segment,
                services.limits,
                self._timestamp_max,
                self._table.learn,
            )
        await live.open()
        self._live = live
        self._table.follow(live)
        return live

    async def _pull(self, live: SegmentTail) -> None:
        records = await live.pull(_PULL_S)
        if not records:
            return
        if records[0].sequence_id != self._pulled_end:
            self._clear_tail()
        for record in records:
            self._tail.append(record)
        self._pulled_end = records[-1].end_sequence_id
        size = sum(record.size_bytes for record in records)
        self._ahead.append((self._pulled_end, size))
        self._ahead_bytes += size
        if self._ahead_bytes > _CHUNKS_AHEAD * self._services.limits.read_chunk_bytes:
            self._pulling = False
        self._advanced_live(live)

    async def _lag(self, live: SegmentTail) -> None:
        await _wait(self._news, _LAG_S)
        if not self._pulling and await live.wait(_LAG_S) and not self._pulling:
            await live.jump()
            self._advanced_live(live)

    def _clear_tail(self) -> None:
        self._tail.clear()
        self._pulled_end = -1
        self._ahead.clear()
        self._ahead_bytes = 0

    def _advanced_live(self, live: SegmentTail) -> None:
        if live.count:
            self._table.learn_own_epoch(live.number, live.start_sequence_id)
        self._advance(live.end_sequence_id)

    def _advance(self, end_sequence_id: int) -> None:
        if self._table.move_end(end_sequence_id):
            self._on_advanced(end_sequence_id)

    def asked(self, sequence_id: int) -> None:
        """Somebody reads from there on: at the end, everything is pulled again."""
        ahead = self._ahead
        while ahead and ahead[0][0] <= sequence_id:
            self._ahead_bytes -= ahead.popleft()[1]
        if self._pulling:
            return
        half = _CHUNKS_AHEAD * self._services.limits.read_chunk_bytes // 2
        unbroken = self._live is not None and self._live.end_sequence_id == self._pulled_end
        if sequence_id >= self.end_sequence_id or (unbroken and self._ahead_bytes <= half):
            self._pulling = True
            self._news.set()

    def epoch_at(self, sequence_id: int) -> int:
        """The epoch of the ownership that wrote this sequence id; at the end, the newest."""
        return self._table.epoch_at(sequence_id)

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """As `read`, from memory, or None when it is not all there."""
        at = self._tail.find(sequence_id)
        if at < 0 or sequence_id < self.start_sequence_id:
            return None
        records = self._tail.take(at, bytes_max)
        self.asked(records[-1].end_sequence_id)
        return records

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Committed records from the one that holds `sequence_id`, in order, none left out.

        At least one (whole, whatever its size), else about `bytes_max` bytes. Empty at the end
        and past it. Raises Truncated below the start, StreamUnavailable when it is not open or
        could not be read now.
        """
        self._table.check_start(sequence_id)
        if not self.is_open:
            raise self.failed or StreamUnavailable(f"{self.name} is not followed now")
        self.asked(sequence_id)
        if sequence_id >= self.end_sequence_id:
            return []
        cached = self.read_cached(sequence_id, bytes_max)
        if cached is not None:
            return cached
        records = await self._reads.read(sequence_id, bytes_max, self._relist)
        if records:
            self.asked(records[-1].end_sequence_id)
        elif sequence_id < self.end_sequence_id:
            raise StreamUnavailable(f"{self.name}: {sequence_id} could not be read now")
        return records

    async def find_timestamp(self, timestamp: int, first: int = 0) -> StoredRecord | None:
        """The first record whose greatest timestamp is at least `timestamp`; None: there is none.

        Only records that end past `first` and past the stream's start count.
        """
        return await self._reads.find_timestamp(timestamp, first, self.read)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """The event is set, or so much time passed."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
