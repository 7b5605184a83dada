"""The newest durable records of all streams, in memory, shared by every reader.

Bounded by bytes over all streams together; the oldest record of any stream goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from ledger.ids import Buffer


class StoredRecord(NamedTuple):
    """One durable record (a batch of `records` user records) as readers get it."""

    sequence_id: int
    end_sequence_id: int  # one past its last user record
    timestamp_max: int
    size_bytes: int
    data: tuple[Buffer, ...]  # joined, the record's opaque data


class TailCache:
    """The byte bound, and who goes first. One per process."""

    __slots__ = ("_order", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= 0
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._order: deque[StreamTail] = deque()

    def added(self, tail: StreamTail, size: int) -> None:
        self._order.append(tail)
        self.bytes_held += size
        while self.bytes_held > self.bytes_max:
            self.bytes_held -= self._order.popleft().evict()

    def dropped(self, size: int) -> None:
        self.bytes_held -= size


class StreamTail:
    """The cached end of one stream: consecutive records up to its newest durable one."""

    __slots__ = ("_cache", "_head", "_records", "_starts")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._starts: list[int] = []
        self._records: list[StoredRecord] = []
        self._head = 0  # those before it are evicted; they leave the lists now and then

    def append(self, record: StoredRecord) -> None:
        self._starts.append(record.sequence_id)
        self._records.append(record)
        self._cache.added(self, record.size_bytes)

    def evict(self) -> int:
        """The oldest record is gone; its size. 0 when `clear` had already let it go."""
        if self._head >= len(self._records):
            return 0
        size = self._records[self._head].size_bytes
        self._head += 1
        if self._head >= 256 and self._head * 2 >= len(self._records):
            del self._records[: self._head]
            del self._starts[: self._head]
            self._head = 0
        return size

    def clear(self) -> None:
        """Nothing of this stream is cached; its memory is free."""
        self._cache.dropped(sum(r.size_bytes for r in self._records[self._head :]))
        self._records.clear()
        self._starts.clear()
        self._head = 0

    def find(self, sequence_id: int) -> int:
        """Index for `take` of the record that holds `sequence_id`; -1 when it is not cached."""
        at = bisect_right(self._starts, sequence_id, self._head) - 1
        if at < self._head or sequence_id >= self._records[at].end_sequence_id:
            return -1
        return at

    def take(self, at: int, bytes_max: int) -> list[StoredRecord]:
        """Records from index `at`: at least one, and as many more as fit in `bytes_max`."""
        records = self._records
        taken = [records[at]]
        size = taken[0].size_bytes
        for following in range(at + 1, len(records)):
            record = records[following]
            size += record.size_bytes
            if size > bytes_max:
                break
            taken.append(record)
        return taken
