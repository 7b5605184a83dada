"""Which part of which log is cleaned next. Pure.

    |------- clean -------|------ dirty: cleanable ------|-- not cleanable --|
    log start      first dirty offset          first uncleanable offset      end

Not cleanable are segments in progress, those above the last stable offset, and those with a record
younger than `min.compaction.lag.ms`, with all behind them. A log is cleaned if the dirty share of
its bytes exceeds `min.cleanable.dirty.ratio`, or if a dirty record is older than
`max.compaction.lag.ms`. The log with the largest share comes first.
Source: Kafka, LogCleanerManager and LogToClean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

NEVER_MS = 2**63 - 1

LATE_S = 0.005
"""A turn of the event loop that takes longer shows that clients need it."""

REST_S_MAX = 0.25
LOOK_BYTES = 256 * 1024  # read or written between two looks at the event loop
_UNCOUNTED_BYTES = 1024 * 1024  # read bytes count once they were asked about, a piece at a time


class CleaningRules(NamedTuple):
    """The settings of a topic that decide when it is cleaned."""

    dirty_ratio_min: float  # min.cleanable.dirty.ratio
    lag_ms_min: int  # min.compaction.lag.ms
    lag_ms_max: int  # max.compaction.lag.ms


class LogSegment(NamedTuple):
    """A completed segment that the ledger allows to rewrite."""

    start: int
    end: int
    size_bytes: int
    cleaned: bool
    timestamp_max: int  # of its records; the time of its completion if they have none
    first_ms: int | None = None  # the timestamp of its first batch; None if it was not read


class Cleanable(NamedTuple):
    """The part of one log that a cleaning would rewrite now."""

    clean_bytes: int
    cleanable_bytes: int
    first_dirty: int
    end: int  # the first offset that cannot be cleaned
    overdue_ms: int  # how long ago the oldest dirty record should have been cleaned

    @property
    def ratio(self) -> float:
        """The share of cleanable bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, rules: CleaningRules) -> bool:
        """Return True if the log should be cleaned now."""
        if not self.cleanable_bytes:
            return False
        return self.overdue_ms > 0 or self.ratio > rules.dirty_ratio_min


def cleanable(
    segments: Sequence[LogSegment], stable_offset: int, now_ms: int, rules: CleaningRules
) -> Cleanable:
    """Return what can be cleaned of a log. `segments` are in order, from the log start on."""
    clean = _prefix(segments)
    dirty: list[LogSegment] = []
    for segment in segments[len(clean) :]:
        young = rules.lag_ms_min > 0 and segment.timestamp_max > now_ms - rules.lag_ms_min
        if segment.end > stable_offset or young:
            break
        dirty.append(segment)
    first_dirty = clean[-1].end if clean else segments[0].start if segments else 0
    return Cleanable(
        clean_bytes=sum(each.size_bytes for each in clean),
        cleanable_bytes=sum(each.size_bytes for each in dirty),
        first_dirty=first_dirty,
        end=dirty[-1].end if dirty else first_dirty,
        overdue_ms=_overdue_ms(segments[len(clean) :], now_ms, rules),
    )


def _prefix(segments: Sequence[LogSegment]) -> Sequence[LogSegment]:
    for at, segment in enumerate(segments):
        if not segment.cleaned:
            return segments[:at]
    return segments


def _overdue_ms(dirty: Iterable[LogSegment], now_ms: int, rules: CleaningRules) -> int:
    """Return how long ago the oldest dirty record should have been cleaned, 0 if none should."""
    if rules.lag_ms_max == NEVER_MS:
        return 0
    oldest = min(
        (s.first_ms for s in dirty if s.first_ms is not None and s.first_ms > 0), default=now_ms
    )
    return max(now_ms - rules.lag_ms_max - oldest, 0)


class MergeRules(NamedTuple):
    """The bounds of a merged segment."""

    size_bytes_max: int  # segment.bytes
    offsets_max: int  # that a segment can hold
    parts_max: int = 64  # one step of the metadata store takes all of them


class MergePart(NamedTuple):
    """A clean segment: its bytes, and the number of offsets that it covers."""

    size_bytes: int
    offsets: int


