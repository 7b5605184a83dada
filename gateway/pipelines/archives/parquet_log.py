"""The commits of a Parquet archive: numbered files that are never replaced.

The commits alone define which files belong to the archive. `_commits/00000000000000000042.json` is
commit 42. If several jobs try to create it, the first one succeeds. After every `CHECKPOINT_EVERY`
commits a checkpoint sums up all earlier ones, so opening an archive reads only a few files. Commits
that a checkpoint covers expire, in ascending order. Layout and fields: docs/formats/archive.md.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.pipelines.archives.file_list import DataFile, FileList, decode_files, encode_files
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
COMMITS_KEPT_MIN = 100
"""The number of newest commits that never expire."""
COMMITS_KEPT_MAX = 2_000
COMMIT_AGE_MS_MAX = 7 * 24 * 3600 * 1000
"""An older commit expires, and so does one before the newest `COMMITS_KEPT_MAX`."""
EXPIRED_AT_ONCE_MAX = 1_000
"""The number of commits that a checkpoint may remove."""
CHECKPOINTS_KEPT = 2
_LOOKS_MAX = 5
"""How often a process starts over because commits expire while it reads them."""
_CHECKPOINT = ".checkpoint.json"
_FILES = ".files.json.gz"
_COMMIT = ".json"
_NUMBER = re.compile(r"(\d{20})(\.checkpoint\.json|\.files\.json\.gz|\.json)")


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
    sums: Mapping[TopicPartition, RecordSum] | None = None
    """For each partition, the sum over the records that an append added. None in format 1."""

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
                "sums": _from_sums(self.sums or {}),
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
                sums=_to_sums(fields["sums"]) if fields["format"] > 1 else None,
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
        # All current data files. Commits add files, and compactions replace them.
        self._files = FileList()
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
    def has_files(self) -> bool:
        """Whether `files` is in memory, so that it needs no list of a checkpoint."""
        return self._files.loaded

    @property
    def files(self) -> Mapping[str, DataFile]:
        """All current data files by path. Raises JobError if the log is damaged."""
        try:
            return self._files.all()
        except ValueError as error:
            raise _damaged(f"the commits up to {self.number}", str(error)) from error

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
        self._files.change(entry.removed, entry.files)
        self.topic_ids.update(entry.topic_ids)
        self.number = entry.number

    def _extend(self, new: OffsetRange) -> None:
        end = self.ends.get(new.topic_partition, new.start)
        if new.start != end or new.end < new.start:
            raise ValueError(f"{new} does not follow offset {end}")
        self.ends[new.topic_partition] = new.end

    def _add_sums(self, entry: CommitEntry) -> None:
        for partition in {each.topic_partition for each in (*entry.ranges, *entry.files)}:
            before = self.sums.pop(partition, None if partition in self._ranges else NO_RECORDS)
            if before is not None and entry.sums is not None:
                self.sums[partition] = before.plus(entry.sums.get(partition, NO_RECORDS))

    def _join(self, new: OffsetRange) -> None:
        if not new.length:
            return
        joined_ranges = self._ranges.setdefault(new.topic_partition, [])
        if joined_ranges and joined_ranges[-1].end == new.start:
            new = joined_ranges.pop()._replace(end=new.end)
        joined_ranges.append(new)

    def encode(self) -> bytes:
        """Encode everything but the files."""
        return _json(
            {
                "format": FORMAT,
                "number": self.number,
                "ends": [[*partition, end] for partition, end in self.ends.items()],
                "ranges": self.ranges,
                "topic_ids": self.topic_ids,
                "lost": _from_lost(self.lost),
                "sums": _from_sums(self.sums),
                "file_count": len(self.files),
            }
        )

    @classmethod
    def decode(
        cls, path: str, data: bytes, load: Callable[[int], dict[str, DataFile]]
    ) -> ArchiveContents:
        """Decode a checkpoint. `load` returns its files; the argument is their number."""
        contents = cls()
        try:
            fields = _fields(path, data)
            contents.number = fields["number"]
            contents.ends = {
                TopicPartition(topic, index): end for topic, index, end in fields["ends"]
            }
            contents.topic_ids = fields["topic_ids"]
            contents.lost = list(_to_lost(fields["lost"]))
            contents.sums = _to_sums(fields.get("sums", ()))
            for each in fields["ranges"]:
                contents._join(OffsetRange(*each))
            if fields["format"] == 1:
                files = (DataFile(*each) for each in fields["files"])
                contents._files = FileList({each.path: each for each in files})
            else:
                count = int(fields["file_count"])
                contents._files = FileList(load=lambda: load(count))
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
        for _ in range(_LOOKS_MAX):
            if self._contents is None:
                self._contents = self._from_checkpoint()
                self._checkpointed = self._contents.number
                self.recent.clear()
            contents = self._apply_new(self._contents)
            if self._is_kept(contents.number) and self._has_files(contents):
                return contents
            # Commits expired that this process has not read yet, so it must start over.
            self._contents = None
        raise _damaged(self._directory, "the commits after the last checkpoint are missing")

    def _apply_new(self, contents: ArchiveContents) -> ArchiveContents:
        while (entry := self._read(contents.number + 1)) is not None:
            try:
                contents.apply(entry)
            except ValueError as error:
                self._contents = None
                raise _damaged(self._path(entry.number), str(error)) from error
            self.recent[entry.run] = entry
        return contents

    def put(self, entry: CommitEntry) -> bool:
        """Commit the entry. Returns False if another job has committed under its number.

        A store may repeat a put whose answer was lost, and then report that the file exists or
        fail. So any answer but success is settled by reading the commit. Raises JobError if the
        outcome stays unknown: then the files that the entry names must stay.
        """
        # If the commit before has expired, this one's number was taken long ago, and is free again.
        before = entry.number - 1
        if not self._is_kept(before) or not self._create(entry):
            return False
        if self._is_kept(before):
            return True
        self._files.remove(self._path(entry.number))  # no reader has begun before it
        return False

    def _create(self, entry: CommitEntry) -> bool:
        path, data = self._path(entry.number), entry.encode()
        try:
            if self._files.put_if_absent(path, data):
                return True
        except JobError as error:
            if error.code == "NOT_SYNCED" or (found := self._files.read(path)) is None:
                raise
            return found == data
        found = self._files.read(path)
        if found is None:
            raise JobError(f"{path}: exists, but cannot be read; run the job again", "FILE_SYSTEM")
        return found == data

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint if enough commits were added since the last one.

        The caller must have moved the files of all commits.
        """
        contents = self._contents
        if contents is None or contents.number < self._checkpointed + CHECKPOINT_EVERY:
            return
        number = contents.number
        self._put_any(self._path(number, _FILES), encode_files(contents.files.values()))
        self._put_any(self._path(number, _CHECKPOINT), contents.encode())
        self._checkpointed = number
        self.recent.clear()
        self._expire(number)

    def _put_any(self, path: str, data: bytes) -> None:
        """Create a file that other jobs may create as well, with the same contents."""
        try:
            self._files.put_if_absent(path, data)
        except JobError:
            if self._files.read(path) is None:
                raise

    def _expire(self, checkpoint: int) -> None:
        """Remove old commits that the checkpoint covers, the oldest first, and old checkpoints.

        The order shows every process what is missing: if a commit exists, all later ones do.
        """
        numbers = self._numbers()
        commits = sorted(n for n, kind in numbers if kind == _COMMIT)
        now_ms = self._files.now_ms(self._directory)
        old: list[int] = []
        for number in commits[:EXPIRED_AT_ONCE_MAX]:
            if number > checkpoint - COMMITS_KEPT_MIN:
                break
            if number > checkpoint - COMMITS_KEPT_MAX:
                written_ms = self._files.modified_ms(self._path(number))
                if written_ms is not None and now_ms - written_ms <= COMMIT_AGE_MS_MAX:
                    break
            old.append(number)
        last = old[-1] if old else 0
        kept = [n for n in self._checkpoints(numbers) if n > last][-CHECKPOINTS_KEPT:]
        for number, kind in sorted(numbers):
            if kind != _COMMIT and number < kept[0]:
                self._files.remove(self._path(number, kind))
        for number in old:
            self._files.remove(self._path(number))

    def _is_kept(self, number: int) -> bool:
        """Return whether this commit, and so every later one, is still stored.

        The commit of the newest checkpoint need not be stored. 0 precedes the first commit.
        """
        if number and self._files.size(self._path(number)) is not None:
            return True
        checkpoints = self._checkpoints(self._numbers())
        return number == (checkpoints[-1] if checkpoints else 0)

    def _has_files(self, contents: ArchiveContents) -> bool:
        """Return whether the files are in memory, or can still be loaded."""
        if contents.has_files:
            return True
        return self._files.size(self._path(self._checkpointed, _FILES)) is not None

    def _numbers(self) -> list[tuple[int, str]]:
        """Return the number and the kind of all files of the log."""
        matches = map(_NUMBER.fullmatch, self._files.names(self._directory))
        return [(int(each[1]), each[2]) for each in matches if each is not None]

    @staticmethod
    def _checkpoints(numbers: Iterable[tuple[int, str]]) -> list[int]:
        return sorted(number for number, kind in numbers if kind == _CHECKPOINT)

    def _from_checkpoint(self) -> ArchiveContents:
        for number in reversed(self._checkpoints(self._numbers())):
            path = self._path(number, _CHECKPOINT)
            data = self._files.read(path)
            if data is not None:
                return ArchiveContents.decode(path, data, self._loader(number))
        return ArchiveContents()

    def _loader(self, number: int) -> Callable[[int], dict[str, DataFile]]:
        path = self._path(number, _FILES)

        def load(count: int) -> dict[str, DataFile]:
            data = self._files.read(path)
            if data is None and self._checkpoints(self._numbers())[-1:] != [number]:
                problem = "expired before this process read it; run the job again"
                raise JobError(f"{path}: {problem}", "EXPIRED")
            if data is None:
                raise _damaged(path, "missing")
            try:
                files = decode_files(data)
            except (TypeError, ValueError, zlib.error) as error:
                raise _damaged(path, repr(error)) from error
            if len(files) != count:
                raise _damaged(path, f"{len(files)} files instead of {count}")
            return files

        return load

    def _read(self, number: int) -> CommitEntry | None:
        path = self._path(number)
        data = self._files.read(path)
        return None if data is None else CommitEntry.decode(path, data)

    def _path(self, number: int, kind: str = _COMMIT) -> str:
        return join_path(self._directory, f"{number:020d}{kind}")


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
