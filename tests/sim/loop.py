"""asyncio on virtual time. Waiting is free, so `select` moves the clock instead.

It leans on three private hooks of `BaseEventLoop` (`_selector`, `_process_events`,
`_write_to_self`); tests/sim/test_loop.py pins them. A thread that touches the loop raises.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class SimLoop(asyncio.BaseEventLoop):
    """One simulated machine's loop. `time()` starts at 0 and moves only when all is idle.

    With `order`, the tasks that are ready run in an order drawn from it. Plain callbacks keep
    theirs: asyncio promises it, and code may count on it.
    """

    def __init__(self, order: Random | None = None) -> None:
        super().__init__()
        self._selector = self
        self._now_s = 0.0
        self._order = order

    def time(self) -> float:
        return self._now_s

    def select(self, timeout_s: float | None) -> list[object]:
        if timeout_s is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        self._now_s += max(0.0, timeout_s)
        if self._order is not None and len(self._ready) > 1:
            self._ready = _interleaved(self._ready, self._order)
        return []

    def _process_events(self, events: list[object]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        if threading.get_ident() != self._thread_id:  # an async generator's end comes from here
            raise RuntimeError("a thread touched the simulated loop")


def _interleaved(ready: deque[asyncio.Handle], order: Random) -> deque[asyncio.Handle]:
    """Put the tasks among `ready` into the places of tasks, in another order."""
    places = [number for number, handle in enumerate(ready) if _is_task(handle)]
    if len(places) < 2:
        return ready
    mixed = list(ready)
    drawn = order.sample(places, len(places))
    for place, other in zip(places, drawn, strict=True):
        mixed[place] = ready[other]
    return deque(mixed)


def _is_task(handle: asyncio.Handle) -> bool:
    """True if the handle starts a task or goes on with one. A task is ready once at most."""
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


class SimClock:
    """The `Clock` port on the running loop's virtual time; wall time starts at `epoch_ms`."""

    def __init__(self, epoch_ms: int = 1_700_000_000_000) -> None:
        self.epoch_ms = epoch_ms

    def now_ms(self) -> int:
        return self.epoch_ms + int(asyncio.get_running_loop().time() * 1000)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def simulate(main: Coroutine[Any, Any, T], order: Random | None = None) -> T:
    """Run `main` to its end on virtual time and return its result.

    With `order`, tasks that are ready together run in an order drawn from it.
    """
    with asyncio.Runner(loop_factory=lambda: SimLoop(order)) as runner:
        return runner.run(main)
