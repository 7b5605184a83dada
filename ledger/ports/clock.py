"""The port to time. Wall time is for people; durations are measured with `monotonic_s`."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970. The clock may jump; safety never uses
        it.
        """
        ...

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary start. The value never falls."""
        ...
