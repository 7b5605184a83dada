"""Runs computations that take long in parts, so that other clients are served in between.

Threads would not help: pure Python holds the interpreter's lock for up to 5 ms at a time, while a
part takes about a millisecond. Compression is not Python and releases the lock. It cannot be cut
into parts of a millisecond at every level, so it runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing
from typing import Any, TypeVar

from gateway.wire.batches import BatchHeader, Compression, with_records
from gateway.wire.steps import result_with_pauses
from ledger.tasks import in_thread, start_once

_CHECKS_AT_ONCE, _SEARCHES_AT_ONCE, _COMPRESSIONS_AT_ONCE = 4, 2, 2
"""Computations that run at the same time. Each may hold decompressed records in memory."""

GROWTH_MAX = 64 * 1024 * 1024
"""Bytes by which batches that wait for bookies may exceed what clients sent, in one process."""

T = TypeVar("T")

Run = Callable[..., Coroutine[Any, Any, Any]]
"""Calls a function with arguments, and returns its result."""


class LongWork:
    """The long computations of one process: checks of records, and searches in them.

    `steps` yields after each part of its work. Searches have permits of their own, so that no
    number of them delays a producer until they end.
    """

    def __init__(self, run: Run = in_thread) -> None:
        """`run` calls a function without holding the event loop."""
        self._run = run
        self.growth = Growth()
        # Held by each running computation of the kind. The others wait in order.
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._searches = asyncio.Semaphore(_SEARCHES_AT_ONCE)
        self._compressions = asyncio.Semaphore(_COMPRESSIONS_AT_ONCE)

    async def check(self, steps: Generator[None, None, T]) -> T:
        """Return the result of a check of a produced batch."""
        return await _permitted(self._checks, steps)

    async def recompress(
        self, batch: bytes, header: BatchHeader, target: Compression, bytes_max: int
    ) -> bytes:
        """Return a batch that was checked, with another codec.

        If the caller is cancelled, the permit stays taken until the thread has ended. Raises
        BatchRefused if the batch decompresses to more than `bytes_max`.
        """
        from gateway.wire.recompress import compress, records_steps

        await self._compressions.acquire()
        compressing: asyncio.Task[bytes] | None = None
        try:
            records = await _permitted(self._checks, records_steps(batch, header, bytes_max))
            work = self._run(compress, target, records)
            compressing = start_once("a compression", work, expected=Exception)
            compressing.add_done_callback(lambda _: self._compressions.release())
            return with_records(header, target.codec, await asyncio.shield(compressing))
        finally:
            if compressing is None:
                self._compressions.release()

    async def search(self, steps: Generator[None, None, T]) -> T:
        """Return the result of a search in one batch."""
        return await _permitted(self._searches, steps)


async def _permitted(permits: asyncio.Semaphore, steps: Generator[None, None, T]) -> T:
    async with permits:
        with closing(steps):
            return await result_with_pauses(steps)


class Growth:
    """The bytes by which compressed batches exceed what was sent, until they are answered."""

    def __init__(self, bytes_max: int = GROWTH_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # Batches that wait for room, in order.
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take_now(self, size: int) -> bool:
        """Count `size` bytes until `give_back`. Returns False if there is no room."""
        if self._bytes and self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        return True

    async def take(self, size: int) -> None:
        """Wait for room, and count `size` bytes until `give_back`."""
        while not self.take_now(size):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def give_back(self, size: int) -> None:
        """Free `size` bytes. All that wait look again, in order."""
        self._bytes -= size
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
