"""The produce path of one partition: checks batches, assigns their offsets, and appends them.

    waiting, in order ─(the stream is writable, the records are checked)▶ appended ─▶ durable

`append` accepts or refuses a batch. The producer is answered when the batch is durable. A batch
waits while the stream is opened, or while records before it take long to check.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import EndMarker
from gateway.core.producer_states import AcceptedBatch
from gateway.errors import partition_code
from gateway.topics.config_keys import LONG_MAX
from gateway.topics.configs import TopicConfig
from gateway.topics.long_work import LongWork
from gateway.topics.partition_state import PartitionState
from gateway.topics.partition_warnings import PartitionWarnings, ProduceWatch
from gateway.topics.produced import OUTCOME_UNKNOWN, OnProduced, OwnBatch, Produced, ProducedBatch
from gateway.topics.producer_ids import learn_certain_id
from gateway.topics.transaction_path import QueuedMarker, TransactionalBatch, TransactionPath
from gateway.topics.verification import Verifier
from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused, Compression
from gateway.wire.record_check import RecordRules, check_now, check_steps
from ledger.errors import (
    LedgerError,
    MetadataError,
    NoSuchEntry,
    NotEnoughBookies,
    NotOwner,
    StreamUnavailable,
)
from ledger.ids import Buffer
from ledger.streams.accepted_losses import EntryAwaited
from ledger.streams.config import StreamConfig
from ledger.streams.services import StreamServices
from ledger.streams.stream import Stream
from ledger.tasks import report, reported, start_once

# The maximum number of batches that wait for the stream to open; more get REQUEST_TIMED_OUT.
_WAITING_MAX = 10_000
_APPENDED_PER_TURN = 250  # batches or markers that are appended before other tasks run

_TOO_FEW_COPIES = Produced(
    ErrorCode.not_enough_replicas,
    message="min.insync.replicas of the topic exceeds the number of copies of a record.",
)


_Waiting = ProducedBatch | OwnBatch | QueuedMarker


class WrittenPartition(Protocol):
    """The partition whose batches a `ProducePath` appends."""

    name: str
    stream: Stream
    closed: bool

    @property
    def is_leader(self) -> bool:
        """Return whether this broker may accept batches as leader."""
        ...

    def may_acknowledge(self) -> bool:
        """Return whether batches may be acknowledged, even during a hand-over."""
        ...

    async def ensure_readable(self) -> None:
        """Wait until the partition is readable. Raises NotOwner if it is closed."""
        ...

    def reopen(self) -> None:
        """Open the stream again, unless the partition is closed."""
        ...


def _bytes_of(batch: memoryview) -> bytes:
    """Return the whole batch. It is not copied if the view is one of whole bytes."""
    whole = batch.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(batch) else bytes(batch)


def _with_time(
    batch: memoryview, header: BatchHeader, newest: int, append_time_ms: int
) -> memoryview:
    """Return the batch with its append time, if it has one, or with the right max timestamp."""
    if append_time_ms >= 0:
        return batches.with_append_time(batch, header, append_time_ms)
    return batches.with_timestamp_max(batch, header, newest)


def _recompressed_now(batch: bytes, header: BatchHeader, target: Compression) -> bytes | None:
    from gateway.wire.recompress import recompressed_now

    return recompressed_now(batch, header, target)


def _other_codec(header: BatchHeader, config: TopicConfig) -> Compression | None:
    """Return the codec of the topic if the batch has another one."""
    target = config.compression
    same = target is None or header.attributes & batches.CODEC_MASK == target.codec
    return None if same else target


class ProducePath:
    """The batches of one partition on their way into its stream."""

    def __init__(
        self,
        partition: WrittenPartition,
        state: PartitionState,
        services: StreamServices,
        configs: tuple[Callable[[], TopicConfig], Callable[[], StreamConfig]],
        log: PartitionWarnings,
        work: tuple[LongWork, Verifier | None],
        named: tuple[str, int],
    ) -> None:
        """Create the path of `partition`, which has its stream already."""
        # None of these changes.
        self._partition, self._stream = partition, partition.stream
        self._may_acknowledge = partition.may_acknowledge
        self._state, self._producers = state, state.producers
        self._services, self._log = services, log
        self._config, self._stream_config = configs
        (self._long_work, verifier), self._named = work, named
        self._watch = ProduceWatch(self, log, configs[1])
        # Batches that wait, in order, for a writable stream or a check; at most _WAITING_MAX.
        self._waiting: deque[_Waiting] = deque()
        # Retries of batches that are not durable yet: end offset of the batch, at which the high
        # watermark answers the retry, callback and result.
        self.duplicates: list[tuple[int, OnProduced, Produced]] = []
        self.transactions = TransactionPath(
            self, partition.stream, state, services.clock, verifier, named
        )
        # Makes the stream writable and appends the waiting batches. None while it has no work.
        self._beginning: asyncio.Task[None] | None = None
        # The newest assigned log append time. It never falls, even if the clock is set back.
        self._appended_ms = -1
        from gateway.topics.topic_traffic import Traffic  # no start waits for it

        self.traffic = Traffic()  # set once, by `Partition.count_in`

    # -- the state that the watch reads -------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._partition.closed

    @property
    def high_watermark(self) -> int:
        return self._stream.end_sequence_id

    @property
    def accepted_end(self) -> int:
        return self._stream.next_sequence_id

    @property
    def first_waiting(self) -> object | None:
        return self._waiting[0] if self._waiting else None

    @property
    def checking(self) -> bool:
        waiting = self._waiting
        return bool(waiting) and waiting[0].takes_long and self._stream.writable

    @property
    def beginning(self) -> asyncio.Task[None] | None:
        """The task that appends the waiting batches, or None while it has no work."""
        return self._beginning

    # -- appending ----------------------------------------------------------------------------

    @property
    def lacks_copies(self) -> bool:
        """True if `min.insync.replicas` exceeds the number of copies that a record has."""
        wanted = self._config().min_insync_replicas
        return wanted > 1 and wanted > self._stream_config().write_quorum

    def append(
        self, batch: memoryview, version: int, on_produced: OnProduced, *, acks_all: bool = False
    ) -> None:
        """Accept or refuse one batch of a client, in call order. `on_produced` runs exactly once.

        If the batch is refused or repeats a durable batch, `on_produced` runs before this method
        returns. With `acks_all` it is refused if it would have too few copies.
        """
        config = self._config()
        if not self._partition.is_leader:
            on_produced(OUTCOME_UNKNOWN)
        elif acks_all and config.min_insync_replicas > 1 and self.lacks_copies:
            on_produced(_TOO_FEW_COPIES)
        elif self._stream.writable and not self._waiting:
            waiting = ProducedBatch(batch, version, on_produced)
            if not self._append_or_fail(waiting, config):
                self._wait(waiting)
        elif len(self._waiting) >= _WAITING_MAX:
            on_produced(Produced(ErrorCode.request_timed_out, message="Partition is opening."))
        else:
            self._wait(ProducedBatch(batch, version, on_produced))

    def _wait(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if not self._watch.armed:
            self._watch.arm()
        if self._beginning is None:
            self._start_beginning()

    def _start_beginning(self) -> None:
        self._beginning = start_once(
            f"the first batches of {self._partition.name}", self._begin(), self._on_begin_died
        )

    def _on_begin_died(self, error: BaseException) -> None:
        self.refuse_waiting(StreamUnavailable(f"{self._partition.name}: {error!r}"))

    async def _begin(self) -> None:
        try:
            await self._make_writable()
            await self._append_waiting()
        finally:
            self._beginning = None
        # The stream failed during the append, and is opened again.
        if self._waiting and not self._partition.closed:
            self._start_beginning()

    async def _make_writable(self) -> None:
        try:
            await self._partition.ensure_readable()
            await self._stream.begin()
            await learn_certain_id(self._producers.losses, self._services.metadata)
        except LedgerError as error:
            self.refuse_waiting(error)
            if isinstance(error, NoSuchEntry):
                self._log.warn("a partition takes no records until its loss is accepted", error)
            if isinstance(error, EntryAwaited):
                self._log.warn("a partition takes no records while its state is unreadable", error)
            if isinstance(error, NotEnoughBookies):
                self._log.warn("too few bookies take writes; producers retry", error)
            if isinstance(error, MetadataError) and not self._partition.closed:
                self._partition.reopen()  # its segment list may be out of date

    async def _append_waiting(self) -> None:
        """Append the waiting batches in order. Check in parts those that take long."""
        for number in count(1):
            if number % _APPENDED_PER_TURN == 0:
                await asyncio.sleep(0)
            if not self._waiting or not self._stream.writable:
                return
            waiting = self._waiting[0]
            if not waiting.takes_long and not self._is_plain(waiting):
                self._waiting.popleft()
                self._append_special(waiting)
                continue
            assert isinstance(waiting, ProducedBatch)
            newest: int | None = None
            if waiting.takes_long:
                newest = await self._check_in_parts(waiting)
                # Refused during the check, by it or because the partition was lost.
                if not self._waiting or self._waiting[0] is not waiting:
                    continue
                if not self._stream.writable:
                    return
            self._waiting.popleft()
            if not self._append_or_fail(waiting, self._config(), newest):
                self._waiting.appendleft(waiting)

    async def _check_in_parts(self, waiting: ProducedBatch) -> int | None:
        """Return the greatest timestamp of the records. Refuse the batch if it is invalid."""
        config = self._config()
        header = batches.read_header(waiting.batch)
        rules = self._record_rules(config, self._services.clock.now_ms())
        batch = _bytes_of(waiting.batch)
        try:
            newest = await self._long_work.check(check_steps(batch, header, rules))
            target = _other_codec(header, config)
            if target is not None:
                await self._recompress(waiting, header, target)
            return newest
        except BatchRefused as refused:
            if self._waiting and self._waiting[0] is waiting:
                self._waiting.popleft()
                waiting.refuse(refused)
        except Exception as error:  # noqa: BLE001  whatever it is, the next batches are served
            report(f"the check of a batch of {self._partition.name}", error)
            if self._waiting and self._waiting[0] is waiting:
                self._waiting.popleft()
                waiting.give_up()
        return None

    def refuse_waiting(self, error: LedgerError) -> None:
        """Answer all waiting batches with `error`. None of them was appended."""
        answer = Produced(partition_code(error), message=self._log.in_kafkas_words(str(error)))
        refused, self._waiting = self._waiting, deque()
        for waiting in refused:
            with reported(f"an answer to a producer of {self._partition.name}"):
                if isinstance(waiting, ProducedBatch):
                    waiting.take()(answer)
                else:
                    waiting.refuse(error)

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
            waiting.give_up()
            self._end_after(error)
            return True

    def _end_after(self, error: Exception) -> None:
        """End the ownership after an unexpected exception in an append."""
        report(f"an append to {self._partition.name}", error)
        failed = StreamUnavailable(f"{self._partition.name}: {error!r}")
        self.refuse_waiting(failed)
        self._stream.fail(failed)

    def _append_now(self, waiting: ProducedBatch, config: TopicConfig, newest: int | None) -> bool:
        """Accept or refuse one batch. Return False if its records take long to check.

        `newest` is the greatest timestamp of the records if they were checked.
        """
        batch = waiting.batch
        now_ms = self._services.clock.now_ms()
        try:
            header = self._checked_header(waiting, config)
            if newest is None:
                rules = self._record_rules(config, now_ms)
                newest = check_now(_bytes_of(batch), header, rules)
            recompresses = config.compression is not None and (
                newest is not None and self._recompresses(waiting, header, config)
            )
        except BatchRefused as refused:
            waiting.refuse(refused)
            return True
        if newest is None or recompresses:
            waiting.takes_long |= newest is None
            return not waiting.takes_long and self._append_now(waiting, config, newest)
        base_offset = self._stream.next_sequence_id
        if header.producer_id >= 0 and not self._next_in_sequence(header, waiting):
            return True
        append_time_ms = -1
        if config.log_append_time:
            append_time_ms = newest = self._appended_ms = max(now_ms, self._appended_ms)
        if append_time_ms >= 0 or newest != header.max_timestamp:
            batch = _with_time(batch, header, newest, append_time_ms)
        if header.producer_id >= 0:
            self._producers.accept(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.records,
                base_offset,
                newest,
                now_ms,
                durable_offset=self._stream.end_sequence_id,
            )
            if self._state.transactional:
                self._state.accept_batch(header, base_offset, now_ms)
        self._stream.append(
            batches.with_offset(batch, header, base_offset, self._stream.epoch),
            len(batch),
            header.records,
            newest,
            waiting.accept(base_offset, append_time_ms, self._may_acknowledge),
        )
        traffic = self.traffic
        traffic.bytes_in += len(batch)
        traffic.records_in += header.records
        if not self._watch.armed:
            self._watch.arm()
        return True

    def _recompresses(
        self, waiting: ProducedBatch, header: BatchHeader, config: TopicConfig
    ) -> bool:
        """Give the batch the codec of its topic. Returns False if it has it already.

        `takes_long` is True afterwards if that takes over a millisecond and was not done.
        """
        target = None if waiting.recompressed else _other_codec(header, config)
        if target is None:
            return False
        compressed = _recompressed_now(_bytes_of(waiting.batch), header, target)
        growth = self._long_work.growth
        if compressed is None or not growth.take_now(max(0, len(compressed) - len(waiting.batch))):
            waiting.takes_long = True
        else:
            waiting.replace(compressed, growth.give_back)
        return True

    async def _recompress(
        self, waiting: ProducedBatch, header: BatchHeader, target: Compression
    ) -> None:
        """Give a batch that was checked the codec of its topic. Waits for room if it grows."""
        compressed = await self._long_work.recompress(
            _bytes_of(waiting.batch), header, target, self._config().decompressed_bytes_max
        )
        growth = self._long_work.growth
        await growth.take(max(0, len(compressed) - len(waiting.batch)))
        waiting.replace(compressed, growth.give_back)

    def _checked_header(self, waiting: ProducedBatch, config: TopicConfig) -> BatchHeader:
        """Return the header of a batch from a client. Raises BatchRefused if it is invalid."""
        batch = waiting.batch
        if not waiting.recompressed:
            return batches.check_batch(
                batch, waiting.version, config.max_message_bytes, waiting.allowed
            )
        if len(batch) > config.max_message_bytes:
            raise self._too_large(len(batch), config)
        return batches.read_header(batch)

    def _too_large(self, size: int, config: TopicConfig) -> BatchRefused:
        return BatchRefused(
            ErrorCode.message_too_large,
            f"The batch has {size} bytes with the topic's codec; max.message.bytes is "
            f"{config.max_message_bytes}.",
        )

    def _next_in_sequence(self, header: BatchHeader, waiting: ProducedBatch) -> bool:
        """Return True if the batch may be appended. Otherwise answer it and return False.

        A retry of an accepted batch gets the result of that batch. Any other batch is refused.
        """
        verdict = self._producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.records
        )
        if self._state.transactional and isinstance(verdict, ErrorCode):
            known = header.producer_id in self._producers
            verdict = self.transactions.check(header, waiting, known=known) or verdict
        if verdict is ErrorCode.none:
            return True
        on_produced = waiting.take()
        if isinstance(verdict, AcceptedBatch):
            answer = Produced(ErrorCode.none, verdict.base_offset, verdict.timestamp_ms)
            # If the accepted batch is not durable yet, both are answered at the same time.
            self.when_durable(verdict.end_offset, on_produced, answer)
            return False
        on_produced(Produced(verdict))
        return False

    def _record_rules(self, config: TopicConfig, now_ms: int) -> RecordRules:
        timestamps = None
        if not config.log_append_time:
            earliest = now_ms - config.message_timestamp_before_max_ms
            latest = now_ms + config.message_timestamp_after_max_ms
            timestamps = (earliest if earliest > 0 else 0, min(latest, LONG_MAX))
        return RecordRules(config.decompressed_bytes_max, config.compacts, timestamps, self._named)

    def append_own(
        self, batch: bytes, records: int, on_done: Callable[[LedgerError | None], None]
    ) -> None:
        """Append a batch of the broker itself, in call order with all others.

        `on_done` runs exactly once, inside this method if the batch is refused. Its error leaves
        the outcome unknown unless the batch was refused.
        """
        self._queue(OwnBatch(batch, records, on_done))

    def append_marker(self, marker: EndMarker, on_done: Callable[[ErrorCode], None]) -> None:
        """Append the end of a transaction, in call order with all batches.

        `on_done` runs exactly once: after the marker is durable, or inside this method if it is
        refused.
        """
        self._queue(QueuedMarker(marker, on_done, self._may_acknowledge))

    def append_transactional(
        self,
        batch: memoryview,
        version: int,
        on_produced: OnProduced,
        transactional_id: str,
        *,
        acks_all: bool = False,
    ) -> None:
        """Accept or refuse one batch of a transaction, as `append` does. It may be verified first.

        Only with a verifier.
        """
        if not self._partition.is_leader:
            on_produced(OUTCOME_UNKNOWN)
        elif acks_all and self.lacks_copies:
            on_produced(_TOO_FEW_COPIES)
        elif self.ready:
            waiting = TransactionalBatch(batch, version, on_produced, transactional_id)
            self._append_special(waiting)
        elif len(self._waiting) >= _WAITING_MAX:
            on_produced(Produced(ErrorCode.request_timed_out, message="Partition is opening."))
        else:
            self._wait(TransactionalBatch(batch, version, on_produced, transactional_id))

    @property
    def ready(self) -> bool:
        """True if a batch can be appended now."""
        return self._stream.writable and not self._waiting

    def append_verified(self, waiting: ProducedBatch) -> None:
        """See `AppendingPath`."""
        if not self._append_or_fail(waiting, self._config()):
            self._wait(waiting)

    def append_later(self, waiting: ProducedBatch) -> None:
        """See `AppendingPath`."""
        self._wait(waiting)

    def when_durable(self, end_offset: int, on_produced: OnProduced, answer: Produced) -> None:
        """See `AppendingPath`."""
        if end_offset <= self.high_watermark:
            on_produced(answer if self._may_acknowledge() else OUTCOME_UNKNOWN)
        else:
            self.duplicates.append((end_offset, on_produced, answer))

    def _queue(self, queued: OwnBatch | QueuedMarker) -> None:
        if not self._partition.is_leader:
            queued.refuse(NotOwner(self._partition.name))
        elif self.ready:
            self._append_special(queued)
        elif len(self._waiting) >= _WAITING_MAX:
            queued.refuse(StreamUnavailable(f"{self._partition.name} is opening"))
        else:
            self._wait(queued)

    def _is_plain(self, waiting: _Waiting) -> bool:
        return isinstance(waiting, ProducedBatch) and not isinstance(waiting, TransactionalBatch)

    def _append_special(self, queued: _Waiting) -> None:
        """Append a batch of the broker or of a transaction, or a marker. Answer it in any case."""
        try:
            if isinstance(queued, QueuedMarker):
                self.transactions.mark(queued)
            elif isinstance(queued, TransactionalBatch):
                self.transactions.begin(queued)
            elif isinstance(queued, OwnBatch):
                self._append_own(queued)
        except Exception as error:  # noqa: BLE001  whatever it is, the next batches are served
            if isinstance(queued, ProducedBatch):
                queued.give_up()
            else:
                queued.refuse(StreamUnavailable(f"{self._partition.name}: {error!r}"))
            self._end_after(error)

    def _append_own(self, own: OwnBatch) -> None:
        """Append without a check. Its records have the timestamps that the batch has."""
        header = batches.read_header(own.batch)
        data = batches.with_offset(
            own.batch, header, self._stream.next_sequence_id, self._stream.epoch
        )
        on_durable = own.accept(self._may_acknowledge)
        self.write(data, len(own.batch), header.max_timestamp, on_durable, own.records)

    def write(
        self,
        data: tuple[Buffer, ...],
        size: int,
        timestamp_max: int,
        on_durable: Callable[[LedgerError | None], None],
        records: int = 1,
    ) -> None:
        """Append records of the broker itself, as `Stream.append` does."""
        self._stream.append(data, size, records, timestamp_max, on_durable)
        if not self._watch.armed:
            self._watch.arm()

    # -- answers ------------------------------------------------------------------------------

    def answer_duplicates(self, end_offset: int) -> None:
        """Answer the retries of batches that are durable below `end_offset`."""
        ready = [each for each in self.duplicates if each[0] <= end_offset]
        self.duplicates = [each for each in self.duplicates if each[0] > end_offset]
        for _, on_produced, answer in ready:
            on_produced(answer if self._may_acknowledge() else OUTCOME_UNKNOWN)

    def on_failed(self, error: LedgerError) -> None:
        """Answer the retries of batches whose outcome is unknown, because the stream failed."""
        self.transactions.refuse_verifying()
        stale = [w for w in self._waiting if isinstance(w, TransactionalBatch) and w.guarded >= 0]
        for waiting in stale:  # their verifications were those of this ownership
            self._waiting.remove(waiting)
            waiting.take()(OUTCOME_UNKNOWN)
        duplicates, self.duplicates = self.duplicates, []
        for _, on_produced, _ in duplicates:
            on_produced(Produced(partition_code(error, unknown_outcome=True)))
