"""Counts the turns of the event loop that other tasks get while one coroutine runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


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
