"""Samples of the latency of bookies, in classes of requests that cost about the same.

Pure: time is an argument, in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from ledger.ids import BookieId

WINDOW = 7
"""The latest samples of a bookie, by which it is judged."""

_DROPPED = 2
"""The highest samples of a window that do not count: a hiccup makes no bookie slow."""

_BEGAN = 4
"""A window is compared with the answers of others since its fourth latest sample began."""

_BUCKETS = 10
"""The parts of the time that an average covers. The oldest part is dropped at once. LogDevice's."""

_SIZES = tuple(4**power * 1024 for power in range(1, 6))
_NAMES = ("4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB")


class SampleKind(Enum):
    """What a sample measures."""

    READ = "reads"  # from the request for entries to the answer
    TAIL = "tail reads"  # from another bookie's answer with the same news to this one's

    __hash__ = object.__hash__  # of an Enum it is a function of Python, and every sample calls it


class SampleClass(NamedTuple):
    """Samples that may be compared with each other: of one kind, and of similar size."""

    kind: SampleKind
    size: int  # index in the list of size limits; one above the last is a larger answer

    def __str__(self) -> str:
        if self.size == len(_NAMES):
            return f"{self.kind.value} above {_NAMES[-1]}"
        return f"{self.kind.value} up to {_NAMES[self.size]}"


_CLASSES = {
    kind: tuple(SampleClass(kind, size) for size in range(len(_SIZES) + 1)) for kind in SampleKind
}


def class_of(kind: SampleKind, size: int) -> SampleClass:
    """Return the class of an answer of `size` bytes."""
    return _CLASSES[kind][bisect_left(_SIZES, size)]


class LatencySamples:
    """The samples of one bookie in one class: the average of a long time, and the latest few."""

    __slots__ = ("_bucket_s", "_buckets", "_count", "_latest", "_paired", "_sum_s")

    def __init__(self, average_s: float) -> None:
        self._bucket_s = average_s / _BUCKETS
        # (number of the bucket, count, sum), oldest first. None is older than `average_s` after
        # `_expire`.
        self._buckets: deque[tuple[int, int, float]] = deque()
        # The sums over all of `_buckets`.
        self._count = 0
        self._sum_s = 0.0
        # (time of the answer, seconds) of the latest samples, oldest first.
        self._latest: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        # (time of the answer, seconds, bookies asked the same) of the latest samples for whose
        # request there were such bookies. Kept apart, because others are far more frequent.
        self._paired: deque[tuple[float, float, Collection[BookieId]]] = deque(maxlen=2 * WINDOW)

    def add(self, seconds: float, now_s: float, beside: Collection[BookieId] = ()) -> None:
        """Add a sample whose answer came now. Bookies `beside` got the same request."""
        number = self._expire(now_s)
        count, sum_s = 0, 0.0
        if self._buckets and self._buckets[-1][0] == number:
            _, count, sum_s = self._buckets.pop()
        self._buckets.append((number, count + 1, sum_s + seconds))
        self._count += 1
        self._sum_s += seconds
        self._latest.append((now_s, seconds))
        if beside:
            self._paired.append((now_s, seconds, beside))

    def count(self, now_s: float) -> int:
        """Return the number of samples in the average."""
        self._expire(now_s)
        return self._count

    def average_s(self, now_s: float) -> float:
        """Return the average, or 0 without a sample."""
        self._expire(now_s)
        return self._sum_s / self._count if self._count else 0.0

    @property
    def latest_s(self) -> float:
        """Return the latest sample. There must be one."""
        return self._latest[-1][1]

    @property
    def full(self) -> bool:
        """Return whether there are enough samples to judge by."""
        return len(self._latest) == WINDOW

    @property
    def present_s(self) -> float:
        """Return the mean of the latest samples without the highest ones."""
        kept = sorted(seconds for _, seconds in self._latest)[: WINDOW - _DROPPED]
        return sum(kept) / len(kept)

    @property
    def began_s(self) -> float:
        """Return the time of the request from which on others are compared. Only if `full`."""
        at_s, seconds = self._latest[-_BEGAN]
        return at_s - seconds

    def mean_since(self, since_s: float, beside: BookieId | None) -> float | None:
        """Return the mean of the latest samples that came after `since_s`, or None.

        Only those count whose request `beside` got too, unless it is None.
        """
        if beside is None:
            lately = [seconds for at_s, seconds in self._latest if at_s >= since_s]
        else:
            lately = [
                seconds
                for at_s, seconds, others in self._paired
                if at_s >= since_s and beside in others
            ]
        return sum(lately) / len(lately) if lately else None

    def _expire(self, now_s: float) -> int:
        """Drop old buckets. Returns the number of the present one."""
        number = int(now_s // self._bucket_s)
        while self._buckets and self._buckets[0][0] <= number - _BUCKETS:
            _, count, sum_s = self._buckets.popleft()
            self._count -= count
            self._sum_s -= sum_s
        return number
