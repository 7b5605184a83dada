"""The audit: compare two sources record by record, and classify each difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gateway.pipelines.audits.compare import Comparison, PairCounts, PartitionSums, count_pairs
from gateway.pipelines.audits.counting import (
    PARTITION_KEYS,
    TimeRange,
    clip,
    ignore_timestamp_type,
    rename_topic,
)
from gateway.pipelines.audits.ends import EndSettler, same_log_topics
from gateway.pipelines.audits.examples import find_examples
from gateway.pipelines.audits.losses import LossClassifier, merge_ranges
from gateway.pipelines.audits.model import (
    Align,
    AuditReport,
    DifferenceExample,
    LossReason,
    MissingRecords,
    PartitionComparison,
    PartitionTotals,
    Ranges,
    Side,
    unrelated_topics,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition, partition_of
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The settings of an audit."""

    align: Align = Align.offset
    examples: int = 10  # maximum number of differences to show
    common: bool = False  # ignore records outside the offsets that the other side holds
    allow_gaps: bool = False  # ignore offsets that have no record on either side
    times: TimeRange = TimeRange()
    left_offsets: Ranges | None = None
    right_offsets: Ranges | None = None
    strict: bool = False  # truncated and expired records are differences
    any_timestamp_type: bool = False  # do not compare timestampType

    @property
    def whole(self) -> bool:
        """True if every offset of a side is read, so an offset without a record is a gap."""
        return self.times == TimeRange()


def audit(
    spark: SparkSession,
    left: Side,
    right: Side,
    request: AuditRequest,
    on_step: Step = lambda _: None,
) -> AuditReport:
    """Compare the sides and report all differences. Raises JobError."""
    notes = _notes(left, right, request)
    left = _cut(left, request.left_offsets)
    right = _cut(right, request.right_offsets)
    same_log = same_log_topics(left, right)
    if len(left.topics) == 1 and len(right.topics) == 1:
        right = rename_topic(right, left.topics[0])
    later: Mapping[str, int] = {}
    if request.left_offsets is None and request.right_offsets is None:
        left, right, later = EndSettler(left, right, request.align, same_log).settle()
    if request.any_timestamp_type:
        left, right = ignore_timestamp_type(left), ignore_timestamp_type(right)
    comparison = Comparison(spark, left, right, request.align, request.times)
    try:
        report = _Audit(comparison, request, on_step).report(notes, later)
    finally:
        comparison.close()
    for side in (left, right):
        side.confirm()
    return report


