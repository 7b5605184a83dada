"""Turns for opening partitions: a bounded number at once, in the order of `OpeningOrder`.

A takeover makes thousands of partitions due at the same moment. An opening has two parts, each with
turns of its own: the list of segments is read, which shows how recently the partition was written;
then its ledgers are recovered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

from gateway.core.opening_order import OpeningOrder

LISTS_AT_ONCE = 64
RECOVERIES_AT_ONCE = 64
ASKED_MORE = 64
"""Turns beyond those numbers for partitions that requests wait for."""


class Turns:
    """Up to `at_once` turns, and `ASKED_MORE` for keys that are asked for."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
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
        self._give()
        try:
            await waiter
            yield
        finally:
            if self._waiting.pop(key, None) is None:
                self._given -= 1
            else:
                self._order.discard(key)
            self._give()

    def ask(self, key: Hashable) -> None:
        """Move a waiting key to the front. Does nothing for any other key."""
        self._order.ask(key)
        self._give()

    def _give(self) -> None:
        order = self._order
        while order and self._given < self._at_once + order.asked * ASKED_MORE:
            self._given += 1
            waiter = self._waiting.pop(order.take())
            if not waiter.done():  # otherwise its caller was cancelled, and ends its turn
                waiter.set_result(None)


class OpeningTurns:
    """The turns of all partitions of one process."""

    def __init__(self) -> None:
        self.lists = Turns(LISTS_AT_ONCE)
        self.recoveries = Turns(RECOVERIES_AT_ONCE)

    def ask(self, key: Hashable) -> None:
        """Move a partition to the front, wherever it waits: a request waits for it."""
        self.lists.ask(key)
        self.recoveries.ask(key)
