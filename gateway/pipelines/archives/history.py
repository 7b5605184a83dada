"""The contents of an archive as properties of an Iceberg snapshot. Pure.

Each property is JSON, compressed if it is long. Layout: docs/formats/archive.md.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.pipelines.archives.port import ArchiveState, Commit, LostOffsets
from gateway.pipelines.archives.sums import RecordSum
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

FORMAT = "1"
PREFIX = "archive."
FORMAT_KEY = f"{PREFIX}format"
OFFSETS_KEY = f"{PREFIX}offsets"
TOPIC_IDS_KEY = f"{PREFIX}topic-ids"
LOST_KEY = f"{PREFIX}lost"
KEYS = (FORMAT_KEY, OFFSETS_KEY, TOPIC_IDS_KEY, LOST_KEY)

PLAIN_CHARS_MAX = 4096
"""Longer JSON is compressed, because a table's metadata keeps the properties of every snapshot."""
_PACKED = "zlib:"

_Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ArchiveHistory:
    """The archived ranges of each partition, merged and in order.

    Only the first range may be empty.
    """

    spans: Mapping[TopicPartition, _Spans] = field(default_factory=dict[TopicPartition, _Spans])
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    lost: tuple[LostOffsets, ...] = ()
    sums: Mapping[TopicPartition, RecordSum] = field(
        default_factory=dict[TopicPartition, RecordSum]
    )
    """For each partition, the sum over all its records.

    A partition that has records of a commit without sums is missing.
    """

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """For each partition, the offset after the last archived or lost one."""
        found = {partition: spans[-1][1] for partition, spans in self.spans.items()}
        for each in self.lost:
            found[each.range.topic_partition] = max(
                found.get(each.range.topic_partition, 0), each.range.end
            )
        return found

    @property
    def ranges(self) -> list[OffsetRange]:
        return [
            OffsetRange(*partition, start, end)
            for partition in sorted(self.spans)
            for start, end in self.spans[partition]
            if start < end
        ]

    def state(self, version: str) -> ArchiveState:
        return ArchiveState(version, self.ends, dict(self.topic_ids), self.lost)

    def after(self, commit: Commit) -> ArchiveHistory:
        """Return the history extended by `commit`.

        Raises JobError if a range of the commit does not begin at the end of its partition.
        """
        ends = self.ends
        for each in (*(one.range for one in commit.lost), *commit.ranges):
            end = ends.get(each.topic_partition, each.start)
            if each.start != end or each.end < each.start:
                raise JobError(f"{each} does not follow on offset {end}", "WRONG_RANGES")
            ends[each.topic_partition] = each.end
        spans = dict(self.spans)
        for each in commit.ranges:
            spans[each.topic_partition] = _joined(
                spans.get(each.topic_partition, ()), (each.start, each.end)
            )
        topic_ids = {**self.topic_ids, **commit.topic_ids}
        return ArchiveHistory(spans, topic_ids, (*self.lost, *commit.lost))

    def properties(self) -> dict[str, str]:
        """Encode the history as properties, which `from_properties` decodes."""
        offsets: dict[str, dict[str, _Spans]] = {}
        for partition in sorted(self.spans):
            offsets.setdefault(partition.topic, {})[str(partition.partition)] = self.spans[
                partition
            ]
        lost = [each.encode() for each in self.lost]
        return {
            FORMAT_KEY: FORMAT,
            OFFSETS_KEY: _pack(offsets),
            TOPIC_IDS_KEY: _pack(dict(sorted(self.topic_ids.items()))),
            LOST_KEY: _pack(lost),
        }


def from_ranges(ranges: Iterable[OffsetRange]) -> ArchiveHistory:
    """Make a history that contains these ranges and no topic ids."""
    return ArchiveHistory().after(Commit(tuple(ranges), {}))


def from_properties(properties: Mapping[str, str], where: str) -> ArchiveHistory | None:
    """Decode a history, or return None if the properties contain none.

    Raises JobError if the properties have a newer format or are damaged. The error names `where`,
    the place that the properties were read from.
    """
    version = properties.get(FORMAT_KEY)
    if version is None:
        return None
    if version != FORMAT:
        raise JobError(
            f"{where}: archive format {version}, but this version reads {FORMAT}; use a newer one",
            "UNKNOWN_FORMAT",
        )
    try:
        offsets = dict(_unpack(properties[OFFSETS_KEY]))
        spans = {
            TopicPartition(topic, int(partition)): tuple(
                (int(start), int(end)) for start, end in pairs
            )
            for topic, partitions in offsets.items()
            for partition, pairs in dict(partitions).items()
            if pairs
        }
        topic_ids = _texts(_unpack(properties[TOPIC_IDS_KEY]))
        lost = tuple(LostOffsets.decode(each) for each in _unpack(properties[LOST_KEY]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise JobError(f"{where}: damaged: {error!r}", "DAMAGED_ARCHIVE") from error
    return ArchiveHistory(spans, topic_ids, lost)


def _joined(spans: _Spans, new: tuple[int, int]) -> _Spans:
    if not spans:
        return (new,)
    start, end = spans[-1]
    if new[0] == end:
        return (*spans[:-1], (start, new[1]))
    if new[0] == new[1]:
        return spans
    return (*spans, new) if start < end else (*spans[:-1], new)


def _pack(value: object) -> str:
    plain = json.dumps(value, separators=(",", ":"))
    if len(plain) <= PLAIN_CHARS_MAX:
        return plain
    return _PACKED + base64.b64encode(zlib.compress(plain.encode(), 9)).decode()


def _unpack(text: str) -> Any:
    if not text.startswith(_PACKED):
        return json.loads(text)
    return json.loads(zlib.decompress(base64.b64decode(text[len(_PACKED) :], validate=True)))


def _texts(value: Any) -> dict[str, str]:
    found: dict[str, Any] = dict(value)
    if not all(isinstance(text, str) for text in found.values()):
        raise TypeError("not all are texts")
    return found
