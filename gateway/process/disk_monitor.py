"""Logs why an embedded bookie takes no writes, once for each change.

A bookie that is short of disk space receives no adds, so by itself it would not detect new space.
Source: `ledger.node.storage_node`, which does the same for a bookie process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from gateway.log import logger
from ledger.tasks import start_restarting

_LOOK_S = 1.0
_LOOKS_PER_COLLECTION = 30  # disk space checks for each collection while space is short


class Watched(Protocol):
    """The state of a bookie that the monitor reads."""

    @property
    def bookie_id(self) -> str: ...

    @property
    def writable(self) -> bool: ...

    @property
    def failure(self) -> OSError | None: ...

    @property
    def disk_space(self) -> tuple[int, int]:
        """Return the free bytes at the last check, and the free bytes that make the bookie
        writable.
        """
        ...

    def check_disk_space(self) -> None: ...


class _Standing(Enum):
    WRITABLE = auto()
    SHORT = auto()
    ENDED = auto()


class EmbeddedBookieMonitor:
    """A monitor of embedded bookies, from `start` to `stop`.

    A bookie that is writable at the start is not logged. `collect` runs at intervals while a bookie
    is short of space, because deleted topics may free some space.
    """

    def __init__(
        self, bookies: Sequence[tuple[Path, Watched]], collect: Callable[[], Awaitable[None]]
    ) -> None:
        self._bookies = bookies
        self._collect = collect
        self._known = [_Standing.WRITABLE] * len(bookies)
        self._short_looks = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Log the current state of every bookie, and begin to monitor."""
        self._look()
        self._task = start_restarting("the watch on disk space", self._run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if _Standing.SHORT not in self._known:
                self._short_looks = 0
            else:
                if self._short_looks % _LOOKS_PER_COLLECTION == 0:
                    await self._collect()
                self._short_looks += 1
            await asyncio.sleep(_LOOK_S)
            self._look()

    def _look(self) -> None:
        for index, (data, bookie) in enumerate(self._bookies):
            standing = _look_at(bookie)
            if standing is not self._known[index]:
                self._known[index] = standing
                _say(standing, data, bookie)


def _look_at(bookie: Watched) -> _Standing:
    if bookie.failure is not None:
        return _Standing.ENDED
    bookie.check_disk_space()
    return _Standing.WRITABLE if bookie.writable else _Standing.SHORT


def _say(standing: _Standing, data: Path, bookie: Watched) -> None:
    name = bookie.bookie_id
    free, needed = bookie.disk_space
    match standing:
        case _Standing.WRITABLE:
            logger().warning("writable again", bookie=name, free_bytes=free)
        case _Standing.SHORT:
            logger().warning(
                "short of room: read-only, it takes no writes",
                bookie=name,
                free_bytes=free,
                needed_bytes=needed,
                data=str(data),
                fix="free space on this disk; deleted topics and a shorter retention.ms give some",
            )
        case _Standing.ENDED:
            logger().error(
                "a bookie ended: it takes no writes until the gateway is started again",
                bookie=name,
                reason=str(bookie.failure),
                data=str(data),
                fix="look after this disk, then restart",
            )
