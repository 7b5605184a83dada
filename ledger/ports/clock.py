"""The port to time, and a count of times that were measured.

Wall time is for people; durations are measured with `monotonic_s`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, Protocol

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)
"""Upper bounds of the classes of a `Histogram`, in seconds."""

measured_s: Final[Callable[[], float]] = time.monotonic
"""Returns monotonic seconds, to measure how long something took, for people. It decides nothing
but when long work on the loop lets other tasks run, and when a thread waits no longer for the token
of a login.

The clock of a loop counts whole milliseconds, and stands still during a callback.
"""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970. The clock may jump; safety never uses
        it.
        """
        ...

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary start. The value never falls."""
        ...


class Histogram:
    """A count of times by classes, in plain integers: one bisect for each time."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        # Times of each class; the last number counts all that are above the last bound.
        self.counts = [0] * (len(bounds) + 1)
        # Sum of all times.
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds
