"""The memory of replies, as a read takes it: reserved before the read begins.

    reserved = memory.offer(wanted)
    await memory.take(reserved)
    (read at most `reserved` bytes)
    memory.correct(reserved, size)
    return ReservedReply(buffers, size, memory)

The connection that queues a `ReservedReply` counts its bytes itself from then on, until they are
written to the socket, and returns the reservation. A reply that no connection receives returns its
reservation when it is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from gateway.core.memory_share import MemoryShare
from ledger.ids import Buffer

UNCOUNTED_BYTES: Final = 64 * 1024
"""Fewer bytes than this are not counted while they are sent to a peer that reads."""


class ReplyMemory(MemoryShare):
    """The share of replies, with an awaitable `take`."""

    __slots__ = ()

    async def take(self, count: int, address: str = "") -> None:
        """Take `count` bytes, after the takers of this address that wait already.

        Takes nothing if cancelled.
        """
        if self.try_take(count):
            return
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[None] = loop.create_future()

        def on_taken() -> bool:
            if taken.done():
                return False
            taken.set_result(None)
            return True

        taker = self.line_up(count, on_taken, loop.time(), address)
        try:
            await taken
        except asyncio.CancelledError:
            if taken.cancelled():
                self.leave(taker)
            else:  # cancelled in the turn of the loop in which the bytes were taken
                self.give(count)
            raise


class ReservedReply(list[Buffer]):
    """The buffers of a reply, and the bytes that are reserved for them until `release`."""

    __slots__ = ("_memory", "reserved_bytes")

    def __init__(self, buffers: Iterable[Buffer], reserved_bytes: int, memory: MemoryShare) -> None:
        super().__init__(buffers)
        # 0 after `release`.
        self.reserved_bytes = reserved_bytes
        self._memory = memory

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Return the reservation, once."""
        reserved, self.reserved_bytes = self.reserved_bytes, 0
        if reserved:
            self._memory.give(reserved)
