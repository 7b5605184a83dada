"""Counts turns of the event loop, and tasks, while one coroutine runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
N = TypeVar("N", int, float)


async def turns_during(work: Awaitable[T]) -> tuple[T, int]:
    """Return the result of `work`, and how often another task ran meanwhile.

    On virtual time the clock stands still meanwhile, so `work` must not wait for a timer.
    """
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        result = await work
        return result, turns
    finally:
        counting.cancel()


async def longest_turn_s_during(work: Awaitable[T]) -> tuple[T, float]:
    """Return the result of `work`, and the most processor time before another task ran."""
    return await most_between_turns(work, time.thread_time)


async def more_tasks_during(work: Awaitable[T]) -> tuple[T, int]:
    """Return the result of `work`, and the most tasks at once beyond those before it."""
    before, most = len(asyncio.all_tasks()), 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0.0001)

    counting = asyncio.ensure_future(count())
    try:
        result = await work
        return result, most - before
    finally:
        counting.cancel()


async def most_between_turns(work: Awaitable[T], count: Callable[[], N]) -> tuple[T, N]:
    """Return the result of `work`, and the most that `count()` rose before another task ran."""
    before = count()
    most = before - before

    def look() -> None:
        nonlocal before, most
        now = count()
        before, most = now, max(most, now - before)

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    try:
        result = await work
        look()
        return result, most
    finally:
        watching.cancel()
