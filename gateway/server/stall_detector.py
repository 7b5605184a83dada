"""Detects that this process stood still: it was stopped or swapped out, or its machine paused.

Meanwhile another broker may have taken over, and a reply that was decided before may be outdated.
A lease is checked before a reply is decided; the stall detector covers the time from there to the
socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class StallDetector:
    """Wakes up regularly from `start` to `stop`, and calls `on_stall` if it woke up too late."""

    __slots__ = ("_loop", "_on_stall", "_stall_s_max", "_timer", "_woken_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stall_s_max: float, on_stall: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._stall_s_max = stall_s_max
        self._on_stall = on_stall
        # The loop's time at the last wake-up. Never falls.
        self._woken_s = loop.time()
        # The next wake-up. None before `start` and after `stop`.
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Wake up regularly from now on. Once."""
        assert self._timer is None
        self._woken_s = self._loop.time()
        self._wake()

    def stop(self) -> None:
        """Wake up no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stalled(self) -> bool:
        """True if the last wake-up is so long ago that another broker may have taken over."""
        return self._loop.time() - self._woken_s > self._stall_s_max

    def _wake(self) -> None:
        if self.stalled():
            self._on_stall()
        self._woken_s = self._loop.time()
        self._timer = self._loop.call_later(self._stall_s_max / 2, self._wake)
