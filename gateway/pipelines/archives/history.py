"""The contents of an archive as properties of an Iceberg snapshot. Pure.

Most snapshots describe only their own commit, because a table's metadata keeps the properties of
every snapshot. Some describe the whole archive. Each property is JSON, compressed if it is long.
Layout: docs/formats/archive.md.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.pipelines.archives.port import ArchiveState, Commit, LostOffsets
from gateway.pipelines.archives.sums import NO_RECORDS, RecordSum
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

FORMAT = "2"
_FORMATS = ("1", FORMAT)
"""The formats that can be read. Format 1 has no sums and no changes."""
PREFIX = "archive."
FORMAT_KEY = f"{PREFIX}format"
OFFSETS_KEY = f"{PREFIX}offsets"
TOPIC_IDS_KEY = f"{PREFIX}topic-ids"
LOST_KEY = f"{PREFIX}lost"
SUMS_KEY = f"{PREFIX}sums"
DELETED_KEY = f"{PREFIX}deleted"
KEYS = (FORMAT_KEY, OFFSETS_KEY, TOPIC_IDS_KEY, LOST_KEY, SUMS_KEY, DELETED_KEY)
CHANGE_KEY = f"{PREFIX}change"
CHANGES_KEY = f"{PREFIX}changes"
CHANGE_KEYS = (FORMAT_KEY, CHANGE_KEY, CHANGES_KEY)

CHANGES_MAX = 50
"""After this many commits, a snapshot describes the whole archive again."""

PLAIN_CHARS_MAX = 4096
"""Longer JSON is compressed."""
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
    deleted: bool = False
    """Whether other writers have deleted records, so that the sums may exceed the records."""

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

    def after(self, change: HistoryChange) -> ArchiveHistory:
        """Return the history extended by a commit.

        Raises JobError if a range of the commit does not begin at the end of its partition.
        """
        commit = change.commit
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
        lost = (*self.lost, *commit.lost)
        deleted = self.deleted or change.deleted
        return ArchiveHistory(spans, topic_ids, lost, self._sums_after(change), deleted)

    def _sums_after(self, change: HistoryChange) -> dict[TopicPartition, RecordSum]:
        sums = dict(self.sums)
        for each in change.commit.ranges:
            at = each.topic_partition
            spans = self.spans.get(at, ())
            empty = not spans or spans[-1][0] == spans[-1][1]
            before = sums.pop(at, NO_RECORDS if empty else None)
            added = None if change.sums is None else change.sums.get(at, NO_RECORDS)
            if before is not None and added is not None:
                sums[at] = before.plus(added)
        return sums

    def properties(self) -> dict[str, str]:
        """Encode the history as properties, which `from_properties` decodes."""
        lost = [each.encode() for each in self.lost]
        return {
            FORMAT_KEY: FORMAT,
            OFFSETS_KEY: _pack(_nested(self.spans)),
            TOPIC_IDS_KEY: _pack(dict(sorted(self.topic_ids.items()))),
            LOST_KEY: _pack(lost),
            SUMS_KEY: _pack(_nested(self.sums)),
            DELETED_KEY: json.dumps(self.deleted),
        }


class ChangeCount(NamedTuple):
    """The number of changes since the last snapshot with the whole history, and their size."""

    changes: int = 0
    chars: int = 0


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """What one commit adds to a history. `count` includes this change.

    `sums` are over the records of each partition, or None if they are unknown.
    """

    commit: Commit
    sums: Mapping[TopicPartition, RecordSum] | None
    count: ChangeCount = ChangeCount()
    deleted: bool = False

    def properties(self, after: ChangeCount) -> dict[str, str]:
        """Encode the change as properties. `after` is the count of the snapshot before."""
        packed = _pack(
            {
                "ranges": _nested({each.topic_partition: each[2:] for each in self.commit.ranges}),
                "topic_ids": dict(sorted(self.commit.topic_ids.items())),
                "lost": [each.encode() for each in self.commit.lost],
                "sums": None if self.sums is None else _nested(self.sums),
                "deleted": self.deleted,
            }
        )
        count = [after.changes + 1, after.chars + len(packed)]
        return {FORMAT_KEY: FORMAT, CHANGE_KEY: packed, CHANGES_KEY: json.dumps(count)}


def commit_properties(
    history: ArchiveHistory, change: HistoryChange, before: ChangeCount | None
) -> dict[str, str]:
    """Return the properties of a commit's snapshot: its change, or the whole `history` after it.

    `before` is the count of the snapshot before, or None if no snapshot is known. The changes since
    the last whole history stay few, and smaller than a whole one.
    """
    whole = history.properties()
    if before is None or before.changes >= CHANGES_MAX:
        return whole
    changed = change.properties(before)
    if before.chars + len(changed[CHANGE_KEY]) > sum(map(len, whole.values())):
        return whole
    return changed


def from_ranges(
    ranges: Iterable[OffsetRange], sums: Mapping[TopicPartition, RecordSum] | None = None
) -> ArchiveHistory:
    """Make a history that contains these ranges and no topic ids."""
    return ArchiveHistory().after(HistoryChange(Commit(tuple(ranges), {}), sums))


def change_from_properties(properties: Mapping[str, str], where: str) -> HistoryChange | None:
    """Decode a change, or return None if the properties contain none. Raises JobError."""
    if CHANGE_KEY not in properties:
        return None
    _check_format(properties[FORMAT_KEY], where)
    try:
        fields = _unpack(properties[CHANGE_KEY])
        commit = Commit(
            tuple(
                OffsetRange(*at, int(start), int(end))
                for at, (start, end) in _flat(fields["ranges"])
            ),
            _texts(fields["topic_ids"]),
            _lost(fields["lost"]),
        )
        count = ChangeCount(*map(int, json.loads(properties[CHANGES_KEY])))
        sums = None if fields["sums"] is None else _sums(fields["sums"])
        return HistoryChange(commit, sums, count, _truth(fields["deleted"]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise JobError(f"{where}: damaged: {error!r}", "DAMAGED_ARCHIVE") from error


def from_properties(properties: Mapping[str, str], where: str) -> ArchiveHistory | None:
    """Decode a history, or return None if the properties contain no whole one.

    Raises JobError if the properties have a newer format or are damaged. The error names `where`,
    the place that the properties were read from.
    """
    version = properties.get(FORMAT_KEY)
    if version is None or CHANGE_KEY in properties:
        return None
    _check_format(version, where)
    try:
        spans = {
            at: tuple((int(start), int(end)) for start, end in pairs)
            for at, pairs in _flat(_unpack(properties[OFFSETS_KEY]))
            if pairs
        }
        topic_ids = _texts(_unpack(properties[TOPIC_IDS_KEY]))
        lost = _lost(_unpack(properties[LOST_KEY]))
        sums = {} if version == "1" else _sums(_unpack(properties[SUMS_KEY]))
        deleted = version != "1" and _truth(_unpack(properties[DELETED_KEY]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise JobError(f"{where}: damaged: {error!r}", "DAMAGED_ARCHIVE") from error
    return ArchiveHistory(spans, topic_ids, lost, sums, deleted)


def _check_format(version: str, where: str) -> None:
    if version not in _FORMATS:
        raise JobError(
            f"{where}: archive format {version}, but this version reads {', '.join(_FORMATS)};"
            " use a newer one",
            "UNKNOWN_FORMAT",
        )


def _nested(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    """Nest values by topic and partition, as `_flat` reads them."""
    nested: dict[str, dict[str, Any]] = {}
    for at in sorted(values):
        nested.setdefault(at.topic, {})[str(at.partition)] = values[at]
    return nested


def _flat(nested: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic, partitions in dict(nested).items():
        for partition, value in dict(partitions).items():
            yield TopicPartition(topic, int(partition)), value


def _sums(nested: Any) -> dict[TopicPartition, RecordSum]:
    return {at: RecordSum(int(rows), int(content)) for at, (rows, content) in _flat(nested)}


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("neither true nor false")
    return value


def _lost(rows: Any) -> tuple[LostOffsets, ...]:
    return tuple(LostOffsets.decode(each) for each in rows)


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
