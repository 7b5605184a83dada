"""One stream that this process owns: open it, append, read, roll, truncate, close.

    closed ─open▶ readable ─begin▶ writable ─(a failed add)▶ failed ─▶ open again, a new epoch

`open` creates nothing where nothing was being written: the first segment of an ownership is made
with the first record, so restarts and idle streams leave no empty segments behind. A takeover from
a dead writer begins at once (`begin`): its ledger is made while the old ones are recovered, and the
list names it in the step that completes the last of them. Single owner task rules: every change of
the segment list happens under `_change`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledger.client.writer import LedgerWriter
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment
from ledger.core.snapshot_format import Snapshot
from ledger.core.sparse_index import SparseIndex
from ledger.errors import (
    BadVersion,
    LedgerError,
    NotEnoughBookies,
    NotOwner,
    StreamUnavailable,
    Truncated,
)
from ledger.ids import Buffer
from ledger.streams.config import StreamConfig
from ledger.streams.next_ledger import NextLedger
from ledger.streams.reads import SegmentReads
from ledger.streams.recovery import Loaded, OwnerState, load_stream
from ledger.streams.retention import Retention
from ledger.streams.segment_store import SegmentStore
from ledger.streams.services import StreamServices
from ledger.streams.tail_cache import StoredRecord, StreamTail
from ledger.streams.writer import SEGMENT_RECORDS_MAX, OnDurable, SegmentWriter

STREAM_KEY = "stream"
"""In a ledger's custom metadata: the stream that it was made for."""
_ROLL_AGAIN_S = 1.0
"""Until the next try, when no ledger could be made for a roll; meanwhile the segment grows."""


