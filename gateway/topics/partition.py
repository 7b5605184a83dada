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
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from itertools import count, takewhile
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import (
    NO_LEADER_EPOCH,
    AbortedTransaction,
    PartitionTransactions,
)
from gateway.core.producer_states import ProducerStates
from gateway.topics.configs import TopicConfig
from gateway.topics.long_work import LongWork
from gateway.topics.loss_delivery import LossDelivery
from gateway.topics.opening_turns import OpeningTurns
from gateway.topics.outcomes import Outcomes
from gateway.topics.partition_observer import ObservedOwnership, PartitionObserver
from gateway.topics.partition_state import PartitionState
from gateway.topics.partition_warnings import PartitionWarnings
from gateway.topics.produce_path import ProducePath
from gateway.topics.produced import OnProduced, Produced
from gateway.topics.producer_ids import learn_certain_id
from gateway.topics.timestamp_search import SearchBudget, TimestampSearch
from gateway.topics.verification import Verifier
from ledger.errors import (
    LedgerError,
    NoNode,
    NotOwner,
)
from ledger.streams.config import StreamConfig
from ledger.streams.listed_stream import EpochEnd
from ledger.streams.recovery import OwnerState
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import Stream, StreamServices
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_restarting

if TYPE_CHECKING:
    from gateway.topics.topic_traffic import Traffic

