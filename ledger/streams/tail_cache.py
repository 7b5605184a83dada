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


_GONE = StoredRecord(0, 0, -1, 0, ())
"""Stands where an evicted record was, until the list is shortened: its bytes are free at once."""
_VOID_MAX = 1024


class TailCache:
    """The byte bound, and who goes first. One per process."""

    __slots__ = ("_order", "_void", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= 0
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._order: deque[StreamTail] = deque()  # one place per record, oldest first
        self._void = 0  # places whose record was cleared

    def __len__(self) -> int:
        """Places in the order, void ones included: what the cache costs beside its bytes."""
        return len(self._order)

    def added(self, tail: StreamTail, size: int) -> None:
        self._order.append(tail)
        self.bytes_held += size
        while self.bytes_held > self.bytes_max:
            self.bytes_held -= self._order.popleft().evict()

    def dropped(self, size: int, records: int) -> None:
        """A stream cleared its tail: its places in the order are void."""
        self.bytes_held -= size
        self._void += records
        if self._void > _VOID_MAX and self._void * 2 > len(self._order):
            self._order = deque(tail for tail in self._order if not tail.passes_void())
            self._void = 0

    def void_passed(self) -> None:
        self._void -= 1


class StreamTail:
    """The cached end of one stream: consecutive records up to its newest durable one."""

    __slots__ = ("_cache", "_head", "_records", "_starts", "_void")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._starts: list[int] = []
        self._records: list[StoredRecord] = []
        self._head = 0  # those before it are evicted; they leave the lists now and then
        self._void = 0  # places in the cache's order that stand for records cleared before

    def append(self, record: StoredRecord) -> None:
        self._starts.append(record.sequence_id)
        self._records.append(record)
        self._cache.added(self, record.size_bytes)

    def evict(self) -> int:
        """The record of the oldest place is gone; its size. 0 when `clear` had let it go."""
        if self._void and self.passes_void():
            self._cache.void_passed()
            return 0
        size = self._records[self._head].size_bytes
        self._records[self._head] = _GONE
        self._head += 1
        if self._head >= 256 and self._head * 2 >= len(self._records):
            del self._records[: self._head]
            del self._starts[: self._head]
            self._head = 0
        return size

    def passes_void(self) -> bool:
        """The oldest place of this stream was void; now it is not counted any more."""
        if not self._void:
            return False
        self._void -= 1
        return True

    def clear(self) -> None:
        """Nothing of this stream is cached; its memory is free."""
        records = len(self._records) - self._head
        size = sum(r.size_bytes for r in self._records[self._head :])
        self._records.clear()
        self._starts.clear()
        self._head = 0
        self._void += records
        self._cache.dropped(size, records)

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
