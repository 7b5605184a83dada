"""Looks at one partition again and again: its figures now, and its rates since earlier looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.core.blocked_reads import AT_END
from gateway.core.figures import growth, rate
from gateway.figures.rows import PartitionFigures
from gateway.topics.held_bytes import held_bytes, newest_written, written_since

if TYPE_CHECKING:
    from gateway.topics.partition import Partition

WINDOW_S: Final = 5.0
"""Rates are over this time at least, once it has passed, and over 20 s at most."""

_RATE_S_MIN: Final = 0.9  # a shorter time gives no rate


class Anchor(NamedTuple):
    """A count at a time on the monotonic clock."""

    at_s: float
    records: int
    written: int


class Rates:
    """The rates of two counts that grow. A count that went back begins anew."""

    __slots__ = ("_anchor", "_next", "count")

    def __init__(self, at_s: float, records: int, written: int, count: int = -1) -> None:
        self.count = count  # of what the counts are sums of: other sums have no common rate
        # The look that rates count from, and the one that they will count from next.
        self._anchor = self._next = Anchor(at_s, records, written)

    @property
    def still(self) -> bool:
        """True if nothing grew between the two looks that rates count from."""
        return self._anchor[1:] == self._next[1:] and self._anchor.at_s != self._next.at_s

    def begin(self, at_s: float, records: int, written: int) -> None:
        """Forget what was before."""
        self._anchor = self._next = Anchor(at_s, records, written)

    def look(self, at_s: float, records: int, written: int) -> tuple[float | None, float | None]:
        """Return the growth of both counts per second, None without an earlier look."""
        if records < self._anchor.records or written < self._anchor.written:
            self.begin(at_s, records, written)
            return None, None
        if at_s - self._next.at_s >= WINDOW_S:
            self._anchor, self._next = self._next, Anchor(at_s, records, written)
        before = self._anchor
        over_s = at_s - before.at_s
        if over_s < _RATE_S_MIN:
            return None, None
        return (
            rate(growth(before.records, records), over_s),
            rate(growth(before.written, written), over_s),
        )


class SampledPartition:
    """What rates of one partition are computed from, from its first look until it is lost."""

    __slots__ = ("_newest", "_rates", "_row", "_segments", "_written", "partition", "round")

    def __init__(self, partition: Partition, now_s: float) -> None:
        self.partition = partition
        self.round = 0  # of the last sample that looked at it
        # The bytes of one copy that were written since the first look, and how far that counts.
        self._written = 0
        self._newest = newest_written(partition.stream)
        self._rates = Rates(now_s, partition.high_watermark, 0)
        self._row: PartitionFigures | None = None
        self._segments: object = None  # the list of segments of `_row`, which is never changed

    def look(self, index: int, copies: int, now_s: float) -> PartitionFigures:
        """Return the figures of now. The same object as before if nothing changed."""
        partition, row = self.partition, self._row
        start, end = partition.log_start_offset, partition.high_watermark
        segments = partition.stream.segments
        if (
            row is not None
            and row.end == end
            and row.start == start
            and self._segments is segments
            and self._rates.still
            and row.records_per_s == 0
            and not row.blocked
            and not partition.losses.blocked
        ):
            return row
        records_per_s, bytes_per_s = self._rates_of(end, now_s)
        blocked, lost = _blocked(partition, start)
        self._segments = segments
        found = PartitionFigures(
            index,
            start,
            end,
            held_bytes(partition.stream, copies),
            len(segments),
            records_per_s,
            bytes_per_s,
            blocked,
            lost,
        )
        if row is not None and found == row:
            return row
        self._row = found
        return found

    def _rates_of(self, end: int, now_s: float) -> tuple[float | None, float | None]:
        stream = self.partition.stream
        grown = written_since(stream, self._newest)
        self._newest = newest_written(stream)
        if grown is None:
            self._rates.begin(now_s, end, self._written)
            return None, None
        self._written += grown
        return self._rates.look(now_s, end, self._written)


def _blocked(partition: Partition, start: int) -> tuple[int, int]:
    """Return how many offsets readers wait at, and how many records are lost above the start."""
    lost = partition.accepted_lost_records if partition.stream.accepted_losses.ranges else 0
    if not partition.losses.blocked:
        return 0, lost
    places = partition.losses.places(start)
    lost += sum(
        each.lost_offsets
        for each in places
        if each.lost and not each.stopped and each.offset != AT_END
    )
    return len(places), lost
