"""A partition that another gateway leads, read here: the reading side of `Partition`.

Source: Kafka, KIP-392 (fetch from the closest replica).
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from gateway.topics.partition import FetchWaiter
from gateway.wire import batches
from ledger.streams.follower import FollowedStream
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import StoredRecord

IDLE_S = 60.0


class ReplicaPartition:
    """Opens itself when it is read and gives everything back when nobody reads it for a while.

    `closed` is for good: whoever owns it found that the topic is gone or is led here now.
    """

    led = False

    def __init__(
        self,
        name: str,
        services: StreamServices,
        leader_epoch: Callable[[], int],
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        """`name` is the stream's; `leader_epoch` is what the fleet knows now, -1: nothing."""
        self.name = name
        self.closed = False
        self._leader_epoch = leader_epoch
        self._idle_s = idle_s
        self._stream = FollowedStream(name, services, batches.timestamp_max, self._advanced)
        self._waiters: set[FetchWaiter] = set()

    @property
    def readable(self) -> bool:
        """False also while it idles: `ensure_readable` opens it."""
        return False

    async def ensure_readable(self) -> None:
        """Readable. Raises NotOwner when it is closed, LedgerError when it cannot be opened now."""
        raise NotImplementedError

    async def close(self) -> None:
        """For good; waiting fetches look again."""
        self.closed = True

    @property
    def leader_epoch(self) -> int:
        """Never falls."""
        return self._leader_epoch()

    @property
    def high_watermark(self) -> int:
        """What is known here; never falls, may be behind the leader's."""
        return self._stream.end_sequence_id

    @property
    def log_start_offset(self) -> int:
        return self._stream.start_sequence_id

    def position_error(self, offset: int) -> ErrorCode:
        """none, or offset_out_of_range below the log start, or offset_not_available past the end
        known here (the fetch waits first: the leader may have shown it to the client)."""
        if offset < self.log_start_offset:
            return ErrorCode.offset_out_of_range
        if offset > self.high_watermark:
            return ErrorCode.offset_not_available
        return ErrorCode.none

    def epoch_at(self, offset: int) -> int:
        """The leader epoch under which the record at `offset` was written."""
        return self._stream.epoch_at(offset)

    def read_cached(self, offset: int, bytes_max: int) -> list[StoredRecord] | None:
        return self._stream.read_cached(offset, bytes_max)

    async def read(self, offset: int, bytes_max: int) -> list[StoredRecord]:
        return await self._stream.read(offset, bytes_max)

    def add_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.discard(waiter)

    def _advanced(self, _: int) -> None:
        for waiter in list(self._waiters):
            waiter.on_data()
