"""What an audit compares and what it found, without Spark."""

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
    """How a record finds its partner: by offset, or as the n-th of its partition."""

    offset = "offset"
    rank = "rank"


class LossReason(StrEnum):
    """Why a record is on one side only. All but LOST are explained, by facts of the other side."""

    truncated = "truncated"  # below the log's start, and no retention would have removed it
    expired = "expired"  # below the log's start, and retention removes what is that old or far back
    compacted = "compacted"  # its key came again, was deleted long ago, or it has none
    aborted = "aborted"  # of a transaction that was aborted, or is still open
    accepted = "accepted"  # gone before it was archived, and the archive says that it was accepted
    outside = "outside"  # before or after all that the other side holds, and --common was said
    LOST = "LOST"


class CleanupRules(NamedTuple):
    """What a topic's settings let a broker remove; -1: no limit.

    Of a compacted topic nothing goes before it is `lag_ms` old, and no deletion (a null value)
    before it lay there for `tombstone_ms` more. Source: Kafka, min.compaction.lag.ms and
    delete.retention.ms, with Kafka's defaults.
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
    """One of the two sources, as it stood when the audit began.

    `read`: the records of these ranges, columns of `COLUMNS`; `uncommitted`: the same with
    those of aborted and open transactions, None where there is no such thing. `rules`: per topic,
    of a live log. `ordered`: `read` brings records in the order of the log. `topic_ids`: where
    they are known. `logs`: the whole of those of which `bounds` are only a part; `now`: of live
    ones, where they begin and end by now. `confirm` raises JobError when another topic of that name
    is there now.
    """

    name: str
    bounds: Ranges
    read: Callable[[Ranges], DataFrame]
    uncommitted: Callable[[Ranges], DataFrame] | None = None
    ordered: bool = False
    rules: Mapping[str, CleanupRules] = field(default_factory=dict[str, CleanupRules])
    accepted: tuple[OffsetRange, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    logs: Ranges = field(default_factory=dict[TopicPartition, OffsetBounds])
    now: Callable[[], Ranges] = dict[TopicPartition, OffsetBounds]
    confirm: Callable[[], None] = lambda: None

    def log(self, place: TopicPartition) -> OffsetBounds:
        """All that the source has of a place of `bounds`, also what is not asked for."""
        return self.logs.get(place, self.bounds[place])

    @property
    def topics(self) -> list[str]:
        return sorted({place.topic for place in self.bounds})


def unrelated_topics(left: Side, right: Side) -> frozenset[str]:
    """Topics of one name that are two, of which the one is only archived: what a live log was free
    to remove, or an archive accepts, says nothing of the other. Two live ones are of two clusters:
    there a log explains what it lacks of the one that it is a copy of.
    """
    return frozenset(
        topic
        for topic, known in left.topic_ids.items()
        if right.topic_ids.get(topic, known) != known
        and not (topic in left.rules and topic in right.rules)
    )


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """What one side holds of a partition. `last`, `end`: offsets; `gaps`: offsets from `start` to
    `end` that are not there; `disorder`, `back` (timestamps below the one before): None where the
    source has no order. `checksum`: sum of the hashes of key, value, headers and timestamp."""

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
    """Records that `on` ("left" or "right") does not have: `first` to `last` are offsets."""

    place: TopicPartition
    on: str
    loss: LossReason
    records: int
    first: int
    last: int
    first_ms: int
    last_ms: int


class DifferenceExample(NamedTuple):
    """A place where the sides differ. `what` differs; values are cut to a few bytes."""

    place: TopicPartition
    position: int
    what: tuple[str, ...]
    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """A partition, on both sides. `differ`: records that are on both, not with the same content;
    `gaps`: offsets that neither has."""

    place: TopicPartition
    left: PartitionTotals
    right: PartitionTotals
    differ: int = 0
    gaps: int = 0
    unexplained_gaps: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that was found; `examples` are the first few of what is not explained."""

    left: str
    right: str
    align: Align
    partitions: tuple[PartitionComparison, ...]
    missing: tuple[MissingRecords, ...]
    examples: tuple[DifferenceExample, ...] = ()
    notes: tuple[str, ...] = ()

    def held(self, name: str) -> list[PartitionTotals]:
        """Of the side "left" or "right", per partition."""
        return [each.left if name == "left" else each.right for each in self.partitions]

    @property
    def losses(self) -> dict[LossReason, int]:
        """Records that one side does not have, by reason; all reasons, also those of 0."""
        return {loss: sum(m.records for m in self.missing if m.loss is loss) for loss in LossReason}

    @property
    def differences(self) -> int:
        """LOST, different, doubled and misplaced records, and offsets gone from both."""
        found = self.losses[LossReason.LOST]
        for each in self.partitions:
            found += each.differ + each.unexplained_gaps
            for held in (each.left, each.right):
                found += held.duplicates + (held.disorder or 0)
        return found

    @property
    def verdict(self) -> str:
        """equal, explained (what is missing was allowed to go) or differs."""
        if self.differences:
            return "differs"
        return "explained" if self.missing else "equal"