_REOPEN_S_FIRST, _REOPEN_S_MAX = 0.05, 5.0
_WHOLE_ATTEMPTS = 5  # failed openings after which a partition whose state waits is readable only

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
        opening: OpeningTurns | None = None,
        long_work: LongWork | None = None,
        *,
        begin: bool = False,
        named: tuple[str, int] = ("-", 0),
        state: OwnerState | None = None,
        observer: PartitionObserver | None = None,
        verifier: Verifier | None = None,
        may_exist: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the partition, closed. `on_opened(epoch)` runs each time it was opened.

        `opening` decides which ones are opened first. With `begin`, a stream to which a former
        owner was writing is writable as soon as it is open, if a batch waits for it by then. Log
        lines name the partition by `named`. With `state` the log is that of another object; clients
        append nothing. `verifier` is for transactions; while `may_exist` is False it has none.
        """
        self.name = name  # the stream's; it and the callables below never change
        self.topic_id: UUID | None = None  # set once, after creation, if it is of a topic
        self._lease_held, self._on_opened, self._begins = lease_held, on_opened, begin
        self._turns, self._asked = opening or OpeningTurns(), state is not None  # asked: wanted now
        self._long_work = long_work or LongWork()
        self._lost = False  # True once taken over or deleted: acknowledges nothing, is closed
        self.closed = False  # True once it was handed over, lost or deleted; never reset
        self._services, self._config = services, topic_config
        self._log = PartitionWarnings(name, services, *named)
        self._state = PartitionState(services.clock.now_ms)
        owned, advanced, failed = state or self._state, self._on_advanced, self._on_failed
        # The stream. It is open while `_opened`, and writable after the first batch.
        self.stream = Stream(
            name, services, stream_config, owned, on_advanced=advanced, on_failed=failed
        )
        self.stream.on_segment = self._on_segment
        configs, work = (topic_config, stream_config), (self._long_work, verifier)
        self._ownership = ObservedOwnership(observer)
        self._path = ProducePath(self, self._state, services, configs, self._log, work, named)
        self._state.transactions.leader_epoch = NO_LEADER_EPOCH
        self._outcomes = Outcomes(self._state, self.stream, self._log, self._notify, may_exist)
        # See `ProducePath`. Methods would add a call to each batch.
        self.append = self._path.append if state is None else _refuse_client
        self.append_transactional = self._path.append_transactional
        self.append_marker = self._path.append_marker
        # The delivery of lost ranges, and the offsets at which readers wait.
        self.losses = LossDelivery(self.stream, topic_config, self._log, services.clock)
        self._abandoned_for = LOST  # the reason of `abandon`, for the log
        self._waiters: set[FetchWaiter] = set()  # fetches to notify, until they remove themselves
        # The task that opens the stream. Done once it is open; None before the first `open`.
        self._opening: asyncio.Task[None] | None = None
        self._opened = False  # True while it is open for reading: from then until it fails
        self._reopen_s = _REOPEN_S_FIRST  # doubles up to _REOPEN_S_MAX; a durable batch resets it
        self._advanced_since_open = True  # False from an opening until a batch of it is durable
        self._serves_transactions, self._needs_state = verifier is not None, state is not None

    def belongs_to(self, topic_id: UUID) -> bool:
        """Return whether this is a partition of the topic, which may have been created again."""
        return topic_id is self.topic_id or topic_id == self.topic_id

    def count_in(self, traffic: Traffic) -> None:
        """Count batches in the traffic of the topic. Called once, after creation."""
        self._path.traffic = traffic

    @property
    def traffic(self) -> Traffic:
        """The counts of its topic; its own until `count_in`."""
        return self._path.traffic

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

    def may_acknowledge(self) -> bool:
        """Return whether batches may be acknowledged, even during a hand-over."""
        return not self._lost and self._lease_held()

    async def _open(self) -> None:
        """Open the stream. Retry while batches and fetches wait, until the partition is closed."""
        if not self._advanced_since_open:
            # The last epoch accepted nothing, so do not add another segment at once.
            await self._pause()
        begun_s = self._services.clock.monotonic_s()
        for attempt in takewhile(lambda _: not self.closed, count()):
            try:
                # An opening that failed may have left the stream half open.
                await self.stream.close()
                await self._open_once(whole=self._needs_state or attempt < _WHOLE_ATTEMPTS)
            except LedgerError as error:
                self._log.warn("cannot open a partition; will retry", error)
                self.losses.on_open_failed(error)
                if not error.retryable:
                    self._path.refuse_waiting(error)
                await self._pause()
            else:
                self._services.openings.add(self._services.clock.monotonic_s() - begun_s)
                self._advanced_since_open = False
                self._opened, self._asked = True, self._needs_state
                if self._serves_transactions:
                    self._outcomes.on_opened()
                self.losses.on_opened()
                self._on_opened(self.stream.epoch)
                # Not with a loss that hides the state; its acceptance opens the stream again.
                if self.stream.timestamp_max is not None and not self.closed:
                    self._ownership.begin(self.stream.epoch)
                self._notify()
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
            await self.stream.open(whole=whole, turns=self)
        # A crash between creating the topic and its streams left the topic without them.
        except NoNode:
            services = self._services
            await create_streams(services.metadata, [self.name], services.epoch_base)
            await self.stream.open(turns=self)
        self.transactions.leader_epoch = self.stream.epoch
        self._state.cover(self._newest_start())
        await learn_certain_id(self._state.producers.losses, self._services.metadata)

    @asynccontextmanager
    async def list_turn(self) -> AsyncGenerator[None]:
        """See `ledger.streams.opening.OpeningTurns`."""
        async with self._turns.lists.turn(self, asked=self._asked):
            yield

    @asynccontextmanager
    async def recovery_turn(self, recency: int) -> AsyncGenerator[bool]:
        """See `ledger.streams.opening.OpeningTurns`.

        A stream that no batch waits for begins with its first batch.
        """
        async with self._turns.recoveries.turn(self, asked=self._asked, recency=recency):
            await self._wait_for_lease()
            yield self._begins and (self._needs_state or self.first_waiting is not None)

    def open_first(self) -> asyncio.Task[None]:
        """Open the partition ahead of those that no request waits for. See `open`."""
        self._asked = True
        self._turns.ask(self)
        return self.open()

    async def ensure_readable(self) -> None:
        """Wait until the partition is readable, ahead of those that no request waits for.

        Raises NotOwner if it is closed.
        """
        while not self.readable:
            if self.closed:
                raise NotOwner(self.name)
            first = not self._asked
            opening = self.open_first()
            # Only the first request of an opening holds others back: clients ask again and again.
            with self._turns.awaited() if first else nullcontext():
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
            self._path.refuse_waiting(error)
        finally:
            self._path.refuse_waiting(NotOwner(self.name))
            self._ownership.end()
            self._notify()

    def abandon(self, reason: str = LOST) -> None:
        """Accept and acknowledge nothing more: the topic is deleted, or another broker leads it.

        Waiting fetches are notified. `reason` is for the log.
        """
        self.closed = self._lost = True
        self._abandoned_for = reason
        self._path.refuse_waiting(NotOwner(self.name))
        self._ownership.end()
        self._notify()

    async def wait_abandoned(self) -> None:
        """Wait after `abandon` until nothing is in flight, so that the data can be deleted."""
        assert self.closed
        await self._cancel_tasks()
        await self.stream.abandon(self._abandoned_for)

    async def _cancel_tasks(self) -> None:
        tasks = [t for t in (self._path.beginning, self._opening) if t is not None and not t.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._outcomes.close()
        await self.losses.close()

    def _on_failed(self, error: LedgerError) -> None:
        """Answer pending batches after a failure, and open the stream under the next epoch."""
        deleted = self._abandoned_for == DELETED
        self._log.warn(_ENDED if self.closed else _FAILED, error, intended=deleted)
        self._path.on_failed(error)
        self.reopen()

    def reopen(self) -> None:
        """Open the stream again, unless the partition is closed."""
        self._outcomes.on_ended()
        self._opened = False
        self.transactions.leader_epoch = NO_LEADER_EPOCH
        self._ownership.end()
        self._notify()
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
    def stable_offset(self) -> int:
        """The last stable offset: below it, the outcome of every record is known.

        It stays where it is while the state of the partition is not known. Where transactions are
        not served, it is the high watermark.
        """
        if not self._serves_transactions:
            return self.high_watermark
        return self._outcomes.stable_offset

    def check_outcomes(self) -> None:
        """Raise a retriable LedgerError if `stable_offset` is an old one."""
        if self._serves_transactions:
            self._outcomes.check()

    def _on_segment(self, start: int) -> None:
        """Begin a segment. A hidden state that was read just before covers nothing yet."""
        self._state.cover(self._newest_start())
        self._state.begin_segment(start)

    def _newest_start(self) -> int:
        """Return the start of the newest segment with entries, 0 if there is none."""
        starts = (s.start_sequence_id for s in reversed(self.stream.segments) if s.record_count)
        return next(starts, 0)

    @property
    def first_waiting(self) -> object | None:
        return self._path.first_waiting

    @property
    def lacks_copies(self) -> bool:
        """True if `min.insync.replicas` exceeds the number of copies that a record has."""
        return self._path.lacks_copies

    @property
    def transactions(self) -> PartitionTransactions:
        """The transactions of the present ownership. Owned by this partition."""
        return self._state.transactions

    async def truncate(self, offset: int) -> None:
        """Move the log start to `offset`, durably. Raises LedgerError."""
        await self.stream.truncate(offset)
        self._notify()

    async def expire(self) -> int:
        """Remove segments past their retention. Returns how many. Raises LedgerError."""
        removed = await self.stream.expire()
        if removed:
            self._notify()
        return removed

    def append_own(
        self, batch: bytes, records: int, on_done: Callable[[LedgerError | None], None]
    ) -> None:
        """Append a batch of the broker itself. See `ProducePath.append_own`."""
        self._path.append_own(batch, records, on_done)

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers of the present ownership. Owned by this partition."""
        return self._state.producers

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
        if self._path.duplicates:
            self._path.answer_duplicates(end_offset)
        if self._state.transactional:
            self.transactions.on_durable(end_offset)
        if self._waiters:
            self._notify()

    def _notify(self) -> None:
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

    @property
    def rewrites(self) -> int:
        """Counts the cleaned segments: batches and aborted transactions of one count match."""
        return self.stream.rewrites

    def aborted_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return aborted transactions from memory. See `Outcomes.aborted_cached`."""
        return self._outcomes.aborted_cached(start, end)

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of records. See `Outcomes.aborted`."""
        return await self._outcomes.aborted(start, end)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch under which the record at `offset` was written."""
        return self.stream.epoch_at(offset)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where a leader epoch ends, as `Stream.epoch_end` does. Only while readable."""
        return self.stream.epoch_end(epoch)

    def search(self, budget: SearchBudget) -> TimestampSearch:
        """Return a search for timestamps in this log, which decodes within `budget`."""
        bytes_max = self._config().decompressed_bytes_max
        return TimestampSearch(self.stream, bytes_max, self._long_work, budget)


def _refuse_client(
    batch: memoryview, version: int, on_produced: OnProduced, *, acks_all: bool = False
) -> None:
    """Refuse a batch of a client for a log of the broker's own, as Kafka does."""
    on_produced(Produced(ErrorCode.invalid_topic_exception))
