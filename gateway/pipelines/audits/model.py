"""What an audit compares, and its findings. Imports no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SIDES = ("left", "right")


class Align(StrEnum):
    """How records are paired: by offset, or by rank within their partition."""

    offset = "offset"
    rank = "rank"


class LossReason(StrEnum):
    """Why a record is on one side only. All but LOST are explained by facts of the other side."""

    truncated = "truncated"  # below the log's start, although retention did not remove it
    expired = "expired"  # below the log's start, and past retention.ms or retention.bytes
    compacted = "compacted"  # its key occurs again, was deleted long ago, or is null
    aborted = "aborted"  # in a transaction that was aborted or is still open
    accepted = "accepted"  # deleted before it was archived, with --accept-loss
    outside = "outside"  # outside the offsets that the other side holds, with --common
    LOST = "LOST"


class CleanupRules(NamedTuple):
    """What a topic's settings allow a broker to remove. -1 means no limit.

    A compacted topic keeps every record for `lag_ms`, and deletions (null values) for
    `tombstone_ms` more. Source: Kafka, min.compaction.lag.ms and delete.retention.ms, with Kafka's
    defaults.
    """

    compact: bool = False
    delete: bool = True
    retention_ms: int = -1
    retention_bytes: int = -1
    tombstone_ms: int = 24 * 3600 * 1000
    lag_ms: int = 0


Ranges = Mapping[TopicPartition, OffsetBounds]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two sources, as of the start of the audit."""

    name: str
    bounds: Ranges
    """The offsets to compare, per partition."""
    read: Callable[[Ranges], DataFrame]
    """Reads the records of these ranges, with the columns of `COLUMNS`."""
    uncommitted: Callable[[Ranges], DataFrame] | None = None
    """Also reads records of open and aborted transactions. None if `read` already does."""
    ordered: bool = False
    """True if `read` returns records in log order."""
    rules: Mapping[str, CleanupRules] = field(default_factory=dict[str, CleanupRules])
    """Per topic, only of a live log."""
    accepted: tuple[OffsetRange, ...] = ()
    """Offsets whose loss an archive accepted."""
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name, where the id is known."""
    logs: Ranges = field(default_factory=dict[TopicPartition, OffsetBounds])
    """The full bounds of partitions that `bounds` restricts."""
    now: Callable[[], Ranges] = dict[TopicPartition, OffsetBounds]
    """Returns the current bounds of live logs."""
    confirm: Callable[[], None] = lambda: None
    """Raises JobError if the topic was recreated since the audit began."""

    def log(self, partition: TopicPartition) -> OffsetBounds:
        """Return all offsets that the source has of a partition in `bounds`."""
        return self.logs.get(partition, self.bounds[partition])

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.bounds})


def unrelated_topics(left: Side, right: Side) -> frozenset[str]:
    """Return topics that share only their name, of which at most one is live.

    Neither the retention of a live log nor the accepted losses of an archive explain records
    missing in the other. Two live topics belong to different clusters, so retention in the copy can
    explain records it lacks.
    """
    return frozenset(
        topic
        for topic, known in left.topic_ids.items()
        if right.topic_ids.get(topic, known) != known
        and not (topic in left.rules and topic in right.rules)
    )


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """The contents of one partition on one side.

    `gaps`: offsets from `start` to `end` - 1 without a record. `disorder`, `back` (timestamps below
    the previous one): None if the source has no order. `checksum`: the sum of the hashes of key,
    value, headers and timestamp.
    """

    start: int
    end: int
    records: int = 0
    gaps: int = 0
    duplicates: int = 0
    disorder: int | None = None
    back: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    checksum: int = 0


class MissingRecords(NamedTuple):
    """Records missing on the side `on`, "left" or "right". `first` to `last` are their offsets."""

    topic_partition: TopicPartition
    on: str
    loss: LossReason
    records: int
    first: int
    last: int
    first_ms: int
    last_ms: int


class DifferenceExample(NamedTuple):
    """A position at which the sides differ, and the columns that differ. Values are cut short."""

    topic_partition: TopicPartition
    position: int
    what: tuple[str, ...]
    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """A partition on both sides.

    `differ`: records on both sides with different content. `gaps`: offsets missing on both.
    """

    topic_partition: TopicPartition
    left: PartitionTotals
    right: PartitionTotals
    differ: int = 0
    gaps: int = 0
    unexplained_gaps: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The findings of an audit. `examples` are the first few unexplained differences."""

    left: str
    right: str
    align: Align
    partitions: tuple[PartitionComparison, ...]
    missing: tuple[MissingRecords, ...]
    examples: tuple[DifferenceExample, ...] = ()
    notes: tuple[str, ...] = ()

    def totals(self, name: str) -> list[PartitionTotals]:
        """Return the totals of the side "left" or "right", per partition."""
        return [each.left if name == "left" else each.right for each in self.partitions]

    @property
    def losses(self) -> dict[LossReason, int]:
        """The number of missing records by reason, including reasons with none."""
        return {loss: sum(m.records for m in self.missing if m.loss is loss) for loss in LossReason}

    @property
    def differences(self) -> int:
        """The sum of LOST, different, duplicate and misplaced records, and of unexplained gaps."""
        found = self.losses[LossReason.LOST]
        for each in self.partitions:
            found += each.differ + each.unexplained_gaps
            for held in (each.left, each.right):
                found += held.duplicates + (held.disorder or 0)
        return found

    @property
    def verdict(self) -> str:
        """One of equal, explained (all missing records could be removed) and differs."""
        if self.differences:
            return "differs"
        return "explained" if self.missing else "equal"
