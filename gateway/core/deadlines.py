"""Keeps many deadlines in one heap. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """At most one deadline for each key, in any unit of time.

    A later deadline costs no heap operation. The heap keeps the old time, and the key is put back
    when the old time comes. So a heartbeat is one dictionary write.
    """

    __slots__ = ("_at", "_heap", "_listed", "_number")

    def __init__(self) -> None:
        # The deadline of each key.
        self._at: dict[K, int] = {}
        # The number of the valid heap entry of each key. Has the same keys as `_at`.
        self._listed: dict[K, int] = {}
        # Heap of (time, number, key). The time of a valid entry is not later than the deadline of
        # its key. Other entries are skipped when they reach the top.
        self._heap: list[tuple[int, int, K]] = []
        # The number of the newest heap entry. Rises by one with each entry.
        self._number = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: int) -> None:
        """Set or replace the deadline of a key."""
        before = self._at.get(key)
        self._at[key] = at
        if before is None or at < before:
            self._list(key, at)

    def clear(self, key: K) -> None:
        """Remove the deadline of a key, if it has one."""
        if self._at.pop(key, None) is not None:
            del self._listed[key]

    def next(self) -> int | None:
        """Return a time not later than the earliest deadline, or None if there is no deadline."""
        while self._heap:
            at, number, key = self._heap[0]
            if self._listed.get(key) == number:
                return at
            heappop(self._heap)
        return None

    def due(self, now: int) -> list[K]:
        """Return the keys whose deadline has come, earliest first, and remove their deadlines."""
        found: list[tuple[int, K]] = []
        while self._heap and self._heap[0][0] <= now:
            _, number, key = heappop(self._heap)
            if self._listed.get(key) != number:
                continue
            at = self._at[key]
            if at > now:
                self._list(key, at)
                continue
            found.append((at, key))
            self.clear(key)
        found.sort(key=lambda pair: pair[0])
        return [key for _, key in found]

    def _list(self, key: K, at: int) -> None:
        self._number += 1
        self._listed[key] = self._number
        heappush(self._heap, (at, self._number, key))
