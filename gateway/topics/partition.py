"""Serves one partition that this broker leads: a stream, seen as Kafka offsets.

    opening (batches wait, in order) ─▶ readable ─(first batch)▶ writable
       ▲                                                            │
       └──(the stream failed: a new epoch)◀─────────────────────────┘    closed: for good

`append` checks a batch, assigns its offsets and accepts it. The producer is answered when the batch
is durable. If the stream fails, pending batches get NOT_LEADER_OR_FOLLOWER. Their outcome is
unknown, and producers retry (idempotent ones without duplicates).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count, takewhile
from typing import Protocol

from kio.schema.errors import ErrorCode

from gateway.core.producer_states import AcceptedBatch
from gateway.errors import partition_code
from gateway.topics.configs import TopicConfig
from gateway.topics.long_work import LongWork
from gateway.topics.loss_delivery import LossDelivery
from gateway.topics.partition_state import PartitionState
from gateway.topics.partition_warnings import PartitionWarnings, ProduceWatch
from gateway.topics.produced import OUTCOME_UNKNOWN, OnProduced, Produced, ProducedBatch
from gateway.topics.producer_ids import learn_certain_id
from gateway.topics.timestamp_search import SearchBudget, TimestampSearch
from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused
from gateway.wire.record_check import RecordRules, check_now, check_steps
from ledger.errors import (
    LedgerError,
    MetadataError,
    NoNode,
    NoSuchEntry,
    NotEnoughBookies,
    NotOwner,
    StreamUnavailable,
)
from ledger.streams.accepted_losses import EntryAwaited
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import Stream, StreamServices
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import report, reported, start_once, start_restarting

_REOPEN_S_FIRST, _REOPEN_S_MAX = 0.05, 5.0
_WHOLE_ATTEMPTS = 5  # failed openings after which a partition whose state waits is readable only
# The maximum number of batches that wait for the stream to open; more get REQUEST_TIMED_OUT.
_WAITING_MAX = 10_000

_TOO_FEW_COPIES = Produced(
    ErrorCode.not_enough_replicas,
    message="min.insync.replicas of the topic exceeds the number of copies of a record.",
)

LOST = "another broker may lead it now"
DELETED = "its topic is deleted"
"""The reasons why a broker stops leading a partition, for the log."""

_FAILED = "the log of a partition failed; opening it again"
_ENDED = "this broker no longer leads a partition"


class FetchWaiter(Protocol):
    """A fetch that waits for records of one or more partitions."""

    def on_data(self) -> None:
        """Handle a moved high watermark, or an opened, lost or closed partition."""
        ...


def _bytes_of(batch: memoryview) -> bytes:
    """Return the whole batch. It is not copied if the view is one of whole bytes."""
    whole = batch.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(batch) else bytes(batch)


class Partition:
    """One partition that this broker leads. Source: Kafka, Partition and UnifiedLog."""

    is_follower = False

    def __init__(
        self,
        name: str,
        services: StreamServices,
        topic_config: Callable[[], TopicConfig],
        stream_config: Callable[[], StreamConfig],
        lease_held: Callable[[], bool] = lambda: True,
        on_opened: Callable[[int], None] = lambda _: None,
        opening: asyncio.Semaphore | None = None,
        long_work: LongWork | None = None,
        *,
        begin: bool = False,
        named: tuple[str, int] = ("-", 0),
    ) -> None:
        """Create the partition, closed. `on_opened(epoch)` runs each time the partition was opened.

        `opening` limits how many partitions the process opens at the same time. With `begin`, a
        stream to which a former owner was writing is writable as soon as it is open. The log names
        the partition by `named`, a topic and an index.
        """
        # The stream's name. The name and the callables below never change.
        self.name = name
        self._lease_held = lease_held
        self._on_opened = on_opened
        self._opening_permits = opening or asyncio.Semaphore()
        self._long_work = long_work or LongWork()
        self._begins = begin
        # True once it was taken over or deleted: acknowledge nothing. Implies `closed`.
        self._lost = False
        self.closed = False  # True once it was handed over, lost or deleted; never reset
        self._services = services
        self._named, self._log = named, PartitionWarnings(name, services, *named)
        self._watch = ProduceWatch(self, self._log, stream_config)
        self._config, self._stream_config = topic_config, stream_config
        self._state = PartitionState(services.clock.now_ms)
        # The stream. It is open while `_opened`, and writable after the first batch.
        on_advanced, on_failed = self._on_advanced, self._on_failed
        self.stream = Stream(
            name, services, stream_config, self._state, on_advanced=on_advanced, on_failed=on_failed
        )
        # The delivery of lost ranges, and the offsets at which readers wait.
        self.losses = LossDelivery(self.stream, topic_config, self._log, services.clock)
        # Batches that wait, in order, for a writable stream or a check; at most _WAITING_MAX.
        self._waiting_batches: deque[ProducedBatch] = deque()
        self._abandoned_for = LOST  # the reason of `abandon`, for the log
        self._waiters: set[FetchWaiter] = set()  # fetches to notify, until they remove themselves
        # Retries of batches that are not durable yet: end offset of the batch, at which the high
        # watermark answers the retry, callback and result.
        self._duplicates: list[tuple[int, OnProduced, Produced]] = []
        # The task that opens the stream. Done once it is open; None before the first `open`.
        self._opening: asyncio.Task[None] | None = None
        # True while the stream is open for reading: from the end of `_opening` until it fails.
        self._opened = False
        # Makes the stream writable and appends the waiting batches. None while it has no work.
        self._beginning: asyncio.Task[None] | None = None
        # The pause before the next opening. Doubles up to _REOPEN_S_MAX; a durable batch resets it.
        self._reopen_s = _REOPEN_S_FIRST
        self._advanced_since_open = True  # False from an opening until a batch of it is durable
        # The newest assigned log append time. It never falls, even if the clock is set back.
        self._appended_ms = -1

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> asyncio.Task[None]:
        """Return the task that opens the partition. Callers share the task: do not cancel it."""
        if self._opening is None or (self._opening.done() and not self._opened):
            self._opening = start_restarting(f"the opening of {self.name}", self._open)
        return self._opening

    @property
    def readable(self) -> bool:
        """True if fetches can be served without waiting for the stream to open."""
        return self._opened and not self.closed

    @property
    def is_leader(self) -> bool:
        """True while this broker may answer as leader: no other can have taken over yet."""
        return not self.closed and self._lease_held()

    @property
    def serves_fetches(self) -> bool:
        """True while a fetch may be answered from this log."""
        return not self.closed and self._lease_held()

    def _may_acknowledge(self) -> bool:
        """Return whether batches may be acknowledged, even during a hand-over."""
        return not self._lost and self._lease_held()

    async def _open(self) -> None:
        """Open the stream. Retry while batches and fetches wait, until the partition is closed."""
        if not self._advanced_since_open:
            # The last epoch accepted nothing, so do not add another segment at once.
            await self._pause()
        for attempt in takewhile(lambda _: not self.closed, count()):
            try:
                # An opening that failed may have left the stream half open.
                await self.stream.close()
                async with self._opening_permits:
                    await self._wait_for_lease()
                    await self._open_once(whole=attempt < _WHOLE_ATTEMPTS)
            except LedgerError as error:
                self._log.warn("cannot open a partition; will retry", error)
                self.losses.on_open_failed(error)
                if not error.retryable:
                    self._refuse_waiting(error)
                await self._pause()
            else:
                self._advanced_since_open = False
                self._opened = True
                self.losses.on_opened()
                self._on_opened(self.stream.epoch)
                self._notify_waiters()
                return

    async def _pause(self) -> None:
        await asyncio.sleep(self._reopen_s)
        self._reopen_s = min(self._reopen_s * 2, _REOPEN_S_MAX)

    async def _wait_for_lease(self) -> None:
        """Wait until the lease is held: opening without it would fence the present owner.

        Raises NotOwner if the partition is closed.
        """
        while not self._lease_held():
            if self.closed:
                raise NotOwner(self.name)
            await asyncio.sleep(_REOPEN_S_FIRST)

    async def _open_once(self, *, whole: bool) -> None:
        try:
            await self.stream.open(begin=self._begins, whole=whole)
        # A crash between creating the topic and its streams left the topic without them.
        except NoNode:
            services = self._services
            await create_streams(services.metadata, [self.name], services.epoch_base)
            await self.stream.open()
        await learn_certain_id(self._state.producers.losses, self._services.metadata)

    async def ensure_readable(self) -> None:
        """Wait until the partition is readable. Raises NotOwner if it is closed."""
        while not self.readable:
            if self.closed:
                raise NotOwner(self.name)
            opening = self.open()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result()  # raises the exception if a bug ended the task

    async def close(self) -> None:
        """Hand the partition over: make accepted batches durable and complete the segment."""
        self.closed = True
        await self._cancel_tasks()
        try:
            await self.stream.close()
        except LedgerError as error:
            self._refuse_waiting(error)
        finally:
            self._refuse_waiting(NotOwner(self.name))
            self._notify_waiters()

    def abandon(self, reason: str = LOST) -> None:
        """Accept and acknowledge nothing more: the topic is deleted, or another broker leads it.

        Waiting fetches are notified. `reason` is for the log.
        """
        self.closed = self._lost = True
        self._abandoned_for = reason
        self._refuse_waiting(NotOwner(self.name))
        self._notify_waiters()

    async def wait_abandoned(self) -> None:
        """Wait after `abandon` until nothing is in flight, so that the data can be deleted."""
        assert self.closed
        await self._cancel_tasks()
        await self.stream.abandon(self._abandoned_for)

    async def _cancel_tasks(self) -> None:
        tasks = [t for t in (self._beginning, self._opening) if t is not None and not t.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.losses.close()

    def _on_failed(self, error: LedgerError) -> None:
        """Answer pending batches after a failure, and open the stream under the next epoch."""
        self._log.warn(_ENDED if self.closed else _FAILED, error)
        duplicates, self._duplicates = self._duplicates, []
        for _, on_produced, _ in duplicates:
            on_produced(Produced(partition_code(error, unknown_outcome=True)))
        self._reopen()

    def _reopen(self) -> None:
        self._opened = False
        self._notify_waiters()
        if not self.closed:
            self.open()

    # -- offsets ------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        return self.stream.epoch

    @property
    def high_watermark(self) -> int:
        return self.stream.end_sequence_id

    @property
    def log_start_offset(self) -> int:
        return self.stream.start_sequence_id

    @property
    def accepted_lost_records(self) -> int:
        """The number of lost records above the log start whose loss was accepted.

        Offsets that a forced close reserved do not count: it is unknown which of them had records.
        """
        start = self.log_start_offset
        ranges = (each.offsets for each in self.stream.accepted_losses.ranges if not each.forced)
        return sum(max(0, each.last + 1 - max(each.first, start)) for each in ranges)

    @property
    def accepted_end(self) -> int:
        return self.stream.next_sequence_id

    @property
    def first_waiting(self) -> object | None:
        return self._waiting_batches[0] if self._waiting_batches else None

    @property
    def checking(self) -> bool:
        waiting = self._waiting_batches
        return bool(waiting) and waiting[0].takes_long and self.stream.writable

    async def truncate(self, offset: int) -> None:
        """Move the log start to `offset`, durably. Raises LedgerError."""
        await self.stream.truncate(offset)
        self._notify_waiters()

    async def expire(self) -> int:
        """Remove segments past their retention. Returns how many. Raises LedgerError."""
        removed = await self.stream.expire()
        if removed:
            self._notify_waiters()
        return removed

    # -- produce ------------------------------------------------------------------------------

    @property
    def lacks_copies(self) -> bool:
        """True if `min.insync.replicas` exceeds the number of copies that a record has."""
        wanted = self._config().min_insync_replicas
        return wanted > 1 and wanted > self._stream_config().write_quorum

    def append(
        self, batch: memoryview, version: int, on_produced: OnProduced, *, acks_all: bool = False
    ) -> None:
        """Accept or refuse one batch, in call order. `on_produced` runs exactly once.

        If the batch is refused or repeats a durable batch, `on_produced` runs before this method
        returns. With `acks_all` it is refused if it would have too few copies.
        """
        config = self._config()
        if not self.is_leader:
            on_produced(OUTCOME_UNKNOWN)
        elif acks_all and config.min_insync_replicas > 1 and self.lacks_copies:
            on_produced(_TOO_FEW_COPIES)
        elif self.stream.writable and not self._waiting_batches:
            waiting = ProducedBatch(batch, version, on_produced)
            if not self._append_or_fail(waiting, config):
                self._wait(waiting)
        elif len(self._waiting_batches) >= _WAITING_MAX:
            on_produced(Produced(ErrorCode.request_timed_out, message="Partition is opening."))
        else:
            self._wait(ProducedBatch(batch, version, on_produced))

    def _wait(self, waiting: ProducedBatch) -> None:
        self._waiting_batches.append(waiting)
        if not self._watch.armed:
            self._watch.arm()
        if self._beginning is None:
            self._start_beginning()

    def _start_beginning(self) -> None:
        self._beginning = start_once(
            f"the first batches of {self.name}", self._begin(), self._on_begin_died
        )

    def _on_begin_died(self, error: BaseException) -> None:
        self._refuse_waiting(StreamUnavailable(f"{self.name}: {error!r}"))

    async def _begin(self) -> None:
        try:
            await self._make_writable()
            await self._append_waiting()
        finally:
            self._beginning = None
        # The stream failed during the append, and is opened again.
        if self._waiting_batches and not self.closed:
            self._start_beginning()

    async def _make_writable(self) -> None:
        try:
            await self.ensure_readable()
            await self.stream.begin()
            await learn_certain_id(self._state.producers.losses, self._services.metadata)
        except LedgerError as error:
            self._refuse_waiting(error)
            if isinstance(error, NoSuchEntry):
                self._log.warn("a partition takes no records until its loss is accepted", error)
            if isinstance(error, EntryAwaited):
                self._log.warn("a partition takes no records while its state is unreadable", error)
            if isinstance(error, NotEnoughBookies):
                self._log.warn("too few bookies take writes; producers retry", error)
            if isinstance(error, MetadataError) and not self.closed:
                self._reopen()  # open the stream again, because its segment list may be out of date

    async def _append_waiting(self) -> None:
        """Append the waiting batches in order. Check in parts those that take long."""
        while self._waiting_batches and self.stream.writable:
            waiting = self._waiting_batches[0]
            newest: int | None = None
            if waiting.takes_long:
                newest = await self._check_in_parts(waiting)
                # Refused during the check, by it or because the partition was lost.
                if not self._waiting_batches or self._waiting_batches[0] is not waiting:
                    continue
                if not self.stream.writable:
                    return
            self._waiting_batches.popleft()
            if not self._append_or_fail(waiting, self._config(), newest):
                self._waiting_batches.appendleft(waiting)

    async def _check_in_parts(self, waiting: ProducedBatch) -> int | None:
        """Return the greatest timestamp of the records. Refuse the batch if it is invalid."""
        config = self._config()
        header = batches.read_header(waiting.batch)
        rules = self._record_rules(config, self._services.clock.now_ms())
        try:
            return await self._long_work.check(check_steps(_bytes_of(waiting.batch), header, rules))
        except BatchRefused as refused:
            if self._waiting_batches and self._waiting_batches[0] is waiting:
                self._waiting_batches.popleft()
                waiting.refuse(refused)
        return None

    def _refuse_waiting(self, error: LedgerError) -> None:
        answer = Produced(partition_code(error), message=self._log.in_kafkas_words(str(error)))
        refused, self._waiting_batches = self._waiting_batches, deque()
        for waiting in refused:
            with reported(f"an answer to a producer of {self.name}"):
                waiting.take()(answer)

    def _append_or_fail(
        self, waiting: ProducedBatch, config: TopicConfig, newest: int | None = None
    ) -> bool:
        """Append as `_append_now` does. Answer the batch after an unexpected exception too.

        The state of the producers may then count a batch that the stream lacks, so the stream is
        opened again. Batches behind it would overtake its retry, so their producers repeat them.
        """
        try:
            return self._append_now(waiting, config, newest)
        except Exception as error:  # noqa: BLE001  whatever it is, the next batches are served
            report(f"an append to {self.name}", error)
            waiting.give_up()
            failed = StreamUnavailable(f"{self.name}: {error!r}")
            self._refuse_waiting(failed)
            self.stream.fail(failed)
            return True

    def _append_now(self, waiting: ProducedBatch, config: TopicConfig, newest: int | None) -> bool:
        """Accept or refuse one batch. Return False if its records take long to check.

        `newest` is the greatest timestamp of the records if they were checked.
        """
        batch, version = waiting.batch, waiting.version
        now_ms = self._services.clock.now_ms()
        try:
            header = batches.check_batch(batch, version, config.max_message_bytes)
            if newest is None:
                whole = batch.obj  # not copied if the view is one of whole bytes
                if not isinstance(whole, bytes) or len(whole) != len(batch):
                    whole = bytes(batch)
                newest = check_now(whole, header, self._record_rules(config, now_ms))
        except BatchRefused as refused:
            waiting.refuse(refused)
            return True
        if newest is None:
            waiting.takes_long = True
            return False
        base_offset = self.stream.next_sequence_id
        if header.producer_id >= 0 and not self._next_in_sequence(header, waiting):
            return True
        append_time_ms = -1
        if config.log_append_time:
            append_time_ms = self._appended_ms = max(now_ms, self._appended_ms)
            batch = batches.with_append_time(batch, header, append_time_ms)
            newest = append_time_ms
        elif newest != header.max_timestamp:
            batch = batches.with_timestamp_max(batch, header, newest)
        if header.producer_id >= 0:
            self._state.producers.accept(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.records,
                base_offset,
                newest,
                now_ms,
                durable_offset=self.stream.end_sequence_id,
            )
        self.stream.append(
            batches.with_offset(batch, header, base_offset, self.stream.epoch),
            len(batch),
            header.records,
            newest,
            waiting.accept(base_offset, append_time_ms, self._may_acknowledge),
        )
        if not self._watch.armed:
            self._watch.arm()
        return True

    def _next_in_sequence(self, header: BatchHeader, waiting: ProducedBatch) -> bool:
        """Return True if the batch may be appended. Otherwise answer it and return False.

        A retry of an accepted batch gets the result of that batch. Any other batch is refused.
        """
        verdict = self._state.producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.records
        )
        if verdict is ErrorCode.none:
            return True
        on_produced = waiting.take()
        if isinstance(verdict, AcceptedBatch):
            answer = Produced(ErrorCode.none, verdict.base_offset, verdict.timestamp_ms)
            if verdict.end_offset <= self.high_watermark:
                on_produced(answer if self._may_acknowledge() else OUTCOME_UNKNOWN)
            else:  # the accepted batch is not durable yet, so answer both at the same time
                self._duplicates.append((verdict.end_offset, on_produced, answer))
            return False
        on_produced(Produced(verdict))
        return False

    def _record_rules(self, config: TopicConfig, now_ms: int) -> RecordRules:
        timestamps = None
        if not config.log_append_time:
            earliest = now_ms - config.message_timestamp_before_max_ms
            latest = now_ms + config.message_timestamp_after_max_ms
            timestamps = (earliest if earliest > 0 else 0, latest)
        return RecordRules(config.decompressed_bytes_max, config.compacts, timestamps, self._named)

    async def expire_producers(self) -> None:
        """Forget producers that are unused for a day, with pauses for other tasks."""
        while True:
            if not self._state.expire(self.stream.end_sequence_id):
                return
            await asyncio.sleep(0)

    # -- the high watermark -------------------------------------------------------------------

    def _on_advanced(self, end_offset: int) -> None:
        if not self._advanced_since_open:
            self._advanced_since_open = True
            self._reopen_s = _REOPEN_S_FIRST
        if self._duplicates:
            ready = [each for each in self._duplicates if each[0] <= end_offset]
            self._duplicates = [each for each in self._duplicates if each[0] > end_offset]
            for _, on_produced, answer in ready:
                on_produced(answer if self._may_acknowledge() else OUTCOME_UNKNOWN)
        if self._waiters:
            self._notify_waiters()

    def _notify_waiters(self) -> None:
        for waiter in list(self._waiters):
            waiter.on_data()

    def add_waiter(self, waiter: FetchWaiter) -> None:
        """Notify `waiter` of changes until `remove_waiter`."""
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.discard(waiter)

    # -- fetch --------------------------------------------------------------------------------

    def read_cached(self, offset: int, bytes_max: int) -> list[StoredRecord] | None:
        """Return batches from memory, as `read` does. None if memory does not have all of them."""
        return self.losses.deliver_cached(self.stream.read_cached(offset, bytes_max), offset)

    async def read(self, offset: int, bytes_max: int) -> list[StoredRecord]:
        """Return the batch that contains `offset`, and the following ones up to `bytes_max` bytes.

        The result is empty only at the high watermark. Raises LedgerError.
        """
        try:
            return self.losses.deliver(await self.stream.read(offset, bytes_max), offset)
        except LedgerError as error:
            self.losses.on_failed(offset, error)
            raise

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch under which the record at `offset` was written."""
        return self.stream.epoch_at(offset)

    def search(self, budget: SearchBudget) -> TimestampSearch:
        """Return a search for timestamps in this log, which decodes within `budget`."""
        bytes_max = self._config().decompressed_bytes_max
        return TimestampSearch(self.stream, bytes_max, self._long_work, budget)
