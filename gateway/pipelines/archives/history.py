"""What an archive has taken so far, as properties of an Iceberg snapshot. Pure.

Each property is JSON, packed where it is long. Layout: docs/formats/archive.md.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.pipelines.archives.port import ArchiveState, Commit, LostOffsets
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
"""Longer JSON is packed: a table's metadata keeps these of every snapshot."""
_PACKED = "zlib:"

_Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ArchiveHistory:
    """Per place the archived ranges, joined and in order; an empty one only as the first."""

    spans: Mapping[TopicPartition, _Spans] = field(default_factory=dict[TopicPartition, _Spans])
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    lost: tuple[LostOffsets, ...] = ()

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Per place the offset after the last archived or lost one."""
        found = {place: spans[-1][1] for place, spans in self.spans.items()}
        for each in self.lost:
            found[each.range.place] = max(found.get(each.range.place, 0), each.range.end)
        return found

    @property
    def ranges(self) -> list[OffsetRange]:
        return [
            OffsetRange(*place, start, end)
            for place in sorted(self.spans)
            for start, end in self.spans[place]
            if start < end
        ]

    def state(self, version: str) -> ArchiveState:
        return ArchiveState(version, self.ends, dict(self.topic_ids), self.lost)

    def after(self, commit: Commit) -> ArchiveHistory:
        """With that commit. Raises JobError when its ranges do not follow on the ends."""
        ends = self.ends
        for each in (*(one.range for one in commit.lost), *commit.ranges):
            end = ends.get(each.place, each.start)
            if each.start != end or each.end < each.start:
                raise JobError(f"{each} does not follow on offset {end}", "WRONG_RANGES")
            ends[each.place] = each.end
        spans = dict(self.spans)
        for each in commit.ranges:
            spans[each.place] = _joined(spans.get(each.place, ()), (each.start, each.end))
        topic_ids = {**self.topic_ids, **commit.topic_ids}
        return ArchiveHistory(spans, topic_ids, (*self.lost, *commit.lost))

    def properties(self) -> dict[str, str]:
        """Such that `from_properties` gives it back."""
        offsets: dict[str, dict[str, _Spans]] = {}
        for place in sorted(self.spans):
            offsets.setdefault(place.topic, {})[str(place.partition)] = self.spans[place]
        lost = [[*each.range, each.noticed_ms] for each in self.lost]
        return {
            FORMAT_KEY: FORMAT,
            OFFSETS_KEY: _pack(offsets),
            TOPIC_IDS_KEY: _pack(dict(sorted(self.topic_ids.items()))),
            LOST_KEY: _pack(lost),
        }


def from_ranges(ranges: Iterable[OffsetRange]) -> ArchiveHistory:
    """One that holds these, of topics whose ids nobody knows."""
    return ArchiveHistory().after(Commit(tuple(ranges), {}))


def from_properties(properties: Mapping[str, str], where: str) -> ArchiveHistory | None:
    """The one that they describe; None: they describe none.

    Raises JobError when they are of a newer version, or damaged; `where` says whose they are.
    """
    version = properties.get(FORMAT_KEY)
    if version is None:
        return None
    if version != FORMAT:
        raise JobError(
            f"{where}: archive format {version}, this version knows {FORMAT}; use a newer one",
            "UNKNOWN_FORMAT",
        )
    try:
        offsets = dict(_unpack(properties[OFFSETS_KEY]))
        spans = {
            TopicPartition(topic, int(partition)): tuple(
                (int(start), int(end)) for start, end in pairs
            )
            for topic, places in offsets.items()
            for partition, pairs in dict(places).items()
            if pairs
        }
        topic_ids = _texts(_unpack(properties[TOPIC_IDS_KEY]))
        lost = tuple(
            LostOffsets(
                OffsetRange(str(topic), int(partition), int(start), int(end)), int(noticed_ms)
            )
            for topic, partition, start, end, noticed_ms in _unpack(properties[LOST_KEY])
        )
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
