"""A read that tries one bookie after another, and starts a further attempt if one is late.

The first attempt is awaited in the caller's own task: a prompt answer costs one timer and no task.
Attempts get tasks of their own only while another one is late. The first good answer ends all
other attempts.
Source: BookKeeper, `DefaultSpeculativeRequestExecutionPolicy.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

R = TypeVar("R")

Attempt = Coroutine[Any, Any, R | None]
"""Returns a good answer, or None so that the next attempt starts at once."""


class SpeculativeRead(Generic[R]):
    """One read with several attempts, for a single `run`.

    Attempts run in the caller's task, one at a time, until one is late. From then on, further
    attempts run in tasks of their own. If the caller's attempt then fails, the caller only waits
    for the other tasks.
    """

    __slots__ = (
        "_beside",
        "_caller",
        "_cancelling",
        "_error",
        "_give_up_at_s",
        "_late_s",
        "_late_s_max",
        "_loop",
        "_next_attempt",
        "_on_late",
        "_over",
        "_result",
        "_timeout_s",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        next_attempt: Callable[[], Attempt[R] | None],
        *,
        late_s: float,
        late_s_max: float,
        timeout_s: float,
        on_late: Callable[[], None],
    ) -> None:
        """`next_attempt` returns the next attempt, or None if there is none.

        Without an answer after `late_s` seconds, one more attempt starts and `on_late` is called.
        This repeats after waits that double up to `late_s_max`. All attempts end after `timeout_s`.
        """
        self._next_attempt = next_attempt
        # The next wait for an answer, which doubles up to `late_s_max` with each timer.
        self._late_s = late_s
        self._late_s_max = late_s_max
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        # The time of the timeout. Set by `run`.
        self._give_up_at_s = 0.0
        # Attempts in tasks of their own. `run` cancels the remaining ones when it ends.
        self._beside: set[asyncio.Task[R | None]] = set()
        # The caller's task while it awaits an attempt of its own, which `_end` interrupts.
        self._caller: asyncio.Task[Any] | None = None
        # The cancellation count of `_caller` when its attempt began. `_end` adds one; any further
        # cancellation comes from elsewhere.
        self._cancelling = 0
        # The future that the caller awaits when it has no attempt of its own. Resolved by `_end`.
        self._waiting: asyncio.Future[None] | None = None
        # The outcome of an attempt in `_beside`. At most one of `_result` and `_error` is set.
        self._result: R | None = None
        self._error: BaseException | None = None
        # True once an answer, the timeout or `stop` has settled the outcome. Never reset.
        self._over = False

    async def run(self) -> R | None:
        """Return the first good answer, or None if there is none, on timeout and after `stop`."""
        now_s = self._loop.time()
        self._give_up_at_s = now_s + self._timeout_s
        self._set_timer(now_s)
        try:
            while not self._over:
                attempt = self._next_attempt()
                if attempt is None:
                    break
                result = await self._await_in_caller(attempt)
                if result is not None:
                    return result
                if self._over:
                    break
                if self._beside:  # others run already: the next attempt gets its own task
                    self._start_beside()
                    break
            if not self._over and self._beside:
                self._waiting = self._loop.create_future()
                await self._waiting
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            self._over = True
            self._timer.cancel()
            for task in self._beside:
                task.cancel()

    def stop(self) -> None:
        """Let `run` return None, unless it has an answer already."""
        self._end()

    async def _await_in_caller(self, attempt: Attempt[R]) -> R | None:
        """Return the answer, or None also if `_end` interrupted the attempt.

        The interruption is a cancellation, as in `asyncio.timeout`. A cancellation from elsewhere
        propagates, even at the same moment.
        """
        task = asyncio.current_task()
        assert task is not None
        self._caller, self._cancelling = task, task.cancelling()
        try:
            return await attempt
        except asyncio.CancelledError:
            if not self._over or task.uncancel() > self._cancelling:
                raise
            return None
        finally:
            self._caller = None

    def _set_timer(self, now_s: float) -> None:
        at_s = min(now_s + self._late_s, self._give_up_at_s)
        self._late_s = min(2 * self._late_s, self._late_s_max)
        self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        now_s = self._loop.time()
        if now_s >= self._give_up_at_s:
            self._end()
        elif self._start_beside():
            self._on_late()
            self._set_timer(now_s)
        else:
            self._timer = self._loop.call_at(self._give_up_at_s, self._end)

    def _start_beside(self) -> bool:
        attempt = self._next_attempt()
        if attempt is None:
            return False
        task = self._loop.create_task(attempt)
        self._beside.add(task)
        task.add_done_callback(self._on_done)
        return True

    def _on_done(self, task: asyncio.Task[R | None]) -> None:
        self._beside.discard(task)
        if self._over or task.cancelled():
            return
        self._error = task.exception()
        self._result = None if self._error is not None else task.result()
        good = self._error is not None or self._result is not None
        if good or not (self._start_beside() or self._beside or self._caller):
            self._end()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._caller is not None:
            self._caller.cancel()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
