"""The port to time. Wall time is for what people see; durations come from `monotonic_s`."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970. May jump; no safety rests on it."""
        ...

    def monotonic_s(self) -> float:
        """Never falls. Seconds from an arbitrary start."""
        ...
