"""Many deadlines, one heap. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """At most one deadline for each key, in any unit of time.

    Moving a deadline later costs no heap operation: the heap keeps the old time and looks again
    when it comes. So a heartbeat is one dictionary write.
    """

    __slots__ = ("_at", "_heap", "_listed", "_turn")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._listed: dict[K, int] = {}  # the turn of each key's one valid heap entry
        self._heap: list[tuple[int, int, K]] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: int) -> None:
        """The key falls due at `at`, and at no other time."""
        before = self._at.get(key)
        self._at[key] = at
        if before is None or at < before:
            self._list(key, at)

    def clear(self, key: K) -> None:
        """The key has no deadline (any more)."""
        if self._at.pop(key, None) is not None:
            del self._listed[key]

    def next(self) -> int | None:
        """Not later than the earliest deadline; None when there is none."""
        while self._heap:
            at, turn, key = self._heap[0]
            if self._listed.get(key) == turn:
                return at
            heappop(self._heap)
        return None

    def due(self, now: int) -> list[K]:
        """Keys whose deadline has come, earliest first; they have no deadline any more."""
        found: list[tuple[int, K]] = []
        while self._heap and self._heap[0][0] <= now:
            _, turn, key = heappop(self._heap)
            if self._listed.get(key) != turn:
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
        self._turn += 1
        self._listed[key] = self._turn
        heappush(self._heap, (at, self._turn, key))
