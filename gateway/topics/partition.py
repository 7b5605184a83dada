"""A stream seen as Kafka offsets: one partition of a topic.

Batches walk in through `append` (checked, given their offset, accepted), and are answered when
they are durable. It takes batches at once, also while the stream is being opened: they wait here
in order. A stream that fails is opened again under a new epoch; what was pending is answered
NOT_LEADER_OR_FOLLOWER (outcome unknown, clients retry, idempotent ones without doubling).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from gateway.core.producers import AcceptedBatch, ProducerStates
from gateway.errors import partition_code
from gateway.log import Throttle, logger
from gateway.topics.configs import TopicConfig
from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused
from ledger.errors import (
    CorruptFormat,
    LedgerError,
    MetadataError,
    NoNode,
    NotEnoughBookies,
    NotOwner,
)
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import Stream, StreamServices
from ledger.streams.tail_cache import StoredRecord

_PRODUCER_EXPIRY_MS = 86_400_000  # Kafka: producer.id.expiration.ms
_REOPEN_S_FIRST, _REOPEN_S_MAX = 0.05, 5.0
_NO_TIMESTAMP = -1
_WAITING_MAX = 10_000  # batches accepted while the stream opens; then REQUEST_TIMED_OUT


class Produced(NamedTuple):
    """The answer for one partition of a Produce."""

    error: ErrorCode
    base_offset: int = -1
    append_time_ms: int = -1
    message: str | None = None


_said = Throttle()
_LEASE_OVER = NotOwner("another gateway may own the partition by now")

_UNKNOWN = Produced(ErrorCode.not_leader_or_follower)

OnProduced = Callable[[Produced], None]


class FetchWaiter(Protocol):
    def on_data(self) -> None:
        """The high watermark of a partition that it waits for moved, or the partition changed."""
        ...


class _PartitionState:
    """The `OwnerState` of a partition's stream: its producers."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.producers = ProducerStates()
        self._now_ms = now_ms

    def encode(self, end_sequence_id: int) -> bytes:
        self.producers.expire(self._now_ms(), _PRODUCER_EXPIRY_MS)
        return self.producers.encode(end_sequence_id)

    def load(self, data: bytes) -> None:
        try:
            self.producers.load(data)
        except ValueError as error:
            raise CorruptFormat(f"producer state: {error}") from error

    def replay(self, sequence_id: int, data: memoryview) -> None:
        header = batches.read_header(data)
        if header.producer_id >= 0:
            stamped = header.attributes & batches.LOG_APPEND_TIME
            self.producers.accept(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.records,
                sequence_id,
                header.max_timestamp if stamped else -1,
                self._now_ms(),
                durable_offset=sequence_id,
            )

    def timestamp_max(self, data: memoryview) -> int:
        return batches.timestamp_max(data)


class _Pending:
    """One accepted batch on its way to being durable; called once by the stream.

    Who has lost the stream, or may have, acknowledges nothing, though it may be durable.
    """

    __slots__ = ("_append_time_ms", "_base_offset", "_may_answer", "_on_produced")

    def __init__(
        self,
        base_offset: int,
        append_time_ms: int,
        may_answer: Callable[[], bool],
        on_produced: OnProduced,
    ) -> None:
        self._base_offset = base_offset
        self._append_time_ms = append_time_ms
        self._may_answer = may_answer
        self._on_produced = on_produced

    def __call__(self, error: LedgerError | None) -> None:
        if error is None and not self._may_answer():
            error = _LEASE_OVER
        if error is None:
            answer = Produced(ErrorCode.none, self._base_offset, self._append_time_ms)
        else:
            answer = Produced(partition_code(error, unknown_outcome=True))
        self._on_produced(answer)


class _Early(NamedTuple):
    """A batch that came while the stream was being opened."""

    batch: memoryview
    version: int
    on_produced: OnProduced


