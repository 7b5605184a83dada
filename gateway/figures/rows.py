"""The rows that gateways send each other: parts of topics, and groups. Pure.

A part has up to `PART` partitions of one topic that one gateway leads, so that a topic of any size
fits into several answers. A partition has one leader: sums over all parts count each once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

PART: Final = 100
"""Partitions of one part: 0 to 99, 100 to 199 and so on."""

READ_ONLY: Final = "read-only"
_PARTITION_BYTES: Final = 110  # of one partition as JSON, at most
_POSITION_BYTES: Final = 28
_ROW_BYTES: Final = 120
_CHARACTER_BYTES: Final = 12  # of a character that is not ASCII, as JSON escapes it


class PartitionFigures(NamedTuple):
    """What its leader knows about a partition. None is unknown."""

    partition: int
    start: int  # first offset
    end: int  # offset of the next record
    size_bytes: int | None  # of all copies
    segments: int
    records_per_s: float | None
    bytes_per_s: float | None  # of one copy
    blocked: int = 0  # offsets at which readers wait
    lost_records: int = 0

    @property
    def records(self) -> int:
        """Offsets between start and end: an upper bound for compacted topics."""
        return max(0, self.end - self.start)


class TopicPart(NamedTuple):
    """Partitions of one topic that one gateway leads, from `first` on."""

    topic: str
    first: int  # a multiple of PART
    partitions: tuple[PartitionFigures, ...]

    @property
    def key(self) -> PartKey:
        return self.topic, self.first


PartKey = tuple[str, int]

Positions = Mapping[str, tuple[tuple[int, int], ...]]
"""Partition and next offset of a group, by topic."""


class GroupRow(NamedTuple):
    """A group as its coordinator knows it; of a read-only group the part that reads here."""

    group: str
    state: str
    type: str  # as in ListGroups: classic, consumer or read-only
    protocol: str
    members: int
    claimed: bool  # False: another gateway may have claimed it meanwhile
    positions: Positions | None  # None if unknown
    read_per_s: float | None
    clients: tuple[str, ...] = ()  # short digests of the clients of a read-only group
    seen_ms: int | None = None  # last fetch of a read-only group


def part_bytes(part: TopicPart) -> int:
    """Return an upper bound of the bytes of a part as JSON."""
    return _ROW_BYTES + _text_bytes(part.topic) + _PARTITION_BYTES * len(part.partitions)


def group_bytes(row: GroupRow) -> int:
    """Return an upper bound of the bytes of a group as JSON."""
    positions = row.positions or {}
    topics = sum(_text_bytes(topic) + 8 for topic in positions)
    count = sum(map(len, positions.values()))
    texts = sum(map(_text_bytes, (row.group, row.state, row.type, row.protocol)))
    return _ROW_BYTES + texts + topics + _POSITION_BYTES * count + 16 * len(row.clients)


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() and text.isprintable() else _CHARACTER_BYTES * len(text)


def part_from(row: Any) -> TopicPart:
    """Return the part that another gateway sent. Raises ValueError or TypeError."""
    topic, first, partitions = row
    return TopicPart(str(topic), int(first), tuple(PartitionFigures(*each) for each in partitions))


def group_from(row: Any) -> GroupRow:
    """Return the group that another gateway sent. Raises ValueError or TypeError."""
    found = GroupRow(*row)
    if found.positions is None:
        return found._replace(clients=tuple(found.clients))
    sent = cast("Mapping[str, list[list[int]]]", found.positions)
    positions = {
        topic: tuple((partition, offset) for partition, offset in places)
        for topic, places in sent.items()
    }
    return found._replace(positions=positions, clients=tuple(found.clients))
