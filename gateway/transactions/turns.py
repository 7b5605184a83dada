"""Cuts the work of all coordinators of a process into turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ledger.tasks import reported

PER_TURN = 250
"""Ids and partitions that are handled in one turn of the loop: about 10 ms."""


class Turns:
    """Runs work at once while the turn has room for it, and otherwise in later turns, in order.

    Records of many partitions become durable at the same moment, so that a bound for each partition
    would not bound the turn. The queue is bounded: one batch of records for each partition.
    """

    def __init__(self) -> None:
        # The room that is left in the present turn of the loop. May be below 0 after heavy work.
        self._left = PER_TURN
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._due = False  # True while `_next` is scheduled

    def run(self, weight: int, work: Callable[[], None]) -> None:
        """Run the work now or in a later turn, behind all work that waits."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._waiting or self._left <= 0:
            self._waiting.append((weight, work))
        else:
            self._left -= weight
            work()

    def _next(self) -> None:
        self._due = False
        self._left = PER_TURN
        while self._waiting and self._left > 0:
            weight, work = self._waiting.popleft()
            self._left -= weight
            with reported("the records of a transaction coordinator"):
                work()
        if self._waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)
