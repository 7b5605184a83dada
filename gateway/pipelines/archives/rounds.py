"""The choice of the offsets that a round of the archive job commits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.pipelines.archives.lives import base_name
from gateway.pipelines.archives.port import (
    ACCEPTED,
    DELETED,
    SKIPPED,
    ArchiveState,
    Commit,
    Holes,
    LostOffsets,
)
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds

_SHOWN_MAX = 5  # ranges that an error names


class GoneRange(NamedTuple):
    """Offsets inside the bounds of a partition that no archive can hold, with the reason."""

    range: OffsetRange
    reason: str


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """The offsets that one round commits: in each partition lost offsets and then a range.

    The range of a new partition may be empty. `refused` are the topics that the round leaves out,
    each with the reason.
    """

    ranges: tuple[OffsetRange, ...]
    lost: tuple[LostOffsets, ...] = ()
    refused: Mapping[str, JobError] = field(default_factory=dict[str, JobError])

    @property
    def offsets(self) -> int:
        return sum(each.length for each in self.ranges)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [each.topic_partition for each in self.ranges]

    @property
    def topics(self) -> list[str]:
        return sorted({each.topic for each in self.ranges})

    def commit(
        self,
        topic_ids: Mapping[str, str],
        sparse: frozenset[str],
        confirm: Callable[[], None],
        holes: Callable[[Sequence[OffsetRange]], Holes] = lambda _: {},
    ) -> Commit:
        """Return the commit of this round, with the ids of its own topics only."""
        ids = {name: topic_ids[name] for name in self.topics if name in topic_ids}
        return Commit(self.ranges, ids, self.lost, sparse, confirm, holes)


@dataclass(frozen=True, slots=True)
class RoundInput:
    """What a round is planned from. Topics have their names in the archive: see `lives`."""

    state: ArchiveState
    bounds: Mapping[TopicPartition, OffsetBounds]
    offsets_max: int
    """Approximate number of offsets of the round."""
    now_ms: int
    starts: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """The first offsets of new partitions. By default they begin at the log start."""
    targets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """The offsets at which partitions end. The default is the current end of the log."""
    gone: Mapping[TopicPartition, Sequence[GoneRange]] = field(
        default_factory=dict[TopicPartition, Sequence[GoneRange]]
    )
    """Offsets that cannot be archived, in order, without overlaps."""
    accept_loss: Collection[str] = ()
    """The topics that are archived although offsets of them are lost."""


class _Draft(NamedTuple):
    """The next offsets of one partition, before the round is divided among all partitions."""

    begin: int
    end: int
    lost: list[LostOffsets]


def next_round(given: RoundInput) -> ArchiveRound:
    """Choose the next offsets of every partition, about `offsets_max` in all, at least one each.

    A partition ends before the next of its `gone` ranges, which the following round begins with. A
    topic is refused if one of its logs ends before the archived offsets, or if offsets are lost
    that nobody accepted.
    """
    assert given.offsets_max > 0, given.offsets_max
    refused: dict[str, JobError] = {}
    drafts: dict[TopicPartition, _Draft] = {}
    lost: dict[str, list[LostOffsets]] = {}
    for partition, bounds in sorted(given.bounds.items()):
        if bounds.latest < given.state.ends.get(partition, 0):
            refused.setdefault(
                partition.topic, _went_back(partition, bounds, given.state.ends[partition])
            )
            continue
        draft = drafts[partition] = _draft(given, partition, bounds)
        lost.setdefault(partition.topic, []).extend(
            each for each in draft.lost if each.reason != SKIPPED
        )
    for topic, ranges in lost.items():
        if ranges and topic not in given.accept_loss:
            refused.setdefault(topic, _data_lost(topic, ranges))
    drafts = {each: draft for each, draft in drafts.items() if each.topic not in refused}
    left = {each: max(0, draft.end - draft.begin) for each, draft in drafts.items()}
    takes = _shares(left, given.offsets_max)
    chosen = {
        partition: draft
        for partition, draft in drafts.items()
        if takes[partition] or draft.lost or partition not in given.state.ends
    }
    return ArchiveRound(
        tuple(
            OffsetRange(*partition, draft.begin, draft.begin + takes[partition])
            for partition, draft in chosen.items()
        ),
        tuple(each for draft in chosen.values() for each in draft.lost),
        refused,
    )


def _draft(given: RoundInput, partition: TopicPartition, bounds: OffsetBounds) -> _Draft:
    lost: list[LostOffsets] = []

    def lose(start: int, end: int, reason: str) -> None:
        if start < end:
            lost.append(LostOffsets(OffsetRange(*partition, start, end), given.now_ms, reason))

    earliest, latest = bounds
    archived = given.state.ends.get(partition)
    if archived is None:
        begin = max(earliest, min(given.starts.get(partition, earliest), latest))
        if given.state.ends:  # in a new archive, --from is the start of everything
            lose(earliest, begin, SKIPPED)
    else:
        begin = max(earliest, archived)
        lose(archived, begin, DELETED)
    until = min(given.targets.get(partition, latest), latest)
    gone = given.gone.get(partition, ())
    for each, reason in gone:
        if each.start <= begin < min(each.end, until):
            lose(begin, min(each.end, until), reason)
            begin = min(each.end, until)
    end = min([until, *(each.start for each, _ in gone if each.start > begin)])
    return _Draft(begin, end, lost)


def _went_back(partition: TopicPartition, bounds: OffsetBounds, archived: int) -> JobError:
    return JobError(
        f"{partition} ends at offset {bounds.latest}, but is archived up to {archived}: the topic"
        " lost records or was recreated; archive it to another location (--to)",
        "OFFSETS_WENT_BACK",
    )


def _data_lost(topic: str, lost: Sequence[LostOffsets]) -> DataLost:
    """Return the error for offsets that are lost. The error explains how to continue."""
    reasons: list[str] = []
    by_reason: dict[str, list[OffsetRange]] = {}
    for each in lost:
        by_reason.setdefault(each.reason, []).append(each.range)
    for reason, ranges in by_reason.items():
        count = sum(each.length for each in ranges)
        why = _WHY.get(reason, f"hold records that Spark cannot represent, {reason}")
        reasons.append(f"{count} offsets {why}: {_listed(ranges)}")
    return DataLost(
        f"{'; '.join(reasons)}; to continue without them, use --accept-loss {base_name(topic)}",
        tuple(each.range for each in lost),
    )


_WHY = {
    DELETED: "were deleted before they were archived",
    ACCEPTED: "are lost, and an operator accepted that",
}


def _listed(ranges: Sequence[OffsetRange]) -> str:
    more = ", ..." if len(ranges) > _SHOWN_MAX else ""
    return ", ".join(map(str, ranges[:_SHOWN_MAX])) + more


def _shares(left: Mapping[TopicPartition, int], offsets_max: int) -> dict[TopicPartition, int]:
    """Divide `offsets_max` among the partitions in proportion to their remaining offsets."""
    total = sum(left.values())
    if total <= offsets_max:
        return dict(left)
    return {p: min(count, max(1, offsets_max * count // total)) for p, count in left.items()}
