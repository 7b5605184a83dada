"""A bound on the work of cold reads in one turn of the event loop: chunks, and their records.

A chunk that the system's page cache holds is read without waiting. Without a bound, the reads of
many clients would run one after the other, and other clients would wait until all have ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Final

CHUNKS_PER_TURN: Final = 1
"""A chunk of 1 MiB takes about a millisecond to read and to verify."""

RECORDS_PER_TURN: Final = 500
"""Records of a chunk that are decoded before its reader waits in line again.

A chunk of 1 MiB may hold thousands of small batches, each of which takes a few microseconds.
"""

READER: Final[ContextVar[str]] = ContextVar("READER", default="")
"""The client address for which the current task reads. Empty for the process itself.

Tasks that it starts, such as a read ahead, inherit it.
"""


class ReadTurns:
    """The chunks that reads of one process may take in this turn. Others wait in their order.

    A chunk takes another place in the order after each `RECORDS_PER_TURN` of its records. Addresses
    are served in turn, and the reads of one address (`READER`) in their order. So the number of
    readers at one address does not delay those of another.
    """

    def __init__(self) -> None:
        # Chunks of this turn that are not taken. 0 while any read waits, so none is overtaken.
        self._left = CHUNKS_PER_TURN
        # The waiting reads of each address, cancelled ones included. The address that was served
        # longest ago comes first. No line is empty.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        # True while `_turn` is scheduled, which is so while any chunk of a turn is taken.
        self._turning = False

    async def take(self) -> None:
        """Wait until one more chunk, or `RECORDS_PER_TURN` more records of one, may be read."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            return
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(READER.get(), deque()).append(waiter)
        await waiter

    def _turn(self) -> None:
        self._left = CHUNKS_PER_TURN
        while self._waiting and self._left:
            waiter = self._next()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        self._turning = self._left < CHUNKS_PER_TURN
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)

    def _next(self) -> asyncio.Future[None]:
        """Remove the first read of the address that was served longest ago."""
        address, line = next(iter(self._waiting.items()))
        waiter = line.popleft()
        if line:
            self._waiting.move_to_end(address)
        else:
            del self._waiting[address]
        return waiter
