"""The rows of one gateway as another one holds them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from gateway.figures.rows import GroupRow, TopicPart, group_from, part_from

TOPICS: Final = "topics"
GROUPS: Final = "groups"


class Silence(NamedTuple):
    """A gateway that does not answer: why, and how old its last figures are."""

    reason: str
    age_s: float | None  # None if it never answered


class HeldShare:
    """What one gateway sent. A row that is sent again replaces the one before it."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.topics: dict[str, dict[int, TopicPart]] = {}
        self.groups: dict[str, GroupRow] = {}
        self.partition_count = 0  # partitions that it leads: those of `topics`
        # The process and the version of what was read last, by question.
        self.process = ""
        self.versions = {TOPICS: 0, GROUPS: 0}
        # When it answered last, on the clock of the loop. None before its first answer.
        self.answered_s: float | None = None
        # Why it did not answer the last question, None if it did. It is asked again at this time.
        self.silent: str | None = None
        self.again_s = 0.0

    def take_parts(self, rows: Iterable[TopicPart], gone: Iterable[Any]) -> Iterator[str]:
        """Take parts of topics. Yields the topics that changed, one by one."""
        for part in rows:
            parts = self.topics.setdefault(part.topic, {})
            self._count(part, parts.get(part.first))
            parts[part.first] = part
            yield part.topic
        for topic, first in gone:
            parts = self.topics.get(topic)
            part = None if parts is None else parts.pop(first, None)
            if part is not None:
                self._count(None, part)
                if not parts:
                    del self.topics[topic]
                yield topic

    def _count(self, part: TopicPart | None, before: TopicPart | None) -> None:
        for each, sign in ((part, 1), (before, -1)):
            self.partition_count += 0 if each is None else sign * len(each.partitions)

    def take_groups(self, rows: Iterable[GroupRow], gone: Iterable[Any]) -> Iterator[str]:
        """Take groups. Yields the groups that changed, one by one."""
        for row in rows:
            self.groups[row.group] = row
            yield row.group
        for name in gone:
            if self.groups.pop(name, None) is not None:
                yield name

    def forget(self, what: str) -> list[str]:
        """Forget all topics or all groups. Returns their names."""
        held: dict[str, Any] = self.topics if what == TOPICS else self.groups
        if what == TOPICS:
            self.partition_count = 0
        names = list(held)
        held.clear()
        return names


def parts_from(rows: Iterable[Any]) -> Iterator[TopicPart]:
    """Decode parts that another gateway sent. Raises ValueError or TypeError."""
    return map(part_from, rows)


def groups_from(rows: Iterable[Any]) -> Iterator[GroupRow]:
    """Decode groups that another gateway sent. Raises ValueError or TypeError."""
    return map(group_from, rows)
