"""The decisions that a replay makes before its first record, so that later runs can continue it.

The selected records of a partition are numbered from 0. Record number i becomes offset
`base_offset` + i of the same partition of the target, and is sent with sequence i of one producer
id. Therefore the target's end offset shows the progress, and the server recognises a repeated
batch. The server refuses a batch that is neither the next one nor a repeat.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange

FORMAT = 2
SEQUENCE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The `count` records at source offsets `first` to `last`.

    If `dense`, each offset has a record.
    """

    partition: int
    base_offset: int
    count: int
    first: int
    last: int

    @property
    def dense(self) -> bool:
        return self.last - self.first + 1 == self.count

    @property
    def end_offset(self) -> int:
        """The target's end offset once all records are written."""
        return self.base_offset + self.count

    def sequence(self, index: int) -> int:
        """Return the sequence of a record. After 2^31-1, sequences continue at 0."""
        return index & SEQUENCE_MAX


@dataclass(frozen=True, slots=True)
class ReplayChunk:
    """Source offsets `first` to `end` - 1 of a partition, written by one Spark task.

    `number` is the number of the first record. `last` is true if no record of the plan follows.
    """

    partition: int
    first: int
    end: int
    number: int
    last: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected records of one archived topic.

    Their offsets are within `ranges`, and their timestamps are at least `start_ms` and below
    `end_ms`.
    """

    topic: str
    ranges: tuple[OffsetRange, ...]
    start_ms: int | None = None
    end_ms: int | None = None

    def by_partition(self) -> dict[int, list[OffsetRange]]:
        """Return the ranges of each partition, in order."""
        found: dict[int, list[OffsetRange]] = {}
        for each in self.ranges:
            found.setdefault(each.partition, []).append(each)
        return found


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The decisions of a replay.

    `asked` is the request in one line. `topic_id` identifies the target, and `source_id` the
    archived topic ("" if unknown), to detect topics that were recreated. `target_ends` are the end
    offsets of all partitions of the target before the first record of the plan.

    A replay that continues has several plans. `number` counts them from 1. `covered` are the
    archived offsets of this plan and all earlier ones, and `earlier` counts the records of the
    earlier ones.
    """

    asked: str
    selection: Selection
    target: str
    topic_id: str
    producer_id: int
    producer_epoch: int
    record_bytes_max: int
    partitions: tuple[PartitionPlan, ...]
    source_id: str = ""
    target_ends: tuple[int, ...] = ()
    covered: tuple[OffsetRange, ...] = ()
    number: int = 1
    earlier: int = 0

    @property
    def records(self) -> int:
        """The number of records of this plan."""
        return sum(each.count for each in self.partitions)

    @property
    def ends_after(self) -> dict[int, int]:
        """The target's end offsets once all records of this plan are written."""
        ends = dict(enumerate(self.target_ends))
        return ends | {each.partition: each.end_offset for each in self.partitions}

    def encode(self) -> bytes:
        """Encode the plan as JSON with a version."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, indent=1)
        return f"{text}\n".encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> ReplayPlan:
        """Decode the bytes of `encode`. Raises JobError that names `path`."""
        try:
            fields: dict[str, Any] = json.loads(data)
            version = fields.pop("format")
            if version != FORMAT:
                raise JobError(
                    f"{path}: the replay's state has format {version}, this version reads {FORMAT}",
                    "BAD_STATE",
                )
            selection = fields.pop("selection")
            ranges = tuple(OffsetRange(*each) for each in selection.pop("ranges"))
            partitions = tuple(PartitionPlan(**each) for each in fields.pop("partitions"))
            covered = tuple(OffsetRange(*each) for each in fields.pop("covered"))
            ends = tuple(map(int, fields.pop("target_ends")))
            return cls(
                selection=Selection(ranges=ranges, **selection),
                partitions=partitions,
                covered=covered,
                target_ends=ends,
                **fields,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JobError(f"{path}: not the state of a replay: {error!r}", "BAD_STATE") from error


def next_chunk(
    ranges: Sequence[OffsetRange],
    partition: PartitionPlan,
    offset: int,
    number: int,
    offsets_max: int,
) -> ReplayChunk:
    """Return the next chunk, of at most `offsets_max` offsets, at or after `offset`.

    `ranges` are the selected ones of the partition. The chunk begins at its first selected offset,
    and `number` is the number of its first record.
    `offset` must not be beyond the last record.
    """
    assert offsets_max > 0 and offset <= partition.last, (offsets_max, offset, partition)
    ends = [each for each in ranges if each.end > offset]
    first = max(offset, min((each.start for each in ends), default=offset))
    end = min(first + offsets_max, partition.last + 1)
    return ReplayChunk(partition.partition, first, end, number, end > partition.last)


def select_ranges(
    topic: str, archived: Iterable[OffsetRange], asked: Mapping[int, tuple[int, int]] | None
) -> tuple[OffsetRange, ...]:
    """Return the ranges to replay: all archived ranges of the topic, or the offsets in `asked`.

    Raises JobError if the topic or some of these offsets are not archived.
    """
    held: dict[int, list[OffsetRange]] = {}
    for each in sorted(archived):
        if each.topic == topic and each.length:
            held.setdefault(each.partition, []).append(each)
    if not held:
        raise JobError(f"the archive has no records of topic {topic!r}", "NOT_ARCHIVED")
    if asked is None:
        return tuple(each for ranges in held.values() for each in ranges)
    chosen: list[OffsetRange] = []
    for partition, (start, end) in sorted(asked.items()):
        requested = OffsetRange(topic, partition, start, end)
        inside = [each for each in held.get(partition, ()) if each.overlaps(requested)]
        parts = [
            each._replace(start=max(each.start, start), end=min(each.end, end)) for each in inside
        ]
        if sum(each.length for each in parts) != requested.length:
            there = ", ".join(map(str, held.get(partition, ()))) or "nothing"
            raise JobError(f"{requested}: not all archived; there is {there}", "NOT_ARCHIVED")
        chosen += parts
    return tuple(chosen)


def subtract_ranges(
    ranges: Iterable[OffsetRange], covered: Iterable[OffsetRange]
) -> tuple[OffsetRange, ...]:
    """Return the parts of `ranges` that are not in `covered`, in order."""
    known: dict[int, list[OffsetRange]] = {}
    for each in sorted(covered):
        known.setdefault(each.partition, []).append(each)
    found: list[OffsetRange] = []
    for each in sorted(ranges):
        start = each.start
        for one in known.get(each.partition, ()):
            if one.end <= start or one.start >= each.end:
                continue
            if one.start > start:
                found.append(each._replace(start=start, end=one.start))
            start = one.end
        if start < each.end:
            found.append(each._replace(start=start))
    return tuple(found)


def join_ranges(*parts: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return all ranges in order, and merge those that touch. The ranges must not overlap."""
    found: list[OffsetRange] = []
    for each in sorted(one for part in parts for one in part):
        before = found[-1] if found else None
        if before is not None and (*before[:2], before.end) == each[:3]:
            found[-1] = before._replace(end=each.end)
        else:
            found.append(each)
    return tuple(found)


def parse_offsets(text: str, topic: str) -> dict[int, tuple[int, int]]:
    """Parse `{"0": [100, 200]}` (offsets 100 to 199), also inside `{"topic": {...}}`.

    Raises JobError.
    """
    try:
        given: dict[str, Any] = json.loads(text)
        if set(given) == {topic} and isinstance(given[topic], dict):
            given = given[topic]
        asked: dict[int, tuple[int, int]] = {}
        for partition, (start, end) in given.items():
            if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end):
                raise ValueError(f"{start}, {end}")
            asked[int(partition)] = start, end
    except (ValueError, TypeError, AttributeError) as error:
        raise JobError(
            f'--offsets: {error}; use {{"0": [100, 200]}} for offsets 100 to 199 of partition 0',
            "USAGE",
        ) from None
    if not asked:
        raise JobError("--offsets: name at least one partition", "USAGE")
    return asked
