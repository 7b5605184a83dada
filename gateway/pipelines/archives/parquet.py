"""An archive of Parquet files. Any tool can read the directory; the commits name the valid files.

Spark writes into `_staging/RUN`. The staged files are checked against the offset ranges, and a
numbered commit makes them part of the archive. Then they move to `topic=T/partition=P/day=D`. If a
run dies after its commit, the next job finishes the moves. If it dies earlier, a job removes its
files after a day. Readers that follow the commits see each record exactly once. Readers of the
directory alone see each record at most once, and see it after its file was moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gateway.pipelines.archives.checking import OffsetSummary, check_records
from gateway.pipelines.archives.file_list import DataFile
from gateway.pipelines.archives.parquet_log import ArchiveContents, CommitEntry, CommitLog
from gateway.pipelines.archives.port import (
    ArchiveProof,
    ArchiveState,
    Commit,
    CompactionResult,
    ignore_step,
)
from gateway.pipelines.archives.staging import (
    FILE_COLUMNS,
    StagedFile,
    StagingDirectory,
    StagingRun,
)
from gateway.pipelines.archives.sums import NO_RECORDS, RecordSum
from gateway.pipelines.archives.verifying import (
    FileVerifier,
    check_partitions,
    compare_directories,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import Files, LocalFiles, join_path, local_path, open_files
from gateway.pipelines.shared.partitions import COLUMN_NAMES, OffsetRange, TopicPartition
from gateway.pipelines.shared.session import STRICT_READS, expect_strict_reads
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPACT_BYTES_MAX = 16 * 1024**3
"""Limit for the bytes that a commit rewrites. Files of a topic, partition and day stay together."""
_COMPACT_TASKS_MAX = 1_000
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PATTERN = frozenset("*?[]{}\\")


class ParquetArchive:
    """The archive in a directory, which need not exist.

    Calls `at_step` with the name of each step. `files` by default serves the scheme of the path.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        clock: Clock | None = None,
        at_step: Callable[[str], None] = ignore_step,
        files: Files | None = None,
    ) -> None:
        if _PATTERN & set(path):
            raise JobError(
                f"{path}: Spark reads *?[]{{}}\\ in a path as a pattern; use another path",
                "BAD_PATH",
            )
        files = files or open_files(spark, path)
        self._spark = spark
        self._files = files
        self._clock = clock or SystemClock()
        # The archive's directory without a trailing slash. The path is absolute on local disks.
        self._root = _absolute(path) if isinstance(files, LocalFiles) else path.rstrip("/")
        self._at_step = at_step
        self._log = CommitLog(files, self._root)
        self._staging = StagingDirectory(spark, files, self._root, self._clock, at_step)
        # The number of the last commit when all files were at their final paths. Set by `_recover`.
        self._moved_number: int | None = None

    def state(self) -> ArchiveState:
        contents = self._log.refresh()
        if contents.number != self._moved_number:  # a commit, of any run, may have files to move
            contents = self._recover()
        return contents.state

    def ranges(self) -> list[OffsetRange]:
        return self._log.refresh().ranges

    def files(self) -> list[DataFile]:
        """Move all files to their final paths and return them in order."""
        return sorted(self._recover().files.values())

    def append(self, records: DataFrame, commit: Commit, on: ArchiveState) -> bool:
        contents = self._recover()
        if contents.state.version != on.version:
            return False
        run = self._staging.new_run()
        staged: list[StagedFile] = []
        with self._staging.discard_on_failure(run):
            if any(each.length for each in commit.ranges):
                staged = self._stage(records, commit, run)
            commit.confirm()
        entry = CommitEntry(
            number=contents.number + 1,
            run=run.name,
            at_ms=self._clock.now_ms(),
            ranges=commit.ranges,
            topic_ids=commit.topic_ids,
            lost=commit.lost,
            files=tuple(each.file for each in staged),
            sums=_partition_sums(each.file for each in staged),
        )
        if not self._put(entry, run):
            self._staging.discard(run.name)
            return False
        self._recover()
        return True

    def read(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        files = [each for each in self.files() if not topics or each.topic in topics]
        return self._frame(files if within is None else _files_holding(files, within))

    def compact(self, file_bytes_max: int) -> CompactionResult:
        """Rewrite small files as the port describes.

        Files of at least half of `file_bytes_max` stay.
        """
        files = self.files()
        for batch in _batches(files, file_bytes_max):
            self._rewrite(batch, file_bytes_max)
        return CompactionResult(len(files), len(self.files()))

    def verify(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> ArchiveProof:
        self._recover()
        contents = self._log.refresh()
        files = [each for each in contents.files.values() if not topics or each.topic in topics]
        if within is not None:
            files = _files_holding(files, within)
        verifier = FileVerifier(self._files, self._root, self._frame)
        problems = verifier.verify(files)
        if within is None:
            problems += check_partitions(contents, topics)
        return ArchiveProof(
            files=len(files),
            rows=sum(each.rows for each in files),
            unproved_rows=sum(each.rows for each in files if each.sum is None),
            problems=tuple(problems),
        )

    def _stage(self, records: DataFrame, commit: Commit, run: StagingRun) -> list[StagedFile]:
        """Stage the records and return the files.

        Raises JobError if the records do not fit the commit.
        """
        if any(each.topic == _NO_PARTITION for each in commit.ranges):
            raise JobError(f"a topic named {_NO_PARTITION} cannot be archived as Parquet")
        self._staging.write(records, run)
        staged = self._staging.staged_files(run)
        found: dict[TopicPartition, OffsetSummary] = {}
        for file, each in staged:
            partition = TopicPartition(file.topic, file.partition)
            found[partition] = found[partition].plus(each) if partition in found else each
        written = self._staging.frame(run)
        check_records(commit.ranges, commit.sparse, found, written, commit.holes)
        self._at_step("checked")
        return staged

    def _put(self, entry: CommitEntry, run: StagingRun) -> bool:
        # If `put` raises, the commit may exist nevertheless, so the files that it names must stay.
        if entry.files:
            self._staging.check_age(run)
        won = self._log.put(entry)
        if won:
            self._at_step("committed")
        return won

    def _recover(self) -> ArchiveContents:
        """Move the files of all commits to their final paths and return the contents."""
        number = -1
        # Other jobs may commit meanwhile; repeat until no commit has unmoved files.
        while (contents := self._log.refresh()).number != number:
            number = contents.number
            runs = self._staging.runs()
            found = [self._log.recent[run] for run in runs if run in self._log.recent]
            for entry in sorted(found, key=lambda each: each.number):
                self._staging.finish(entry, lambda path: path in self._log.refresh().files)
            self._staging.discard_abandoned([run for run in runs if run not in self._log.recent])
        self._moved_number = number
        self._log.checkpoint_if_due()
        return contents

    def _frame(self, files: Sequence[DataFile]) -> DataFrame:
        if not files:
            return self._spark.createDataFrame([], FILE_COLUMNS)
        expect_strict_reads(self._spark)
        reader = self._spark.read.schema(FILE_COLUMNS).options(**STRICT_READS)
        reader = reader.option("basePath", self._root)
        paths = [join_path(self._root, each.path) for each in files]
        return reader.parquet(*paths).select(*COLUMN_NAMES, "day")

    # --- compaction -----------------------------------------------------------------------------

    def _rewrite(self, files: Sequence[DataFile], file_bytes_max: int) -> None:
        """Replace `files`, all of one topic, by fewer files in one commit.

        Does nothing if another job has removed some of them.
        """
        run = self._staging.new_run()
        row_bytes = sum(each.bytes for each in files) / sum(each.rows for each in files)
        rows_per_file = max(1, int(file_bytes_max / row_bytes))
        tasks = min(len({each.directory for each in files}), _COMPACT_TASKS_MAX)
        with self._staging.discard_on_failure(run):
            together = self._frame(files).repartition(tasks, "topic", "partition", "day")
            self._staging.write(together, run, rows_per_file)
            new = tuple(each.file for each in self._staging.staged_files(run))
            self._expect_same(files, new)
            self._at_step("checked")
        if not self._replace(files, new, run):
            self._staging.discard(run.name)
        self._recover()

    def _expect_same(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """Raise JobError unless `new` has the rows and sums that the log recorded for `old`.

        The originals are read again only if they were committed without sums.
        """
        sums = {each.path: each.sum for each in old if each.sum is not None}
        unknown = [each for each in old if each.sum is None]
        verifier = FileVerifier(self._files, self._root, self._frame)
        problems = verifier.verify(unknown)
        if unknown and not problems:
            sums.update(verifier.sums(unknown))
        if not problems:
            problems = compare_directories(old, sums, new)
        if problems:
            raise JobError(
                f"{self._root}: rewritten files differ from the log: {problems[0]}; nothing was"
                " changed; check the archive with an audit",
                "WRONG_RECORDS",
            )

    def _replace(self, old: Sequence[DataFile], new: tuple[DataFile, ...], run: StagingRun) -> bool:
        """Commit the replacement. Returns False if another job replaced some of the old files."""
        removed = tuple(each.path for each in old)
        while True:
            contents = self._log.refresh()
            if any(path not in contents.files for path in removed):
                return False
            entry = CommitEntry(
                number=contents.number + 1,
                run=run.name,
                at_ms=self._clock.now_ms(),
                files=new,
                removed=removed,
            )
            if self._put(entry, run):
                return True


def _partition_sums(files: Iterable[DataFile]) -> dict[TopicPartition, RecordSum]:
    sums: dict[TopicPartition, RecordSum] = {}
    for each in files:
        assert each.sum is not None, each
        sums[each.topic_partition] = sums.get(each.topic_partition, NO_RECORDS).plus(each.sum)
    return sums


def _files_holding(files: Sequence[DataFile], wanted: Sequence[OffsetRange]) -> list[DataFile]:
    """Return the files that may contain an offset of the `wanted` ranges."""
    partitions: dict[TopicPartition, list[OffsetRange]] = {}
    for each in wanted:
        partitions.setdefault(each.topic_partition, []).append(each)
    return [
        file
        for file in files
        if any(
            file.min_offset < each.end and each.start <= file.max_offset
            for each in partitions.get(TopicPartition(file.topic, file.partition), ())
        )
    ]


def _batches(files: Sequence[DataFile], file_bytes_max: int) -> Iterator[list[DataFile]]:
    """Group small files of one topic for rewriting. Small files of a directory stay together.

    A directory with only one small file is left out.
    """
    directories: dict[str, list[DataFile]] = {}
    for each in files:
        if each.bytes * 2 < file_bytes_max:
            directories.setdefault(each.directory, []).append(each)
    batch: list[DataFile] = []
    for group in directories.values():
        size = sum(each.bytes for each in group)
        if len(group) < 2:
            continue
        full = sum(each.bytes for each in batch) + size > _COMPACT_BYTES_MAX
        if batch and (full or batch[0].topic != group[0].topic):
            yield batch
            batch = []
        batch += group
    if batch:
        yield batch


def _absolute(path: str) -> str:
    absolute = str(local_path(path).absolute())
    return f"file://{absolute}" if path.startswith("file:") else absolute
