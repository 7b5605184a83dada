"""The batches and markers of transactions in one partition, on their way into its stream.

    first batch of a transaction ─▶ verified by the coordinator ─▶ appended
    later batches of its producer ─▶ wait behind it, in order   ─▶ appended │ verified

Other producers do not wait. A marker that is appended meanwhile voids the verification.
Source: Apache Kafka 4.3, ReplicaManager.handleProduceAppend and appendRecords,
UnifiedLog.analyzeAndValidateProducerState, AddPartitionsToTxnManager; KIP-890.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import (
    ABORTED_MAX,
    EndMarker,
    RepeatedMarker,
)
from gateway.errors import partition_code
from gateway.topics.partition_state import PartitionState
from gateway.topics.produced import (
    OUTCOME_UNKNOWN,
    OnProduced,
    Produced,
    ProducedBatch,
)
from gateway.topics.verification import Verifier
from gateway.wire import batches
from gateway.wire.batches import TRANSACTIONAL, BatchHeader
from gateway.wire.end_markers import BATCH_BYTES, stored_marker
from ledger.errors import LedgerError
from ledger.ids import Buffer
from ledger.ports.clock import Clock
from ledger.streams.stream import Stream

_ADDS_FROM = 12  # the version of Produce from which the partition joins the transaction itself
_ABORTABLE_FROM = 11  # the version of Produce from which clients know TRANSACTION_ABORTABLE
_HELD_MAX = 10_000  # batches that wait for a verification; more get REQUEST_TIMED_OUT
_ROLL_FROM = ABORTED_MAX - 4_096  # aborted transactions of a segment from which it is rolled
_NOT_ADDED = "Partition was not added to the transaction"
# Answers of coordinators that clients may not retry correctly. NOT_ENOUGH_REPLICAS lets them retry
# without a refresh of their metadata.
_RETRIABLE = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
# Answers after which a client ends the transaction. It sends the refused batch no more, so nothing
# of its verification is kept.
_FINAL = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_request,
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
        ErrorCode.transaction_abortable,
    }
)


class TransactionalBatch(ProducedBatch):
    """A batch of a transaction: verified if it is the first one, then as any other."""

    __slots__ = ("guarded", "transactional_id")

    allowed = TRANSACTIONAL

    def __init__(
        self, batch: memoryview, version: int, on_produced: OnProduced, transactional_id: str
    ) -> None:
        super().__init__(batch, version, on_produced)
        self.transactional_id = transactional_id
        # The number of the verification that allows the batch, -1 if it needed none.
        self.guarded = -1


class QueuedMarker:
    """The end of a transaction: waiting, then appended, and answered once.

    Once appended it is the `OnDurable` of the stream.
    """

    __slots__ = ("_may_acknowledge", "marker", "on_done")

    takes_long = False

    def __init__(
        self,
        marker: EndMarker,
        on_done: Callable[[ErrorCode], None],
        may_acknowledge: Callable[[], bool],
    ) -> None:
        self.marker = marker
        self.on_done = on_done
        self._may_acknowledge = may_acknowledge

    def __call__(self, error: LedgerError | None) -> None:
        acknowledged = error is None and self._may_acknowledge()
        self.on_done(ErrorCode.none if acknowledged else ErrorCode.not_leader_or_follower)

    def refuse(self, error: LedgerError) -> None:
        """Answer that the marker was not appended, or that its outcome is unknown."""
        self.on_done(partition_code(error))


class AppendingPath(Protocol):
    """The produce path of the partition, which appends what was verified."""

    def append_verified(self, waiting: ProducedBatch) -> None:
        """Append a batch that needs no verification any more, in call order."""
        ...

    def append_later(self, waiting: ProducedBatch) -> None:
        """Put a batch behind all that wait for the stream. Its verification is repeated."""
        ...

    @property
    def ready(self) -> bool:
        """Return whether a batch can be appended now."""
        ...

    def write(
        self,
        data: tuple[Buffer, ...],
        size: int,
        timestamp_max: int,
        on_durable: Callable[[LedgerError | None], None],
    ) -> None:
        """Append one record."""
        ...

    def when_durable(self, end_offset: int, on_produced: OnProduced, answer: Produced) -> None:
        """Answer once the log is durable below `end_offset`."""
        ...


class TransactionPath:
    """The transactions of one partition while it is written."""

    def __init__(
        self,
        path: AppendingPath,
        stream: Stream,
        state: PartitionState,
        clock: Clock,
        verifier: Verifier | None,
        named: tuple[str, int],
    ) -> None:
        # None of these changes.
        self._path, self._stream, self._state, self._clock = path, stream, state, clock
        self._verifier, self._named = verifier, named
        # Batches by producer id. The first one of each is being verified, the others wait.
        self._verifying: dict[int, deque[TransactionalBatch]] = {}
        self._held = 0  # batches in `_verifying`; at most `_HELD_MAX`

    # -- batches ------------------------------------------------------------------------------

    def begin(self, waiting: TransactionalBatch) -> None:
        """Append the batch, or verify it first. Only while the path is ready."""
        if len(waiting.batch) < batches.HEADER_BYTES:
            self._path.append_verified(waiting)  # which refuses it
            return
        header = batches.read_header(waiting.batch)
        if header.producer_id < 0:
            self._path.append_verified(waiting)
        elif self._held >= _HELD_MAX:
            refused = Produced(ErrorCode.request_timed_out, message="Too many verifications.")
            waiting.take()(refused)
        elif header.producer_id in self._verifying:
            self._verifying[header.producer_id].append(waiting)
            self._held += 1
        else:
            self._verify(waiting, header)

    def _verify(self, waiting: TransactionalBatch, header: BatchHeader) -> None:
        adds = waiting.version >= _ADDS_FROM
        self._state.transactional = True
        guard = self._state.transactions.begin_verification(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            self._clock.now_ms(),
            bumps_epoch=adds,
        )
        if isinstance(guard, ErrorCode):
            waiting.take()(Produced(guard, unverified=True))
            return
        if guard is None or self._verifier is None:
            waiting.guarded = -1
            if guard is not None:
                self._end_verification(header.producer_id, guard.number, refused=True)
            self._path.append_verified(waiting)
            return
        waiting.guarded = guard.number
        self._verifying[header.producer_id] = deque([waiting])
        self._held += 1
        topic, index = self._named
        answer = self._verifier.verify(
            waiting.transactional_id,
            header.producer_id,
            header.producer_epoch,
            topic,
            index,
            adds=adds,
        )
        answer.add_done_callback(partial(self._on_verified, header.producer_id, waiting))

    def _on_verified(
        self, producer_id: int, waiting: TransactionalBatch, answer: asyncio.Future[ErrorCode]
    ) -> None:
        held = self._verifying.get(producer_id)
        if not held or held[0] is not waiting:
            return  # it was refused meanwhile
        del self._verifying[producer_id]
        self._held -= len(held)
        failed = answer.cancelled() or answer.exception() is not None
        error = ErrorCode.coordinator_not_available if failed else answer.result()
        # Batches that wait behind a refused one may be allowed later, but must not overtake it.
        refused = error in _FINAL and len(held) == 1
        self._end_verification(producer_id, waiting.guarded, refused=refused)
        if error is not ErrorCode.none:
            waiting.take()(_refusal(error, waiting.version))
            held.popleft()
        for each in held:
            if not self._path.ready:
                self._path.append_later(each)
            elif each is waiting:
                self._path.append_verified(each)
            else:
                self.begin(each)

    def _end_verification(self, producer_id: int, number: int, *, refused: bool) -> None:
        now_ms = self._clock.now_ms()
        self._state.transactions.end_verification(producer_id, number, now_ms, refused=refused)

    def check(self, header: BatchHeader, waiting: ProducedBatch, *, known: bool) -> ErrorCode:
        """Check a batch of a producer that repeats none against its transaction.

        `known` is True if a batch of the producer is known in this partition.
        """
        guard = None
        transactions = self._state.transactions
        if isinstance(waiting, TransactionalBatch) and waiting.guarded >= 0:
            guard = transactions.guard(header.producer_id)
            if guard is not None and guard.number != waiting.guarded:
                guard = None
        return transactions.check_batch(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            guard,
            transactional=header.attributes & TRANSACTIONAL != 0,
            first_of_producer=not known,
        )

    def refuse_verifying(self) -> None:
        """Answer all batches that wait for a verification, because the partition failed."""
        verifying, self._verifying = self._verifying, {}
        self._held = 0
        for held in verifying.values():
            for waiting in held:
                waiting.take()(OUTCOME_UNKNOWN)

    # -- markers ------------------------------------------------------------------------------

    def mark(self, queued: QueuedMarker) -> None:
        """Append the marker, or answer it. Only while the path is ready."""
        transactions, marker = self._state.transactions, queued.marker
        verdict = transactions.check_marker(marker)
        if isinstance(verdict, RepeatedMarker):
            answer = Produced(ErrorCode.none)
            on_produced = partial(_answer_repeated, queued)
            self._path.when_durable(verdict.offset + 1, on_produced, answer)
            return
        if verdict is ErrorCode.none and not marker.commit:
            verdict = self._room_for_abort()
        if verdict is not ErrorCode.none:
            queued.on_done(verdict)
            return
        now_ms, offset = self._clock.now_ms(), self._stream.next_sequence_id
        fields = (marker.producer_id, marker.epoch, marker.coordinator_epoch)
        epoch = self._stream.epoch
        data = stored_marker(fields, now_ms, offset, epoch, commit=marker.commit)
        self._state.accept_marker(marker, offset, now_ms)
        self._path.write(data, BATCH_BYTES, now_ms, queued)

    def _room_for_abort(self) -> ErrorCode:
        """Roll the segment in time. Refuse an abort if its list is full before that."""
        transactions = self._state.transactions
        if len(transactions.aborted) < _ROLL_FROM:
            return ErrorCode.none
        self._stream.roll_soon()
        return ErrorCode.not_enough_replicas if transactions.must_roll else ErrorCode.none


def _answer_repeated(queued: QueuedMarker, produced: Produced) -> None:
    queued.on_done(produced.error)


def _refusal(error: ErrorCode, version: int) -> Produced:
    """Return the answer to a batch that the coordinator refused with `error`."""
    if error is ErrorCode.producer_fenced:
        return Produced(ErrorCode.invalid_producer_epoch, unverified=True)
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_FROM:
        error = ErrorCode.invalid_txn_state
    if error is ErrorCode.invalid_txn_state:
        return Produced(error, message=_NOT_ADDED, unverified=True)
    if error in _RETRIABLE:
        return Produced(
            ErrorCode.not_enough_replicas,
            message="Unable to verify the partition has been added to the transaction. Underlying "
            f"error: {error.name.upper()}",
            unverified=True,
        )
    return Produced(error, unverified=True)
