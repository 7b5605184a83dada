"""Two sources compared: each record on both sides once, at its place, as it was; or why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gateway.pipelines.audits.compare import Comparison, PairCounts, PartitionSums, count_pairs
from gateway.pipelines.audits.counting import TimeRange, clip, rename_topic
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
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """How to compare. `examples`: of what differs, how many are shown at most; `common`: what
    lies before or after all that the other side holds is left out of the verdict; `allow_gaps`:
    so are offsets that neither side has."""

    align: Align = Align.offset
    examples: int = 10
    common: bool = False
    allow_gaps: bool = False
    times: TimeRange = TimeRange()
    left_offsets: Ranges | None = None
    right_offsets: Ranges | None = None

    @property
    def whole(self) -> bool:
        """Every offset of a side is looked at, so that one that is not there is a gap."""
        return self.times == TimeRange()


def audit(
    spark: SparkSession,
    left: Side,
    right: Side,
    wanted: AuditRequest,
    on_step: Step = lambda _: None,
) -> AuditReport:
    """What the sides hold, and all that tells them apart. Raises JobError."""
    notes = _notes(left, right, wanted)
    left = _cut(left, wanted.left_offsets)
    right = _cut(right, wanted.right_offsets)
    if len(left.topics) == 1 and len(right.topics) == 1:
        right = rename_topic(right, left.topics[0])
    comparison = Comparison(spark, left, right, wanted.align, wanted.times)
    try:
        report = _Audit(comparison, wanted, on_step).report(notes)
    finally:
        comparison.close()
    for side in (left, right):
        side.confirm()
    return report


class _Audit:
    def __init__(self, comparison: Comparison, wanted: AuditRequest, on_step: Step) -> None:
        self._comparison = comparison
        self._wanted = wanted
        self._on_step = on_step

    def report(self, notes: list[str]) -> AuditReport:
        comparison = self._comparison
        self._on_step("reading both sides")
        buckets = comparison.joined_buckets()
        sums = comparison.sums(buckets)
        numbered = comparison.unranked(sums)
        self._on_step("comparing what differs")
        groups = comparison.groups(buckets, sums, numbered)
        found = {} if groups is None else count_pairs(groups)
        losses, shown = ([], []) if groups is None else self._explained(groups, found)
        again = comparison.doubled(numbered)
        places = sorted(
            {*sums, *comparison.sides["left"].bounds, *comparison.sides["right"].bounds}
        )
        partitions = [
            self._compared(place, sums.get(place), found.get(place, PairCounts()), numbered, again)
            for place in places
        ]
        if any(each.unexplained_gaps for each in partitions):
            accepted = self._accepted(buckets, groups)
            partitions = [
                replace(each, unexplained_gaps=each.unexplained_gaps - accepted[each.place])
                if each.unexplained_gaps and each.place in accepted
                else each
                for each in partitions
            ]
        return AuditReport(
            comparison.sides["left"].name,
            comparison.sides["right"].name,
            self._wanted.align,
            tuple(partitions),
            tuple(sorted(losses)),
            tuple(shown),
            tuple(notes),
        )

    def _explained(
        self, groups: DataFrame, found: Mapping[TopicPartition, PairCounts]
    ) -> tuple[list[MissingRecords], list[DifferenceExample]]:
        comparison, wanted = self._comparison, self._wanted
        now_ms = SystemClock().now_ms()
        lines: list[MissingRecords] = []
        lost: list[DataFrame] = []
        for name in comparison.sides:
            if all(each.union == getattr(each, name) for each in found.values()):
                continue
            self._on_step(f"asking why records are not on the {name}")
            losses = LossClassifier(comparison, name, now_ms, wanted.common)
            told, rows = losses.found(groups)
            lines += told
            if any(line.loss is LossReason.LOST for line in told):
                lost.append(rows)
        wrong = any(each.differ + each.left_again + each.right_again for each in found.values())
        if not wanted.examples or not (lost or wrong):
            return lines, []
        return lines, find_examples(comparison, groups, lost, wanted.examples)

    def _compared(
        self,
        place: TopicPartition,
        sums: PartitionSums | None,
        found: PairCounts,
        numbered: set[TopicPartition],
        again: Mapping[tuple[str, TopicPartition], int],
    ) -> PartitionComparison:
        sums = sums or PartitionSums(None, None, 0, None, None)
        same = 0 if place in numbered else sums.same
        doubled = {
            "left": again.get(("left", place), found.left_again),
            "right": again.get(("right", place), found.right_again),
        }
        held = {
            name: self._held(name, place, told, doubled[name])
            for name, told in (("left", sums.left), ("right", sums.right))
        }
        gaps = unexplained = 0
        if self._wanted.align is Align.offset and self._wanted.whole:
            span = self._span(place)
            gaps = span.latest - span.earliest - same - found.union
            unexplained = gaps if self._must_be_there(place) else 0
        return PartitionComparison(
            place, held["left"], held["right"], found.differ, gaps, unexplained
        )

    def _held(
        self, name: str, place: TopicPartition, told: Mapping[str, Any] | None, again: int
    ) -> PartitionTotals:
        side = self._comparison.sides[name]
        bounds = side.bounds.get(place, OffsetBounds(0, 0))
        ordered = {"disorder": 0, "back": 0} if side.ordered else {}
        if told is None:
            gaps = bounds.latest - bounds.earliest if self._wanted.whole else 0
            return PartitionTotals(*bounds, gaps=gaps, **ordered)
        records = told["records"]
        gaps = bounds.latest - bounds.earliest - (records - again) if self._wanted.whole else 0
        if side.ordered:
            ordered = {"disorder": told["disorder"], "back": told["back"]}
        return PartitionTotals(
            *bounds,
            records=records,
            gaps=gaps,
            duplicates=again,
            **ordered,
            first_ms=told["first_ms"],
            last_ms=told["last_ms"],
            checksum=told["checksum"],
        )

    def _must_be_there(self, place: TopicPartition) -> bool:
        """An offset that neither side has is a loss: a live topic of the two may do without none.

        What was accepted as lost is not looked at yet.
        """
        sides = self._comparison.sides.values()
        rules = [side.rules[place.topic] for side in sides if place.topic in side.rules]
        return not self._wanted.allow_gaps and not all(each.compact for each in rules)

    def _span(self, place: TopicPartition) -> OffsetBounds:
        """From the first to the last offset that either side should have."""
        sides = self._comparison.sides.values()
        known = [side.bounds[place] for side in sides if place in side.bounds]
        filled = [each for each in known if each.latest > each.earliest]
        if not filled:
            return OffsetBounds(0, 0)
        return OffsetBounds(
            min(each.earliest for each in filled), max(each.latest for each in filled)
        )

    def _accepted(self, buckets: DataFrame, groups: DataFrame | None) -> dict[TopicPartition, int]:
        """Per partition: offsets that neither side has, each of which was accepted as lost."""
        comparison = self._comparison
        ranges: list[OffsetRange] = []
        for each in merge_ranges(
            each
            for side in comparison.sides.values()
            for each in side.accepted
            if each.topic not in comparison.strangers
        ):
            inside = clip(self._span(each.place), each.start, each.end)
            ranges.append(OffsetRange(*each.place, *inside))
        held = comparison.held_in(buckets, groups, ranges)
        gone = {place: -count for place, count in held.items()}
        for each in ranges:
            gone[each.place] = gone.get(each.place, 0) + each.length
        return gone


def _cut(side: Side, ranges: Ranges | None) -> Side:
    if ranges is None:
        return side
    found: dict[TopicPartition, OffsetBounds] = {}
    for place, each in ranges.items():
        known = side.bounds.get(place)
        if known is None:
            raise JobError(f"{side.name} has no {place} to look at the offsets of", "USAGE")
        first = min(max(known.earliest, each.earliest), known.latest)
        found[place] = OffsetBounds(first, max(first, min(known.latest, each.latest)))
    return replace(side, bounds=found, logs={place: side.bounds[place] for place in found})


def _notes(left: Side, right: Side, wanted: AuditRequest) -> list[str]:
    notes: list[str] = []
    for topic in sorted({*left.topic_ids} & {*right.topic_ids}):
        ids = left.topic_ids[topic], right.topic_ids[topic]
        if ids[0] != ids[1]:
            told = (
                "it was made anew, or is a copy; what the one was free to remove explains nothing"
                " of the other"
                if topic in unrelated_topics(left, right)
                else "one is a copy: what either was free to remove explains what it lacks"
            )
            notes.append(f"topic {topic} has another id on each side ({', '.join(ids)}): {told}")
    if not wanted.whole:
        notes.append("only records of the given times were compared; gaps are not counted")
    return notes
