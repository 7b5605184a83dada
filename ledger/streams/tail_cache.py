"""The newest durable records of all streams, in memory, shared by all readers.

One bound in bytes covers all streams. The oldest record of any stream is evicted first. A record
counts with its data and with RECORD_BYTES for the objects that hold it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ledger.core.accepted_losses import LostRange
from ledger.ids import Buffer


class StoredRecord(NamedTuple):
    """One durable record, a batch of user records, as readers receive it.

    An accepted loss is one record with `lost` set, without data, over all its sequence ids.
    """

    sequence_id: int
    end_sequence_id: int  # one past its last user record
    timestamp_max: int
    size_bytes: int
    data: tuple[Buffer, ...]  # opaque data of the record, in pieces
    lost: LostRange | None = None


_EVICTED = StoredRecord(0, 0, -1, 0, ())
"""Placeholder for an evicted record until the list is compacted. Its bytes are freed at once."""
RECORD_BYTES = 768
"""What a cached record takes besides its data: the record, its numbers, the pieces of its data and
its places in the lists. Measured on CPython 3.11 and rounded up: 704 hold the bound."""
_VOID_MAX = 1024
_MARK_BYTES = 256 * 1024  # after so many bytes the time is noted


class TailCache:
    """The byte bound of a process and the order of eviction."""

    __slots__ = (
        "_added",
        "_marks",
        "_now_s",
        "_order",
        "_void",
        "bytes_held",
        "bytes_max",
        "hits",
        "misses",
    )

    def __init__(self, bytes_max: int, now_s: Callable[[], float] | None = None) -> None:
        """`now_s()` is a monotonic time, for `seconds_held`."""
        assert bytes_max >= 0
        self.bytes_max = bytes_max
        self._now_s = now_s
        # Bytes of all records that were ever added, and how many there were at some times, oldest
        # first. A mark is removed once its bytes are evicted.
        self._added = 0
        self._marks: deque[tuple[int, float]] = deque()
        # Reads that the cache answered, and those that went on to the storage. Only rise.
        self.hits = 0
        self.misses = 0
        # Bytes of all cached records and of their objects, at most `bytes_max` after each call.
        self.bytes_held = 0
        # The stream of each record, oldest first, in the order of `added`. A place is void if its
        # record was cleared.
        self._order: deque[StreamTail] = deque()
        # The number of void places. The order is compacted when they outnumber the others.
        self._void = 0

    def __len__(self) -> int:
        """The number of places in the order, including void places."""
        return len(self._order)

    def added(self, tail: StreamTail, size: int) -> None:
        self._order.append(tail)
        self.bytes_held += size
        self._added += size
        if self._now_s is not None and (
            not self._marks or self._added - self._marks[-1][0] >= _MARK_BYTES
        ):
            self._mark(self._now_s())
        while self.bytes_held > self.bytes_max:
            self.bytes_held -= self._order.popleft().evict()

    def dropped(self, size: int, records: int) -> None:
        """Count the places of a cleared tail as void."""
        self.bytes_held -= size
        self._void += records
        if self._void > _VOID_MAX and self._void * 2 > len(self._order):
            self._order = deque(tail for tail in self._order if not tail.skip_void())
            self._void = 0

    def _mark(self, now_s: float) -> None:
        self._marks.append((self._added, now_s))
        evicted = self._added - self.bytes_held
        while len(self._marks) > 1 and self._marks[1][0] <= evicted:
            self._marks.popleft()

    def seconds_held(self) -> float:
        """Return about how long ago the oldest record was added, 0 without records."""
        if not self.bytes_held or self._now_s is None:
            return 0.0
        now_s = self._now_s()
        evicted = self._added - self.bytes_held
        oldest_s = next((at_s for added, at_s in self._marks if added > evicted), now_s)
        return now_s - oldest_s

    def on_void_skipped(self) -> None:
        self._void -= 1


class StreamTail:
    """The cached end of one stream: consecutive records up to its newest durable one."""

    __slots__ = ("_cache", "_head", "_records", "_starts", "_void")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        # Parallel lists: consecutive records, and the first sequence id of each for bisection.
        self._starts: list[int] = []
        self._records: list[StoredRecord] = []
        # Index of the oldest cached record; the ones before it are evicted. Compacted now and then.
        self._head = 0
        # This stream's void places in the cache's order; all are older than its other places.
        self._void = 0

    def append(self, record: StoredRecord) -> None:
        self._starts.append(record.sequence_id)
        self._records.append(record)
        self._cache.added(self, record.size_bytes + RECORD_BYTES)

    def evict(self) -> int:
        """Evict the record of the oldest place. Returns its counted bytes, 0 if it was void."""
        if self._void and self.skip_void():
            self._cache.on_void_skipped()
            return 0
        size = self._records[self._head].size_bytes + RECORD_BYTES
        self._records[self._head] = _EVICTED
        self._head += 1
        if self._head >= 256 and self._head * 2 >= len(self._records):
            del self._records[: self._head]
            del self._starts[: self._head]
            self._head = 0
        return size

    def skip_void(self) -> bool:
        """Skip the oldest place of this stream if it is void. Returns False if it is not."""
        if not self._void:
            return False
        self._void -= 1
        return True

    def clear(self) -> None:
        """Drop all cached records of this stream."""
        records = len(self._records) - self._head
        size = _counted_bytes(self._records[self._head :])
        self._records.clear()
        self._starts.clear()
        self._head = 0
        self._void += records
        self._cache.dropped(size, records)

    def drop_below(self, sequence_id: int) -> None:
        """Drop the records that begin below `sequence_id`: the log holds others there now."""
        end = bisect_left(self._starts, sequence_id, self._head)
        dropped = self._records[self._head : end]
        self._records[self._head : end] = [_EVICTED] * len(dropped)
        self._head = end
        self._void += len(dropped)
        self._cache.dropped(_counted_bytes(dropped), len(dropped))

    def missed(self, found: list[StoredRecord] | None) -> list[StoredRecord] | None:
        """Count a read that goes on to the storage, unless it has not found anything (None)."""
        self._cache.misses += found is not None
        return found

    def timestamp_at(self, sequence_id: int) -> int | None:
        """Return the greatest timestamp of the cached record that holds `sequence_id`, or None."""
        at = self.find(sequence_id)
        return None if at < 0 else self._records[at].timestamp_max

    def find(self, sequence_id: int) -> int:
        """Return the index for `take` of the record that holds `sequence_id`, -1 if not cached."""
        at = bisect_right(self._starts, sequence_id, self._head) - 1
        if at < self._head or sequence_id >= self._records[at].end_sequence_id:
            return -1
        return at

    def take(self, at: int, bytes_max: int) -> list[StoredRecord]:
        """Return records from index `at`: at least one, and further ones within `bytes_max`."""
        self._cache.hits += 1
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


def _counted_bytes(records: list[StoredRecord]) -> int:
    return sum(record.size_bytes for record in records) + len(records) * RECORD_BYTES
