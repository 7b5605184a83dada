"""The coordinator of the ids in one partition of the transaction log that this broker leads.

    opened ─▶ loading ─▶ (a segment is owned) ─▶ serving ─(failed append, fenced)▶ opened again
                                                    └──(lost, closed)▶ ended

The pure core decides; this shell appends its records, resolves the futures of requests, and sends
its markers. Records that come while a batch is under way wait, and form the next batch.

Two owners in a row have one epoch if the first one wrote nothing. So an owner that finds prepared
transactions appends a record before it sends their markers: then its epoch is its own.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from gateway.core.transaction_checks import check_initializing
from gateway.core.transaction_effects import (
    Added,
    Adding,
    Answer,
    Append,
    Effect,
    Ended,
    Ending,
    Hold,
    Initialized,
    Initializing,
    Marker,
    Reload,
    SendMarkers,
    TransactionSettings,
    TransactionView,
)
from gateway.core.transaction_log import (
    ID_BYTES_MAX,
    encode_in_steps,
    encode_key,
    encode_value,
)
from gateway.core.transaction_states import PREPARED, TopicPartition
from gateway.core.transactions import TransactionCoordinator
from gateway.errors import coordinator_code
from gateway.log import Throttle, logger
from gateway.topics.partition import Partition
from gateway.topics.producer_ids import ProducerIds
from gateway.transactions.long_records import LongRecords
from gateway.transactions.ports import MarkerSender, OnAnswers
from gateway.transactions.transaction_map import PARTITION_BYTES, TransactionMap, memory_of
from gateway.transactions.turns import PER_TURN, Turns
from gateway.wire.own_batches import RECORD_OVERHEAD, encode_batch
from ledger.errors import CorruptFormat, LedgerError, StreamUnavailable
from ledger.ports.clock import Clock
from ledger.tasks import reported, start_restarting

_BATCH_BYTES_MAX = 1024 * 1024  # of records that wait for the batch under way
_IDS_PER_STEP = 500  # ids loaded between two pauses for other tasks
_PAUSE_S_FIRST, _PAUSE_S_MAX = 1.0, 5.0  # before the map is loaded or a segment begun again
_LOGGED_CHARACTERS = 200  # of a transactional id
_SPARE_IDS_MAX = 8  # producer ids that are kept for transactions that time out

_Result = TypeVar("_Result", Initialized, Added, Ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorServices:
    """The services that all coordinators of a process share."""

    clock: Clock
    settings: TransactionSettings
    producer_ids: ProducerIds
    markers: MarkerSender
    find_log: Callable[[int], Partition | None]  # the partition if this broker leads it
    level: Callable[[], int]  # the level of `transaction.version`
    has_memory: Callable[[int], bool]  # True if known ids may take these bytes too
    has_memory_for_id: Callable[[int], bool]  # True if a new id may take these bytes
    throttle: Throttle
    turns: Turns
    long_records: LongRecords


class CoordinatorPartition:
    """The shell around one `TransactionCoordinator` at a time. A `PartitionObserver`.

    Requests are answered only while this broker leads the partition.
    """

    def __init__(self, index: int, name: str, services: CoordinatorServices) -> None:
        self.index = index
        self.state = TransactionMap(name)
        self._name = name
        self._services = services
        # The core of this ownership. None until it is loaded, and after its end.
        self._core: TransactionCoordinator | None = None
        # Loads the core. None before the first opening and after the end of an ownership.
        self._loading: asyncio.Task[None] | None = None
        # The leader epoch of the log, which is the coordinator epoch. -1 without an ownership.
        self._epoch = -1
        # Receives the answers to markers of this core. One object for each core.
        self._on_answers: OnAnswers | None = None
        # The transactions whose refused markers have reloaded the map. Kept from core to core.
        self._fenced: Mapping[str, tuple[int, int]] = {}
        # Records that wait for the batch under way, oldest first. At most one for each id.
        self._queue: deque[tuple[Append, bytes | None]] = deque()
        # The records of the batch under way. Empty if there is none.
        self._batch: list[Append] = []
        # Producer ids for the core, and whether it asked for one in vain since this was reset.
        self._spare_ids: list[int] = []
        self._lacks_id = False
        # The pause before the next load after a failed append. Doubles; a durable record resets it.
        self._pause_s = _PAUSE_S_FIRST
        # The pause before the next load for `_reload`. Doubles; a durable record resets it.
        self._reload_s = _PAUSE_S_FIRST
        # The timer of the next load, because a partition answered that this core is fenced.
        self._reload: asyncio.TimerHandle | None = None

    # -- ownership ----------------------------------------------------------------------------

    def on_opened(self, epoch: int) -> None:
        """See `PartitionObserver`: load the core for this epoch."""
        self.on_ended()
        self._epoch = epoch
        self._start_loading(0.0)

    def on_ended(self) -> None:
        """See `PartitionObserver`: answer nothing more for this epoch."""
        self._drop_core(ErrorCode.not_coordinator)
        self._epoch = -1
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None

    def _start_loading(self, pause_s: float) -> None:
        self._loading = start_restarting(
            f"the load of {self._name}", partial(self._load, self._epoch, pause_s)
        )

    async def _load(self, epoch: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        log = self._log
        if log is None:
            return  # lost meanwhile
        services = self._services
        begun_s = services.clock.monotonic_s()
        self.state.begin(log.high_watermark)
        core = TransactionCoordinator(
            epoch, self._take_producer_id, services.settings, services.level(), self._fenced
        )
        prepared, number, waiting = "", 0, 0
        try:
            for number, metadata in enumerate(self.state.decoded(), 1):
                core.load(metadata.transactional_id, metadata)
                if metadata.state in PREPARED:
                    prepared = metadata.transactional_id
                    waiting += 1
                if number % _IDS_PER_STEP == 0:
                    await asyncio.sleep(0)
        except CorruptFormat as error:
            logger().error(
                "a transaction coordinator stays offline: its log is damaged",
                partition=self._name,
                reason=str(error),
            )
            return
        if waiting:
            logger().info(
                "sending the markers of prepared transactions again",
                partition=self._name,
                ids=number,
                prepared=waiting,
                load_ms=round((services.clock.monotonic_s() - begun_s) * 1000, 1),
            )
        if prepared and not log.stream.writable:
            await self._own_segment(prepared)
        self._core, self._on_answers = core, partial(self._on_marked, core)
        self._loading = None
        with reported(f"the prepared transactions of {self._name}"):
            await self._run_in_turns(core, core.start(services.clock.now_ms()))

    async def _own_segment(self, transactional_id: str) -> None:
        """Append the record of an id once more, so that no other owner has this epoch."""
        pause_s = _PAUSE_S_FIRST
        value = self.state.value(transactional_id)
        while True:
            done: Future[LedgerError | None] = asyncio.get_running_loop().create_future()
            self._append([(transactional_id, value)], partial(_resolve, done))
            error = await done
            if error is None:
                self.state.on_written()
                return
            self.state.on_failed()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _drop_core(self, error: ErrorCode) -> None:
        """Answer all waiting requests with `error`, and forget what was not written."""
        core, self._core = self._core, None
        if core is not None:
            self._fenced = core.fenced
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        self._queue.clear()
        self._batch = []
        self.state.on_failed()
        if core is not None and self._on_answers is not None:
            self._services.markers.stop(self._on_answers)
            self._on_answers = None
            self._run(core, core.abandon(error))

    def _load_again(self, error: LedgerError) -> None:
        """Drop the core and load it from the log, because it is unknown what the log has.

        The log is opened again under the next epoch. If it has no writer yet, it has no record of
        this epoch, and the ids in memory are what it has.
        """
        self._drop_core(coordinator_code(error))
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_S_MAX)
        log = self._log
        if log is None:
            return
        if log.stream.writable:
            log.stream.fail(StreamUnavailable(f"{self._name}: {error}"))
        elif log.readable and self._loading is None and self._epoch >= 0:
            self._start_loading(pause_s)

    @property
    def _log(self) -> Partition | None:
        return self._services.find_log(self.index)

    @property
    def loading(self) -> bool:
        """True while this broker leads the partition and its ids are being loaded."""
        log = self._log
        return self._core is None and log is not None and log.is_leader

    def _serving(self) -> TransactionCoordinator | None:
        """Return the core if it may answer now."""
        log = self._log
        return self._core if log is not None and log.is_leader else None

    def _unavailable(self) -> ErrorCode:
        if self.loading:
            return ErrorCode.coordinator_load_in_progress
        return ErrorCode.not_coordinator

    # -- requests -----------------------------------------------------------------------------

    async def initialize(self, request: Initializing) -> Initialized:
        """Handle an InitProducerId. Returns after its record is durable."""
        error = check_initializing(request, self._services.settings.timeout_ms_max)
        if error is ErrorCode.none and len(request.transactional_id.encode()) > ID_BYTES_MAX:
            error = ErrorCode.invalid_request
        if error is not ErrorCode.none:
            return Initialized(error)
        core = self._serving()
        if core is None:
            return Initialized(self._unavailable())
        name = request.transactional_id
        unknown = core.describe(name) is ErrorCode.transactional_id_not_found
        if unknown and not self._services.has_memory_for_id(memory_of(name, b"")):
            return Initialized(ErrorCode.policy_violation)
        return await self._ask(TransactionCoordinator.initialize, request, Initialized)

    async def add(self, request: Adding) -> Added:
        """Handle an AddPartitionsToTxn or AddOffsetsToTxn. Returns after its record is durable."""
        has_memory = self._services.has_memory(len(request.partitions) * PARTITION_BYTES)
        if not has_memory and self._serving() is not None:
            return Added(ErrorCode.policy_violation)
        return await self._ask(TransactionCoordinator.add, request, Added)

    async def end(self, request: Ending) -> Ended:
        """Handle an EndTxn. Returns after the outcome is durable."""
        return await self._ask(TransactionCoordinator.end, request, Ended)

    async def _ask(
        self,
        ask: Callable[[TransactionCoordinator, Any, object, int], list[Effect]],
        request: object,
        result: type[_Result],
    ) -> _Result:
        """Pass a request to the core. If it lacks a producer id, get one and ask once more."""
        for may_lack in (True, False):
            core = self._serving()
            if core is None:
                return result(self._unavailable())
            self._lacks_id = False
            waiter: Future[_Result] = asyncio.get_running_loop().create_future()
            effects = ask(core, request, waiter, self._services.clock.now_ms())
            if not self._lacks_id or not may_lack:
                self._run(core, effects)
                return await waiter
            try:
                self._spare_ids.append(await self._services.producer_ids.next())
            except LedgerError:
                break
        return result(ErrorCode.coordinator_load_in_progress)

    def verify(self, request: Adding) -> dict[TopicPartition, ErrorCode]:
        """Handle a verify-only AddPartitionsToTxn: report which partitions were added."""
        core = self._serving()
        if core is None:
            return dict.fromkeys(request.partitions, self._unavailable())
        return core.verify(request)

    def describe(self, transactional_id: str) -> TransactionView | ErrorCode:
        """Return what DescribeTransactions shows of an id, or the error."""
        core = self._serving()
        return self._unavailable() if core is None else core.describe(transactional_id)

    @property
    def names(self) -> list[str]:
        """All ids of this partition."""
        return self.state.names

    def views(self, transactional_ids: Iterable[str]) -> Iterator[TransactionView]:
        """Return what ListTransactions shows of these ids. An unknown one is left out."""
        core = self._serving()
        return iter(()) if core is None else core.views(transactional_ids)

    # -- effects ------------------------------------------------------------------------------

    def _run(self, core: TransactionCoordinator, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self._encode(core, effect)
            elif isinstance(effect, Answer):
                waiter: Any = effect.waiter
                if not waiter.done():
                    waiter.set_result(effect.result)
            elif isinstance(effect, SendMarkers):
                assert self._on_answers is not None
                self._services.markers.send(effect.marker, self._on_answers)
            elif isinstance(effect, Hold):
                self._log_held(effect.marker)
            else:
                assert isinstance(effect, Reload)
                self._reload_later()
        if self._queue and not self._batch:
            self._write_next(core)

    def _encode(self, core: TransactionCoordinator, append: Append) -> None:
        """Queue a record. A long one is encoded in parts, and shorter ones may overtake it.

        Its id is busy until it is durable, so no other record of the id is under way.
        """
        metadata, version = append.metadata, core.value_version
        if metadata is None:
            self._queue.append((append, None))
        elif len(metadata.partitions) <= self._services.long_records.longer_than:
            self._queue.append((append, encode_value(metadata, version)))
        else:
            self._services.long_records.encode(
                encode_in_steps(metadata, version),
                len(metadata.partitions) * PARTITION_BYTES,
                lambda: core is self._core,
                partial(self._on_encoded, core, append),
            )

    def _on_encoded(
        self, core: TransactionCoordinator, append: Append, value: bytes | None
    ) -> None:
        if value is None:
            self._load_again(StreamUnavailable(f"{self._name}: a record cannot be encoded"))
            return
        self._queue.append((append, value))
        if not self._batch:
            self._write_next(core)

    async def _run_in_turns(self, core: TransactionCoordinator, effects: Iterator[Effect]) -> None:
        """Carry out many effects, with pauses for other tasks, until the core is dropped."""
        weight = 0
        for effect in effects:
            self._run(core, (effect,))
            weight += _weight(effect)
            if weight >= PER_TURN:
                weight = 0
                await asyncio.sleep(0)
            if core is not self._core:
                return

    def _write_next(self, core: TransactionCoordinator) -> None:
        """Append the records that wait, as many as one batch takes."""
        records: list[tuple[str, bytes | None]] = []
        size = weight = 0
        while self._queue and size < _BATCH_BYTES_MAX and weight < PER_TURN:
            append, value = self._queue.popleft()
            weight += _weight(append)
            self._batch.append(append)
            records.append((append.transactional_id, value))
            size += RECORD_OVERHEAD + len(append.transactional_id) + len(value or b"")
        self._append(records, partial(self._on_written, core))

    def _append(
        self,
        records: Sequence[tuple[str, bytes | None]],
        on_done: Callable[[LedgerError | None], None],
    ) -> None:
        self.state.write(dict(records))
        log = self._log
        if log is None:
            on_done(StreamUnavailable(f"{self._name}: this broker no longer leads it"))
            return
        batch = encode_batch(
            [(encode_key(name), value) for name, value in records], self._services.clock.now_ms()
        )
        log.append_own(batch, len(records), on_done)

    def _on_written(self, core: TransactionCoordinator, error: LedgerError | None) -> None:
        if core is not self._core:
            return  # this ownership ended before
        if error is not None:
            self._load_again(error)
            return
        weight = sum(map(_weight, self._batch))
        self._services.turns.run(weight, partial(self._take_over, core))

    def _take_over(self, core: TransactionCoordinator) -> None:
        """Take over the records of the batch under way, which is durable, and begin the next."""
        if core is not self._core:
            return
        batch, self._batch = self._batch, []
        self.state.on_written()
        self._pause_s = self._reload_s = _PAUSE_S_FIRST
        now_ms = self._services.clock.now_ms()
        effects: list[Effect] = []
        for append in batch:
            effects += core.on_appended(append, now_ms)
        self._run(core, effects)

    def _on_marked(
        self,
        core: TransactionCoordinator,
        marker: Marker,
        errors: Mapping[TopicPartition, ErrorCode],
    ) -> None:
        if core is self._core:
            self._run(core, core.on_marked(marker, errors, self._services.clock.now_ms()))

    def _reload_later(self) -> None:
        """Load again after a pause, because another coordinator may have taken over."""
        if self._reload is None:
            error = StreamUnavailable(f"{self._name}: a partition knows a newer coordinator")
            loop = asyncio.get_running_loop()
            self._reload = loop.call_later(self._reload_s, self._load_again, error)
            self._reload_s = min(2 * self._reload_s, _PAUSE_S_MAX)

    def _log_held(self, marker: Marker) -> None:
        """Log a marker that waits, at most once a minute for each partition of the log."""
        services = self._services
        if services.throttle.allows("held markers", self._name, services.clock.monotonic_s()):
            logger().error(
                "a partition has a newer coordinator epoch of a producer than its coordinator; "
                "the transaction stays prepared, and its marker is sent again every minute",
                partition=self._name,
                transactional_id=marker.transactional_id[:_LOGGED_CHARACTERS],
                producer_id=marker.producer_id,
                coordinator_epoch=marker.coordinator_epoch,
                at=[f"{each.topic}-{each.partition}" for each in sorted(marker.partitions)[:10]],
            )

    def _take_producer_id(self) -> int | None:
        if self._spare_ids:
            return self._spare_ids.pop()
        self._lacks_id = True
        return None

    # -- time ---------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Abort transactions that timed out, delete expired ids, and truncate the log."""
        core = self._serving()
        if core is None:
            return
        core.transaction_version = self._services.level()
        self._lacks_id = False
        await self._run_in_turns(core, core.tick(self._services.clock.now_ms()))
        with reported(f"the maintenance of {self._name}"), suppress(LedgerError):
            if self._lacks_id and len(self._spare_ids) < _SPARE_IDS_MAX:
                self._spare_ids.append(await self._services.producer_ids.next())
            await self._truncate()

    async def _truncate(self) -> None:
        """Truncate the log below the segment in progress, whose head has the whole map."""
        log = self._log
        if log is None or not log.stream.writable:
            return
        start = log.stream.segments[-1].start_sequence_id
        if log.log_start_offset < start < log.high_watermark:
            await log.truncate(start)


def _weight(effect: Effect) -> int:
    """Return the work of an effect: one, and one for each partition that is handled at once."""
    if isinstance(effect, SendMarkers):
        return 1 + min(len(effect.marker.partitions), PER_TURN)
    if isinstance(effect, Append) and effect.metadata is not None:
        return 1 + min(len(effect.metadata.partitions), PER_TURN)
    return 1


def _resolve(done: Future[LedgerError | None], error: LedgerError | None) -> None:
    if not done.done():
        done.set_result(error)
