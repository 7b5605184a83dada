"""What a replay has decided before its first record, so that every later run goes on with it.

Record number i (from 0) of a partition's selection becomes offset `base_offset` + i of the same
partition of the target, sent with sequence i of one producer id. So the target's own end says how
far a replay has come, a repeated batch is recognised by the server, and a batch that is neither
next nor a repeat is refused.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange

FORMAT = 1
SEQUENCE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """`count` records at source offsets `first` to `last`; where `dense`, every offset is one."""

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
        """Of the target, once all is written."""
        return self.base_offset + self.count

    def sequence(self, index: int) -> int:
        """Sequences run 0 ... 2^31-1 and then from 0 again."""
        return index & SEQUENCE_MAX


@dataclass(frozen=True, slots=True)
class ReplayChunk:
    """Source offsets `first` to `end` - 1 of a partition, to be written at once; `number` is that
    of their first record. `last`: no record of the plan comes after them."""

    partition: int
    first: int
    end: int
    number: int
    last: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """Records of one archived topic: within `ranges`, not before `start_ms`, before `end_ms`."""

    topic: str
    ranges: tuple[OffsetRange, ...]
    start_ms: int | None = None
    end_ms: int | None = None

    def of(self, partition: int) -> list[OffsetRange]:
        return [each for each in self.ranges if each.partition == partition]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """`asked` is the request in one line; `topic_id` tells the life of the target that is meant,
    `source_id` that of the archived topic ("": nobody knows)."""

    asked: str
    selection: Selection
    target: str
    topic_id: str
    producer_id: int
    producer_epoch: int
    record_bytes_max: int
    partitions: tuple[PartitionPlan, ...]
    source_id: str = ""

    def encode(self) -> bytes:
        """JSON with a version."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, indent=1)
        return f"{text}\n".encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> ReplayPlan:
        """What `encode` gave. Raises JobError that names `path`."""
        try:
            fields: dict[str, Any] = json.loads(data)
            version = fields.pop("format")
            if version != FORMAT:
                raise JobError(
                    f"{path}: a replay's state of format {version}, this program reads {FORMAT}",
                    "BAD_STATE",
                )
            selection = fields.pop("selection")
            ranges = tuple(OffsetRange(*each) for each in selection.pop("ranges"))
            partitions = tuple(PartitionPlan(**each) for each in fields.pop("partitions"))
            return cls(
                selection=Selection(ranges=ranges, **selection), partitions=partitions, **fields
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JobError(f"{path}: no state of a replay: {error!r}", "BAD_STATE") from error


def next_chunk(
    selection: Selection, partition: PartitionPlan, offset: int, number: int, offsets_max: int
) -> ReplayChunk:
    """At most so many offsets, from the first that is selected at `offset` or after it on.

    `number`: of the record that comes first there; `offset` is not beyond the last one's.
    """
    assert offsets_max > 0 and offset <= partition.last, (offsets_max, offset, partition)
    ends = [each for each in selection.of(partition.partition) if each.end > offset]
    first = max(offset, min((each.start for each in ends), default=offset))
    end = min(first + offsets_max, partition.last + 1)
    return ReplayChunk(partition.partition, first, end, number, end > partition.last)


def select_ranges(
    topic: str, archived: Iterable[OffsetRange], asked: Mapping[int, tuple[int, int]] | None
) -> tuple[OffsetRange, ...]:
    """What to replay: all that is archived of the topic, or of `asked` partitions from ... to.

    Raises JobError when the topic is not there, or offsets that were asked for are not.
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
        wanted = OffsetRange(topic, partition, start, end)
        inside = [each for each in held.get(partition, ()) if each.overlaps(wanted)]
        parts = [
            each._replace(start=max(each.start, start), end=min(each.end, end)) for each in inside
        ]
        if sum(each.length for each in parts) != wanted.length:
            there = ", ".join(map(str, held.get(partition, ()))) or "nothing"
            raise JobError(f"{wanted}: not all archived; there is {there}", "NOT_ARCHIVED")
        chosen += parts
    return tuple(chosen)


def parse_offsets(text: str, topic: str) -> dict[int, tuple[int, int]]:
    """Of `{"0": [100, 200]}`: from 100 up to, not including 200; {"topic": {...}} says the same.

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
            f'--offsets: {error}; write {{"0": [100, 200]}}: partition 0 from 100 up to, not'
            " including 200",
            "USAGE",
        ) from None
    if not asked:
        raise JobError("--offsets: names no partition", "USAGE")
    return asked
