"""Detects that this process stood still: it was stopped or swapped out, or its machine paused.

During a stall another broker may have taken over, and a reply that was decided earlier may be
outdated. The lease is checked before a reply is decided. The stall detector covers the time from
the decision to the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledger.tasks import reported


class StallDetector:
    """A timer that calls `on_stall` if it wakes up too late. It runs from `start` to `stop`."""

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
        """Start to wake up regularly. Called once."""
        assert self._timer is None
        self._woken_s = self._loop.time()
        self._wake()

    def stop(self) -> None:
        """Stop waking up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stalled(self) -> bool:
        """True if the last wake-up is so long ago that another broker may have taken over."""
        return self._loop.time() - self._woken_s > self._stall_s_max

    def _wake(self) -> None:
        if self.stalled():
            with reported("the check after a stall"):
                self._on_stall()
        self._woken_s = self._loop.time()
        self._timer = self._loop.call_later(self._stall_s_max / 2, self._wake)
