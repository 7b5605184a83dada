"""The offsets that a read must cover: filters narrow its ranges, and a limit shortens a trigger.

Pure. Filters are recognised by their class names, so filters of any pyspark version work, and so do
other objects with these class names. Pruned offsets contain no record that passes all filters.
Spark filters the remaining records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from ledger.core.accepted_losses import StreamLosses

_BELOW, _ABOVE = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """The integers from `low` to `high`, inclusive. Empty if `low` is above `high`."""

    low: int = _BELOW
    high: int = _ABOVE

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    def and_(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The bounds of records that may pass all filters. If `topics` is None, any topic may pass."""

    topics: frozenset[str] | None = None
    partitions: Interval = Interval()
    offsets: Interval = Interval()
    times_us: Interval = Interval()

    def narrowed(self, a_range: OffsetRange) -> OffsetRange | None:
        """Return the part of the range that may contain passing records, or None."""
        topic, partition, start, end = a_range
        if self.topics is not None and topic not in self.topics:
            return None
        if partition not in self.partitions:
            return None
        start, end = max(start, self.offsets.low), min(end, self.offsets.high + 1)
        return OffsetRange(topic, partition, start, end) if start < end else None

    def may_hold(self, time_min_ms: int | None, time_max_ms: int | None) -> bool:
        """Return whether a record between these times may pass.

        None means that a time is unknown.
        """
        below = time_max_ms is not None and time_max_ms * 1000 < self.times_us.low
        above = time_min_ms is not None and time_min_ms * 1000 > self.times_us.high
        return not below and not above


def pushed_filters(filters: Iterable[Any]) -> PushedFilters:
    """Combine all filters.

    Filters on columns other than topic, partition, offset and timestamp have no effect.
    """
    found = PushedFilters()
    for each in filters:
        column = _column(each)
        if column == "topic":
            topics = _texts(each)
            if topics is not None:
                known = found.topics
                found = replace(found, topics=topics if known is None else known & topics)
            continue
        interval = _interval(each)
        if interval is None:
            continue
        if column == "partition":
            found = replace(found, partitions=found.partitions.and_(interval))
        elif column == "offset":
            found = replace(found, offsets=found.offsets.and_(interval))
        elif column == "timestamp":
            found = replace(found, times_us=found.times_us.and_(interval))
    return found


def _column(a_filter: Any) -> str | None:
    path = getattr(a_filter, "attribute", None)
    return path[0] if isinstance(path, tuple) and len(path) == 1 else None


def _texts(a_filter: Any) -> frozenset[str] | None:
    kind = type(a_filter).__name__
    if kind in ("EqualTo", "EqualNullSafe") and isinstance(a_filter.value, str):
        return frozenset({a_filter.value})
    if kind == "In" and all(isinstance(value, str) for value in a_filter.value):
        return frozenset(a_filter.value)
    return None


def _interval(a_filter: Any) -> Interval | None:
    kind = type(a_filter).__name__
    if kind == "In":
        numbers = [_number(value) for value in a_filter.value]
        known = [number for number in numbers if number is not None]
        if not known or len(known) < len(numbers):
            return None
        return Interval(min(known), max(known))
    number = _number(getattr(a_filter, "value", None))
    if number is None:
        return None
    made = {
        "EqualTo": Interval(number, number),
        "EqualNullSafe": Interval(number, number),
        "GreaterThan": Interval(low=number + 1),
        "GreaterThanOrEqual": Interval(low=number),
        "LessThan": Interval(high=number - 1),
        "LessThanOrEqual": Interval(high=number),
    }
    return made.get(kind)


def _number(value: Any) -> int | None:
    """Return integers unchanged and times as microseconds. Times without a zone are ignored."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        seconds = int(value.timestamp() // 1)
        return seconds * 1_000_000 + value.microsecond
    return None


def limit_trigger(
    limit: int | None,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    losses: Mapping[TopicPartition, StreamLosses] | None = None,
) -> dict[TopicPartition, int]:
    """Return the end offsets of a trigger that covers about `limit` offsets.

    The limit is divided among the partitions in proportion to their available offsets. Each
    partition with available offsets gets at least one. Offsets whose loss was accepted are passed
    and not counted: millions may be reserved behind a ledger that was closed by force. Source:
    Spark, KafkaMicroBatchStream.rateLimit.
    """
    known = losses or {}
    parts = {p: _readable(starts.get(p, 0), end, known.get(p)) for p, end in ends.items()}
    sizes = {p: sum(high - low for low, high in found) for p, found in parts.items()}
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(ends)
    shares = {partition: max(1, limit * size // total) for partition, size in sizes.items() if size}
    return {
        partition: _after(parts[partition], shares[partition]) if partition in shares else end
        for partition, end in ends.items()
    }


def _readable(start: int, end: int, losses: StreamLosses | None) -> list[tuple[int, int]]:
    """Return the ranges of offsets from `start` to `end` - 1 that are not lost."""
    found: list[tuple[int, int]] = []
    for lost in losses.ranges if losses is not None else ():
        if start < min(end, lost.offsets.first):
            found.append((start, min(end, lost.offsets.first)))
        start = max(start, lost.offsets.last + 1)
    return [*found, (start, end)] if start < end else found


def _after(parts: list[tuple[int, int]], count: int) -> int:
    """Return the offset after the first `count` offsets of these ranges, which have more."""
    for low, high in parts:
        if count <= high - low:
            return low + count
        count -= high - low
    return parts[-1][1]
