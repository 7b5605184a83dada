"""The comparison of the files of a Parquet archive with the log that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gateway.pipelines.archives.file_list import DataFile
from gateway.pipelines.archives.parquet_log import ArchiveContents
from gateway.pipelines.archives.port import ArchiveProblem
from gateway.pipelines.archives.sums import NO_RECORDS, SUM_FIGURES, RecordSum, add_hash, sum_of
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import Files, join_path
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_AT_ONCE = 4_096
"""The number of files that one Spark job reads."""
PROBLEMS_MAX = 100
"""A comparison ends after this many problems."""
_READS_MAX = 3
"""How often a file is read again before it counts as damaged."""
_UNREADABLE = frozenset({"SPARK_FAILED", "SPARK_REFUSED"})
_TOPIC = "/topic="
_FIGURES = {
    **SUM_FIGURES,
    "min_offset": "min(offset)",
    "max_offset": "max(offset)",
    "min_timestamp_ms": "unix_millis(min(timestamp))",
    "max_timestamp_ms": "unix_millis(max(timestamp))",
}


class FileVerifier:
    """The comparison of single files. `read` returns the records of some files."""

    def __init__(
        self, files: Files, root: str, read: Callable[[Sequence[DataFile]], DataFrame]
    ) -> None:
        self._files = files
        self._root = root
        self._read = read

    def verify(self, files: Sequence[DataFile]) -> list[ArchiveProblem]:
        """Return the differences between the files and the log's figures for them."""
        problems: list[ArchiveProblem] = []
        for first in range(0, len(files), FILES_AT_ONCE):
            some = files[first : first + FILES_AT_ONCE]
            readable: list[DataFile] = []
            for each in some:
                problem = self._compare_size(each)
                problems += [problem] if problem else []
                readable += [] if problem else [each]
            problems += self._compare(readable)
            if len(problems) >= PROBLEMS_MAX:
                break
        return problems

    def sums(self, files: Sequence[DataFile]) -> dict[str, RecordSum]:
        """Read the files and return the sum over the records of each, by its path."""
        figures = self._figures(files)
        return {
            path: RecordSum(each["rows"], each["content_sum"]) for path, each in figures.items()
        }

    def _compare_size(self, file: DataFile) -> ArchiveProblem | None:
        size = self._files.size(join_path(self._root, file.path))
        if size is None:
            return ArchiveProblem(file.path, "the file is missing")
        if size != file.bytes:
            return ArchiveProblem(file.path, f"{size} bytes instead of {file.bytes}")
        return None

    def _compare(self, files: Sequence[DataFile]) -> list[ArchiveProblem]:
        """Read the files and compare them. Searches for the unreadable ones by halves.

        Raises JobError if the store does not answer.
        """
        if not files:
            return []
        try:
            return self._read_and_compare(files)
        except JobError as error:
            if error.code not in _UNREADABLE:
                raise
        if len(files) == 1:
            return self._compare_again(files[0])
        # A look that the store does not answer ends the search.
        self._compare_size(files[0])
        half = len(files) // 2
        problems = self._compare(files[:half])
        if len(problems) < PROBLEMS_MAX:
            problems += self._compare(files[half:])
        return problems

    def _compare_again(self, file: DataFile) -> list[ArchiveProblem]:
        """Compare a file that Spark could not read. Raises JobError if the store does not answer.

        Spark's error does not show whether the file is damaged or the store was away. So the file
        counts as damaged only if the store delivers all its bytes and Spark still cannot read it.
        """
        cause: JobError | None = None
        for _ in range(_READS_MAX):
            if not self._files.fetch(join_path(self._root, file.path)):
                return [ArchiveProblem(file.path, "the file is missing")]
            try:
                return self._read_and_compare([file])
            except JobError as error:
                if error.code not in _UNREADABLE:
                    raise
                cause = error
        return [ArchiveProblem(file.path, f"cannot be read: {cause}")]

    def _read_and_compare(self, files: Sequence[DataFile]) -> list[ArchiveProblem]:
        found = translate_spark_errors(lambda: self._figures(files))
        compared = ((each.path, _difference(each, found.get(each.path))) for each in files)
        return [ArchiveProblem(path, problem) for path, problem in compared if problem]

    def _figures(self, files: Sequence[DataFile]) -> dict[str, dict[str, Any]]:
        """Return the figures of each file that contains records, by its path."""
        from pyspark.sql.functions import expr

        named = add_hash(self._read(files).select("*", "_metadata.file_path"))
        figures = [expr(sql).alias(name) for name, sql in _FIGURES.items()]
        rows = named.groupBy("file_path").agg(*figures).collect()
        return {
            _relative(row["file_path"]): {**row.asDict(), "content_sum": sum_of(row).content}
            for row in rows
        }


