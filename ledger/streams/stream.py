"""A stream that this process owns: open, append, read, roll, truncate, close.

    closed ─open▶ readable ─begin▶ writable ─(an add fails)▶ failed ─open▶ readable, a new epoch

If no segment was in progress, `open` creates none. The first record of an ownership creates its
first segment, so restarts and idle streams leave no empty segments behind. A takeover from a dead
writer begins at once (`begin`): it creates a ledger while it recovers the old ones, and lists the
new segment in the same step that completes the last old one. Every change of the segment list
happens under `_change_lock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ledger.client.writer import LedgerWriter
from ledger.core.accepted_losses import StreamLosses
from ledger.core.epoch_table import EpochEnd
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.segments import EMPTY_TXID, Segment
from ledger.core.snapshot_format import StateSnapshot
from ledger.core.sparse_index import SparseIndex
from ledger.errors import (
    BadVersion,
    LedgerError,
    NotOwner,
    StreamUnavailable,
    Truncated,
)
from ledger.ids import STREAM_KEY, Buffer
from ledger.streams.accepted_losses import WatchedLosses
from ledger.streams.config import StreamConfig
from ledger.streams.listed_stream import ListedStream
from ledger.streams.next_ledger import NextLedger
from ledger.streams.opening import AtOnce, OpeningTurns
from ledger.streams.recovery import LoadedStream, OwnerState, load_state, load_stream, recency
from ledger.streams.retention import Retention
from ledger.streams.segment_replacement import RewrittenSegment, SegmentReplacement
from ledger.streams.segment_store import SegmentStore
from ledger.streams.services import StreamServices
from ledger.streams.tail_cache import StoredRecord
from ledger.streams.writer import SEGMENT_RECORDS_MAX, OnDurable, SegmentWriter
from ledger.tasks import start_once

_ROLL_RETRY_S = 1.0  # delay before a roll is retried if no ledger could be created


def _ignore_segment(start_sequence_id: int) -> None:
    """Do nothing: most owners keep nothing by segment."""


class Stream(ListedStream):
    """A stream with its writer. `end_sequence_id` is what Kafka calls the high watermark."""

    own_txids = False
    """True if each append has a transaction id from the application. Set before `open`."""

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
        """`on_advanced` receives each new end; `on_failed` the error that ended this ownership."""
        # The table follows each successful change of the store. `open`, `close` and `abandon` clear
        # the tail.
        super().__init__(name, services, state.timestamp_max)
        self._config = config  # the settings; too slow to call for each entry
        # The owner's state beside the records. Rebuilt by `open`, stored in each snapshot.
        self._state = state
        # Called with the start of each new segment, before its head snapshot. Set before `open`.
        self.on_segment: Callable[[int], None] = _ignore_segment
        self._on_advanced = on_advanced
        self._on_failed = on_failed
        # The stored list and the node versions that this owner wrote or read. Loaded by `open`.
        self._store = SegmentStore(services.metadata, name)
        # Keeps the losses of the table up to date. Watches from `open` until `close` or `abandon`.
        self._losses = WatchedLosses(
            services.metadata, name, self._on_losses_changed, self._on_ownership_lost
        )
        # Writes the segment in progress. None until `begin`, and from the end of `close` or the
        # next `open` on. After a failure it stays, with `failed` set, until then.
        self._writer: SegmentWriter | None = None
        # The ledger of the segment in progress. Set and cleared together with `_writer`.
        self._ledger_writer: LedgerWriter | None = None
        self._segment_bytes = 0  # limit from the settings, copied by `_apply_config`
        # Wall time when the segment in progress began, and its share of `segment_jitter_ms`.
        self._segment_began_ms = 0
        self._jitter_ms = 0
        # Held during every change of the segment list: open, begin, close, roll, truncate, expire.
        self._change_lock = asyncio.Lock()
        # True while `close` runs, and for good after `abandon`. No segment begins then.
        self._closing = False
        # The running roll. Cancelling a caller that waits for it does not cancel it.
        self._rolling: asyncio.Task[None] | None = None
        # Set while a roll waits for its retry, because no ledger could be created.
        self._roll_retry: asyncio.TimerHandle | None = None
        self._next_ledger = NextLedger(self.create_ledger, services.clock)
        # The entry that hides a part of the owner's state, lost until an operator accepts it, or
        # awaited. Set by `open`. Meanwhile the stream is readable, and takes no record.
        self._blocked: EntryLost | EntryAwaited | None = None
        # A segment that the store lists and no writer writes yet. Set by `_complete_segment` in a
        # roll, taken by `_start_segment`, cleared by `_drop_writer`.
        self._begun: tuple[Segment, LedgerWriter] | None = None
        self._retention = Retention(services, self._store, self._table, self._reads, config)
        self._replacement = SegmentReplacement(
            services, self._store, self._table, self._tail, self._retention
        )

    # -- life ---------------------------------------------------------------------------------

    async def open(
        self, *, begin: bool = False, whole: bool = True, turns: OpeningTurns | None = None
    ) -> None:
        """Recover and complete segments in progress, and rebuild the state. Then it is readable.

        With `begin` (a takeover) it is also writable, and the head snapshot of its first segment
        durable, if there was a segment in progress and a new ledger can be created. On return
        `epoch` may be published. If it raises a LedgerError, it may be opened again.

        If the owner's state lies in a loss, it is readable only, until `on_failed` runs because an
        operator accepted losses. Without `whole` the same if the state cannot be read now: `begin`
        reads it again. With `turns` its two parts wait, and the second turn decides for `begin`.
        """
        turns = turns or AtOnce(begin=begin)
        async with self._change_lock:
            self._drop_writer()
            self._losses.start()
            async with turns.list_turn():
                segments = await self._store.load()
            async with turns.recovery_turn(recency(segments)) as begins:
                await self._recover(segments, begin=begins, whole=whole)

    async def _recover(self, segments: list[Segment], *, begin: bool, whole: bool) -> None:
        if begin and recency(segments) >= 0:
            self._next_ledger.begin_creating()
        client, clock = self.services.client, self.services.clock
        loaded = await load_stream(self._store, segments, client, clock, self._state, whole=whole)
        left_over, self._blocked = loaded.left_over, loaded.blocked
        beginning = begin and left_over is not None and await self._has_next_ledger()
        if left_over is not None and not beginning:
            await self._store.complete(*left_over)
        self._reset_table(loaded)
        if beginning:
            await self._start_segment(left_over=left_over)
            assert self._writer is not None
            await self._writer.wait_until_durable()

    def _reset_table(self, loaded: LoadedStream) -> None:
        self._reads.clear()
        self._tail.clear()
        self._table.reset(
            loaded.segments,
            loaded.summaries,
            loaded.index,
            loaded.index_number,
            start_sequence_id=self._store.start_sequence_id,
            epoch=self._store.next_epoch,
            losses=loaded.losses,
            epochs=loaded.epochs,
        )
        self._retention.forget_sizes()
        self._losses.catch_up()

    def _on_losses_changed(self, losses: StreamLosses) -> None:
        """Follow the stored losses. Cached records may now be lost, so they are dropped.

        If an operator gave up the segment in progress, this ownership ends: no record is
        acknowledged behind its end.
        """
        if losses == self._table.losses:
            return
        self._table.losses = losses
        self._reads.clear()
        self._tail.clear()
        if self._blocked is not None:
            self._on_failed(StreamUnavailable(f"{self.name}: an operator accepted losses"))
        writer = self._writer
        if writer is not None and losses.forced_in(writer.number) is not None:
            writer.give_up(NotOwner(f"{self.name}: segment {writer.number} was closed by force"))

    async def _has_next_ledger(self) -> bool:
        """Wait for the next ledger. Returns False if nothing can be written now."""
        return self._blocked is None and await self._next_ledger.is_ready() and not self._closing

    async def begin(self) -> None:
        """Create the first segment of this ownership, headed by a state snapshot.

        Raises EntryLost or EntryAwaited if a part of the owner's state cannot be read.
        """
        async with self._change_lock:
            if isinstance(self._blocked, EntryAwaited):
                await self._load_state_again()
            if self._blocked is not None:
                raise self._blocked.with_traceback(None)
            if self._closing:
                raise NotOwner(f"{self.name} is closing")
            if self._writer is None:
                await self._start_segment()

    async def _load_state_again(self) -> None:
        """Rebuild the state from the segments as they are known: another process may own them."""
        loaded = LoadedStream([*self._table.segments], self._table.losses, self._store.epoch_base)
        await load_state(loaded, self.services.client, self._state, whole=False)
        if loaded.losses is self._table.losses:  # otherwise the owner opens the stream again
            self._blocked = loaded.blocked
            self._reset_table(loaded)

    async def close(self) -> None:
        """Wait until all accepted records are durable, then complete the segment.

        The next `open` then has nothing to recover. After an error, raised here or before, the
        next `open` recovers. Nothing may be appended while it closes.
        """
        self._closing = True
        try:
            await self._wait_for_roll()
            async with self._change_lock:
                await self._finish_segment()
        finally:
            self._closing = False

    async def _finish_segment(self) -> None:
        writer = self._writer
        try:
            if writer is not None:
                writer.paused = False
                writer.pack()
                await writer.wait_until_idle()
                if writer.failed is None:
                    await self._complete_segment(writer)
        finally:
            if writer is not None and writer.waiting_bytes:  # the segment was full
                writer.fail(NotOwner(f"{self.name} is closing"))
            self._losses.stop()
            self._drop_writer()
            self._reads.clear()
            self._tail.clear()

    async def abandon(self, reason: str = "this process writes it no longer") -> None:
        """Stop writing and release all memory, because another owner has the data or deletes them.

        Adds in flight are answered once their outcome is known. A writer fails with `reason`.
        """
        self._closing = True  # never reset: this object is not opened again
        self._losses.stop()
        await self._wait_for_roll()
        await self._next_ledger.discard(self.services.client.delete)
        async with self._change_lock:
            writer = self._writer
            if writer is not None and writer.failed is None:
                writer.fail(NotOwner(f"{self.name}: {reason}"))
            self._drop_writer()
            self._reads.clear()
            self._tail.clear()

    async def _wait_for_roll(self) -> None:
        if self._rolling is not None:
            await asyncio.wait([self._rolling])  # unlike `await`, does not cancel it with us

    def _drop_writer(self) -> None:
        """Drop the writer. The end stays where readers saw it until the stream is opened again."""
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
        txid: int | None = None,
    ) -> None:
        """Append records as `SegmentWriter.append` does. Only while `writable`."""
        assert self._writer is not None
        self._writer.append(data, size, count, timestamp_max, on_durable, txid)

    def fail(self, error: LedgerError) -> None:
        """End this ownership as after a failed add: `on_failed` is called, and `open` recovers."""
        if self._writer is not None and self._writer.failed is None:
            self._writer.fail(error)

    @property
    def next_sequence_id(self) -> int:
        """The sequence id of the next accepted record."""
        return self._writer.next_sequence_id if self._writer else self._table.end_sequence_id

    @property
    def end_sequence_id(self) -> int:
        return self._writer.end_sequence_id if self._writer else self._table.end_sequence_id

    @property
    def txid_max(self) -> int:
        """The highest transaction id of the completed segments, 0 if there is none."""
        return self._store.txid_max

    def _on_end_moved(self, end_sequence_id: int) -> None:
        writer = self._writer
        if writer is None:  # abandoned
            return
        if self._rolling is None and self._roll_retry is None and self._is_full(writer):
            self.roll_soon()
        self._on_advanced(end_sequence_id)

    def _is_full(self, writer: SegmentWriter) -> bool:
        return (
            writer.size_bytes >= self._segment_bytes or writer.durable_count >= SEGMENT_RECORDS_MAX
        )

    # -- segments -----------------------------------------------------------------------------

    async def create_ledger(self) -> LedgerWriter:
        """Create a ledger of this stream that its list does not name yet."""
        config = self._config()
        return await self.services.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom={STREAM_KEY: self.name.encode()},
        )

    def _next_segment(self, start: int, last_txid: int) -> tuple[Segment, LedgerWriter]:
        """Take the next ledger for a segment that begins at `start`, to be listed at once.

        `last_txid` is that of the segment before, which the application's ids do not go below.
        """
        ledger_writer = self._next_ledger.take()
        segment = Segment(
            number=self._store.number_max + 1,
            ledger=ledger_writer.ledger,
            first_txid=max(last_txid, self.txid_max) if self.own_txids else start,
            start_sequence_id=start,
        )
        return (segment.with_jump if self._table.jumps_to(start) else segment), ledger_writer

    async def _start_segment(
        self,
        taking_over: SegmentWriter | None = None,
        left_over: tuple[Segment, Segment] | None = None,
    ) -> None:
        """Begin the next segment. `left_over` is listed as completed in the same step.

        Records that wait in `taking_over` move to the new segment in order.
        """
        if self._begun is None:
            await self._next_ledger.wait_until_ready()
            last_txid = EMPTY_TXID if left_over is None else left_over[1].last_txid
            begun = self._next_segment(self._table.end_sequence_id, last_txid)
            if left_over is None:
                await self._store.start(begun[0])
            else:
                await self._store.complete(*left_over, begun[0])
            self._begun = begun
        (segment, ledger_writer), self._begun = self._begun, None
        config, services = self._config(), self.services
        self._table.begin(segment)
        self.on_segment(segment.start_sequence_id)
        writer = SegmentWriter(
            ledger_writer,
            number=segment.number,
            start_sequence_id=segment.start_sequence_id,
            tail=self._tail,
            limits=services.limits,
            take_snapshot=self._take_snapshot,
            on_advanced=self._on_end_moved,
            on_failed=self._on_failed,
        )
        self._apply_config(writer, config)
        self._ledger_writer = ledger_writer
        self._segment_began_ms = services.clock.now_ms()
        self._jitter_ms = segment.ledger * 7919 % (config.segment_jitter_ms + 1)
        writer.write_snapshot()
        if taking_over is not None:
            writer.adopt(taking_over.take_waiting())
        self._writer = writer
        self._table.follow(writer)

    def _take_snapshot(self, index: SparseIndex, end_sequence_id: int) -> StateSnapshot:
        return self._table.snapshot(index, self._state.encode(end_sequence_id))

    async def _complete_segment(self, writer: SegmentWriter) -> None:
        """Close the writer's ledger and list its segment as completed.

        In a roll the next segment is listed in the same step, and accepts no record before.
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
            completion_ms=self.services.clock.now_ms(),
        )
        begun = None
        if self._rolling is not None:
            begun = self._next_segment(completed.end_sequence_id, completed.last_txid)
        await self._store.complete(segment, completed, begun and begun[0])
        self._begun = begun
        self._table.complete(
            completed,
            timestamp_max=writer.timestamp_max,
            size_bytes=self._ledger_writer.length,
            index=writer.index,
        )

    def roll_soon(self) -> None:
        """Start a roll. Records accepted while it runs wait, in order, for the new segment."""
        if self._rolling is None and self.writable:
            self._rolling = start_once("a roll", self._roll(), self._on_roll_died)

    async def _roll(self) -> None:
        try:
            if await self._prepare_next_ledger():
                async with self._change_lock:
                    await self._roll_over()
        except LedgerError as error:
            # The roll stopped half way: all waiting records fail and the owner reopens the stream.
            if self._writer is not None:
                self._writer.fail(error)
        finally:
            self._rolling = None

    def _on_roll_died(self, error: BaseException) -> None:
        """Fail as after any other failed roll: a paused writer would keep its records forever."""
        if self._writer is not None:
            self._writer.fail(StreamUnavailable(f"{self.name}: {error!r}"))

    async def _prepare_next_ledger(self) -> bool:
        """Wait for the next ledger, while the segment accepts records.

        Returns False if it cannot be created now. The segment stays open and a retry is scheduled.
        """
        try:
            await self._next_ledger.wait_until_ready()
        except LedgerError:
            if self._roll_retry is None:
                loop = asyncio.get_running_loop()
                self._roll_retry = loop.call_later(_ROLL_RETRY_S, self._retry_roll)
            return False
        return True

    def _retry_roll(self) -> None:
        self._roll_retry = None
        if self._writer is not None and self._is_full(self._writer):
            self.roll_soon()

    async def _roll_over(self) -> None:
        writer = self._writer
        if writer is None or writer.failed is not None or self._closing:
            return
        writer.paused = True
        await writer.wait_until_idle()
        if writer.failed is None:
            await self._next_ledger.wait_until_ready()
            await self._complete_segment(writer)
            await self._start_segment(taking_over=writer)

    def roll_if_old(self) -> bool:
        """Start a roll if the segment has records and is past its time. True if it started one.

        Call it periodically: it also applies changed settings.
        """
        writer = self._writer
        if writer is None or writer.failed is not None:
            return False
        config = self._config()
        self._apply_config(writer, config)  # settings may have changed
        if not writer.durable_count:
            return False
        age_ms = self.services.clock.now_ms() - self._segment_began_ms
        if age_ms < config.segment_ms + self._jitter_ms:
            return False
        self.roll_soon()
        return True

    def _apply_config(self, writer: SegmentWriter, config: StreamConfig) -> None:
        writer.control_ms = config.control_ms
        self._segment_bytes = config.segment_bytes

    # -- truncation ---------------------------------------------------------------------------

    async def truncate(self, sequence_id: int) -> None:
        """Move the start to `sequence_id`, durably. `expire` removes whole segments below it.

        Raises Truncated if `sequence_id` is past the readable end.
        """
        if sequence_id > self.end_sequence_id:
            raise Truncated(f"{sequence_id} is past the end {self.end_sequence_id} of {self.name}")
        async with self._change_lock:
            if sequence_id > self.start_sequence_id:
                with self._owning():
                    await self._retention.truncate(sequence_id)

    async def expire(self) -> int:
        """Remove segments past their retention or grace period, and return how many.

        The newest completed segment stays.
        """
        async with self._change_lock:
            with self._owning():
                return await self._retention.expire()

    @contextmanager
    def _owning(self) -> Generator[None]:
        """Change the metadata as the owner. A change by another process ends this ownership."""
        try:
            yield
        except BadVersion as error:
            self._on_ownership_lost(error)
            raise

    def _on_ownership_lost(self, error: LedgerError) -> None:
        """Fail, because another process changed the metadata. The owner reopens the stream."""
        if self._writer is not None:
            self._writer.fail(error)
        else:
            self._on_failed(error)

    # -- cleaning -----------------------------------------------------------------------------

    def cleanable_segments(self) -> list[Segment]:
        """Return the segments that may be rewritten. See `SegmentReplacement.cleanable`."""
        return [] if self._closing else self._replacement.cleanable(self._writer)

    async def replace(self, rewritten: RewrittenSegment) -> None:
        """List a rewritten segment. Raises as `SegmentReplacement.replace`."""
        async with self._change_lock:
            with self._owning():
                await self._replacement.replace(rewritten, self.cleanable_segments)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where `epoch` ends, as `SegmentTable.epoch_end` does. Only while it is open.

        The newest epoch ends at the readable end.
        """
        return self._table.epoch_end(epoch, self.end_sequence_id)

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """Read as `read` does, but from memory only. Returns None if not all of it is cached.

        Records that were read ahead are returned once; a repeated call reads them again.
        """
        at = self._tail.find(sequence_id)
        if at >= 0:
            return self._tail.take(at, bytes_max)
        return self._tail.missed(self._reads.read_ready(sequence_id, bytes_max))

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read consecutive durable records, beginning with the one that holds `sequence_id`.

        Returns at least one whole record, and about `bytes_max` bytes; none only at the end.
        Raises Truncated below the start.
        """
        self._table.check_start(sequence_id)
        if sequence_id >= self.end_sequence_id:
            return []
        if (cached := self.read_cached(sequence_id, bytes_max)) is not None:
            return cached
        self._tail.missed([])
        records = await self._reads.read(sequence_id, bytes_max, self._check_owner)
        if not records and sequence_id < self.end_sequence_id:
            raise StreamUnavailable(f"{self.name}: {sequence_id} cannot be read now")
        return records

    async def _check_owner(self) -> None:
        """End this ownership if another process changed the list: a listed ledger is gone."""
        with self._owning():
            await self._store.check()

    @property
    def timestamp_max(self) -> int | None:
        """An upper bound of the timestamps of all durable records, -1 if none has a timestamp.

        None if it is unknown, because the state of the stream lies in a loss.
        """
        return None if self._blocked is not None else self._table.timestamp_max
