"""Asks one after another, and the next one too when those before are late.

The first is awaited in the caller's own task: a prompt answer costs one timer and no task. Only
when it is late do tasks appear, and the first good answer ends all others.
Source: BookKeeper, `DefaultSpeculativeRequestExecutionPolicy.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

R = TypeVar("R")

Ask = Coroutine[Any, Any, R | None]
"""Gives a good answer, or None: the next one is asked at once."""


class SpeculativeRead(Generic[R]):
    """One question to several; runs once."""

    __slots__ = (
        "_ask_next",
        "_beside",
        "_cancelling",
        "_error",
        "_found",
        "_give_up_at_s",
        "_here",
        "_late_s",
        "_late_s_max",
        "_loop",
        "_on_late",
        "_over",
        "_timeout_s",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        ask_next: Callable[[], Ask[R] | None],
        *,
        late_s: float,
        late_s_max: float,
        timeout_s: float,
        on_late: Callable[[], None],
    ) -> None:
        """`ask_next` asks another one, or returns None: all have been asked.

        Without an answer after `late_s`, and then after waits that double up to `late_s_max`,
        one more is asked and `on_late` called. All is over after `timeout_s`.
        """
        self._ask_next = ask_next
        self._late_s = late_s
        self._late_s_max = late_s_max
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._give_up_at_s = 0.0
        self._beside: set[asyncio.Task[R | None]] = set()
        self._here: asyncio.Task[Any] | None = None  # while it awaits an answer itself
        self._cancelling = 0
        self._waiting: asyncio.Future[None] | None = None  # for those beside
        self._found: R | None = None
        self._error: BaseException | None = None
        self._over = False

    async def run(self) -> R | None:
        """The first good answer; None: nobody has one, time is up, or `stop` was called."""
        now_s = self._loop.time()
        self._give_up_at_s = now_s + self._timeout_s
        self._set_timer(now_s)
        try:
            while not self._over:
                asking = self._ask_next()
                if asking is None:
                    break
                found = await self._await_here(asking)
                if found is not None:
                    return found
                if self._over:
                    break
                if self._beside:  # asked already, and now the next one instead of this one too
                    self._ask_beside()
                    break
            if not self._over and self._beside:
                self._waiting = self._loop.create_future()
                await self._waiting
            if self._error is not None:
                raise self._error
            return self._found
        finally:
            self._over = True
            self._timer.cancel()
            for task in self._beside:
                task.cancel()

    def stop(self) -> None:
        """Whoever runs it gets None, unless an answer was there first."""
        self._end()

    async def _await_here(self, asking: Ask[R]) -> R | None:
        """The answer; None also when those beside ended the whole.

        They interrupt this task as `asyncio.timeout` does, and a cancellation by anyone else
        passes, even at the same moment.
        """
        task = asyncio.current_task()
        assert task is not None
        self._here, self._cancelling = task, task.cancelling()
        try:
            return await asking
        except asyncio.CancelledError:
            if not self._over or task.uncancel() > self._cancelling:
                raise
            return None
        finally:
            self._here = None

    def _set_timer(self, now_s: float) -> None:
        at_s = min(now_s + self._late_s, self._give_up_at_s)
        self._late_s = min(2 * self._late_s, self._late_s_max)
        self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        now_s = self._loop.time()
        if now_s >= self._give_up_at_s:
            self._end()
        elif self._ask_beside():
            self._on_late()
            self._set_timer(now_s)
        else:
            self._timer = self._loop.call_at(self._give_up_at_s, self._end)

    def _ask_beside(self) -> bool:
        asking = self._ask_next()
        if asking is None:
            return False
        task = self._loop.create_task(asking)
        self._beside.add(task)
        task.add_done_callback(self._on_answer)
        return True

    def _on_answer(self, task: asyncio.Task[R | None]) -> None:
        self._beside.discard(task)
        if self._over or task.cancelled():
            return
        self._error = task.exception()
        self._found = None if self._error is not None else task.result()
        good = self._error is not None or self._found is not None
        if good or not (self._ask_beside() or self._beside or self._here):
            self._end()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._here is not None:
            self._here.cancel()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