def _difference(file: DataFile, found: dict[str, Any] | None) -> str | None:
    """Return the first figure that differs, or None if the file is as the log describes it."""
    if found is None:
        return f"no rows instead of {file.rows}"
    for name, what in (
        ("rows", "rows"),
        ("min_offset", "as the least offset"),
        ("max_offset", "as the greatest offset"),
        ("min_timestamp_ms", "as the least timestamp"),
        ("max_timestamp_ms", "as the greatest timestamp"),
    ):
        if found[name] != getattr(file, name):
            return f"{found[name]} {what} instead of {getattr(file, name)}"
    if file.content_sum is not None and found["content_sum"] != file.content_sum:
        return "the content of some records has changed"
    return None


def compare_directories(
    old: Sequence[DataFile], sums: Mapping[str, RecordSum], new: Sequence[DataFile]
) -> list[ArchiveProblem]:
    """Compare the records of each directory before and after a compaction.

    `sums` are those of the `old` files by path.
    """
    before: dict[str, RecordSum] = {}
    after: dict[str, RecordSum] = {}
    for each in old:
        before[each.directory] = before.get(each.directory, NO_RECORDS).plus(sums[each.path])
    for each in new:
        assert each.sum is not None, each
        after[each.directory] = after.get(each.directory, NO_RECORDS).plus(each.sum)
    problems: list[ArchiveProblem] = []
    for directory in sorted({*before, *after}):
        wanted, found = before.get(directory, NO_RECORDS), after.get(directory, NO_RECORDS)
        if wanted.rows != found.rows:
            problem = f"{found.rows} rows instead of {wanted.rows}"
            problems.append(ArchiveProblem(directory, problem))
        elif wanted != found:
            problem = "the content of some records has changed"
            problems.append(ArchiveProblem(directory, problem))
    return problems


def check_partitions(contents: ArchiveContents, topics: Sequence[str]) -> list[ArchiveProblem]:
    """Compare the log with itself: the sums and rows of the files with those of the commits.

    Covers `topics`, or all topics.
    """
    sums: dict[TopicPartition, RecordSum | None] = {}
    rows = {each: 0 for each in contents.sums if not topics or each.topic in topics}
    for each in contents.files.values():
        if topics and each.topic not in topics:
            continue
        partition = each.topic_partition
        before = sums.get(partition, NO_RECORDS)
        sums[partition] = None if before is None or each.sum is None else before.plus(each.sum)
        rows[partition] = rows.get(partition, 0) + each.rows
    lengths: dict[TopicPartition, int] = {}
    for each in contents.ranges:
        lengths[each.topic_partition] = lengths.get(each.topic_partition, 0) + each.length
    problems: list[ArchiveProblem] = []
    for partition in sorted(rows):
        found, recorded = sums.get(partition, NO_RECORDS), contents.sums.get(partition)
        if rows[partition] > lengths.get(partition, 0):
            problem = f"{rows[partition]} rows of {lengths.get(partition, 0)} archived offsets"
            problems.append(ArchiveProblem(str(partition), problem))
        if found is not None and recorded is not None and found != recorded:
            problem = f"the files have {found.rows} rows, the commits {recorded.rows}"
            if found.rows == recorded.rows:
                problem = "the sums of the files differ from those of the commits"
            problems.append(ArchiveProblem(str(partition), problem))
    return problems


def _relative(uri: str) -> str:
    """Return the path of a data file below its archive."""
    path = unquote(urlsplit(uri).path)
    return f"{_TOPIC[1:]}{path.rpartition(_TOPIC)[2]}"
