"""Turns for opening partitions: a bounded number at once, in the order of `OpeningOrder`.

A takeover makes thousands of partitions due at the same moment. An opening has two parts, each with
turns of its own: the list of segments is read, which shows how recently the partition was written;
then its ledgers are recovered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Hashable
from contextlib import asynccontextmanager, contextmanager

from gateway.core.opening_order import OpeningOrder

LISTS_AT_ONCE = 64
RECOVERIES_AT_ONCE = 64
ASKED_MORE = 64
"""Turns beyond those numbers for partitions that requests wait for."""

OTHERS_AT_ONCE = 8
AWAITED_S = 2.0
"""Others get at most `OTHERS_AT_ONCE` turns for these seconds of a request's wait."""


class Turns:
    """Up to `at_once` turns, and `ASKED_MORE` for keys that are asked for.

    There are fewer of them while `awaited` has anything.
    """

    def __init__(self, at_once: int, awaited: set[object] | None = None) -> None:
        self._at_once = at_once
        self._awaited = set[object]() if awaited is None else awaited
        self._order: OpeningOrder[Hashable] = OpeningOrder()
        # The waiting callers of `turn`, by key. Each key is in `_order` as well.
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        # The number of turns that were given and have not ended.
        self._given = 0

    @asynccontextmanager
    async def turn(self, key: Hashable, *, asked: bool, recency: int = 0) -> AsyncGenerator[None]:
        """Wait for a turn, which lasts as long as the context. One per key at a time."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiter
        self._order.add(key, asked=asked, recency=recency)
        self.give()
        try:
            await waiter
            yield
        finally:
            if self._waiting.pop(key, None) is None:
                self._given -= 1
            else:
                self._order.discard(key)
            self.give()

    def ask(self, key: Hashable) -> None:
        """Move a waiting key to the front. Does nothing for any other key."""
        self._order.ask(key)
        self.give()

    def give(self) -> None:
        """Give the turns that are free. The owner of `awaited` calls it after each change."""
        order = self._order
        at_once = min(OTHERS_AT_ONCE, self._at_once) if self._awaited else self._at_once
        while order and self._given < at_once + order.asked * ASKED_MORE:
            self._given += 1
            waiter = self._waiting.pop(order.take())
            if not waiter.done():  # otherwise its caller was cancelled, and ends its turn
                waiter.set_result(None)


class OpeningTurns:
    """The turns of all partitions of one process."""

    def __init__(self) -> None:
        # One for each request that has begun to wait within the last `AWAITED_S`.
        self._awaited = set[object]()
        self.lists = Turns(LISTS_AT_ONCE, self._awaited)
        self.recoveries = Turns(RECOVERIES_AT_ONCE, self._awaited)

    def ask(self, key: Hashable) -> None:
        """Move a partition to the front, wherever it waits: a request waits for it."""
        self.lists.ask(key)
        self.recoveries.ask(key)

    @contextmanager
    def awaited(self) -> Generator[None]:
        """While a request waits, let few others begin: each of its steps waits for theirs.

        This ends after `AWAITED_S`, so that a partition that cannot open delays nothing for long.
        """
        request = object()
        self._awaited.add(request)
        timer = asyncio.get_running_loop().call_later(AWAITED_S, self._wait_over, request)
        try:
            yield
        finally:
            timer.cancel()
            self._wait_over(request)

    def _wait_over(self, request: object) -> None:
        self._awaited.discard(request)
        if not self._awaited:
            self.lists.give()
            self.recoveries.give()
