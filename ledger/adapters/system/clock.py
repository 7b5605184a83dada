"""The clock port on the machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """The wall clock and the monotonic clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
