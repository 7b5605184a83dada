"""Runs computations that take long in parts, so that other clients are served in between.

Threads would not help: pure Python holds the interpreter's lock for up to 5 ms at a time, while a
part takes about a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from gateway.wire.steps import result_with_pauses

_CHECKS_AT_ONCE, _SEARCHES_AT_ONCE = 4, 2
"""Computations that run at the same time. Each may hold decompressed records in memory."""

T = TypeVar("T")


class LongWork:
    """The long computations of one process: checks of records, and searches in them.

    `steps` yields after each part of its work. Searches have permits of their own, so that no
    number of them delays a producer until they end.
    """

    def __init__(self) -> None:
        # Held by each running computation of the kind. The others wait in order.
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._searches = asyncio.Semaphore(_SEARCHES_AT_ONCE)

    async def check(self, steps: Generator[None, None, T]) -> T:
        """Return the result of a check of a produced batch."""
        return await _permitted(self._checks, steps)

    async def search(self, steps: Generator[None, None, T]) -> T:
        """Return the result of a search in one batch."""
        return await _permitted(self._searches, steps)


async def _permitted(permits: asyncio.Semaphore, steps: Generator[None, None, T]) -> T:
    async with permits:
        with closing(steps):
            return await result_with_pauses(steps)
