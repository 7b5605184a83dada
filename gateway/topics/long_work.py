"""Runs computations that take long in parts, so that other clients are served in between.

Threads would not help: pure Python holds the interpreter's lock for up to 5 ms at a time, while a
part takes about a millisecond. Compression is not Python and releases the lock. It cannot be cut
into parts of a millisecond at every level, so it runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing
from typing import Any, TypeVar

from gateway.wire.batches import BatchHeader, Compression, with_records
from gateway.wire.steps import result_with_pauses

_CHECKS_AT_ONCE, _SEARCHES_AT_ONCE = 4, 2
"""Computations that run at the same time. Each may hold decompressed records in memory."""

T = TypeVar("T")

Run = Callable[..., Coroutine[Any, Any, Any]]
"""Calls a function with arguments, and returns its result."""


class LongWork:
    """The long computations of one process: checks of records, and searches in them.

    `steps` yields after each part of its work. Searches have permits of their own, so that no
    number of them delays a producer until they end.
    """

    def __init__(self, run: Run = asyncio.to_thread) -> None:
        """`run` calls a function without holding the event loop."""
        self._run = run
        # Held by each running computation of the kind. The others wait in order.
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._searches = asyncio.Semaphore(_SEARCHES_AT_ONCE)

    async def check(self, steps: Generator[None, None, T]) -> T:
        """Return the result of a check of a produced batch."""
        return await _permitted(self._checks, steps)

    async def recompress(
        self, batch: bytes, header: BatchHeader, target: Compression, bytes_max: int
    ) -> bytes:
        """Return a batch that was checked, with another codec. It has a permit of checks.

        Raises BatchRefused if it decompresses to more than `bytes_max`.
        """
        from gateway.wire.recompress import compress, records_steps

        async with self._checks:
            with closing(records_steps(batch, header, bytes_max)) as steps:
                records = await result_with_pauses(steps)
            compressed = await self._run(compress, target, records)
        return with_records(header, target.codec, compressed)

    async def search(self, steps: Generator[None, None, T]) -> T:
        """Return the result of a search in one batch."""
        return await _permitted(self._searches, steps)


async def _permitted(permits: asyncio.Semaphore, steps: Generator[None, None, T]) -> T:
    async with permits:
        with closing(steps):
            return await result_with_pauses(steps)
