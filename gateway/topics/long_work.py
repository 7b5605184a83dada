"""Runs computations that take long in parts, so that other clients are served in between.

Threads would not help: pure Python holds the interpreter's lock for up to 5 ms at a time, while a
part takes about a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

_AT_ONCE = 4
"""Computations that run at the same time. Each may hold decompressed records in memory."""

T = TypeVar("T")


class LongWork:
    """The long computations of one process: checks of records, and searches in them."""

    def __init__(self) -> None:
        # Held by each running computation. The others wait in order.
        self._permits = asyncio.Semaphore(_AT_ONCE)

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Return the result of `steps`, which yields after each part of its work."""
        async with self._permits:
            with closing(steps):
                return await _result_in_turns(steps)


async def _result_in_turns(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)
