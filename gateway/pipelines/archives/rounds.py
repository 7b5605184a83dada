"""The choice of the offsets that a round of the archive job commits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.pipelines.archives.port import ArchiveState, Commit, LostOffsets
from gateway.pipelines.shared.accepted_losses import AcceptedRanges
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds

_SHOWN_MAX = 5  # ranges that an error names


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """The offsets that one round commits: lost offsets and then a range per partition.

    The range of a new partition may be empty. Of `lost`, the ranges in `accepted` are in the
    topic's accepted losses; the others were deleted.
    """

    ranges: tuple[OffsetRange, ...]
    lost: tuple[LostOffsets, ...]
    accepted: frozenset[OffsetRange] = frozenset()

    @property
    def offsets(self) -> int:
        return sum(each.length for each in self.ranges)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [each.topic_partition for each in self.ranges]

    def commit(self, topic_ids: Mapping[str, str], sparse: frozenset[str]) -> Commit:
        return Commit(self.ranges, topic_ids, self.lost, sparse)


def check_topic_ids(archived: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise JobError if a topic was recreated since it was archived."""
    for topic in sorted(found):
        before = archived.get(topic)
        if before is not None and before != found[topic]:
            raise JobError(
                f"topic {topic!r} was deleted and recreated: its id is {found[topic]}, but"
                f" {before} in the archive; archive it to another location (--to)",
                "TOPIC_MADE_ANEW",
            )


def next_round(
    state: ArchiveState,
    bounds: Mapping[TopicPartition, OffsetBounds],
    starts: Mapping[TopicPartition, int],
    targets: Mapping[TopicPartition, int],
    offsets_max: int,
    now_ms: int,
    accepted: AcceptedRanges | None = None,
) -> ArchiveRound:
    """Choose the next offsets of every partition, about `offsets_max` in all, at least one each.

    `starts` are the first offsets of partitions that are not in the archive yet. By default they
    begin at the log start. `targets` are the offsets at which partitions end; the default is the
    current end of the log. A partition ends before the next of its `accepted` losses, which the
    following round begins with. Raises JobError if a log ends before the archived offsets.
    """
    assert offsets_max > 0, offsets_max
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    lost: list[LostOffsets] = []
    passed: list[OffsetRange] = []
    for partition, (earliest, latest) in sorted(bounds.items()):
        end = state.ends.get(partition)
        if end is None:
            begin = max(earliest, min(starts.get(partition, earliest), latest))
        else:
            _check_not_shorter(partition, latest, end)
            begin = max(earliest, end)
            if earliest > end:
                lost.append(LostOffsets(OffsetRange(*partition, end, earliest), now_ms))
        until = min(targets.get(partition, latest), latest)
        losses = () if accepted is None else accepted.get(partition, ())
        gone = _accepted_at(begin, until, losses)
        lost += [LostOffsets(each, now_ms) for each in gone]
        passed += gone
        begins[partition] = gone[-1].end if gone else begin
        ends[partition] = min([until, *(e.start for e in losses if e.start > begins[partition])])
    left = {partition: max(0, ends[partition] - begin) for partition, begin in begins.items()}
    takes = _shares(left, offsets_max)
    touched = {each.range.topic_partition for each in lost}
    ranges = tuple(
        OffsetRange(*partition, begin, begin + takes[partition])
        for partition, begin in begins.items()
        if takes[partition] or partition in touched or partition not in state.ends
    )
    return ArchiveRound(ranges, tuple(lost), frozenset(passed))


def _check_not_shorter(partition: TopicPartition, latest: int, archived: int) -> None:
    if latest < archived:
        raise JobError(
            f"{partition} ends at offset {latest}, but is archived up to {archived}: the topic lost"
            " records or was recreated; archive it to another location (--to)",
            "OFFSETS_WENT_BACK",
        )


def _accepted_at(begin: int, until: int, losses: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the accepted losses that follow each other from `begin` on, cut at both ends."""
    found: list[OffsetRange] = []
    for each in losses:
        if each.start <= begin < min(each.end, until):
            found.append(each._replace(start=begin, end=min(each.end, until)))
            begin = found[-1].end
    return found


def check_lost(plan: ArchiveRound) -> None:
    """Raise DataLost if any offsets were lost. The error explains how to continue."""
    if not plan.lost:
        return
    ranges = tuple(each.range for each in plan.lost)
    deleted = [each for each in ranges if each not in plan.accepted]
    accepted = [each for each in ranges if each in plan.accepted]
    reasons: list[str] = []
    for gone, why in (
        (deleted, "were deleted before they were archived"),
        (accepted, "are lost, and an operator accepted that"),
    ):
        if gone:
            count = sum(each.length for each in gone)
            reasons.append(f"{count} offsets {why}: {_listed(gone)}")
    raise DataLost(f"{'; '.join(reasons)}; to continue without them, use --accept-loss", ranges)


def _listed(ranges: Sequence[OffsetRange]) -> str:
    more = ", ..." if len(ranges) > _SHOWN_MAX else ""
    return ", ".join(map(str, ranges[:_SHOWN_MAX])) + more


def _shares(left: Mapping[TopicPartition, int], offsets_max: int) -> dict[TopicPartition, int]:
    """Divide `offsets_max` among the partitions in proportion to their remaining offsets."""
    total = sum(left.values())
    if total <= offsets_max:
        return dict(left)
    return {p: min(count, max(1, offsets_max * count // total)) for p, count in left.items()}
