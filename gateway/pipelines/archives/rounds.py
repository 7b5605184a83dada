"""Which offsets a round of the archive job takes. Pure: state and bounds in, ranges out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.pipelines.archives.port import ArchiveState, Commit, LostOffsets
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """What one round adds: per place first what is lost, then a range; an empty one where new."""

    ranges: tuple[OffsetRange, ...]
    lost: tuple[LostOffsets, ...]

    @property
    def offsets(self) -> int:
        return sum(each.length for each in self.ranges)

    @property
    def places(self) -> list[TopicPartition]:
        return [each.place for each in self.ranges]

    def commit(self, topic_ids: Mapping[str, str], sparse: frozenset[str]) -> Commit:
        return Commit(self.ranges, topic_ids, self.lost, sparse)


def check_topic_ids(archived: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises JobError when a topic is another one than that of the same name in the archive."""
    for topic in sorted(found):
        before = archived.get(topic)
        if before is not None and before != found[topic]:
            raise JobError(
                f"topic {topic!r} was deleted and made anew: its id is {found[topic]}, that of"
                f" the archive {before}; archive it to another place (--to)",
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
    """What comes next of every place, about `offsets_max` offsets in all, at least one of each.

    `starts`: where places begin that the archive does not know, else at their first offset.
    `targets`: where to end, else at the topic's end. Raises JobError when a topic ends before
    what is archived of it.
    """
    assert offsets_max > 0, offsets_max
    begins: dict[TopicPartition, int] = {}
    lost: list[LostOffsets] = []
    for place, (earliest, latest) in sorted(bounds.items()):
        end = state.ends.get(place)
        if end is None:
            begins[place] = max(earliest, min(starts.get(place, earliest), latest))
            continue
        if latest < end:
            raise JobError(
                f"{place} ends at offset {latest}, but is archived up to {end}: the topic lost"
                " records or was made anew; archive it to another place (--to)",
                "OFFSETS_WENT_BACK",
            )
        begins[place] = max(earliest, end)
        if earliest > end:
            lost.append(LostOffsets(OffsetRange(*place, end, earliest), now_ms))
    left = {
        place: max(0, min(targets.get(place, bounds[place].latest), bounds[place].latest) - begin)
        for place, begin in begins.items()
    }
    takes = _shares(left, offsets_max)
    gone = {each.range.place for each in lost}
    ranges = tuple(
        OffsetRange(*place, begin, begin + takes[place])
        for place, begin in begins.items()
        if takes[place] or place in gone or place not in state.ends
    )
    return ArchiveRound(ranges, tuple(lost))


def check_lost(lost: tuple[LostOffsets, ...]) -> None:
    """Raises DataLost, which says how to go on, if anything is."""
    if not lost:
        return
    ranges = tuple(each.range for each in lost)
    shown = ", ".join(str(each) for each in ranges[:5]) + (", ..." if len(ranges) > 5 else "")
    count = sum(each.length for each in ranges)
    raise DataLost(
        f"{count} offsets were deleted before they were archived: {shown}; to go on without them"
        " use --accept-loss",
        ranges,
    )


def _shares(left: Mapping[TopicPartition, int], offsets_max: int) -> dict[TopicPartition, int]:
    total = sum(left.values())
    if total <= offsets_max:
        return dict(left)
    return {p: min(count, max(1, offsets_max * count // total)) for p, count in left.items()}