class _Audit:
    """One audit: a comparison and the report about it."""

    def __init__(self, comparison: Comparison, request: AuditRequest, on_step: Step) -> None:
        self._comparison = comparison
        self._request = request
        self._on_step = on_step

    def report(self, notes: list[str], later: Mapping[str, int]) -> AuditReport:
        comparison = self._comparison
        self._on_step("reading both sides")
        buckets = comparison.join_buckets()
        sums = comparison.sums(buckets)
        numbered = comparison.partitions_to_number(sums)
        self._on_step("comparing what differs")
        groups = comparison.groups(buckets, sums, numbered)
        counts = {} if groups is None else count_pairs(groups)
        losses, shown = ([], []) if groups is None else self._explain(groups, counts)
        duplicates = comparison.count_duplicates(numbered)
        bounds = (side.bounds for side in comparison.sides.values())
        partitions = [
            self._compare_partition(
                partition,
                sums.get(partition),
                counts.get(partition, PairCounts()),
                numbered,
                duplicates,
            )
            for partition in sorted(set(sums).union(*bounds))
        ]
        if any(each.unexplained_gaps for each in partitions):
            partitions = _explained(partitions, self._accepted_gaps(buckets, groups))
        if doubtful := [each.topic_partition for each in partitions if each.unexplained_gaps]:
            self._on_step("looking for markers and aborted records")
            partitions = _explained(partitions, self._proved_holes(doubtful, groups))
        return AuditReport(
            comparison.sides["left"].name,
            comparison.sides["right"].name,
            self._request.align,
            tuple(partitions),
            tuple(sorted(losses)),
            tuple(shown),
            tuple(notes),
            later,
            self._request.strict,
        )

    def _explain(
        self, groups: DataFrame, counts: Mapping[TopicPartition, PairCounts]
    ) -> tuple[list[MissingRecords], list[DifferenceExample]]:
        """Return the reasons for missing records, and examples of lost and differing records."""
        comparison, request = self._comparison, self._request
        now_ms = SystemClock().now_ms()
        lines: list[MissingRecords] = []
        lost: list[DataFrame] = []
        for name in comparison.sides:
            if all(each.union == getattr(each, name) for each in counts.values()):
                continue
            self._on_step(f"classifying records that are missing on the {name}")
            losses = LossClassifier(comparison, name, now_ms, request.common)
            missing, rows = losses.classify(groups)
            lines += missing
            if any(line.loss is LossReason.LOST for line in missing):
                lost.append(rows)
        wrong = any(
            each.differ + each.left_duplicates + each.right_duplicates for each in counts.values()
        )
        if not request.examples or not (lost or wrong):
            return lines, []
        return lines, find_examples(comparison, groups, lost, request.examples)

    def _compare_partition(
        self,
        partition: TopicPartition,
        sums: PartitionSums | None,
        counts: PairCounts,
        numbered: set[TopicPartition],
        duplicates: Mapping[tuple[str, TopicPartition], int],
    ) -> PartitionComparison:
        sums = sums or PartitionSums(None, None, 0, None, None)
        same = 0 if partition in numbered else sums.same
        left = duplicates.get(("left", partition), counts.left_duplicates)
        right = duplicates.get(("right", partition), counts.right_duplicates)
        gaps = unexplained = 0
        if self._request.align is Align.offset and self._request.whole:
            span = self._span(partition)
            gaps = span.latest - span.earliest - same - counts.union
            unexplained = gaps if self._gaps_are_losses(partition) else 0
        return PartitionComparison(
            partition,
            self._side_totals("left", partition, sums.left, left),
            self._side_totals("right", partition, sums.right, right),
            counts.differ,
            gaps,
            unexplained,
        )

    def _side_totals(
        self,
        name: str,
        partition: TopicPartition,
        figures: Mapping[str, Any] | None,
        duplicates: int,
    ) -> PartitionTotals:
        side = self._comparison.sides[name]
        bounds = side.bounds.get(partition, OffsetBounds(0, 0))
        ordered = {"disorder": 0, "back": 0} if side.ordered else {}
        if figures is None:
            gaps = bounds.latest - bounds.earliest if self._request.whole else 0
            return PartitionTotals(*bounds, gaps=gaps, **ordered)
        records = figures["records"]
        distinct = records - duplicates
        gaps = bounds.latest - bounds.earliest - distinct if self._request.whole else 0
        if side.ordered:
            ordered = {"disorder": figures["disorder"], "back": figures["back"]}
        return PartitionTotals(
            *bounds,
            records=records,
            gaps=gaps,
            duplicates=duplicates,
            **ordered,
            first_ms=figures["first_ms"],
            last_ms=figures["last_ms"],
            checksum=figures["checksum"],
        )

    def _gaps_are_losses(self, partition: TopicPartition) -> bool:
        """Return whether an offset missing on both sides counts as lost.

        The offset counts as lost unless gaps are allowed or every live topic is compacted. Accepted
        losses are subtracted later.
        """
        sides = self._comparison.sides.values()
        rules = [side.rules[partition.topic] for side in sides if partition.topic in side.rules]
        return not self._request.allow_gaps and not all(each.compact for each in rules)

    def _span(self, partition: TopicPartition) -> OffsetBounds:
        """Return the bounds from the first to the last offset that a side should have."""
        sides = self._comparison.sides.values()
        known = [side.bounds[partition] for side in sides if partition in side.bounds]
        filled = [each for each in known if each.latest > each.earliest]
        if not filled:
            return OffsetBounds(0, 0)
        return OffsetBounds(
            min(each.earliest for each in filled), max(each.latest for each in filled)
        )

    def _proved_holes(
        self, doubtful: Iterable[TopicPartition], groups: DataFrame | None
    ) -> dict[TopicPartition, int]:
        """Count the offsets missing on both sides that hold no record in any of the logs.

        A log proves it: they are those of markers, or of transactions that it lists as aborted.
        """
        from pyspark.sql import functions as F

        # Imported here because it needs numpy.
        from gateway.pipelines.archives.holes import hole_offsets

        spans = {partition: self._span(partition) for partition in doubtful}
        found: DataFrame | None = None
        for side in self._comparison.sides.values():
            if side.holes is None:
                continue
            inside = {p: clip(side.log(p), *each) for p, each in spans.items() if p in side.bounds}
            offsets = hole_offsets(side.holes(inside))
            found = offsets if found is None else found.join(offsets, found.columns, "left_semi")
        if found is None:
            return {}
        if groups is not None:
            held = groups.select(*PARTITION_KEYS, F.col("position").alias("offset"))
            found = found.join(held, found.columns, "left_anti")
        rows = found.groupBy(*PARTITION_KEYS).agg(F.count("*").alias("holes")).collect()
        return {partition_of(row): row["holes"] for row in rows}

    def _accepted_gaps(
        self, buckets: DataFrame, groups: DataFrame | None
    ) -> dict[TopicPartition, int]:
        """Count for each partition the accepted losses among the offsets missing on both sides."""
        comparison = self._comparison
        ranges: list[OffsetRange] = []
        for each in merge_ranges(
            each
            for side in comparison.sides.values()
            for each in side.accepted
            if each.topic not in comparison.unrelated
        ):
            inside = clip(self._span(each.topic_partition), each.start, each.end)
            ranges.append(OffsetRange(*each.topic_partition, *inside))
        held = comparison.count_held(buckets, groups, ranges)
        gone = {partition: -count for partition, count in held.items()}
        for each in ranges:
            gone[each.topic_partition] = gone.get(each.topic_partition, 0) + each.length
        return gone


