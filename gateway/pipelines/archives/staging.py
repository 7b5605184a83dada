"""Parquet files before they are in an archive: staged, counted, then moved to their final paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from gateway.pipelines.archives.checking import FOLD, OffsetSummary
from gateway.pipelines.archives.file_list import DataFile
from gateway.pipelines.archives.parquet_log import CommitEntry
from gateway.pipelines.archives.port import ROW_GROUP_BYTES
from gateway.pipelines.archives.sums import SUM_FIGURES, add_hash, sum_of
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import (
    Files,
    LocalFiles,
    join_path,
    local_path,
    make_directories,
    sync_path,
)
from gateway.pipelines.shared.partitions import COLUMNS
from gateway.pipelines.shared.session import (
    STRICT_READS,
    expect_strict_reads,
    session_settings,
)
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGING = "_staging"
_BEGAN = "_began"
FILE_COLUMNS = f"{COLUMNS}, day DATE"
_PARTITIONING = ("topic", "partition", "day")
_DAY = "date_from_unix_date(CAST(floor(unix_millis(timestamp) / 86400000) AS INT))"
"""SQL for the day in UTC, in every time zone of the session."""
_HOUR_MS = 3_600_000
_COMMIT_MS_MAX = 12 * _HOUR_MS
_ABANDONED_MS = 24 * _HOUR_MS


class StagingRun(NamedTuple):
    """One attempt to commit. `name` begins with the time of its start, for people to read."""

    name: str


class StagedFile(NamedTuple):
    """A staged file with a summary of its offsets."""

    file: DataFile
    found: OffsetSummary


class StagingDirectory:
    """The directory `_staging` of an archive, with one directory per run."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        root: str,
        clock: Clock,
        at_step: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._files = files
        self._root = root
        self._clock = clock
        self._at_step = at_step

    def new_run(self) -> StagingRun:
        return StagingRun(f"{self._clock.now_ms():013d}-{uuid4().hex}")

    def write(self, records: DataFrame, run: StagingRun, rows_per_file_max: int = 0) -> None:
        """Write the records to durable files, one per partition, day and task, ordered by offset.

        Nothing is shuffled: each task sorts its own records, on disk if necessary. If
        `rows_per_file_max` is 0, the length of a file is not limited.
        """
        out = self._at(run.name)
        if isinstance(self._files, LocalFiles):
            # Spark does not sync the directories that it creates.
            make_directories(local_path(out).parent)
        # The file system's clock gives this file the time from which all jobs compute the age.
        self._files.put_if_absent(join_path(out, _BEGAN), b"")
        staged = records.withColumn("day", _day()).sortWithinPartitions(*_PARTITIONING, "offset")
        with session_settings(
            self._spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
        ):
            writer = staged.write.partitionBy(*_PARTITIONING).mode("append")
            writer = writer.option("parquet.block.size", ROW_GROUP_BYTES)
            writer.options(compression="zstd", maxRecordsPerFile=rows_per_file_max).parquet(out)
        if isinstance(self._files, LocalFiles):
            _sync_tree(local_path(out))
        self._at_step("staged")

    def frame(self, run: StagingRun) -> DataFrame:
        """Read the files that the run has written."""
        out = self._at(run.name)
        expect_strict_reads(self._spark)
        reader = self._spark.read.schema(FILE_COLUMNS).options(**STRICT_READS)
        return reader.option("basePath", out).parquet(out)

    def staged_files(self, run: StagingRun) -> list[StagedFile]:
        """Return the files of the run that contain rows."""
        from pyspark.sql.functions import expr

        named = self.frame(run).select("*", "_metadata.file_path", "_metadata.file_size")
        files = add_hash(named).groupBy("topic", "partition", "file_path", "file_size")
        figures = {
            **SUM_FIGURES,
            "min_offset": "min(offset)",
            "max_offset": "max(offset)",
            "min_timestamp_ms": "unix_millis(min(timestamp))",
            "max_timestamp_ms": "unix_millis(max(timestamp))",
            "fold": FOLD,
        }
        staged: list[StagedFile] = []
        for row in files.agg(*(expr(sql).alias(name) for name, sql in figures.items())).collect():
            total = sum_of(row)
            file = DataFile(
                path=self._below(run, row["file_path"]),
                topic=row["topic"],
                partition=row["partition"],
                rows=total.rows,
                bytes=row["file_size"],
                min_offset=row["min_offset"],
                max_offset=row["max_offset"],
                min_timestamp_ms=row["min_timestamp_ms"],
                max_timestamp_ms=row["max_timestamp_ms"],
                content_sum=total.content,
            )
            found = OffsetSummary(file.rows, file.min_offset, file.max_offset, row["fold"])
            staged.append(StagedFile(file, found))
        return sorted(staged)

    def check_age(self, run: StagingRun) -> None:
        """Raise JobError if other jobs may soon discard the run's files, or have done so."""
        began_ms = self._files.modified_ms(join_path(self._at(run.name), _BEGAN))
        if began_ms is None or self._now_ms() - began_ms > _COMMIT_MS_MAX:
            raise JobError(
                "one round took over 12 hours and was not committed; use a smaller"
                " --max-offsets-per-round",
                "TOO_SLOW",
            )

    def runs(self) -> list[str]:
        """Return the names of all runs, oldest first."""
        return self._files.names(join_path(self._root, STAGING))

    def discard(self, run: str) -> None:
        self._files.remove(self._at(run))

    @contextmanager
    def discard_on_failure(self, run: StagingRun) -> Generator[None]:
        """Discard the staged files if the block fails."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.discard(run.name)

    def discard_abandoned(self, runs: Sequence[str]) -> None:
        """Discard the runs that are too old to be active, by the file system's own clock."""
        if not runs:
            return
        try:
            now_ms = self._now_ms()
        except JobError:
            return  # a process that may only read removes nothing
        for run in runs:
            at = self._at(run)
            began_ms = self._files.modified_ms(join_path(at, _BEGAN))
            if began_ms is None:  # a run of an earlier version
                began_ms = self._files.modified_ms(at)
            if began_ms is not None and now_ms - began_ms > _ABANDONED_MS:
                self.discard(run)

    def _now_ms(self) -> int:
        return self._files.now_ms(join_path(self._root, STAGING))

    def finish(self, entry: CommitEntry, is_committed: Callable[[str], bool]) -> None:
        """Apply a commit to the files: remove replaced ones, move new ones, discard the run.

        Several jobs may do this at once. `is_committed` reports whether a file belongs to the
        archive now.
        """
        for path in entry.removed:
            self._files.remove(join_path(self._root, path))
            self._at_step("removed one")
        for file in entry.files:
            target = join_path(self._root, file.path)
            try:
                self._files.move(join_path(self._at(entry.run), file.path), target)
            except JobError:
                # Another job may have moved this file, and a later compaction may have removed it.
                if is_committed(file.path):
                    raise
            self._at_step("moved one")
        self.discard(entry.run)
        self._at_step("finished")

    def _at(self, run: str) -> str:
        return join_path(self._root, STAGING, run)

    def _below(self, run: StagingRun, uri: str) -> str:
        """Return the path of a staged file relative to its run."""
        path = unquote(urlsplit(uri).path)
        before, _, below = path.partition(f"/{STAGING}/{run.name}/")
        assert before and below, uri
        return below


def _day() -> Any:
    from pyspark.sql.functions import expr

    return expr(_DAY)


def _sync_tree(directory: Path) -> None:
    """Sync the directory, everything below it, and the two directories above it."""
    for at, _, names in os.walk(directory):
        for path in (*(Path(at, name) for name in names), Path(at)):
            sync_path(path)
    for above in (directory.parent, directory.parent.parent):
        sync_path(above)
