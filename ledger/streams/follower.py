"""A stream that another process writes, read soon after its records are committed.

A follower never fences and never writes. It shows records at or below the LAC that bookies return,
or in a completed segment. While it is open, one task follows the list of segments by watches and
one follows the segment in progress. Both pass lost entries: only a reader at their offsets gets an
error, or the accepted loss.

    pulling    readers are at the end: each entry is read once confirmed, into the tail cache
    lagging    readers are behind, or none reads: only the end is polled, once per second

Readers that are behind use `SegmentReads`, at their own pace, at most a chunk ahead.
Source: DistributedLog, "Read-ahead", "Tailing reads", "Notifications" (seed 000).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ledger.core.epoch_table import EpochEnd
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.segments import Segment, visible
from ledger.errors import (
    CorruptFormat,
    LedgerError,
    NoNode,
    NoSuchLedger,
    StreamUnavailable,
)
from ledger.streams.followed_state import StoredState, read_newest_state
from ledger.streams.listed_stream import ListedStream
from ledger.streams.read_cursor import compact
from ledger.streams.recovery import read_whole_head
from ledger.streams.segment_footers import footer_summary, read_footer
from ledger.streams.segment_list import SegmentList
from ledger.streams.segment_tail import SegmentTail
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_once

_PULL_S = 30.0  # timeout of one wait for the next entry; a change of its ledger ends it earlier
_LAG_S = 1.0  # period in which the end is polled while readers are behind
_CHUNKS_AHEAD = 4  # chunks pulled and not read, beyond which pulling pauses
_AWAITED_MAX = 1  # heads that are asked for in vain, before older ones are left for later
_PAUSE_S, _PAUSE_S_MAX = 0.02, 1.0  # delay before a retry, which doubles up to the maximum


class FollowedStream(ListedStream):
    """A follower of one stream. Its start and end never decrease, also over `close` and `open`."""

    def __init__(
        self,
        name: str,
        services: StreamServices,
        timestamp_max: Callable[[memoryview], int],
        on_advanced: Callable[[int], None],
        on_retry: Callable[[LedgerError], None] = lambda error: None,
    ) -> None:
        """`on_advanced` receives the end when it moves, and when `failed` is set.

        `on_retry` receives each error that is retried.
        """
        # The table is kept over `close`. The tail has consecutive records up to `_pulled_end`, and
        # is cleared when a jump would leave a gap.
        super().__init__(name, services, timestamp_max)
        # The error with which the follower closed by itself, or None. Cleared by the next `open`.
        self.failed: LedgerError | None = None
        self._timestamp_max = timestamp_max
        self._on_advanced = on_advanced
        self._on_retry = on_retry
        # The stored list as of its last load. Watched while the follower is open.
        self._list = SegmentList(services.metadata, name)
        # Set by the watch; cleared before the list is loaded, set again if that fails.
        self._list_changed = asyncio.Event()
        # Wakes the tail task: the table changed, or readers caught up. Cleared at each round.
        self._wake_tail = asyncio.Event()
        # Follows the segment in progress; for a moment also one that was just completed. Set and
        # cleared together with the live segment of the table.
        self._live: SegmentTail | None = None
        # One past the last record in `_tail`; -1 if it is empty.
        self._pulled_end = -1
        # (end, bytes) of the chunks that were pulled and that no reader has read to the end.
        self._unread: deque[tuple[int, int]] = deque()
        self._unread_bytes = 0
        # True while pulling, False while lagging. True when opened; see `note_read` and `_pull`.
        self._pulling = True
        # The task that follows the stream, from `open` until `close` or a failure.
        self._following: asyncio.Task[None] | None = None
        # Held by `open` and `close`.
        self._change_lock = asyncio.Lock()
        # Held while the list is loaded, so that an older list never replaces a newer one.
        self._list_lock = asyncio.Lock()

    @property
    def end_sequence_id(self) -> int:
        return self._table.end_sequence_id

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._following is not None and not self._following.done()

    async def open(self) -> None:
        """List the segments, find the end and begin to follow.

        If the bookies do not answer, the end is found later. Raises NoNode if the stream does not
        exist, CorruptFormat, MetadataUnavailable, and the errors of reading the newest completed
        segment.
        """
        async with self._change_lock:
            if self.is_open:
                return
            self.failed = None
            self._list_changed.clear()
            self._list.watch(self._list_changed.set)
            try:
                await self._list.sync()
                await self._refresh_first_list()
                await self._find_first_end()
            except BaseException:
                self._release()
                raise
            self._following = start_once("a follower of a stream", self._follow())

    async def close(self) -> None:
        """Stop following and release everything. The follower may be opened again."""
        async with self._change_lock:
            following, self._following = self._following, None
            if following is not None:
                following.cancel()
                await asyncio.wait([following])
                self._release()  # the task may never have begun

    async def _refresh_first_list(self) -> None:
        try:
            await self._refresh_list()
        except EntryAwaited as error:  # an epoch is not known yet, all else is
            self._on_retry(error)
            self._list_changed.set()

    async def _find_first_end(self) -> None:
        """Move the end past every record that other readers may have seen, if bookies answer."""
        try:
            segment = self._table.in_progress
            if segment is not None:
                live = await self._open_live(segment)
                await live.jump()
                self._on_live_moved(live)
        except CorruptFormat:
            raise
        except LedgerError as error:
            self._on_retry(error)  # `_follow_tail` retries

    async def _follow(self) -> None:
        """Run both tasks until cancelled, or until one of them fails. Then set `failed`."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._follow_list()), loop.create_task(self._follow_tail())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._release()
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                known = isinstance(error, LedgerError)
                self.failed = error if known else StreamUnavailable(f"{self.name}: {error!r}")
                self._on_advanced(self.end_sequence_id)
                if not known:
                    raise error

    def _release(self) -> None:
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

    async def _repeat(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat `step`, and retry it after an error. Raises CorruptFormat and NoNode at once."""
        pause_s = _PAUSE_S
        while True:
            try:
                await step()
                pause_s = _PAUSE_S
            except (CorruptFormat, NoNode):
                raise
            except LedgerError as error:
                self._on_retry(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    # -- the list -----------------------------------------------------------------------------

    async def _follow_list(self) -> None:
        await self._repeat(self._list_round)

    async def _list_round(self) -> None:
        await self._list_changed.wait()
        self._list_changed.clear()
        try:
            await self._refresh_list()
        except LedgerError:
            self._list_changed.set()  # the change was not applied
            raise

    async def _refresh_list(self) -> None:
        """Load the stored list, the epochs of completed segments, and the end.

        Raises EntryAwaited, after all else was done, if an epoch could not be read now.
        """
        async with self._list_lock:
            await self._refresh_list_locked()

    async def _refresh_list_locked(self) -> None:
        await self._list.load()
        self._table.epoch_base = self._list.epoch_base
        segments = visible(self._list.segments)
        awaited = await self._learn_epochs(segments)
        self._check_live(segments)
        table, losses, rewrites = self._table, self._list.losses, self._table.rewrites
        changed = losses is not table.losses
        table.relist(segments, losses)
        if changed or table.rewrites != rewrites:  # cached records may be lost or replaced now
            self._clear_tail()
        table.move_start(self._list.start_sequence_id)
        self._wake_tail.set()
        self._move_end(max(table.listed_end_sequence_id, table.start_sequence_id))
        if awaited is not None:
            raise awaited

    def _check_live(self, segments: list[Segment]) -> None:
        """Check that a completed segment holds every record that was shown as committed.

        A segment that was closed by force may lack some: their offsets are reserved.
        """
        live = self._live
        for segment in segments:
            if live is None or segment.number != live.number or not segment.completed:
                continue
            forced = self._list.losses.forced_in(segment.number) is not None
            if segment.record_count < live.count and not forced:
                raise CorruptFormat(
                    f"{self.name}: segment {segment.number} was completed with "
                    f"{segment.record_count} records, {live.count} were committed"
                )

    async def _learn_epochs(self, segments: list[Segment]) -> EntryAwaited | None:
        """Read epochs from the head of the newest segment with records, which has older ones.

        Returns why an epoch could not be read now, or None.
        """
        awaited: list[EntryAwaited] = []
        for segment in reversed(segments):
            if len(awaited) > _AWAITED_MAX:
                break
            if not segment.record_count or self._table.knows(segment):
                continue
            try:
                reader = await self.services.client.open(segment.ledger)
                if segment.cleaned:
                    footer = await read_footer(reader, segment.last_entry)
                    self._table.learn_footer(footer_summary(segment, footer, reader), footer)
                    continue
                head = await read_whole_head(reader, segment.last_entry)
            except NoSuchLedger:
                continue  # the segment was removed or cleaned, and the list will change
            except EntryLost:
                continue  # its epoch stays unknown; the newest known one is shown
            except EntryAwaited as error:
                if not self._list.losses.of_segment(segment.number):
                    awaited.append(error)
                continue  # perhaps a damaged copy of an accepted loss
            if head is not None:
                self._table.learn(segment.number, head)
            self._table.learn_own_epoch(segment.number, segment.start_sequence_id)
        return awaited[0] if awaited else None

    # -- the tail -----------------------------------------------------------------------------

    async def _follow_tail(self) -> None:
        await self._repeat(self._tail_round)

    async def _tail_round(self) -> None:
        """Read on in the live segment, or move to the next one."""
        self._wake_tail.clear()
        live, segment = self._live, self._table.in_progress
        if live is not None and (segment is None or segment.number != live.number):
            if await self._pull_rest(live):
                return
            listed = self._table.segment(live.number)
            if listed is None or not listed.cleaned:  # a cleaned one has another index
                self._table.remember_index(live.number, live.index)
            self._drop_live()
        if segment is None:
            await self._wake_tail.wait()
            return
        live = await self._open_live(segment)
        if live.ended:
            await self._wake_tail.wait()  # closed; the list will show it as completed
        elif self._pulling:
            await self._pull(live)
        else:
            await self._poll_end(live)

    async def _pull_rest(self, live: SegmentTail) -> bool:
        """Pull the rest of a segment that was completed, for readers at the end.

        Returns False if it was all pulled, or if readers have to read it from the segment.
        """
        listed = self._table.segment(live.number)
        if listed is None or listed.cleaned or not self._pulling:
            return False
        if live.last_entry >= listed.last_entry:
            return False
        live.set_confirmed(listed.last_entry)
        try:
            await self._pull(live)
        except CorruptFormat:
            raise
        except LedgerError:
            return False
        return True

    async def _open_live(self, segment: Segment) -> SegmentTail:
        """Return the tail that follows this segment, with its ledger open."""
        live = self._live
        if live is None:
            services = self.services
            live = SegmentTail(
                services.client,
                segment,
                services.limits,
                self._timestamp_max,
                self._table.learn,
                lambda: self._list.losses,
            )
        await live.open()
        self._live = live
        self._table.follow(live)
        return live

    async def _pull(self, live: SegmentTail) -> None:
        try:
            records = await live.pull(_PULL_S)
        except EntryAwaited as error:
            await self._jump_over(live, error)
            return
        if not records:
            self._on_live_moved(live)  # a control record behind lost entries tells their number
            return
        if records[0].sequence_id != self._pulled_end:
            self._clear_tail()
        for record in compact(records):  # the cache counts records, not the messages they came in
            self._tail.append(record)
        self._pulled_end = records[-1].end_sequence_id
        size = sum(record.size_bytes for record in records)
        self._unread.append((self._pulled_end, size))
        self._unread_bytes += size
        if self._unread_bytes > _CHUNKS_AHEAD * self.services.limits.read_chunk_bytes:
            self._pulling = False
        self._on_live_moved(live)

    async def _jump_over(self, live: SegmentTail, error: EntryAwaited) -> None:
        """Move the end past an entry that cannot be read now. Its readers wait for it.

        Raises `error` if no later entry is known.
        """
        before = live.last_entry
        await live.jump()
        if live.last_entry == before:
            raise error
        self._on_retry(error)
        self._on_live_moved(live)

    async def _poll_end(self, live: SegmentTail) -> None:
        await _wait(self._wake_tail, _LAG_S)
        if not self._pulling and await live.wait(_LAG_S) and not self._pulling:
            await live.jump()
            self._on_live_moved(live)

    def _clear_tail(self) -> None:
        self._tail.clear()
        self._pulled_end = -1
        self._unread.clear()
        self._unread_bytes = 0

    def _on_live_moved(self, live: SegmentTail) -> None:
        if live.count and not live.snapshot_lost:
            self._table.learn_own_epoch(live.number, live.start_sequence_id)
        self._move_end(live.end_sequence_id)

    def _move_end(self, end_sequence_id: int) -> None:
        if self._table.move_end(end_sequence_id):
            self._on_advanced(end_sequence_id)

    def note_read(self, sequence_id: int) -> None:
        """Note that a reader continues at `sequence_id`. At the end, pulling resumes."""
        ahead = self._unread
        while ahead and ahead[0][0] <= sequence_id:
            self._unread_bytes -= ahead.popleft()[1]
        if self._pulling:
            return
        half = _CHUNKS_AHEAD * self.services.limits.read_chunk_bytes // 2
        unbroken = self._live is not None and self._live.end_sequence_id == self._pulled_end
        if sequence_id >= self.end_sequence_id or (unbroken and self._unread_bytes <= half):
            self._pulling = True
            self._wake_tail.set()

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where `epoch` ends, as `SegmentTable.epoch_end` does.

        Raises StreamUnavailable if the epochs are not known: it is closed, or a head was not read.
        """
        if not self.is_open or not self._table.knows_epochs:
            raise StreamUnavailable(f"{self.name}: the epochs of its segments are not known")
        return self._table.epoch_end(epoch, self.end_sequence_id)

    # -- the owner's state --------------------------------------------------------------------

    async def newest_state(self) -> StoredState:
        """Read the newest state of the owner below the end. See `read_newest_state`."""
        if not self.is_open:
            raise self.failed or StreamUnavailable(f"{self.name}: the follower is closed")
        return await read_newest_state(self.services.client, self._table)

    async def state_behind(self, sequence_id: int) -> tuple[int, int, bytes]:
        """Return the owner's state behind a segment, as `SegmentReads.state_behind` does.

        Raises StreamUnavailable also if no later segment is known.
        """
        if not self.is_open:
            raise self.failed or StreamUnavailable(f"{self.name}: the follower is closed")
        found = await self._reads.state_behind(sequence_id)
        if found is None:
            raise StreamUnavailable(f"{self.name}: no segment follows that of {sequence_id}")
        return found

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """Read as `read` does, but from memory only. Returns None if it is not cached."""
        at = self._tail.find(sequence_id)
        if at < 0 or sequence_id < self.start_sequence_id:
            return None
        records = self._tail.take(at, bytes_max)
        self.note_read(records[-1].end_sequence_id)
        return records

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read consecutive committed records, beginning with the one that holds `sequence_id`.

        Returns at least one whole record, however large, and in all about `bytes_max` bytes.
        Returns no record at or past the end. Raises Truncated below the start, StreamUnavailable
        if the follower is closed or the record cannot be read now.
        """
        self._table.check_start(sequence_id)
        return await self.read_any(sequence_id, bytes_max)

    async def read_any(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read as `read` does, also below the start while the records still exist.

        What the owner's state depends on may lie there. Raises Truncated if it was removed.
        """
        if not self.is_open:
            raise self.failed or StreamUnavailable(f"{self.name}: the follower is closed")
        self.note_read(sequence_id)
        if sequence_id >= self.end_sequence_id:
            return []
        cached = self.read_cached(sequence_id, bytes_max)
        if cached is not None:
            return cached
        self._tail.missed([])
        records = await self._reads.read(sequence_id, bytes_max, self._refresh_list)
        if records:
            self.note_read(records[-1].end_sequence_id)
        elif sequence_id < self.end_sequence_id:
            raise StreamUnavailable(f"{self.name}: {sequence_id} cannot be read now")
        return records


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for the event, for at most `timeout_s` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
