"""The sides of an audit, and its findings. Imports no Spark."""

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
    """The pairing of records: by offset, or by rank within their partition."""

    offset = "offset"
    rank = "rank"


class LossReason(StrEnum):
    """The reason that a record is on one side only. LOST means that no other reason applies."""

    truncated = "truncated"  # below the log start, although retention did not remove the record
    expired = "expired"  # below the log start, and past retention.ms or retention.bytes
    compacted = "compacted"  # key occurs again or is null, or an old deletion
    aborted = "aborted"  # part of a transaction that was aborted or is still open
    accepted = "accepted"  # lost, which an operator accepted: `topic accept-loss`, --accept-loss
    outside = "outside"  # outside the offsets that the other side holds, with --common
    LOST = "LOST"


class CleanupRules(NamedTuple):
    """The records that a topic's settings allow a broker to remove. -1 means no limit.

    A compacted topic keeps every record for `lag_ms`. It keeps deletions (null values) for another
    `tombstone_ms`. Source: Kafka, min.compaction.lag.ms and delete.retention.ms, with Kafka's
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
    """One of the two sources, with its state at the start of the audit."""

    name: str
    bounds: Ranges
    """The offsets to compare in each partition."""
    read: Callable[[Ranges], DataFrame]
    """A function that reads the records of these ranges, with the columns of `COLUMNS`."""
    uncommitted: Callable[[Ranges], DataFrame] | None = None
    """A function that also reads records of open and aborted transactions.

    None if `read` itself returns them.
    """
    holes: Callable[[Ranges], DataFrame] | None = None
    """A function that proves which offsets of these ranges hold no record for `read`.

    They are those of markers and of aborted transactions. Columns: topic, partition, start, end.
    None if the side has no log, or its log cannot be asked.
    """
    ordered: bool = False
    """True if `read` returns records in log order."""
    rules: Mapping[str, CleanupRules] = field(default_factory=dict[str, CleanupRules])
    """The cleanup rules of each topic. Only live logs have rules."""
    accepted: tuple[OffsetRange, ...] = ()
    """Offsets whose loss was accepted, for the topic or by an archive job."""
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """The known topic ids by topic name."""
    logs: Ranges = field(default_factory=dict[TopicPartition, OffsetBounds])
    """The full bounds of partitions whose `bounds` are restricted."""
    now: Callable[[], Ranges] = dict[TopicPartition, OffsetBounds]
    """A function that returns the current bounds of live logs."""
    confirm: Callable[[], None] = lambda: None
    """A function that raises JobError if the topic was recreated since the audit began."""
    notes: tuple[str, ...] = ()
    """Sentences for the report, about what could not be looked up."""

    def log(self, partition: TopicPartition) -> OffsetBounds:
        """Return the full bounds of a partition, even if `bounds` restricts them."""
        return self.logs.get(partition, self.bounds[partition])

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.bounds})


def unrelated_topics(left: Side, right: Side) -> frozenset[str]:
    """Return the topics that share a name but have different ids, unless both sides are live.

    For such topics, retention and accepted losses on one side do not explain records missing on the
    other. Two live topics belong to different clusters, so retention in the copy can explain
    missing records.
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

    `gaps` counts the offsets from `start` to `end` - 1 without a record. `disorder` counts
    positions not above the previous one, and `back` timestamps below the previous one. Both are
    None if the source has no order. `checksum` is the sum of the hashes of key, value, headers,
    timestamp and timestampType.
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
    """Records that the side `on` ("left" or "right") lacks. Their offsets are `first` to `last`."""

    topic_partition: TopicPartition
    on: str
    loss: LossReason
    records: int
    first: int
    last: int
    first_ms: int
    last_ms: int


class DifferenceExample(NamedTuple):
    """A position at which the sides differ, with the names of the differing columns.

    Values are cut to a few bytes.
    """

    topic_partition: TopicPartition
    position: int
    what: tuple[str, ...]
    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The comparison of a partition on both sides.

    `differ` counts the records on both sides with different content. `gaps` counts the offsets that
    are missing on both sides.
    """

    topic_partition: TopicPartition
    left: PartitionTotals
    right: PartitionTotals
    differ: int = 0
    gaps: int = 0
    unexplained_gaps: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The findings of an audit. `examples` are the first few unexplained differences.

    `later` counts the offsets of each side after the end of the comparison. With `strict`,
    truncated and expired records are differences.
    """

    left: str
    right: str
    align: Align
    partitions: tuple[PartitionComparison, ...]
    missing: tuple[MissingRecords, ...]
    examples: tuple[DifferenceExample, ...] = ()
    notes: tuple[str, ...] = ()
    later: Mapping[str, int] = field(default_factory=dict[str, int])
    strict: bool = False

    def totals(self, name: str) -> list[PartitionTotals]:
        """Return the totals of the side "left" or "right", per partition."""
        return [each.left if name == "left" else each.right for each in self.partitions]

    @property
    def losses(self) -> dict[LossReason, int]:
        """The number of missing records by reason, including reasons with none."""
        return {loss: sum(m.records for m in self.missing if m.loss is loss) for loss in LossReason}

    @property
    def differences(self) -> int:
        """The sum of LOST, different, duplicate and misplaced records, and of unexplained gaps.

        If the audit is strict, truncated and expired records are added.
        """
        losses = self.losses
        found = losses[LossReason.LOST]
        if self.strict:
            found += losses[LossReason.truncated] + losses[LossReason.expired]
        for each in self.partitions:
            found += each.differ + each.unexplained_gaps
            for held in (each.left, each.right):
                found += held.duplicates + (held.disorder or 0)
        return found

    @property
    def verdict(self) -> str:
        """The verdict: equal, explained (all missing records were removable) or differs."""
        if self.differences:
            return "differs"
        return "explained" if self.missing else "equal"
