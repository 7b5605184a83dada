"""A sparse index of one segment, from sequence ids and timestamps to entries. Pure.

A point is (sequence id, entry, greatest timestamp up to the next point), one for each stride of
bytes. A seek starts at the entry of the last point at or before its target.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct

from ledger.errors import CorruptFormat

_COUNT = Struct(">I")
NO_TIMESTAMP = -1
"""None of the records has a timestamp."""

ANY_TIMESTAMP = 2**63 - 1
"""The records were not read, so any timestamp may be among them."""


class SparseIndex:
    """The points of one segment, in the order of their entries. Timestamps may fall."""

    __slots__ = ("_bytes_since", "entries", "sequence_ids", "stride_bytes", "timestamps_max")

    def __init__(self, stride_bytes: int = 1024 * 1024) -> None:
        self.stride_bytes = stride_bytes
        self.sequence_ids = array("q")
        self.entries = array("q")
        self.timestamps_max = array("q")
        self._bytes_since = 0

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, sequence_id: int, entry: int, size: int, timestamp_max: int) -> None:
        """Add an entry of `size` bytes whose first record has `sequence_id`."""
        if not self.entries or self._bytes_since >= self.stride_bytes:
            self.sequence_ids.append(sequence_id)
            self.entries.append(entry)
            self.timestamps_max.append(timestamp_max)
            self._bytes_since = size
            return
        self._bytes_since += size
        if timestamp_max > self.timestamps_max[-1]:
            self.timestamps_max[-1] = timestamp_max

    @property
    def timestamp_max(self) -> int:
        """The greatest timestamp of the entries added, NO_TIMESTAMP if there are none."""
        return max(self.timestamps_max, default=NO_TIMESTAMP)

    def entry_for(self, sequence_id: int) -> int:
        """Return the entry to start from: no record at or past `sequence_id` lies before it."""
        at = bisect_right(self.sequence_ids, sequence_id) - 1
        return self.entries[at] if at >= 0 else 0

    def point_before(self, sequence_id: int) -> tuple[int, int]:
        """Return sequence id and entry of the last point at or before `sequence_id`.

        Returns (-1, 0) if there is none: only the segment's first entry then lies before it.
        """
        at = bisect_right(self.sequence_ids, sequence_id) - 1
        return (self.sequence_ids[at], self.entries[at]) if at >= 0 else (-1, 0)

    def entry_from(self, sequence_id: int) -> int | None:
        """Return the entry of the first point at or past `sequence_id`, or None.

        All records from that entry on have at least this sequence id.
        """
        at = bisect_left(self.sequence_ids, sequence_id)
        return self.entries[at] if at < len(self.entries) else None

    def sequence_id_from(self, sequence_id: int) -> int | None:
        """Return the sequence id of the first point at or past `sequence_id`, or None."""
        at = bisect_left(self.sequence_ids, sequence_id)
        return self.sequence_ids[at] if at < len(self.sequence_ids) else None

    def timestamp_max_between(self, first: int, end: int) -> int | None:
        """Return an upper bound of the timestamps from `first` up to and excluding `end`.

        Returns None if the index does not cover `first`.
        """
        low = bisect_right(self.sequence_ids, first) - 1
        stretch = self.timestamps_max[max(low, 0) : bisect_left(self.sequence_ids, end)]
        return max(stretch) if low >= 0 and stretch else None

    def stretches_with(self, timestamp: int, first: int) -> Iterator[tuple[int, int | None]]:
        """Yield the stretches that may have a record with at least `timestamp` past `first`.

        Each is the first sequence id to look at, and that of the next stretch, or None for the last
        one. Points may be added meanwhile.
        """
        at = max(bisect_right(self.sequence_ids, first) - 1, 0)
        while at < len(self.entries):
            if self.timestamps_max[at] >= timestamp:
                last = at + 1 == len(self.entries)
                yield max(self.sequence_ids[at], first), None if last else self.sequence_ids[at + 1]
            at += 1

    def slice_points(self, low: int, high: int, wanted: int) -> list[tuple[int, int]]:
        """Choose up to `wanted` places where slices begin: (sequence id, entry), the first `low`.

        A slice is never smaller than a stride of the index.
        """
        points = [(low, self.entry_for(low))]
        if wanted > len(self):
            places = list(zip(self.sequence_ids, self.entries, strict=True))
        else:
            shares = range(1, wanted)
            places = [self.point_before(low + (high - low) * n // wanted) for n in shares]
        for at, entry in places:
            if at >= high:
                break
            if at > points[-1][0] and entry > points[-1][1]:
                points.append((at, entry))
        return points

    def encode(self) -> bytes:
        columns = [array("q", c) for c in (self.sequence_ids, self.entries, self.timestamps_max)]
        for column in columns:
            column.byteswap()
        return _COUNT.pack(len(self.entries)) + b"".join(c.tobytes() for c in columns)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> SparseIndex:
        """Decode what `encode` wrote, on a little-endian machine. Raises CorruptFormat."""
        if len(data) < _COUNT.size:
            raise CorruptFormat(f"sparse index of {len(data)} bytes is shorter than its header")
        (count,) = _COUNT.unpack_from(data)
        if len(data) != _COUNT.size + 24 * count:
            raise CorruptFormat(f"sparse index of {count} points has {len(data)} bytes")
        index = cls()
        columns = (index.sequence_ids, index.entries, index.timestamps_max)
        for number, column in enumerate(columns):
            start = _COUNT.size + number * 8 * count
            column.frombytes(bytes(data[start : start + 8 * count]))
            column.byteswap()
        return index
