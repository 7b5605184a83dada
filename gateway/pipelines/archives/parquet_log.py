"""The commits of a Parquet archive: numbered files that are never replaced.

The commits alone define which files belong to the archive. `_commits/00000000000000000042.json` is
commit 42. If several jobs try to create it, the first one succeeds. After every `CHECKPOINT_EVERY`
commits one file sums up all earlier ones, so opening an archive reads only a few files. Layout and
fields: docs/formats/archive.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.pipelines.archives.port import ArchiveState, LostOffsets
from gateway.pipelines.archives.sums import NO_RECORDS, RecordSum
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import Files, join_path
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

FORMAT = 2
_FORMATS = (1, FORMAT)
"""The formats that can be read. Format 1 has no sums."""
COMMITS = "_commits"
CHECKPOINT_EVERY = 50
_CHECKPOINT = ".checkpoint"


class DataFile(NamedTuple):
    """One Parquet file. `path` is relative to the archive. Times are milliseconds since 1970.

    `content_sum` is the sum over the hashes of the records, or None in an archive of format 1.
    """

    path: str
    topic: str
    partition: int
    rows: int
    bytes: int
    min_offset: int
    max_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    content_sum: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def sum(self) -> RecordSum | None:
        """The sum over the file's records, or None if it was not recorded."""
        return None if self.content_sum is None else RecordSum(self.rows, self.content_sum)

    @property
    def directory(self) -> str:
        """The directory for the file's topic, partition and day."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One commit. The commit's files are in the staging directory of `run` until they are moved."""

    number: int
    run: str
    at_ms: int
    ranges: tuple[OffsetRange, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    lost: tuple[LostOffsets, ...] = ()
    files: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    sums: Mapping[TopicPartition, RecordSum] = field(
        default_factory=dict[TopicPartition, RecordSum]
    )
    """For each partition, the sum over the records that an append added."""

    def encode(self) -> bytes:
        return _json(
            {
                "format": FORMAT,
                "number": self.number,
                "run": self.run,
                "at_ms": self.at_ms,
                "ranges": self.ranges,
                "topic_ids": dict(self.topic_ids),
                "lost": _from_lost(self.lost),
                "files": [each._asdict() for each in self.files],
                "removed": self.removed,
                "sums": _from_sums(self.sums),
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> CommitEntry:
        try:
            fields = _fields(path, data)
            return cls(
                number=fields["number"],
                run=fields["run"],
                at_ms=fields["at_ms"],
                ranges=tuple(OffsetRange(*each) for each in fields["ranges"]),
                topic_ids=fields["topic_ids"],
                lost=_to_lost(fields["lost"]),
                files=tuple(DataFile(**each) for each in fields["files"]),
                removed=tuple(fields["removed"]),
                sums=_to_sums(fields.get("sums", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, repr(error)) from error


class ArchiveContents:
    """The sum of commits 1 to `number`."""

    def __init__(self) -> None:
        # The number of the last applied commit, or 0 before the first one.
        self.number = 0
        # For each partition, the offset after the last archived or lost one. It never decreases.
        self.ends: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, str] = {}
        self.lost: list[LostOffsets] = []
        # All current data files by path. Commits add files, and compactions replace them.
        self.files: dict[str, DataFile] = {}
        # For each partition, the sum over all its records, from the commits' sums. A partition that
        # has records of a commit without sums is missing.
        self.sums: dict[TopicPartition, RecordSum] = {}
        # The archived ranges of each partition in order. None is empty, and adjacent ranges are
        # merged.
        self._ranges: dict[TopicPartition, list[OffsetRange]] = {}

    @property
    def state(self) -> ArchiveState:
        return ArchiveState(
            str(self.number), dict(self.ends), dict(self.topic_ids), tuple(self.lost)
        )

    @property
    def ranges(self) -> list[OffsetRange]:
        """All archived ranges in order. None is empty, and adjacent ranges are merged."""
        return [each for partition in sorted(self._ranges) for each in self._ranges[partition]]

    def apply(self, entry: CommitEntry) -> None:
        """Apply the next commit. Raises ValueError if `entry` does not follow the last one."""
        if entry.number != self.number + 1:
            raise ValueError(f"commit {entry.number} does not follow {self.number}")
        for each in entry.lost:
            self._extend(each.range)
            self.lost.append(each)
        if not entry.removed:
            self._add_sums(entry)
        for each in entry.ranges:
            self._extend(each)
            self._join(each)
        for path in entry.removed:
            if self.files.pop(path, None) is None:
                raise ValueError(f"{path} is removed but does not exist")
        self.files.update((each.path, each) for each in entry.files)
        self.topic_ids.update(entry.topic_ids)
        self.number = entry.number

    def _extend(self, new: OffsetRange) -> None:
        end = self.ends.get(new.topic_partition, new.start)
        if new.start != end or new.end < new.start:
            raise ValueError(f"{new} does not follow offset {end}")
        self.ends[new.topic_partition] = new.end

    def _add_sums(self, entry: CommitEntry) -> None:
        for partition in {*entry.sums, *(each.topic_partition for each in entry.files)}:
            before = self.sums.pop(partition, None if partition in self._ranges else NO_RECORDS)
            added = entry.sums.get(partition)
            if before is not None and added is not None:
                self.sums[partition] = before.plus(added)

    def _join(self, new: OffsetRange) -> None:
        if not new.length:
            return
        joined_ranges = self._ranges.setdefault(new.topic_partition, [])
        if joined_ranges and joined_ranges[-1].end == new.start:
            new = joined_ranges.pop()._replace(end=new.end)
        joined_ranges.append(new)

    def encode(self) -> bytes:
        return _json(
            {
                "format": FORMAT,
                "number": self.number,
                "ends": [[*partition, end] for partition, end in self.ends.items()],
                "ranges": self.ranges,
                "topic_ids": self.topic_ids,
                "lost": _from_lost(self.lost),
                "sums": _from_sums(self.sums),
                "files": list(self.files.values()),
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> ArchiveContents:
        contents = cls()
        try:
            fields = _fields(path, data)
            contents.number = fields["number"]
            contents.ends = {
                TopicPartition(topic, index): end for topic, index, end in fields["ends"]
            }
            contents.topic_ids = fields["topic_ids"]
            contents.lost = list(_to_lost(fields["lost"]))
            files = (DataFile(*each) for each in fields["files"])
            contents.files = {each.path: each for each in files}
            contents.sums = _to_sums(fields.get("sums", ()))
            for each in fields["ranges"]:
                contents._join(OffsetRange(*each))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, repr(error)) from error
        return contents


class CommitLog:
    """The commits below `root`, as far as this process has read them."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._directory = join_path(root, COMMITS)
        # The sum of all commits read so far. None before the first read and after a damaged commit.
        self._contents: ArchiveContents | None = None
        # The number of the last commit that a checkpoint covers, as far as this process knows.
        self._checkpointed = 0
        # The commits read since the last checkpoint, by the name of their run. Cleared by a
        # checkpoint.
        self.recent: dict[str, CommitEntry] = {}

    def refresh(self) -> ArchiveContents:
        """Read new commits and return the sum of all commits."""
        if self._contents is None:
            self._contents = self._from_checkpoint()
            self._checkpointed = self._contents.number
        contents = self._contents
        while (entry := self._read(contents.number + 1)) is not None:
            try:
                contents.apply(entry)
            except ValueError as error:
                self._contents = None
                raise _damaged(self._path(entry.number), str(error)) from error
            self.recent[entry.run] = entry
        return contents

    def put(self, entry: CommitEntry) -> bool:
        """Commit the entry. Returns False if the number of the entry is already taken."""
        return self._files.put_if_absent(self._path(entry.number), entry.encode())

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint if enough commits were added since the last one.

        The caller must have moved the files of all commits.
        """
        contents = self._contents
        if contents is None or contents.number < self._checkpointed + CHECKPOINT_EVERY:
            return
        self._files.put_if_absent(self._path(contents.number, _CHECKPOINT), contents.encode())
        self._checkpointed = contents.number
        self.recent.clear()

    def _from_checkpoint(self) -> ArchiveContents:
        names = self._files.names(self._directory)
        checkpoints = [name for name in names if name.endswith(f"{_CHECKPOINT}.json")]
        for name in reversed(checkpoints):
            path = join_path(self._directory, name)
            data = self._files.read(path)
            if data is not None:
                return ArchiveContents.decode(path, data)
        return ArchiveContents()

    def _read(self, number: int) -> CommitEntry | None:
        path = self._path(number)
        data = self._files.read(path)
        return None if data is None else CommitEntry.decode(path, data)

    def _path(self, number: int, kind: str = "") -> str:
        return join_path(self._directory, f"{number:020d}{kind}.json")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _fields(path: str, data: bytes) -> Any:
    fields = json.loads(data)
    if fields["format"] not in _FORMATS:
        known = ", ".join(map(str, _FORMATS))
        raise JobError(
            f"{path}: format {fields['format']}, but this version reads {known}; use a newer one",
            "UNKNOWN_FORMAT",
        )
    return fields


def _from_sums(sums: Mapping[TopicPartition, RecordSum]) -> list[Any]:
    return [[*partition, *each] for partition, each in sums.items()]


def _to_sums(rows: Iterable[Any]) -> dict[TopicPartition, RecordSum]:
    return {
        TopicPartition(topic, partition): RecordSum(count, content)
        for topic, partition, count, content in rows
    }


def _from_lost(lost: Iterable[LostOffsets]) -> list[Any]:
    return [each.encode() for each in lost]


def _to_lost(rows: Iterable[Any]) -> tuple[LostOffsets, ...]:
    return tuple(LostOffsets.decode(each) for each in rows)


def _damaged(path: str, problem: str) -> JobError:
    return JobError(f"{path}: damaged: {problem}; restore it from a copy", "DAMAGED_ARCHIVE")
