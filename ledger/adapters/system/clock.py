"""The clock port on the machine's clocks."""

from __future__ import annotations

import time
from typing import Final


class SystemClock:
    """The wall clock of this machine, and its monotonic clock, which counts suspended time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return monotonic_s()


def monotonic_s() -> float:
    """Return the seconds since this machine started, with the time for which it was suspended.

    `time.monotonic` stands still meanwhile, but the sessions at ZooKeeper expire all the same.
    """
    return time.clock_gettime(_RUNNING)


_RUNNING: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
