"""Serves fetches from the closest replica: a partition that another broker leads, read here.

    idle ─(a fetch)▶ opening ─▶ readable ─(no fetch for a while)▶ idle

Records come from the bookies, not from the leader, so the leader need not be alive.
Source: Kafka, KIP-392.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.partition_transactions import AbortedTransaction
from gateway.topics.configs import TopicConfig
from gateway.topics.empty_partition import EmptyPartition
from gateway.topics.loss_delivery import LossDelivery
from gateway.topics.partition import FetchWaiter, Partition
from gateway.topics.partition_warnings import PartitionWarnings
from gateway.topics.replica_transactions import LOADING_AT_ONCE, ReplicaTransactions
from gateway.topics.topic_traffic import Traffic
from gateway.wire import batches
from ledger.errors import LedgerError, NoNode, NotOwner, StreamUnavailable
from ledger.streams.follower import FollowedStream
from ledger.streams.listed_stream import EpochEnd
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_once

IDLE_S = 60.0


class ReplicaPartition:
    """The follower of one partition. A read opens it, and it closes the stream when idle.

    The high watermark, log start and leader epoch that clients have seen never fall, even while the
    stream is closed.
    """

    is_leader = False
    is_follower = True

    def __init__(
        self,
        name: str,
        services: StreamServices,
        topic_config: Callable[[], TopicConfig],
        leader_epoch: Callable[[], int],
        *,
        idle_s: float = IDLE_S,
        named: tuple[str, int] = ("-", 0),
        transactional: bool = False,
        loading: asyncio.Semaphore | None = None,
    ) -> None:
        """Create the follower. `leader_epoch()` returns the epoch of Metadata, -1 if unknown.

        `named` is the topic and the index, for the log. With `transactional` it serves readers of
        committed records, and `loading` is shared by the replicas of the process.
        """
        # The stream's name. It never changes.
        self.name = name
        # True once the topic was deleted or this broker leads the partition. Never reset.
        self.closed = False
        # The counts of its topic. Set once, after creation.
        self.traffic = Traffic()
        self._services = services
        self._log = PartitionWarnings(name, services, *named)
        self._cluster_epoch = leader_epoch
        # The greatest leader epoch returned so far. Never falls.
        self._leader_epoch = -1
        self._idle_s = idle_s
        # The stream. It is open while `readable`, and may be opened and closed any number of times.
        self._stream = FollowedStream(
            name, services, batches.timestamp_max, self._on_advanced, self._on_trouble
        )
        # The delivery of lost ranges, and the offsets at which readers wait.
        self.losses = LossDelivery(self._stream, topic_config, self._log, services.clock)
        # Its transactions. None where transactions are not served.
        self._transactions: ReplicaTransactions | None = None
        if transactional:
            loading = loading or asyncio.Semaphore(LOADING_AT_ONCE)
            self._transactions = ReplicaTransactions(
                self._stream, self._log, self._notify_waiters, loading
            )
        # Fetches to notify. A fetch removes itself when it ends.
        self._waiters: set[FetchWaiter] = set()
        # The task that opens the stream for all callers that wait. None while no opening is in
        # progress.
        self._opening: asyncio.Task[None] | None = None
        # The task that closes the idle stream. None while no closing is in progress.
        self._closing: asyncio.Task[None] | None = None
        # The timer that checks for idleness every `idle_s` seconds. None while the stream is
        # closed.
        self._timer: asyncio.TimerHandle | None = None
        # The number of reads in progress. The stream is not idle while it is above 0.
        self._reads = 0
        # True if the partition was used since the timer was set.
        self._used = False

    # -- life ---------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """True while the stream is open. `ensure_readable` opens it."""
        return self._stream.is_open and not self.closed

    @property
    def serves_fetches(self) -> bool:
        """True while a fetch may be answered from this log. A follower needs no lease."""
        return not self.closed

    async def ensure_readable(self) -> None:
        """Wait until it is readable. Raises NotOwner if closed, LedgerError if opening fails.

        All callers share one opening, which continues if a caller is cancelled.
        """
        self._used = True
        while not self.readable:
            if self.closed:
                raise NotOwner(self.name)
            if self._opening is None:
                self._opening = start_once(
                    f"the opening of {self.name}", self._open(), expected=LedgerError
                )
            opening = self._opening
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result()

    async def _open(self) -> None:
        try:
            await self._stream.open()
        except NoNode as error:
            raise NotOwner(f"stream {self.name} does not exist") from error
        except LedgerError as error:
            self._log.warn("cannot follow a partition", error)
            self.losses.on_open_failed(error)
            raise
        finally:
            self._opening = None
        self._used = True
        self.losses.on_opened()
        self._start_idle_timer()
        self._notify_waiters()

    async def close(self) -> None:
        """Close the partition and never open it again. Waiting fetches are notified."""
        self.closed = True
        self._notify_waiters()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [t for t in (self._opening, self._closing) if t is not None]
        if tasks:
            await asyncio.wait(tasks)
        if self._transactions is not None:
            self._transactions.stop()
        await self.losses.close()
        await self._stream.close()

    # -- idling -------------------------------------------------------------------------------

    def _start_idle_timer(self) -> None:
        if self._timer is None and not self.closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_s, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._timer = None
        if self.closed or not self._stream.is_open:
            return
        if self._transactions is not None:
            self._transactions.rest()
        if self._used or self._waiters or self._reads or self.losses.readers_blocked(0.0):
            self._used = False
            self._start_idle_timer()
        elif self._closing is None:
            self._closing = start_once(f"the closing of {self.name}", self._stream.close())
            self._closing.add_done_callback(self._on_idle_closed)

    def _on_idle_closed(self, closing: asyncio.Task[None]) -> None:
        self._closing = None
        if self._waiters:
            self._notify_waiters()  # fetches that arrived during the closing open the stream again

    # -- offsets ------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that Metadata returns, or the log's epoch while that one is unknown.

        Never falls. It is -1 before the first epoch is known.
        """
        epoch = self._cluster_epoch()
        if epoch < 0:
            epoch = self._stream.epoch
        self._leader_epoch = max(self._leader_epoch, epoch)
        return self._leader_epoch

    @property
    def high_watermark(self) -> int:
        """The end of the log as last read. It never falls, but may lag behind the leader's."""
        return self._stream.end_sequence_id

    @property
    def stable_offset(self) -> int:
        """The last stable offset as last read here. It never falls, and may lag behind the log.

        Without readers of committed records it stays where it was.
        """
        known = self._transactions
        return self.high_watermark if known is None else known.stable_offset

    def read_committed_end(self) -> int:
        """Return the offset at which readers of committed records end, and follow transactions.

        It is below `stable_offset` until the outcomes are read here again.
        """
        known = self._transactions
        if known is None:
            return self.high_watermark
        known.follow()
        return known.committed_end

    def hidden_outcome(self, offset: int) -> LedgerError | None:
        """Return why readers of committed records must read elsewhere at `offset`, or None."""
        return None if self._transactions is None else self._transactions.hides(offset)

    @property
    def log_start_offset(self) -> int:
        return self._stream.start_sequence_id

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch under which the record at `offset` was written."""
        if offset >= self.high_watermark:
            return self.leader_epoch
        return self._stream.epoch_at(offset)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where a leader epoch ends. Raises StreamUnavailable if it is not known here."""
        return self._stream.epoch_end(epoch)

    # -- fetch --------------------------------------------------------------------------------

    def read_cached(self, offset: int, bytes_max: int) -> list[StoredRecord] | None:
        """Return batches from memory, as `Partition.read_cached` does."""
        self._used = True
        return self.losses.deliver_cached(self._stream.read_cached(offset, bytes_max), offset)

    async def read(self, offset: int, bytes_max: int) -> list[StoredRecord]:
        """Return batches, as `Partition.read` does. Also empty past the high watermark."""
        self._used = True
        self._reads += 1
        try:
            return self.losses.deliver(await self._stream.read(offset, bytes_max), offset)
        except NoNode as error:
            raise StreamUnavailable(f"stream {self.name} was deleted") from error
        except LedgerError as error:
            self.losses.on_failed(offset, error)
            raise
        finally:
            self._reads -= 1

    @property
    def rewrites(self) -> int:
        """Counts the cleaned segments: batches and aborted transactions of one count match."""
        return self._stream.rewrites

    def aborted_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return aborted transactions, as `ReplicaTransactions.aborted_cached` does."""
        known = self._transactions
        return [] if known is None else known.aborted_cached(start, end)

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return aborted transactions, as `ReplicaTransactions.aborted` does."""
        return [] if self._transactions is None else await self._transactions.aborted(start, end)

    def add_waiter(self, waiter: FetchWaiter) -> None:
        """Notify `waiter` of changes until `remove_waiter`."""
        self._used = True
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.discard(waiter)

    def _on_trouble(self, error: LedgerError) -> None:
        self._log.warn("cannot follow a partition; will retry", error)

    def _on_advanced(self, _: int) -> None:
        failed = self._stream.failed
        if failed is not None and not isinstance(failed, NoNode):
            self._log.warn("stopped following a partition", failed)
        if self._transactions is not None:
            self._transactions.on_advanced()
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        for waiter in list(self._waiters):
            waiter.on_data()


StoredPartition = Partition | ReplicaPartition
"""A partition with a stream: led by this broker, or followed."""

ReadablePartition = StoredPartition | EmptyPartition
"""A partition that a fetch can read."""