class Partition:
    """One owner per process. All methods on the event loop."""

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
        *,
        begin: bool = False,
    ) -> None:
        """`on_opened` hears the epoch each time it can be read and written again; `opening`
        bounds how many partitions of the process are opened at once. With `begin` a stream that
        somebody was writing to can be written to as soon as it is open."""
        self.name = name
        self._lease_held = lease_held
        self._on_opened = on_opened
        self._opening_room = opening or asyncio.Semaphore()
        self._begins = begin
        self._lost = False  # another owns it, or nobody: nothing is acknowledged
        self.closed = False
        self._services = services
        self._config = topic_config
        self._state = _PartitionState(services.clock.now_ms)
        self.stream = Stream(
            name,
            services,
            stream_config,
            self._state,
            on_advanced=self._advanced,
            on_failed=self._failed,
        )
        self._early: deque[_Early] = deque()
        self._waiters: set[FetchWaiter] = set()
        self._repeats: list[tuple[int, OnProduced, Produced]] = []
        self._opening: asyncio.Task[None] | None = None
        self._served = False  # the stream is open
        self._beginning: asyncio.Task[None] | None = None
        self._reopen_s = _REOPEN_S_FIRST
        self._advanced_since_open = True
        self._appended_ms = -1  # newest log append time given; the wall clock may jump back

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> asyncio.Task[None]:
        """The task that makes it readable; the same one for all callers. Do not cancel it."""
        if self._opening is None or (self._opening.done() and not self._served):
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return self._opening

    @property
    def readable(self) -> bool:
        return self._served and not self.closed

    @property
    def led(self) -> bool:
        """This process may answer for it as owner; nobody can have taken over yet."""
        return not self.closed and self._lease_held()

    @property
    def serves_fetches(self) -> bool:
        """True while a fetch may be answered from this log."""
        return not self.closed and self._lease_held()

    def _may_answer(self) -> bool:
        """As `led`; what was accepted before it was closed is still acknowledged."""
        return not self._lost and self._lease_held()

    async def _open(self) -> None:
        """Tries until the stream is open; what waits for it waits on."""
        if not self._advanced_since_open:
            await self._pause()  # no new segment at every try of something that cannot work
        while not self.closed:
            try:
                await self.stream.close()  # what a failure left
                async with self._opening_room:
                    await self._lease_is_held()
                    await self._open_once()
            except LedgerError as error:
                self._tell("a partition cannot be opened, it is tried again", error)
                if not error.retryable:
                    self._refuse_early(error)
                await self._pause()
            else:
                self._advanced_since_open = False
                self._served = True
                self._on_opened(self.stream.epoch)
                self._wake()
                return

    def _tell(self, event: str, error: LedgerError) -> None:
        """One line a minute and partition, however often it fails; of a lack of bookies, which
        all partitions have in common, one a minute in all."""
        of = "" if isinstance(error, NotEnoughBookies) else self.name
        if _said.allows(event, of, self._services.clock.monotonic_s()):
            kind = type(error).__name__
            logger().warning(event, partition=self.name, kind=kind, reason=str(error))

    async def _pause(self) -> None:
        await asyncio.sleep(self._reopen_s)
        self._reopen_s = min(self._reopen_s * 2, _REOPEN_S_MAX)

    async def _lease_is_held(self) -> None:
        """Opening it without would fence whoever has it now. Raises NotOwner when it is closed."""
        while not self._lease_held():
            if self.closed:
                raise NotOwner(self.name)
            await asyncio.sleep(_REOPEN_S_FIRST)

    async def _open_once(self) -> None:
        try:
            await self.stream.open(begin=self._begins)
        except NoNode:  # a crash came between the topic and its streams
            await create_streams(self._services.metadata, [self.name])
            await self.stream.open()

    async def ensure_readable(self) -> None:
        """Readable. Raises NotOwner when it is closed."""
        while not self.readable:
            if self.closed:
                raise NotOwner(self.name)
            opening = self.open()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result()  # a bug of ours is not waited for

    async def close(self) -> None:
        """Everything accepted is durable, the segment completed; later calls are refused."""
        self.closed = True
        await self._tasks_are_over()
        try:
            await self.stream.close()
        except LedgerError as error:
            self._refuse_early(error)
        self._refuse_early(NotOwner(self.name))
        self._wake()

    def abandon(self) -> None:
        """The topic is deleted, or another's: nothing is taken or acknowledged here any more,
        and waiting fetches look again."""
        self.closed = self._lost = True
        self._refuse_early(NotOwner(self.name))
        self._wake()

    async def abandoned(self) -> None:
        """After `abandon`: nothing of it is under way, so that its data can be deleted."""
        assert self.closed
        await self._tasks_are_over()
        await self.stream.abandon()

    async def _tasks_are_over(self) -> None:
        tasks = [t for t in (self._beginning, self._opening) if t is not None and not t.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _failed(self, error: LedgerError) -> None:
        """The stream can take no more: answer, and open it again under the next epoch."""
        self._tell("a partition's log took no more, it is opened again", error)
        repeats, self._repeats = self._repeats, []
        for _, on_produced, _ in repeats:
            on_produced(Produced(partition_code(error, unknown_outcome=True)))
        self._reopen()

    def _reopen(self) -> None:
        self._served = False
        self._wake()
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

    # -- produce ------------------------------------------------------------------------------

    def append(self, batch: memoryview, version: int, on_produced: OnProduced) -> None:
        """One batch is accepted in call order, or refused; `on_produced` runs exactly once.

        It may run before this returns when the batch is refused or repeats a durable one.
        """
        if not self.led:
            on_produced(_UNKNOWN)
        elif self.stream.writable and not self._early:
            self._append_now(batch, version, on_produced)
        elif len(self._early) >= _WAITING_MAX:
            on_produced(Produced(ErrorCode.request_timed_out, message="the partition is opening"))
        else:
            self._early.append(_Early(batch, version, on_produced))
            if self._beginning is None:
                self._beginning = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        try:
            await self.ensure_readable()
            await self.stream.begin()
        except LedgerError as error:
            self._refuse_early(error)
            if isinstance(error, NotEnoughBookies):
                self._tell("too few bookies take writes, producers are told to try again", error)
            if isinstance(error, MetadataError) and not self.closed:
                self._reopen()  # what is known of the segments may be wrong
        finally:
            self._beginning = None
        while self._early and self.stream.writable:
            early = self._early.popleft()
            self._append_now(early.batch, early.version, early.on_produced)
        if self._early and not self.closed:  # it failed meanwhile; `_failed` opens it again
            self._beginning = asyncio.get_running_loop().create_task(self._begin())

    def _refuse_early(self, error: LedgerError) -> None:
        early, self._early = self._early, deque()
        for waiting in early:
            waiting.on_produced(Produced(partition_code(error), message=str(error)))

    def _append_now(self, batch: memoryview, version: int, on_produced: OnProduced) -> None:
        config = self._config()
        now_ms = self._services.clock.now_ms()
        try:
            header = batches.check_batch(batch, version, config.max_message_bytes)
            self._check_timestamps(header, config, now_ms)
            if config.compacts:
                raise_if_keyless(batch, batches.decompressed_bytes_max(config.max_message_bytes))
        except BatchRefused as refused:
            on_produced(Produced(refused.code, message=str(refused)))
            return
        base_offset = self.stream.next_sequence_id
        if header.producer_id >= 0 and not self._next_in_sequence(header, on_produced):
            return
        append_time_ms = -1
        if config.log_append_time:
            append_time_ms = self._appended_ms = max(now_ms, self._appended_ms)
            batch = batches.with_append_time(batch, header, append_time_ms)
        if header.producer_id >= 0:
            self._state.producers.accept(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.records,
                base_offset,
                append_time_ms,
                now_ms,
                durable_offset=self.stream.end_sequence_id,
            )
        self.stream.append(
            batches.placed(batch, header, base_offset, self.stream.epoch),
            len(batch),
            header.records,
            header.max_timestamp if append_time_ms < 0 else append_time_ms,
            _Pending(base_offset, append_time_ms, self._may_answer, on_produced),
        )

    def _next_in_sequence(self, header: BatchHeader, on_produced: OnProduced) -> bool:
        """True: append it. Else it was answered here: refused, or a repeat of a known batch."""
        verdict = self._state.producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.records
        )
        if verdict is ErrorCode.none:
            return True
        if isinstance(verdict, AcceptedBatch):
            answer = Produced(ErrorCode.none, verdict.base_offset, verdict.timestamp_ms)
            if verdict.end_offset <= self.high_watermark:
                on_produced(answer if self._may_answer() else _UNKNOWN)
            else:  # accepted, not durable yet: the repeat is answered with the first
                self._repeats.append((verdict.end_offset, on_produced, answer))
            return False
        on_produced(Produced(verdict))
        return False

    @staticmethod
    def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
        if config.log_append_time or header.max_timestamp == _NO_TIMESTAMP:
            return
        if header.max_timestamp < 0:
            raise BatchRefused(
                ErrorCode.invalid_timestamp, f"timestamp {header.max_timestamp} is before 1970"
            )
        latest = now_ms + config.message_timestamp_after_max_ms
        if header.max_timestamp > latest:
            raise BatchRefused(
                ErrorCode.invalid_timestamp,
                f"timestamp {header.max_timestamp} is after {latest}, see "
                "message.timestamp.after.max.ms",
            )
        earliest = now_ms - config.message_timestamp_before_max_ms
        if header.base_timestamp < earliest:
            raise BatchRefused(
                ErrorCode.invalid_timestamp,
                f"timestamp {header.base_timestamp} is before {earliest}, see "
                "message.timestamp.before.max.ms",
            )

    # -- news ---------------------------------------------------------------------------------

    def _advanced(self, end_offset: int) -> None:
        if not self._advanced_since_open:
            self._advanced_since_open = True
            self._reopen_s = _REOPEN_S_FIRST
        if self._repeats:
            ready = [r for r in self._repeats if r[0] <= end_offset]
            self._repeats = [r for r in self._repeats if r[0] > end_offset]
            for _, on_produced, answer in ready:
                on_produced(answer if self._may_answer() else _UNKNOWN)
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        for waiter in list(self._waiters):
            waiter.on_data()

    def add_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.discard(waiter)

    # -- fetch --------------------------------------------------------------------------------

    def read_cached(self, offset: int, bytes_max: int) -> list[StoredRecord] | None:
        return self.stream.read_cached(offset, bytes_max)

    async def read(self, offset: int, bytes_max: int) -> list[StoredRecord]:
        return await self.stream.read(offset, bytes_max)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch under which the record at `offset` was written."""
        return self.stream.epoch_at(offset)

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after `timestamp`, from the log start."""
        from gateway.wire.record_scan import first_at_or_after

        bytes_max = batches.decompressed_bytes_max(self._config().max_message_bytes)
        record = await self.stream.find_timestamp(timestamp)
        while record is not None:
            batch = b"".join(record.data)
            found = first_at_or_after(batch, timestamp, self.log_start_offset, bytes_max)
            if found is not None:
                return found
            # The header claimed more than its records hold, or those are below the log start.
            record = await self.stream.find_timestamp(timestamp, record.end_sequence_id)
        return None

    async def offset_of_timestamp_max(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the greatest timestamp of all."""
        greatest = self.stream.timestamp_max
        if greatest < 0:
            return None
        found = await self.offset_for_timestamp(greatest)
        return found if found is not None else await self._greatest_by_looking()

    async def _greatest_by_looking(self) -> tuple[int, int] | None:
        """For when the record with the greatest timestamp is below the log start: look at all."""
        from gateway.wire.record_scan import greatest

        bytes_max = batches.decompressed_bytes_max(self._config().max_message_bytes)
        best: tuple[int, int] | None = None
        at = self.log_start_offset
        while at < self.high_watermark:
            records = await self.stream.read(max(at, self.log_start_offset), 1024 * 1024)
            at = records[-1].end_sequence_id
            for record in records:
                if best is not None and record.timestamp_max <= best[0]:
                    continue
                found = greatest(b"".join(record.data), self.log_start_offset, bytes_max)
                best = found if best is None or (found and found[0] > best[0]) else best
        return best


def raise_if_keyless(batch: memoryview, bytes_max: int) -> None:
    """A compacted topic takes only records with a key; the one check that decodes records."""
    from gateway.wire.record_scan import all_keyed

    if not all_keyed(bytes(batch), bytes_max):
        raise BatchRefused(
            ErrorCode.invalid_record, "a compacted topic takes no record without a key"
        )
