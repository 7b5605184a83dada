"""Rings of points over time, for plots: 10 s apart for an hour, and 60 s apart for a day. Pure.

A point belongs to a slot of wall time, so that the points of several gateways fit together. A slot
without a point is unknown, never 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from typing import Final, NamedTuple

Point = float | None


class Step(NamedTuple):
    """How far apart points are, and how many are kept."""

    seconds: int
    points: int


FINE: Final = Step(10, 360)  # an hour
COARSE: Final = Step(60, 1_440)  # a day
_PER_COARSE: Final = COARSE.seconds // FINE.seconds
_DIGITS: Final = 7  # of a number with 32 bits


def slot_of(at_ms: int, step: Step) -> int:
    """Return the number of the slot that holds this time."""
    return at_ms // (1_000 * step.seconds)


class Ring:
    """The newest points of `width` numbers each. A number of a point may be unknown."""

    __slots__ = ("_count", "_newest", "_values", "_width")

    def __init__(self, count: int, width: int = 1) -> None:
        self._count, self._width = count, width
        self._values = array("f", [nan]) * (count * width)
        # The slot of the newest point. Meaningless before the first.
        self._newest: int | None = None

    @property
    def newest(self) -> int | None:
        """Return the slot of the newest point, None before the first."""
        return self._newest

    @property
    def size_bytes(self) -> int:
        return self._values.itemsize * len(self._values)

    def put(self, slot: int, numbers: Sequence[Point]) -> None:
        """Set the point of a slot. Slots that were left out have none.

        A clock that was set back makes the ring begin anew.
        """
        assert len(numbers) == self._width
        newest = self._newest
        if newest is None or slot < newest or slot >= newest + self._count:
            if newest is not None:
                self._forget(range(self._count))
        else:
            self._forget(range(newest + 1, slot + 1))
        self._newest = slot
        at = slot % self._count * self._width
        for index, number in enumerate(numbers):
            self._values[at + index] = nan if number is None else number

    def points(self, last: int, count: int) -> list[list[Point]]:
        """Return the points of `count` slots up to `last`, oldest first."""
        return [self._point(slot) for slot in range(last - count + 1, last + 1)]

    def _point(self, slot: int) -> list[Point]:
        newest = self._newest
        if newest is None or not newest - self._count < slot <= newest:
            return [None] * self._width
        at = slot % self._count * self._width
        return [_shown(number) for number in self._values[at : at + self._width]]

    def _forget(self, slots: Iterable[int]) -> None:
        nothing = array("f", [nan]) * self._width
        for slot in slots:
            at = slot % self._count * self._width
            self._values[at : at + self._width] = nothing


def _shown(number: float) -> Point:
    """Return a number of 32 bits without digits that it does not have."""
    return None if isnan(number) else float(f"{number:.{_DIGITS}g}")


class Series:
    """A ring of each step. A coarse point is made of the fine ones of its time."""

    __slots__ = ("_coarse", "_fine", "_sums")

    def __init__(self, width: int = 1, *, sums: bool = False) -> None:
        """With `sums` a coarse point is the sum of fine ones, otherwise their mean."""
        self._fine, self._coarse = Ring(FINE.points, width), Ring(COARSE.points, width)
        self._sums = sums

    @property
    def newest_ms(self) -> int | None:
        """Return the begin of the newest fine slot with a point, None without one."""
        slot = self._fine.newest
        return None if slot is None else slot * FINE.seconds * 1_000

    @property
    def size_bytes(self) -> int:
        return self._fine.size_bytes + self._coarse.size_bytes

    def put(self, at_ms: int, numbers: Sequence[Point]) -> None:
        """Add a point. The coarse point of this time is made anew of what is there."""
        slot = slot_of(at_ms, FINE)
        self._fine.put(slot, numbers)
        first = slot - slot % _PER_COARSE
        rows = self._fine.points(slot, slot - first + 1)
        numbers = [self._joined(column) for column in zip(*rows, strict=True)]
        self._coarse.put(slot // _PER_COARSE, numbers)

    def points(self, last: int, step: Step, count: int | None = None) -> list[list[Point]]:
        """Return the points of `count` slots of a step up to the slot `last`, by default all."""
        ring = self._fine if step is FINE else self._coarse
        return ring.points(last, step.points if count is None else count)

    def _joined(self, numbers: Sequence[Point]) -> Point:
        known = [number for number in numbers if number is not None]
        if not known:
            return None
        return sum(known) if self._sums else sum(known) / len(known)


def quantile(counts: Sequence[Point], bounds: Sequence[float], share: float) -> Point:
    """Return a quantile of a histogram by its counts, as Prometheus does: linear in a class.

    Counts of several gateways are added before: quantiles cannot be averaged. Returns None without
    a count. A quantile in the last class, which has no end, is the last bound.
    """
    known = [count or 0.0 for count in counts]
    total = sum(known)
    if not total:
        return None
    wanted = share * total
    sums: list[float] = []
    for count in known:
        sums.append((sums[-1] if sums else 0.0) + count)
    at = min(bisect_left(sums, wanted), len(known) - 1)
    if at >= len(bounds):
        return float(bounds[-1])
    low = bounds[at - 1] if at else 0.0
    before = sums[at - 1] if at else 0.0
    part = (wanted - before) / known[at] if known[at] else 1.0
    return low + (bounds[at] - low) * part


def added(lines: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the sum at each place: what several gateways did. Unknown ones count as nothing.

    A place that all of them lack is unknown.
    """
    return [
        None if all(point is None for point in points) else sum(point or 0.0 for point in points)
        for points in zip(*lines, strict=True)
    ]


def any_of(lines: Sequence[Sequence[Point]]) -> list[Point]:
    """Return at each place what one of several gateways saw of the same thing: the largest.

    It is for a group or a bookie, which more than one may have looked at. They are never added.
    """
    return [
        max((point for point in points if point is not None), default=None)
        for points in zip(*lines, strict=True)
    ]


def named(found: Mapping[str, Sequence[Point]]) -> list[dict[str, object]]:
    """Return lines by name as the JSON of a history has them."""
    return [{"name": name, "points": list(points)} for name, points in found.items()]