def _explained(
    partitions: list[PartitionComparison], counts: Mapping[TopicPartition, int]
) -> list[PartitionComparison]:
    """Subtract these offsets from the unexplained gaps of the partitions that have some."""
    return [
        replace(each, unexplained_gaps=each.unexplained_gaps - counts[each.topic_partition])
        if each.unexplained_gaps and each.topic_partition in counts
        else each
        for each in partitions
    ]


def _cut(side: Side, ranges: Ranges | None) -> Side:
    """Restrict the side to these offsets. If `ranges` is None, the side is unchanged."""
    if ranges is None:
        return side
    found: dict[TopicPartition, OffsetBounds] = {}
    for partition, each in ranges.items():
        known = side.bounds.get(partition)
        if known is None:
            raise JobError(f"{side.name} has no {partition}, whose offsets were given", "USAGE")
        first = min(max(known.earliest, each.earliest), known.latest)
        found[partition] = OffsetBounds(first, max(first, min(known.latest, each.latest)))
    return replace(
        side, bounds=found, logs={partition: side.bounds[partition] for partition in found}
    )


def _notes(left: Side, right: Side, request: AuditRequest) -> list[str]:
    notes = [*left.notes, *right.notes]
    for topic in sorted({*left.topic_ids} & {*right.topic_ids}):
        ids = left.topic_ids[topic], right.topic_ids[topic]
        if ids[0] != ids[1]:
            meaning = (
                "it was recreated, or is a copy; the retention of one explains no loss of the other"
                if topic in unrelated_topics(left, right)
                else "one is a copy; the retention of each explains its own missing records"
            )
            notes.append(f"topic {topic} has two ids ({', '.join(ids)}): {meaning}")
    if not request.whole:
        notes.append("only records in the given time range were compared; gaps are not counted")
    return notes
