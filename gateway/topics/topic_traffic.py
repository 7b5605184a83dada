"""Counts the bytes and records of topics, in plain integers that only grow.

A partition has the counts of its topic from when it is opened, so a batch costs two additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

TOPICS_MAX: Final = 500
OTHER: Final = "other"
"""Stands for the topics beyond the first `TOPICS_MAX`, and for a topic of this name."""


class Traffic:
    """The batches of clients to and from one topic at this broker, since it started."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.bytes_in = 0  # of accepted batches, as clients sent them
        self.bytes_out = 0
        self.records_in = 0
        self.records_out = 0  # offsets of the fetched batches, also of those that were cleaned away

    def add(self, other: Traffic) -> None:
        """Add the counts of another topic."""
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.records_in += other.records_in
        self.records_out += other.records_out


class TopicTraffic:
    """The traffic of each topic. Topics beyond `topics_max` share one count."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self._topics_max = topics_max
        # By name, in the order of their first partitions. At most `topics_max`.
        self._topics: dict[str, Traffic] = {}
        self._other = Traffic()
        self._deleted = Traffic()  # of topics that were deleted, for `total`

    def of(self, topic: str) -> Traffic:
        """Return the counts of a topic, from now on its own if there is room."""
        known = self._topics.get(topic)
        if known is None:
            if topic == OTHER or len(self._topics) >= self._topics_max:
                return self._other
            known = self._topics[topic] = Traffic()
        return known

    def rows(self, exists: Callable[[str], bool]) -> Iterator[tuple[str, Traffic]]:
        """Yield each topic with its counts, and the rest as `other`. Forget deleted topics.

        So a topic that is created again begins with 0, and another one has the room.
        """
        for topic in [each for each in self._topics if not exists(each)]:
            self._deleted.add(self._topics.pop(topic))
        yield from self._topics.items()
        yield OTHER, self._other

    def total(self) -> Traffic:
        """Return the counts of all topics together, also of deleted ones."""
        found = Traffic()
        for each in (*self._topics.values(), self._other, self._deleted):
            found.add(each)
        return found