class Stream:
    """`end_sequence_id` is the first one that readers cannot have yet (Kafka's high watermark)."""

    def __init__(
        self,
        name: str,
        services: StreamServices,
        config: Callable[[], StreamConfig],
        state: OwnerState,
        *,
        on_advanced: Callable[[int], None],
        on_failed: Callable[[LedgerError], None],
    ) -> None:
        self.name = name
        self._services = services
        self._config = config
        self._state = state
        self._on_advanced = on_advanced
        self._on_failed = on_failed
        self._store = SegmentStore(services.metadata, name)
        self._table = SegmentTable()
        self._tail = StreamTail(services.cache)
        self._writer: SegmentWriter | None = None
        self._ledger_writer: LedgerWriter | None = None
        self._segment_bytes = 0  # of the settings, which cost too much to be asked at each entry
        self._begun_ms = 0
        self._jitter_ms = 0
        self._change = asyncio.Lock()
        self._closing = False
        self._rolling: asyncio.Task[None] | None = None
        self._roll_again: asyncio.TimerHandle | None = None
        self._next_ledger = NextLedger(self._create_ledger, services.clock)
        self._begun: tuple[Segment, LedgerWriter] | None = None  # listed, without a writer yet
        self._reads = SegmentReads(
            services.client,
            self._table,
            services.limits,
            services.cursors,
            state.timestamp_max,
        )
        self._retention = Retention(
            self._store,
            services.client,
            services.clock,
            self._table,
            self._reads,
            config,
        )

    # -- life ---------------------------------------------------------------------------------

    async def open(self, *, begin: bool = False) -> None:
        """Readable: left-over segments are recovered and completed, the state is rebuilt.

        With `begin` (takeover), where somebody left a segment in progress and bookies would take
        another, also writable, and the head snapshot of the first segment of this ownership is
        durable. On return `epoch` may be shown. Raises LedgerError: open it again.
        """
        async with self._change:
            self._drop_writer()
            services = self._services
            loaded = await load_stream(
                self._store,
                services.client,
                services.clock,
                self._state,
                on_left_over=self._next_ledger.make if begin else None,
            )
            left_over = loaded.left_over
            beginning = begin and left_over is not None and await self._may_begin()
            if left_over is not None and not beginning:
                await self._store.complete(*left_over)
            self._take(loaded)
            if beginning:
                await self._start_segment(left_over=left_over)
                await self._head_is_durable()

    def _take(self, loaded: Loaded) -> None:
        self._reads.clear()
        self._tail.clear()
        self._table.reset(
            loaded.segments,
            loaded.summaries,
            loaded.index,
            loaded.index_number,
            start_sequence_id=self._store.start_sequence_id,
            epoch=self._store.number_max + 1,
        )

    async def _may_begin(self) -> bool:
        """False: there is nowhere to write to now, and what there is is read on without it."""
        try:
            await self._next_ledger.ready()
        except NotEnoughBookies:
            return False
        return not self._closing

    async def _head_is_durable(self) -> None:
        writer = self._writer
        assert writer is not None
        await writer.until_quiet()
        if writer.failed is not None:
            raise writer.failed

    async def begin(self) -> None:
        """Writable: the first segment of this ownership exists and its state snapshot leads it."""
        async with self._change:
            if self._closing:
                raise NotOwner(f"{self.name} is being closed")
            if self._writer is None:
                await self._start_segment()

    async def close(self) -> None:
        """All accepted records are durable and the segment completed; no recovery will be due.

        After an error, raised here or before, the next `open` recovers. No append meanwhile.
        """
        self._closing = True
        try:
            await self._roll_is_over()
            async with self._change:
                await self._finish_segment()
        finally:
            self._closing = False

    async def _finish_segment(self) -> None:
        writer = self._writer
        try:
            if writer is not None:
                writer.held = False
                writer.pack()
                await writer.until_quiet()
                if writer.failed is None:
                    await self._complete_segment(writer)
        finally:
            if writer is not None and writer.waiting_bytes:  # the segment had no room left
                writer.fail(NotOwner(f"{self.name} is being closed"))
            self._drop_writer()
            self._reads.clear()
            self._tail.clear()

    async def abandon(self) -> None:
        """Nothing of it is held any more and nothing will be written: its data is to be deleted.

        What is under way is answered when the ledger says how it ended.
        """
        self._closing = True  # for good
        await self._roll_is_over()
        await self._next_ledger.discard(self._services.client.delete)
        async with self._change:
            writer = self._writer
            if writer is not None and writer.failed is None:
                writer.fail(NotOwner(f"{self.name} is abandoned"))
            self._drop_writer()
            self._reads.clear()
            self._tail.clear()

    async def _roll_is_over(self) -> None:
        if self._rolling is not None:
            await asyncio.wait([self._rolling])  # its own fate: not cancelled with us

    def _drop_writer(self) -> None:
        """What readers were shown stays the end until the stream is opened again."""
        if self._writer is not None:
            self._table.move_end(self._writer.end_sequence_id)
            self._table.follow(None)
            self._writer.retire()
        self._writer = self._ledger_writer = self._begun = None

    @property
    def writable(self) -> bool:
        return self._writer is not None and self._writer.failed is None and not self._closing

    # -- writing ------------------------------------------------------------------------------

    def append(
        self,
        data: tuple[Buffer, ...],
        size: int,
        count: int,
        timestamp_max: int,
        on_durable: OnDurable,
    ) -> None:
        """See `SegmentWriter.append`. Only while `writable`."""
        assert self._writer is not None
        self._writer.append(data, size, count, timestamp_max, on_durable)

    @property
    def next_sequence_id(self) -> int:
        """What the next accepted record gets."""
        return self._writer.next_sequence_id if self._writer else self._table.end_sequence_id

    @property
    def end_sequence_id(self) -> int:
        return self._writer.end_sequence_id if self._writer else self._table.end_sequence_id

    @property
    def start_sequence_id(self) -> int:
        return self._table.start_sequence_id

    @property
    def epoch(self) -> int:
        """First segment number of this ownership, from `open` on."""
        return self._table.epoch

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._table.segments

    def _advanced(self, end_sequence_id: int) -> None:
        writer = self._writer
        if writer is None:  # abandoned: nobody is interested any more
            return
        if self._rolling is None and self._roll_again is None and self._full(writer):
            self.roll_soon()
        self._on_advanced(end_sequence_id)

    def _full(self, writer: SegmentWriter) -> bool:
        return (
            writer.size_bytes >= self._segment_bytes or writer.durable_count >= SEGMENT_RECORDS_MAX
        )

    # -- segments -----------------------------------------------------------------------------

    async def _create_ledger(self) -> LedgerWriter:
        config = self._config()
        return await self._services.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom={STREAM_KEY: self.name.encode()},
        )

    def _next_segment(self, start: int) -> tuple[Segment, LedgerWriter]:
        """To be listed now, and if that fails never again."""
        ledger_writer = self._next_ledger.take()
        segment = Segment(
            number=self._store.number_max + 1,
            ledger=ledger_writer.ledger,
            first_txid=start,
            start_sequence_id=start,
        )
        return segment, ledger_writer

    async def _start_segment(
        self,
        taking_over: SegmentWriter | None = None,
        left_over: tuple[Segment, Segment] | None = None,
    ) -> None:
        """The next segment takes records; `left_over` is listed as completed in the same step."""
        if self._begun is None:
            await self._next_ledger.ready()
            begun = self._next_segment(self._table.end_sequence_id)
            if left_over is None:
                await self._store.start(begun[0])
            else:
                await self._store.complete(*left_over, begun[0])
            self._begun = begun
        (segment, ledger_writer), self._begun = self._begun, None
        config, services = self._config(), self._services
        self._table.begin(segment)
        writer = SegmentWriter(
            ledger_writer,
            number=segment.number,
            start_sequence_id=segment.start_sequence_id,
            tail=self._tail,
            limits=services.limits,
            take_snapshot=self._snapshot,
            on_advanced=self._advanced,
            on_failed=self._on_failed,
        )
        self._heed(writer, config)
        self._ledger_writer = ledger_writer
        self._begun_ms = services.clock.now_ms()
        self._jitter_ms = segment.ledger * 7919 % (config.segment_jitter_ms + 1)
        writer.write_snapshot()
        if taking_over is not None:
            writer.adopt(taking_over.take_waiting())
        self._writer = writer
        self._table.follow(writer)

    def _snapshot(self, index: SparseIndex, end_sequence_id: int) -> Snapshot:
        return self._table.snapshot(index, self._state.encode(end_sequence_id))

    async def _complete_segment(self, writer: SegmentWriter) -> None:
        """The writer's segment is closed and listed as completed; its index is remembered.

        In a roll the next segment is listed in the same step, and takes nothing before.
        """
        assert self._ledger_writer is not None
        segment = self._table.segments[-1]
        writer.retire()
        last_entry = await self._ledger_writer.close()
        assert last_entry == writer.last_dlsn.entry
        completed = segment.complete(
            record_count=writer.durable_count,
            last_txid=writer.last_txid,
            last_entry=last_entry,
            last_slot=writer.last_dlsn.slot,
            completion_ms=self._services.clock.now_ms(),
        )
        begun = None
        if self._rolling is not None:
            begun = self._next_segment(completed.end_sequence_id)
        await self._store.complete(segment, completed, begun and begun[0])
        self._begun = begun
        self._table.complete(
            completed,
            timestamp_max=writer.timestamp_max,
            size_bytes=self._ledger_writer.length,
            index=writer.index,
        )

    def roll_soon(self) -> None:
        """A new segment takes over; what is accepted meanwhile waits in order and goes there."""
        if self._rolling is None and self.writable:
            self._rolling = asyncio.get_running_loop().create_task(self._roll())

    async def _roll(self) -> None:
        try:
            if await self._next_ledger_is_ready():
                async with self._change:
                    await self._roll_over()
        except LedgerError as error:
            # Half way: whatever waits fails, and the owner opens the stream again.
            if self._writer is not None:
                self._writer.fail(error)
        finally:
            self._rolling = None

    async def _next_ledger_is_ready(self) -> bool:
        """The segment takes records until then. False: none can be made now, it is kept on."""
        try:
            await self._next_ledger.ready()
        except LedgerError:
            if self._roll_again is None:
                loop = asyncio.get_running_loop()
                self._roll_again = loop.call_later(_ROLL_AGAIN_S, self._try_to_roll_again)
            return False
        return True

    def _try_to_roll_again(self) -> None:
        self._roll_again = None
        if self._writer is not None and self._full(self._writer):
            self.roll_soon()

    async def _roll_over(self) -> None:
        writer = self._writer
        if writer is None or writer.failed is not None or self._closing:
            return
        writer.held = True
        await writer.until_quiet()
        if writer.failed is None:
            await self._next_ledger.ready()
            await self._complete_segment(writer)
            await self._start_segment(taking_over=writer)

    def roll_if_old(self) -> bool:
        """A segment with records that is older than its time rolls. True when it now does.

        To be called now and then: changed settings act from then on.
        """
        writer = self._writer
        if writer is None or writer.failed is not None:
            return False
        config = self._config()
        self._heed(writer, config)  # settings may have been changed
        if not writer.durable_count:
            return False
        age_ms = self._services.clock.now_ms() - self._begun_ms
        if age_ms < config.segment_ms + self._jitter_ms:
            return False
        self.roll_soon()
        return True

    def _heed(self, writer: SegmentWriter, config: StreamConfig) -> None:
        writer.control_ms = config.control_ms
        self._segment_bytes = config.segment_bytes

    # -- truncation ---------------------------------------------------------------------------

    async def truncate(self, sequence_id: int) -> None:
        """Readers start at `sequence_id` or later, durably. Whole segments below it go later.

        Raises Truncated for a position past the readable end.
        """
        if sequence_id > self.end_sequence_id:
            raise Truncated(f"{sequence_id} is past the end {self.end_sequence_id} of {self.name}")
        async with self._change:
            if sequence_id <= self.start_sequence_id:
                return
            try:
                await self._retention.truncate(sequence_id)
            except BadVersion as error:
                self._is_anothers(error)
                raise

    async def expire(self) -> int:
        """Segments past retention, or truncated long enough, are gone; how many.

        The newest completed one stays.
        """
        async with self._change:
            try:
                return await self._retention.expire()
            except BadVersion as error:
                self._is_anothers(error)
                raise

    def _is_anothers(self, error: LedgerError) -> None:
        """Somebody else changed the stream's metadata: whoever owns it opens it again."""
        if self._writer is not None:
            self._writer.fail(error)
        else:
            self._on_failed(error)

    @property
    def size_bytes(self) -> int:
        return self._table.size_bytes

    def epoch_at(self, sequence_id: int) -> int:
        """The epoch of the ownership that wrote (or will write) this sequence id."""
        return self._table.epoch_at(sequence_id)

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """As `read`, from memory, or None when it is not all there.

        What was read ahead is given once: whoever drops it makes the next `read` look for it.
        """
        at = self._tail.find(sequence_id)
        if at >= 0:
            return self._tail.take(at, bytes_max)
        return self._reads.read_ready(sequence_id, bytes_max)

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Durable records from the one that holds `sequence_id`, in order, none left out.

        At least one (whole, whatever its size), else about `bytes_max` bytes. Empty only at the
        readable end. Raises Truncated below the start.
        """
        self._table.check_start(sequence_id)
        if sequence_id >= self.end_sequence_id:
            return []
        cached = self.read_cached(sequence_id, bytes_max)
        if cached is not None:
            return cached
        records = await self._reads.read(sequence_id, bytes_max)
        if not records and sequence_id < self.end_sequence_id:
            raise StreamUnavailable(f"{self.name}: {sequence_id} could not be read now")
        return records

    async def find_timestamp(self, timestamp: int, first: int = 0) -> StoredRecord | None:
        """The first record whose greatest timestamp is at least `timestamp`; None: there is none.

        Only records that end past `first` and past the stream's start count.
        """
        return await self._reads.find_timestamp(timestamp, first, self.read)

    @property
    def timestamp_max(self) -> int:
        """An upper bound of the durable records' timestamps; -1: none has any."""
        return self._table.timestamp_max
