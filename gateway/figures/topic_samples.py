"""Looks at one partition again and again: its figures now, and its rates since earlier looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.core.blocked_reads import AT_END
from gateway.core.figures import growth, rate
from gateway.figures.rows import PartitionFigures
from gateway.topics.held_bytes import held_bytes, newest_written, written_since

if TYPE_CHECKING:
    from gateway.topics.partition import Partition
    from ledger.ids import LedgerId
    from ledger.streams.stream import Stream

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

    def rested(self, until_s: float) -> None:
        """Count from `WINDOW_S` before a time, until which nothing grew and nothing looked."""
        begin_s = max(self._next.at_s, until_s - WINDOW_S)
        self._anchor = self._next = self._next._replace(at_s=begin_s)

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

    __slots__ = (
        "_losses",
        "_newest",
        "_open",
        "_rates",
        "_row",
        "_segments",
        "_settled",
        "_summary_changes",
        "_written",
        "index",
        "partition",
    )

    def __init__(self, index: int, partition: Partition, now_s: float) -> None:
        self.index = index
        self.partition = partition
        # The bytes of one copy that were written since the first look, and how far that counts.
        self._written = 0
        self._newest = newest_written(partition.stream)
        self._rates = Rates(now_s, partition.high_watermark, 0)
        self._row: PartitionFigures | None = None
        # The lists of segments and of accepted losses of `_row`: both are replaced by changes.
        self._segments: object = None
        self._losses: object = None
        # The sizes of `_segments` also change by corrections, and by writes to the open one that
        # hold no record which counts in `end`.
        self._summary_changes = -1
        self._open: LedgerId | None = None
        # True if time alone does not change `_row`: its rates are 0 and no reader waits.
        self._settled = False

    @property
    def unchanged(self) -> bool:
        """True if this broker leads it as before, and a look would return the same figures."""
        row, partition = self._row, self.partition
        stream = partition.stream
        return (
            self._settled
            and row is not None
            and partition.readable
            and stream.end_sequence_id == row.end
            and stream.start_sequence_id == row.start
            and stream.segments is self._segments
            and stream.accepted_losses is self._losses
            and stream.summary_changes == self._summary_changes
            and self._written_to(stream) == self._newest.size_bytes
            and not partition.losses.blocked
        )

    def _written_to(self, stream: Stream) -> int:
        """Return the bytes in the newest segment, if the list of them is that of the last look."""
        if self._open is None:
            return self._newest.size_bytes
        return stream.services.client.written_bytes(self._open)

    def look(self, copies: int, now_s: float, before_s: float) -> PartitionFigures:
        """Return the figures of now. The same object as before if nothing changed.

        `before_s` is the time of the sample before, in which it was unchanged or looked at.
        """
        partition, row = self.partition, self._row
        if row is not None and self.unchanged:
            return row
        if self._settled:
            self._rates.rested(before_s)
        stream = partition.stream
        start, end = partition.log_start_offset, partition.high_watermark
        records_per_s, bytes_per_s = self._rates_of(end, now_s)
        blocked, lost = _blocked(partition, start)
        self._segments, self._losses = stream.segments, stream.accepted_losses
        self._summary_changes = stream.summary_changes
        newest = stream.segments[-1] if stream.segments else None
        self._open = None if newest is None or newest.completed else newest.ledger
        size_bytes = held_bytes(stream, copies)
        still = self._rates.still and records_per_s == bytes_per_s == 0
        # A size that is unknown becomes known without another change.
        self._settled = still and size_bytes is not None and not partition.losses.blocked
        found = PartitionFigures(
            self.index,
            start,
            end,
            size_bytes,
            len(stream.segments),
            records_per_s,
            bytes_per_s,
            blocked,
            lost,
        )
        if row is None or found != row:
            self._row = row = found
        return row

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
