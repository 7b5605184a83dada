"""The formulas of figures: lag, growth, rates and sums. Pure.

Commands, the page, its JSON and the metrics compute each figure here, so that they agree. None is
unknown, and is never counted as 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

Number = TypeVar("Number", int, float)

_MS: Final = 1000


def first_unread(committed: int, start: int | None) -> int:
    """Return the offset of the first record that a group has not read.

    A committed offset below the start of the log counts from the start: the records between were
    deleted. `start` is None if it is unknown.
    """
    return committed if start is None else max(committed, start)


def lag_in_records(committed: int, start: int | None, end: int | None) -> int | None:
    """Return the records from a committed offset to the end of the log, None without the end."""
    return None if end is None else max(0, end - first_unread(committed, start))


def age_s(time_ms: int | None, now_ms: int) -> float | None:
    """Return the lag in seconds: the age of the first record not yet read, at least 0."""
    return None if time_ms is None else round(max(0, now_ms - time_ms) / _MS, 3)


def growth(before: int | None, now: int | None) -> int | None:
    """Return how many records or bytes were written between two looks.

    Returns None if one is unknown, or if the count went back: the topic was created anew.
    """
    if before is None or now is None or now < before:
        return None
    return now - before


def rate(grown: int | None, over_s: float) -> float | None:
    """Return the growth per second, None if the growth or its time is unknown."""
    return None if grown is None or over_s <= 0 else round(grown / over_s, 3)


def total(values: Iterable[Number | None]) -> Number | None:
    """Return the sum, None if one of the values is unknown. The sum of none is 0."""
    found: Number | None = None
    for value in values:
        if value is None:
            return None
        found = value if found is None else found + value
    return 0 if found is None else found


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest value, None if one of them is unknown. The largest of none is 0.

    The lag of a group in seconds is the largest of its partitions.
    """
    found = 0.0
    for value in values:
        if value is None:
            return None
        found = max(found, value)
    return found


def by_size(value: float | None, name: str) -> tuple[float, str]:
    """Return the key by which rows are sorted: the largest value first, unknown ones last."""
    return (1.0 if value is None else -float(value), name)
