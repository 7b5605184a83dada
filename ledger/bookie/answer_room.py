"""A bound on the bytes of answers to reads, of all clients of a bookie together.

    take(size) ─▶ read the file ─▶ answer waits for its client ─▶ written to the connection ─▶ free

Bytes are taken before a file is read. If there is no room for a while, the read is refused. The
answer to a fence comes first and has a reserve: its fence is durable already, and a refusal would
count as a failed fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Bytes beyond the bound for the answers to fences. The largest entry has room there."""


class AnswerRoom:
    """The bytes of answers that one process may hold. Shares wait for room in order."""

    def __init__(self, bytes_max: int, wait_s: float, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._reserve_bytes = reserve_bytes
        self._wait_s = wait_s
        # Bytes taken and not given back. At most the bound and the reserve, except for one larger
        # answer alone.
        self.used = 0
        # Shares that wait with their sizes, oldest first. One that gave up is cancelled, and
        # removed when it is the oldest.
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        # Those of answers to fences, which come before the others.
        self._fences: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, size: int, *, fence: bool = False) -> bool:
        """Count `size` bytes, once they have room. Returns False if they have none for too long."""
        waiters = self._fences if fence else self._waiters
        if not self._fences and (fence or not waiters) and self._has_room(size, fence=fence):
            self.used += size
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append((waiter, size))
        try:
            await asyncio.wait([waiter], timeout=self._wait_s)
        except asyncio.CancelledError:
            self._leave(waiter, size)
            raise
        if waiter.done():
            return True
        self._leave(waiter, size)
        return False

    def give_back(self, size: int) -> None:
        """Free `size` bytes for those who wait."""
        self.used -= size
        self._admit()

    def _has_room(self, size: int, *, fence: bool) -> bool:
        bound = self._bytes_max + self._reserve_bytes if fence else self._bytes_max
        return self.used == 0 or self.used + size <= bound

    def _admit(self) -> None:
        if self._admit_from(self._fences, fence=True):
            self._admit_from(self._waiters, fence=False)

    def _admit_from(self, waiters: deque[tuple[asyncio.Future[None], int]], *, fence: bool) -> bool:
        """Admit those that have room, in order. Returns True if none is left."""
        while waiters:
            waiter, size = waiters[0]
            if not waiter.done():
                if not self._has_room(size, fence=fence):
                    return False
                self.used += size
                waiter.set_result(None)
            waiters.popleft()
        return True

    def _leave(self, waiter: asyncio.Future[None], size: int) -> None:
        """End the wait of one share. The next one may fit where it did not."""
        if waiter.done():
            self.give_back(size)
        else:
            waiter.cancel()
            self._admit()


class AnswerShare:
    """The bytes that one answer holds of the room, until it is written or dropped."""

    __slots__ = ("_fence", "_room", "size")

    def __init__(self, room: AnswerRoom, *, fence: bool = False) -> None:
        """With `fence` its bytes come before those of other shares, and may use the reserve."""
        self._room = room
        self._fence = fence
        # Bytes taken for this answer. 0 before `take` and after `give_back`.
        self.size = 0

    async def take(self, size: int) -> bool:
        """Take `size` bytes more. Returns False if there is no room: read nothing then."""
        if not await self._room.take(size, fence=self._fence):
            return False
        self.size += size
        return True

    def give_back(self) -> None:
        """Free what was taken. Further calls do nothing."""
        size, self.size = self.size, 0
        if size:
            self._room.give_back(size)


Share = AnswerShare | None
"""The share of an answer, or None for a caller in the same process."""
