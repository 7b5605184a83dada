"""A partition that another gateway leads, read here: the reading side of `Partition`.

    idle ─(somebody reads)▶ opening ─▶ readable ─(nobody read for a while)▶ idle

Needs neither the leader nor its gateway. Source: Kafka, KIP-392 (fetch from the closest replica).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.cluster.port import Cluster, StreamKey
from gateway.log import Throttle, logger
from gateway.topics.partition import FetchWaiter
from gateway.wire import batches
from ledger.errors import LedgerError, NoNode, NotOwner, StreamUnavailable
from ledger.streams.follower import FollowedStream
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import StoredRecord

IDLE_S = 60.0

_said = Throttle()


class ReplicaPartition:
    """Opens itself when it is read and gives everything back when nobody reads it for a while.

    `closed` is for good: whoever owns it found that the topic is gone or is led here now. What
    was shown to clients never falls, also not by idling.
    """

    led = False
    is_follower = True

    def __init__(
        self,
        name: str,
        services: StreamServices,
        leader_epoch: Callable[[], int],
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        """`name` is the stream's; `leader_epoch` is what the cluster knows now, -1: nothing."""
        self.name = name
        self.closed = False
        self._services = services
        self._cluster_epoch = leader_epoch
        self._leader_epoch = -1
        self._idle_s = idle_s
        self._stream = FollowedStream(
            name, services, batches.timestamp_max, self._advanced, self._on_trouble
        )
        self._waiters: set[FetchWaiter] = set()
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = 0
        self._used = False  # since the timer was set

    # -- life ---------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """False also while it idles: `ensure_readable` opens it."""
        return self._stream.is_open and not self.closed

    @property
    def serves_fetches(self) -> bool:
        """True until it is closed: a follower needs no lease."""
        return not self.closed

    async def ensure_readable(self) -> None:
        """Readable. Raises NotOwner when it is closed, LedgerError when it cannot be opened now.

        One opening serves all callers, and goes on when one of them gives up.
        """
        self._used = True
        while not self.readable:
            if self.closed:
                raise NotOwner(self.name)
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
                self._opening.add_done_callback(_look_at)
            opening = self._opening
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result()

    async def _open(self) -> None:
        try:
            await self._stream.open()
        except NoNode as error:
            raise NotOwner(f"{self.name} does not exist") from error
        except LedgerError as error:
            self._tell("a partition of another gateway cannot be read", error)
            raise
        finally:
            self._opening = None
        self._used = True
        self._watch_idleness()
        self._wake()

    async def close(self) -> None:
        """For good; waiting fetches look again."""
        self.closed = True
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [t for t in (self._opening, self._closing) if t is not None]
        if tasks:
            await asyncio.wait(tasks)
        await self._stream.close()

    def _tell(self, event: str, error: LedgerError) -> None:
        if _said.allows(event, self.name, self._services.clock.monotonic_s()):
            kind = type(error).__name__
            logger().warning(event, partition=self.name, kind=kind, reason=str(error))

    # -- idling -------------------------------------------------------------------------------

    def _watch_idleness(self) -> None:
        if self._timer is None and not self.closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_s, self._look_if_idle)

    def _look_if_idle(self) -> None:
        self._timer = None
        if self.closed or not self._stream.is_open:
            return
        if self._used or self._waiters or self._reading:
            self._used = False
            self._watch_idleness()
        elif self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._stream.close())
            self._closing.add_done_callback(self._closed_now)

    def _closed_now(self, closing: asyncio.Task[None]) -> None:
        self._closing = None
        if not closing.cancelled():
            closing.result()
        if self._waiters:
            self._wake()  # who came meanwhile opens it again

    # -- offsets ------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """As metadata name it, so that clients agree. Never falls: while nobody leads it is the
        last one known, of the log if need be, and -1 before anything is known."""
        told = self._cluster_epoch()
        if told < 0:
            told = self._stream.epoch or -1
        self._leader_epoch = max(self._leader_epoch, told)
        return self._leader_epoch

    @property
    def high_watermark(self) -> int:
        """What is known here; never falls, may be behind the leader's."""
        return self._stream.end_sequence_id

    @property
    def log_start_offset(self) -> int:
        return self._stream.start_sequence_id

    def epoch_at(self, offset: int) -> int:
        """The leader epoch under which the record at `offset` was written."""
        if offset >= self.high_watermark:
            return self.leader_epoch
        return self._stream.epoch_at(offset)

    # -- fetch --------------------------------------------------------------------------------

    def read_cached(self, offset: int, bytes_max: int) -> list[StoredRecord] | None:
        self._used = True
        return self._stream.read_cached(offset, bytes_max)

    async def read(self, offset: int, bytes_max: int) -> list[StoredRecord]:
        """As `Partition.read`; empty at and past the end known here."""
        self._used = True
        self._reading += 1
        try:
            return await self._stream.read(offset, bytes_max)
        except NoNode as error:
            raise StreamUnavailable(f"{self.name} is gone") from error
        finally:
            self._reading -= 1

    def add_waiter(self, waiter: FetchWaiter) -> None:
        self._used = True
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.discard(waiter)

    def _on_trouble(self, error: LedgerError) -> None:
        self._tell("a partition of another gateway is not followed now, it is tried again", error)

    def _advanced(self, _: int) -> None:
        failed = self._stream.failed
        if failed is not None and not isinstance(failed, NoNode):
            self._tell("a partition of another gateway is not followed any more", failed)
        self._wake()

    def _wake(self) -> None:
        for waiter in list(self._waiters):
            waiter.on_data()


def _look_at(opening: asyncio.Task[None]) -> None:
    """Whoever still waits is told why it failed."""
    if not opening.cancelled():
        opening.exception()


def preferred_read_replica(cluster: Cluster, key: StreamKey, replicas_max: int, rack: str) -> int:
    """Return the broker in the client's rack that should serve its fetches, or -1.

    Only replicas qualify: clients reject a broker that is not in the partition's replica list.
    Source: Kafka, RackAwareReplicaSelector.
    """
    near = [each.node_id for each in cluster.members() if each.rack == rack and not each.leaving]
    if not near:
        return -1
    replicas = cluster.replicas(key, replicas_max)
    return next((node for node in replicas if node in near and node != cluster.node_id), -1)
