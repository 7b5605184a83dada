"""The order in which partitions are opened after a takeover.

    a request waits for it ─▶ written most recently ─▶ the rest, first come first served

Those that requests wait for are taken in the order in which they were asked for: one that cannot be
opened, and comes back, goes behind all others that wait.

Pure. A partition is in the order from `add` until `take` or `discard`.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class _Place(NamedTuple):
    """A place in the order: the smallest is taken first."""

    unasked: bool
    age: int  # the less, the more recently it was written; 0 of one that a request waits for
    number: int  # unique, rising


class OpeningOrder(Generic[K]):
    """The waiting partitions, each once."""

    def __init__(self) -> None:
        # The place of each waiting partition, by key.
        self._places: dict[K, _Place] = {}
        # The places, also those that are out of date: their number is not in `_keys`.
        self._heap: list[_Place] = []
        self._keys: dict[int, K] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: K, *, asked: bool, recency: int) -> None:
        """Add a partition. Of two that no request waits for, the higher `recency` goes first."""
        assert key not in self._places
        self._put(key, unasked=not asked, age=0 if asked else -recency)

    def ask(self, key: K) -> None:
        """Move a waiting partition to those that requests wait for. Others are unknown here."""
        place = self._places.get(key)
        if place is not None and place.unasked:
            del self._keys[place.number]
            self._put(key, unasked=False, age=0)

    def discard(self, key: K) -> None:
        """Remove a partition, if it waits."""
        place = self._places.pop(key, None)
        if place is not None:
            del self._keys[place.number]

    @property
    def asked(self) -> bool:
        """True if a request waits for the first one."""
        self._drop_outdated()
        return bool(self._heap) and not self._heap[0].unasked

    def take(self) -> K:
        """Remove and return the first one. At least one waits."""
        self._drop_outdated()
        key = self._keys.pop(heappop(self._heap).number)
        del self._places[key]
        return key

    def _put(self, key: K, *, unasked: bool, age: int) -> None:
        place = _Place(unasked, age, next(self._numbers))
        self._places[key] = place
        self._keys[place.number] = key
        heappush(self._heap, place)

    def _drop_outdated(self) -> None:
        while self._heap and self._heap[0].number not in self._keys:
            heappop(self._heap)
