"""Deadlines of many groups on one timer of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.deadlines import Deadlines
from ledger.ports.clock import Clock
from ledger.tasks import reported


class DeadlineTimer:
    """A timer that calls `on_due` once with each name whose deadline has passed.

    Deadlines are in monotonic milliseconds.
    """

    def __init__(self, clock: Clock, on_due: Callable[[list[str]], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        # The deadline of each name. An entry lasts from `set` until `clear` or until its deadline
        # has passed.
        self._deadlines: Deadlines[str] = Deadlines()
        # The loop's timer for the earliest deadline; None without deadlines. After a `clear` the
        # timer may fire too early, and is then set again.
        self._timer: asyncio.TimerHandle | None = None
        # The time for which `_timer` is set.
        self._timer_at_ms = 0

    def set(self, name: str, at_ms: int) -> None:
        self._deadlines.set(name, at_ms)
        if self._timer is None or at_ms < self._timer_at_ms:
            self._arm(at_ms)

    def clear(self, name: str) -> None:
        self._deadlines.clear(name)

    def stop(self) -> None:
        """Forget all deadlines."""
        self._deadlines = Deadlines()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        wait_s = max(at_ms / 1000 - self._clock.monotonic_s(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        due = self._deadlines.due(int(self._clock.monotonic_s() * 1000))
        if due:
            with reported("a timer of groups"):  # the later deadlines still count
                self._on_due(due)
        at_ms = self._deadlines.next()
        if self._timer is None and at_ms is not None:
            self._arm(at_ms)
