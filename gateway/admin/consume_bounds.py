"""Where `topic consume` begins and ends, as users write it: offsets, counts, times, partitions.

Pure. Every function raises ValueError with a message that shows the accepted form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.admin.notation import read_duration, read_time
from ledger.command_line import units

_NUMBER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_PARTITIONS = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)
_MILLISECONDS = re.compile(r"\d{13}", re.ASCII)
_FORMS: Final = (
    "start, end, an offset such as 42, -10, +10, @2026-05-01T12:00, @1777636800000 or @-1h"
)
PARTITIONS_MAX: Final = 100_000


class Bound(NamedTuple):
    """A place in a log.

    `kind` is start, end, offset, before (`number` records before the end), after (`number` records
    after the start) or time (`number` is in milliseconds since 1970).
    """

    kind: str
    number: int = 0


START: Final = Bound("start")
END: Final = Bound("end")


class LogRange(NamedTuple):
    """The first offset of a partition and the one behind its last."""

    first: int
    end: int


class OutOfRange(ValueError):
    """An offset that the log does not have."""


def read_bound(word: str, now_ms: int) -> Bound:
    """Parse `start`, `end`, `N`, `-N`, `+N`, `@TIME`, `@MILLISECONDS` or `@-DURATION`."""
    if word in ("start", "end"):
        return Bound(word)
    if word.startswith("@"):
        return Bound("time", max(_moment(word[1:], now_ms), 0))
    if not _NUMBER.fullmatch(word):
        raise ValueError(f"must be {_FORMS}")
    number = abs(int(word))
    if number > units.INT64_MAX:
        raise ValueError(f"must be at most {units.INT64_MAX}")
    return Bound({"-": "before", "+": "after"}.get(word[0], "offset"), number)


def _moment(word: str, now_ms: int) -> int:
    if word.startswith("-"):
        return now_ms - read_duration(word[1:])
    if _MILLISECONDS.fullmatch(word):
        return int(word)
    try:
        return read_time(word)
    except OverflowError:
        raise ValueError(f"{word!r} is not a time that can be counted") from None


def is_behind(start: Bound, stop: Bound) -> bool:
    """Return True if `start` is behind `stop` in every log."""
    if (start.kind, stop.kind) == ("end", "start"):
        return True
    if start.kind != stop.kind:
        return False
    later = start.number - stop.number
    return (-later if start.kind == "before" else later) > 0


def place(bound: Bound, log: LogRange, at_time: int | None) -> int:
    """Return the offset of `bound` in this log.

    `at_time` is the first offset since the bound's time, or None if no record is as new. Raises
    OutOfRange for an offset that the log does not have.
    """
    first, end = log
    if bound.kind == "start":
        return first
    if bound.kind == "end":
        return end
    if bound.kind == "before":
        return max(first, end - bound.number)
    if bound.kind == "after":
        return min(end, first + bound.number)
    if bound.kind == "time":
        return end if at_time is None else min(max(at_time, first), end)
    if bound.number < first:
        raise OutOfRange(below(bound.number, log))
    return bound.number


def below(offset: int, log: LogRange) -> str:
    """Describe an offset below the first."""
    return f"offset {offset} is below the first, {log.first} (the log ends at {log.end})"


def past(offset: int, log: LogRange) -> str:
    """Describe an offset behind the end."""
    return f"offset {offset} is past the end, {log.end} (the log begins at {log.first})"


def limits(start: Bound, stop: Bound, log: LogRange, times: Mapping[Bound, int]) -> LogRange:
    """Return the offsets to read: from the first up to, not including, the end.

    Raises OutOfRange if the log has no such beginning. An end that the log does not have is
    brought to its nearest offset.
    """
    begin = place(start, log, times.get(start))
    if begin > log.end:
        raise OutOfRange(past(begin, log))
    try:
        end = min(place(stop, log, times.get(stop)), log.end)
    except OutOfRange:
        end = log.first
    return LogRange(begin, max(begin, end))


def read_partitions(word: str) -> Sequence[int]:
    """Parse `0,2-4`: partitions and ranges of them, ends included."""
    found: dict[int, None] = {}
    for part in word.split(","):
        match = _PARTITIONS.fullmatch(part.strip())
        if match is None:
            raise ValueError("must be partitions such as 0,2-4")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if not first <= last <= units.INT32_MAX or last - first >= PARTITIONS_MAX:
            raise ValueError("must be partitions such as 0,2-4, the smaller number first")
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def show_partitions(indexes: Sequence[int]) -> str:
    """Return partitions as `read_partitions` parses them."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
