"""The choice of the offsets that a round of the archive job commits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.pipelines.archives.port import ArchiveState, Commit, LostOffsets
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """The offsets that one round commits: lost offsets and then a range per partition.

    The range of a new partition may be empty.
    """

    ranges: tuple[OffsetRange, ...]
    lost: tuple[LostOffsets, ...]

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
) -> ArchiveRound:
    """Choose the next offsets of every partition, about `offsets_max` in all, at least one each.

    `starts` are the first offsets of partitions that are not in the archive yet. By default they
    begin at the log start. `targets` are the offsets at which partitions end; the default is the
    current end of the log. Raises JobError if a log ends before the archived offsets.
    """
    assert offsets_max > 0, offsets_max
    begins: dict[TopicPartition, int] = {}
    lost: list[LostOffsets] = []
    for partition, (earliest, latest) in sorted(bounds.items()):
        end = state.ends.get(partition)
        if end is None:
            begins[partition] = max(earliest, min(starts.get(partition, earliest), latest))
            continue
        if latest < end:
            raise JobError(
                f"{partition} ends at offset {latest}, but is archived up to {end}: the topic lost"
                " records or was recreated; archive it to another location (--to)",
                "OFFSETS_WENT_BACK",
            )
        begins[partition] = max(earliest, end)
        if earliest > end:
            lost.append(LostOffsets(OffsetRange(*partition, end, earliest), now_ms))
    left = {
        partition: max(
            0,
            min(targets.get(partition, bounds[partition].latest), bounds[partition].latest) - begin,
        )
        for partition, begin in begins.items()
    }
    takes = _shares(left, offsets_max)
    gone = {each.range.topic_partition for each in lost}
    ranges = tuple(
        OffsetRange(*partition, begin, begin + takes[partition])
        for partition, begin in begins.items()
        if takes[partition] or partition in gone or partition not in state.ends
    )
    return ArchiveRound(ranges, tuple(lost))


def check_lost(lost: tuple[LostOffsets, ...]) -> None:
    """Raise DataLost if any offsets were lost. The error explains how to continue."""
    if not lost:
        return
    ranges = tuple(each.range for each in lost)
    shown = ", ".join(str(each) for each in ranges[:5]) + (", ..." if len(ranges) > 5 else "")
    count = sum(each.length for each in ranges)
    raise DataLost(
        f"{count} offsets were deleted before they were archived: {shown}; to continue without"
        " them, use --accept-loss",
        ranges,
    )


def _shares(left: Mapping[TopicPartition, int], offsets_max: int) -> dict[TopicPartition, int]:
    """Divide `offsets_max` among the partitions in proportion to their remaining offsets."""
    total = sum(left.values())
    if total <= offsets_max:
        return dict(left)
    return {p: min(count, max(1, offsets_max * count // total)) for p, count in left.items()}
