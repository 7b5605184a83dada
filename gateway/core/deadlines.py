"""Keeps many deadlines in one heap. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
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
        # The valid heap entry of each key. It outlasts a `clear`, so that a key that is cleared and
        # set again and again has one entry. Goes when the entry is popped.
        self._listed: dict[K, tuple[int, int, K]] = {}
        # Heap of (time, number, key). The time of a valid entry is not later than the deadline of
        # its key. Other entries are skipped when they reach the top.
        self._heap: list[tuple[int, int, K]] = []
        # The number of the newest heap entry. Rises by one with each entry.
        self._number = 0

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def set(self, key: K, at: int) -> None:
        """Set or replace the deadline of a key."""
        self._at[key] = at
        listed = self._listed.get(key)
        if listed is None or at < listed[0]:
            self._list(key, at)

    def clear(self, key: K) -> None:
        """Remove the deadline of a key, if it has one."""
        self._at.pop(key, None)

    def next(self) -> int | None:
        """Return a time not later than the earliest deadline, or None if there is no deadline."""
        while self._heap:
            at, _, key = entry = self._heap[0]
            valid = self._listed.get(key) is entry
            if valid and key in self._at:
                return at
            heappop(self._heap)
            if valid:
                del self._listed[key]
        return None

    def due(self, now: int) -> list[K]:
        """Return the keys whose deadline has come, earliest first, and remove their deadlines."""
        found = list(self._pop_due(now))
        found.sort(key=lambda pair: pair[0])
        return [key for _, key in found]

    def each_due(self, now: int) -> Iterator[K]:
        """Yield the keys whose deadline has come, in about their order, one at a time.

        Each loses its deadline when it is yielded. Deadlines may be set and cleared in between; a
        key that is set to a time until `now` is yielded again.
        """
        return (key for _, key in self._pop_due(now))

    def _pop_due(self, now: int) -> Iterator[tuple[int, K]]:
        while self._heap and self._heap[0][0] <= now:
            _, _, key = entry = heappop(self._heap)
            if self._listed.get(key) is not entry:
                continue
            del self._listed[key]
            at = self._at.get(key)
            if at is None:
                continue
            if at > now:
                self._list(key, at)
                continue
            del self._at[key]
            yield at, key

    def _list(self, key: K, at: int) -> None:
        self._number += 1
        entry = self._listed[key] = (at, self._number, key)
        heappush(self._heap, entry)
