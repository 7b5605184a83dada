"""The native reader of a stream: records and typed gaps, each position once and in order.

    start ─▶ read, read, … ─▶ (until, or the stream is gone) ─▶ stop

A task reads ahead into a bounded buffer and pauses while the application takes nothing. At the end
it follows the tail. Nothing above the LAC is delivered. An entry that no replica can show now is
waited for without a time limit; only a proved loss becomes a gap. What an operator accepted as lost
stays a gap, also if a copy turns up again: the list of segments brings the accepted losses.
Source: seed 002, "Read API" (L6, L7, L16, L26); LogDevice, `include/Reader.h` and `AsyncReader.h`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ledger.client.client import LedgerClient
from ledger.client.tail import Tail, TailReader
from ledger.core.deliveries import Deliveries, Delivery, ReadRange, StreamRecord
from ledger.core.gaps import ENTRY_MAX, Evidence, Gap, GapKind, Position
from ledger.core.loss import EntryAwaited, EntryLost, judge
from ledger.core.records import parse_entry
from ledger.core.segments import Segment
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    NoNode,
    NoSuchLedger,
    StreamUnavailable,
    Unauthorized,
    WrongState,
    copy_error,
)
from ledger.ids import BookieId, Dlsn, EntryId, LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.streams.stream_seek import Edge, First, StreamView, TimestampMax, Until, limited
from ledger.tasks import start_once

CHUNK_BYTES = 1024 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
_RECORD_BYTES = 200  # memory of a record beside its data
_TAIL_S = 30.0  # timeout of one wait for the next entry
_PAUSE_S, _PAUSE_S_MAX = 0.02, 1.0  # delay before a retry, which doubles up to the maximum
_REMOVED_MAX = 5  # attempts to find a position while segments are removed
_REFUSED_S, _REFUSED_S_MAX = 1.0, 30.0  # the same, after a refused delivery


class Waiting(NamedTuple):
    """What a reader waits for: an entry that the `bookies` may hold, or the storage."""

    position: Dlsn
    reason: str
    bookies: tuple[BookieId, ...] = ()


class LogReader:
    """A reader of one stream. Used by one task, which must `stop` it."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        client: LedgerClient,
        *,
        timestamp_max: TimestampMax | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`timestamp_max` is needed to start at a time.

        At most about `buffer_bytes` bytes of records, one chunk of 1 MiB and one entry are held.
        """
        if buffer_bytes < 1:
            raise InvalidArgument(f"buffer_bytes is {buffer_bytes}, expected at least 1")
        self.name = name
        # The entry that cannot be read now, or the storage that does not answer; None while the
        # reader advances or is at the end.
        self.waiting: Waiting | None = None
        self._client = client
        self._timestamp_max = timestamp_max
        self._buffer_bytes = buffer_bytes
        self._view = StreamView(name, store, client)
        # Decides what is delivered. Set once, by `start`.
        self._deliveries: Deliveries | None = None
        # What was read and not taken, oldest first, and its size.
        self._ready: deque[StreamRecord | Gap] = deque()
        self._ready_bytes = 0
        # The task that reads ahead, from `start` until `stop`. It ends at `until`.
        self._reading: asyncio.Task[None] | None = None
        # The error that ended the task.
        self._failed: BaseException | None = None
        # Set by the watch on the list. It ends waits, and is cleared before the list is loaded.
        self._list_changed = asyncio.Event()
        # True until the changed list was loaded.
        self._stale = False
        # Set when something was added to `_ready`, or the task ended.
        self._news = asyncio.Event()
        # Set when something was taken from `_ready`.
        self._room = asyncio.Event()
        # Follows the end of the segment of this number, while the reader is there.
        self._tail: tuple[int, TailReader] | None = None
        # The segment that is being read, or where reading begins, and its ledger.
        self._within: tuple[int, LedgerId] | None = None
        self._stopped = False

    # -- life ---------------------------------------------------------------------------------

    async def start(self, first: First = Edge.EARLIEST, until: Until = None) -> None:
        """Find `first`, and begin to read there, up to and with `until`.

        A position below the start of the stream is advanced to it, and a TRIM reports it. Past the
        end, a time and a transaction id wait for the next records. Raises WrongState if it was
        started before, InvalidArgument for a position that cannot be, NoNode if the stream does
        not exist, EntryUnknown and MetadataUnavailable, after which `start` may be repeated.
        """
        if self._deliveries is not None or self._stopped:
            raise WrongState(f"{self.name}: a reader is started once")
        view = self._view
        view.list.watch(self._list_changed.set)
        try:
            await view.list.sync()
            wanted = limited(await self._find(first), first, until)
            self._deliveries = core = Deliveries(wanted)
            segment = view.table.segment(wanted.first.segment)
            self._within = segment and (segment.number, segment.ledger)
            if wanted.slot:
                await self._read_slot(core)
        except BaseException:
            self._deliveries = None
            self._ready.clear()
            self._ready_bytes = 0
            view.close()
            raise
        self._reading = start_once("a reader of a stream", self._read_on(core))
        self._reading.add_done_callback(self._on_done)

    async def _find(self, first: First) -> ReadRange:
        """Load the list and find `first`, again if a ledger is removed meanwhile."""
        for _ in range(_REMOVED_MAX):
            await self._view.load()
            try:
                return await self._view.find(first, self._timestamp_max)
            except NoSuchLedger:
                await self._view.list.sync()
        raise StreamUnavailable(f"{self.name}: its segments are being removed")

    async def _read_slot(self, core: Deliveries) -> None:
        """Read the entry of a DLSN, so that a wrong slot is an error of `start`."""
        try:
            await self._step(core)
        except LedgerError as error:
            if not error.retryable and not isinstance(error, NoSuchLedger):
                raise

    async def stop(self) -> None:
        """Stop reading, and release everything. Nothing is delivered afterwards."""
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._close_tail()
        self._view.close()
        self._ready.clear()
        self._ready_bytes = 0
        self._news.set()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed = self._failed or task.exception()
        self._news.set()

    @property
    def ended(self) -> bool:
        """True once `until` was passed, or the stream is gone, and all of it was taken."""
        over = self._reading is not None and self._reading.done()
        return over and self._failed is None and not self._ready

    # -- delivery -----------------------------------------------------------------------------

    async def read(
        self, count: int = 1000, timeout_s: float | None = None
    ) -> tuple[list[StreamRecord], Gap | None]:
        """Return up to `count` stored records, or the gap that is next.

        Waits for the first of them for at most `timeout_s` seconds, without a limit if None. Then
        the result is empty; `waiting` has the reason. It is empty too once the reader has `ended`.
        Raises WrongState before `start` and after `stop`, and the error that ended the reading.
        """
        if count < 1:
            raise InvalidArgument(f"{self.name}: count is {count}, expected at least 1")
        self._check_reading()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._ready and not self._is_over():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        self._check_reading()
        if not self._ready and self._failed is not None:
            error = self._failed
            raise copy_error(error) if isinstance(error, LedgerError) else error
        return self._take(count)

    def _is_over(self) -> bool:
        return self._stopped or self._reading is None or self._reading.done()

    def _check_reading(self) -> None:
        if self._reading is None or self._stopped:
            state = "was stopped" if self._stopped else "was not started"
            raise WrongState(f"{self.name}: the reader {state}")

    def _take(self, count: int) -> tuple[list[StreamRecord], Gap | None]:
        ready, taken = self._ready, list[StreamRecord]()
        gap: Gap | None = None
        while ready and len(taken) < count:
            item = ready[0]
            if isinstance(item, Gap):
                gap = None if taken else item
                if taken:
                    break
            else:
                taken.append(item)
            ready.popleft()
            self._ready_bytes -= _size(item)
            if gap is not None:
                break
        self._room.set()
        return taken, gap

    async def deliver(
        self,
        on_records: Callable[[list[StreamRecord]], bool],
        on_gap: Callable[[Gap], bool],
        count: int = 1000,
    ) -> None:
        """Call back with each delivery, until the reader ends or is stopped. Use it or `read`.

        A callback returns False to refuse. The same delivery is then repeated after 1 s, doubling
        to 30 s. Raises as `read`.
        """
        while not self.ended:
            try:
                records, gap = await self.read(count)
            except WrongState:
                if self._stopped:
                    return
                raise
            pause_s = _REFUSED_S
            while (records and not on_records(records)) or (gap is not None and not on_gap(gap)):
                await asyncio.sleep(pause_s)
                if self._stopped:
                    return
                pause_s = min(2 * pause_s, _REFUSED_S_MAX)

    def _put(self, found: list[Delivery]) -> None:
        for each in found:
            items = [each] if isinstance(each, Gap) else each
            self._ready.extend(items)
            self._ready_bytes += sum(map(_size, items))
        if found:
            self.waiting = None
            self._news.set()

    # -- reading ahead ------------------------------------------------------------------------

    async def _read_on(self, core: Deliveries) -> None:
        pause_s = _PAUSE_S
        while not core.done:
            while self._ready_bytes >= self._buffer_bytes:
                self._room.clear()
                await self._room.wait()
            try:
                await self._refresh()
                if not await self._step(core):
                    self._put(core.on_wait())
                    await self._wait_at_end(core)
                self.waiting, pause_s = None, _PAUSE_S
            except NoNode:
                self._put(core.on_end(GapKind.NOTINCONFIG))
            except Unauthorized:
                self._put(core.on_end(GapKind.ACCESS))
            except LedgerError as error:
                # A ledger that is gone was trimmed, or its stream is deleted: the list changes.
                if not error.retryable and not isinstance(error, NoSuchLedger):
                    self._failed = error
                    return
                self._put(core.on_wait())
                self._report(core, error)
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        self._close_tail()

    def _report(self, core: Deliveries, error: LedgerError) -> None:
        """Set `waiting`."""
        bookies = error.bookies if isinstance(error, EntryAwaited) else ()
        number, entry = core.next
        self.waiting = Waiting(Dlsn(number, entry, 0), str(error), bookies)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._list_changed.wait()
        except TimeoutError:
            pass

    async def _refresh(self) -> None:
        """Load the list if it may have changed. Raises NoNode if the stream is gone."""
        if self._list_changed.is_set():
            self._list_changed.clear()
            self._stale = True
        if self._stale:
            await self._view.list.sync()
            await self._view.load()
            self._stale = False

    async def _step(self, core: Deliveries) -> bool:
        """Pass what is at `next`. Returns False if nothing of it is known yet."""
        self._enter_merged(core)
        if await self._pass_trimmed(core):
            return True
        segment = self._view.table.segment(core.next.segment)
        if segment is None:
            return False
        self._check_ledger(core, segment)
        core.begin(segment)
        losses = self._view.table.losses
        lost = losses.at_entry(segment.number, core.next.entry)
        if lost is not None:
            self._put(core.on_accepted(lost))
            return True
        if segment.completed and core.next.entry > segment.last_entry:
            self._put(core.on_segment_end(segment))
            return True
        behind = losses.first_behind(segment.number, core.next.entry)
        last = ENTRY_MAX if behind is None else EntryId(behind.first - 1)
        return await self._read_chunk(core, segment, last)

    def _check_ledger(self, core: Deliveries, segment: Segment) -> None:
        """Raise WrongState if the segment was cleaned while it was read.

        The entry at `next` is then another one. If all of it was read, that does not matter.
        """
        before, self._within = self._within, (segment.number, segment.ledger)
        replaced = before is not None and before[0] == segment.number and before != self._within
        whole = core.end_offset == segment.end_sequence_id and core.next.entry > segment.last_entry
        if replaced and core.next.entry and not whole:
            raise WrongState(
                f"{self.name}: segment {segment.number} was cleaned while it was read; read again "
                f"from offset {core.end_offset}"
            )

    def _enter_merged(self, core: Deliveries) -> None:
        """Go on in a segment into which that of `next` was merged, if its place there is known.

        That is its beginning or its end. Raises WrongState within it, and if reading is to end
        there: all of its records have other positions now.
        """
        segment = self._view.table.segment(core.next.segment)
        if segment is None or not segment.merged:
            return
        place = segment.number, segment.ledger
        begun = self._within == place and core.next.segment == segment.number
        at = core.end_offset
        if segment.first_number <= core.until.segment <= segment.number:
            begun, at = False, None  # the last wanted position is not there any more
        if begun:
            return
        if at == segment.end_sequence_id:
            core.move_to(Position(segment.number, EntryId(segment.last_entry + 1)))
        elif at is not None and at == segment.start_sequence_id:
            core.move_to(Position(segment.number, EntryId(0)))
        else:
            raise WrongState(
                f"{self.name}: segment {core.next.segment} was cleaned while it was read, and "
                f"merged with others; read again from offset {core.end_offset}"
            )
        self._within = place

    async def _pass_trimmed(self, core: Deliveries) -> bool:
        """Move to the start of the stream if `next` is below it."""
        view, start = self._view, self._view.table.start_sequence_id
        core.know_start(start)
        listed = view.table.segments
        removed = bool(listed) and core.next.segment < listed[0].first_number
        if core.end_offset is not None and core.end_offset >= start and not removed:
            return False
        first = view.start_segment()
        number = first.number if first is not None else view.next_number
        if core.next.segment > number:
            return False
        segment = view.table.segment(core.next.segment)
        if segment is not None:
            core.begin(segment)
        if core.next.segment == number and (
            first is None or start <= first.start_sequence_id or core.end_offset is None
        ):
            return False  # `_read_chunk` finds out where the offset is unknown
        return await self._trim(core, start)

    async def _trim(self, core: Deliveries, start: int) -> bool:
        before, view = core.next, self._view
        at = await view.start_position()
        segment = view.table.segment(at.segment)
        first = segment.start_sequence_id if segment is not None else 0
        self._put(core.on_trim(at, max(start, first)))
        if core.next == at and segment is not None:
            self._within = segment.number, segment.ledger
        return core.next != before

    async def _read_chunk(self, core: Deliveries, segment: Segment, last: EntryId) -> bool:
        reader = await self._view.reader_of(segment)
        first = core.next.entry
        readable = segment.last_entry if segment.completed else reader.last_add_confirmed
        last = min(last, readable, core.last_wanted)
        if first > last:
            return False
        try:
            entries = await reader.read(first, last, CHUNK_BYTES)
        except EntryLost as error:
            if core.needs_left and await self._find_left(core, segment):
                return True
            verdict = judge(error.copies, reader.metadata.ack_quorum)
            evidence = Evidence(segment.ledger, verdict, error.copies)
            self._put(core.on_lost(first, evidence))
            return True
        for entry, payload in entries:
            records = list(parse_entry(payload))
            start = self._view.table.start_sequence_id
            if core.is_below(records, start) and await self._trim(core, start):
                return True
            self._put(core.on_entry(entry, records))
            if core.done:
                break
            await asyncio.sleep(0)
        return True

    async def _find_left(self, core: Deliveries, segment: Segment) -> bool:
        """Find the offset before a lost `next` in the entry before it, if that one is readable.

        Returns True if `next` is below the start of the stream, and was moved to it.
        """
        try:
            records = await self._view.records_of(segment, EntryId(core.next.entry - 1))
        except LedgerError:
            return False
        core.know_end(records)
        return await self._pass_trimmed(core)

    # -- the end ------------------------------------------------------------------------------

    async def _wait_at_end(self, core: Deliveries) -> None:
        """Wait for the next entry, or for a change of the list."""
        segment = self._view.table.segment(core.next.segment)
        if segment is None or segment.completed:
            self._close_tail()
            await self._list_changed.wait()
            return
        tailer = await self._tailer(segment)
        following = start_once(
            "a wait at the end", tailer.read_next(core.next.entry, _TAIL_S), expected=LedgerError
        )
        changed = start_once("a wait for segments", self._list_changed.wait())
        try:
            await asyncio.wait([following, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (following, changed):
                task.cancel()
            await asyncio.gather(following, changed, return_exceptions=True)
        if not following.cancelled():
            await self._on_tail(core, segment, following)

    async def _on_tail(
        self, core: Deliveries, segment: Segment, following: asyncio.Task[Tail]
    ) -> None:
        """Pass the entry that was waited for."""
        error = following.exception()
        if isinstance(error, EntryLost):  # it is at or below the LAC: the next step finds it lost
            reader = await self._view.reader_of(segment)
            reader.last_add_confirmed = max(reader.last_add_confirmed, error.entry)
            return
        tail = following.result()
        if tail.payload is not None:
            records = list(parse_entry(tail.payload))
            start = self._view.table.start_sequence_id
            if not core.is_below(records, start) or not await self._trim(core, start):
                self._put(core.on_entry(core.next.entry, records))
        elif tail.ended:  # its segment is listed as completed soon
            await self._pause(_PAUSE_S_MAX)
            self._stale = True

    async def _tailer(self, segment: Segment) -> TailReader:
        if self._tail is None or self._tail[0] != segment.number:
            self._close_tail()
            reader = await self._view.reader_of(segment)
            self._tail = segment.number, self._client.tail(reader)
        return self._tail[1]

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail[1].close()
            self._tail = None


def _size(item: StreamRecord | Gap) -> int:
    return _RECORD_BYTES + (0 if isinstance(item, Gap) else len(item.data))