def merge_groups(parts: Sequence[MergePart], rules: MergeRules) -> list[range]:
    """Return which neighbours among the clean segments of a log become one segment each.

    A group is as long as the bounds allow, as in Kafka. But a part at its side that is larger than
    all the others together stays as it is, so each record is copied only a few times: what is left
    over grows by its logarithm. Source: Kafka, Cleaner.groupSegmentsBySize.
    """
    found: list[range] = []
    at = 0
    while at < len(parts):
        end, size, offsets = at, 0, 0
        while end < len(parts) and end - at < rules.parts_max:
            part = parts[end]
            if size + part.size_bytes > rules.size_bytes_max:
                break
            if offsets + part.offsets > rules.offsets_max:
                break
            size, offsets, end = size + part.size_bytes, offsets + part.offsets, end + 1
        group = _balanced(parts, range(at, end))
        if len(group) > 1:
            found.append(group)
        at = group.stop if len(group) > 1 else at + 1
    return found


def _balanced(parts: Sequence[MergePart], group: range) -> range:
    """Return the group without parts at its sides that are larger than the rest."""
    size = sum(parts[at].size_bytes for at in group)
    while len(group) > 1:
        first, last = parts[group[0]].size_bytes, parts[group[-1]].size_bytes
        if 2 * first > size:
            group, size = group[1:], size - first
        elif 2 * last > size:
            group, size = group[:-1], size - last
        else:
            break
    return group


class IoPace:
    """The pace of reads and writes: at most `bytes_per_s`, counted from the first byte on.

    Unused time is not saved up for later: a pause of the cleaner is followed by no burst.
    """

    def __init__(self) -> None:
        # The time at which all bytes so far are paid for.
        self._paid_until_s = 0.0

    def pause_s(self, size: int, bytes_per_s: float, now_s: float) -> float:
        """Count `size` bytes, and return for how long to wait before the next ones."""
        if bytes_per_s <= 0:  # no limit
            return 0.0
        self._paid_until_s = max(self._paid_until_s, now_s) + size / bytes_per_s
        return self._paid_until_s - now_s


class Rests:
    """How long the cleaner rests while clients need the event loop, which a late turn shows.

    A rewriting has a deadline, and a segment that misses it would block its log permanently. So
    rests count by bytes and not by batches. And they take at most half of the time that the
    deadline leaves for the bytes that are done.
    """

    __slots__ = ("_began_s", "_done_bytes", "_duration_s_max", "_size_bytes", "_unlooked_bytes")

    def __init__(self) -> None:
        # Bytes since the last look at the loop.
        self._unlooked_bytes = 0
        # Of the rewriting under way: its deadline, 0 without a rewriting, the time of its begin,
        # its bytes to read, and how many of them were read.
        self._duration_s_max = self._began_s = 0.0
        self._size_bytes = self._done_bytes = 0

    def begin(self, size_bytes: int, now_s: float, duration_s_max: float) -> None:
        """Begin a rewriting that reads `size_bytes`."""
        self._duration_s_max, self._began_s = duration_s_max, now_s
        self._size_bytes, self._done_bytes = size_bytes, 0

    def end(self) -> None:
        """End the rewriting. Until the next one there is no deadline."""
        self._duration_s_max = 0.0

    def on_read(self, size: int) -> None:
        """Count bytes that the rewriting has read."""
        self._done_bytes += size

    def is_look_due(self, size: int) -> bool:
        """Count bytes that were read or written. True if the loop should be looked at again."""
        self._unlooked_bytes += size
        if self._unlooked_bytes < LOOK_BYTES:
            return False
        self._unlooked_bytes = 0
        return True

    def rest_s(self, late_s: float, now_s: float) -> float:
        """Return how long to rest after a turn of the loop that was late by `late_s`."""
        if late_s <= LATE_S:
            return 0.0
        if self._duration_s_max and now_s - self._began_s > self._allowed_s():
            return 0.0
        return min(4 * late_s, REST_S_MAX)

    def _allowed_s(self) -> float:
        """Return how much time the bytes so far may have taken for rests to go on."""
        done = min(self._done_bytes + _UNCOUNTED_BYTES, self._size_bytes)
        share = done / self._size_bytes if self._size_bytes else 1.0
        return self._duration_s_max / 2 * share
