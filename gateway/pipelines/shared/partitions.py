"""Partitions of topics, ranges of their offsets, and the columns of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Row

COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The columns of Spark's Kafka source with `includeHeaders`, in its order and with its types."""


COLUMN_NAMES = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
"""The names in `COLUMNS`, in order."""


class TopicPartition(NamedTuple):
    """A partition of a topic. Sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Offsets `start` to `end` - 1 of a partition. The range is empty if `start` equals `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def length(self) -> int:
        return self.end - self.start

    def overlaps(self, other: OffsetRange) -> bool:
        return self[:2] == other[:2] and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.topic_partition}[{self.start}..{self.end})"


def partition_of(row: Row) -> TopicPartition:
    """Return the partition that a row of Spark names in its columns `topic` and `partition`."""
    return TopicPartition(row["topic"], row["partition"])
