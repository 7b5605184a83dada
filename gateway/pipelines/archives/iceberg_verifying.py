"""The comparison of an Iceberg table's records with its manifests and with the archive's sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.pipelines.archives.history import ArchiveHistory
from gateway.pipelines.archives.iceberg_table import IcebergSnapshot, IcebergTable
from gateway.pipelines.archives.port import ArchiveProblem, ArchiveProof
from gateway.pipelines.archives.sums import NO_RECORDS, SUM_FIGURES, RecordSum, add_hash, sum_of
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import TopicPartition, partition_of
from gateway.pipelines.shared.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROBLEMS_MAX = 100
_READS_MAX = 3
"""How often the records are read before they count as damaged."""


def verify_table(
    table: IcebergTable,
    current: IcebergSnapshot,
    history: ArchiveHistory,
    topics: Sequence[str],
) -> ArchiveProof:
    """Compare the records as of `current` with the manifests' row counts and with the history.

    Covers `topics`, or all topics.
    """
    records = table.data(current.id).select("*", "_file")
    if topics:
        records = records.where(records["topic"].isin(list(topics)))
    by_file = summed(records, "topic", "partition", "_file").persist()
    try:
        found = _read_sums(table, current, by_file, topics)
        if isinstance(found, ArchiveProblem):
            rows = sum(_lengths(history, topics).values())
            return ArchiveProof(0, rows, 0, (found,))
        problems = [] if topics else _compare_files(table, current, by_file)
        files = by_file.select("_file").distinct().count()
    finally:
        by_file.unpersist()
    problems += compare_partitions(history, found, topics)
    unproved = sum(each.rows for at, each in found.items() if each != history.sums.get(at))
    rows = sum(each.rows for each in found.values())
    return ArchiveProof(files, rows, unproved, tuple(problems[:PROBLEMS_MAX]))


def _read_sums(
    table: IcebergTable, current: IcebergSnapshot, by_file: DataFrame, topics: Sequence[str]
) -> dict[TopicPartition, RecordSum] | ArchiveProblem:
    """Return the sums of partitions, or the problem that keeps Spark from reading the records.

    Spark's error does not show whether a file is damaged or the store was away. So the records
    count as damaged only if the store delivers all bytes of the topics' files and Spark still
    cannot read them. The driver fetches the files one after another, so it does so once. Raises
    JobError if the store does not answer.
    """
    for _ in range(_READS_MAX - 1):
        found = _try_to_read(by_file)
        if not isinstance(found, JobError):
            return found
    for path in table.data_files(current.id, topics):
        if not table.fetch(path):
            return ArchiveProblem(path, "the file is missing")
    found = _try_to_read(by_file)
    if isinstance(found, JobError):
        return ArchiveProblem(table.name, f"cannot be read: {found}")
    return found


def _try_to_read(by_file: DataFrame) -> dict[TopicPartition, RecordSum] | JobError:
    """Return the sums of partitions, or the error if Spark could not read the records."""
    try:
        return translate_spark_errors(lambda: partition_sums(by_file))
    except JobError as error:
        if error.code != "SPARK_FAILED":
            raise
        return error


def summed(records: DataFrame, *keys: str) -> DataFrame:
    """Add up the records by these columns: a row with the columns of SUM_FIGURES each."""
    from pyspark.sql.functions import expr

    figures = [expr(sql).alias(name) for name, sql in SUM_FIGURES.items()]
    return add_hash(records).groupBy(*keys).agg(*figures)


def partition_sums(by_file: DataFrame) -> dict[TopicPartition, RecordSum]:
    """Add up the sums of files to those of partitions."""
    from pyspark.sql.functions import expr

    wide = [expr(f"sum(CAST({name} AS DECIMAL(38, 0)))").alias(name) for name in SUM_FIGURES]
    rows = by_file.groupBy("topic", "partition").agg(*wide).collect()
    return {partition_of(row): sum_of(row) for row in rows}


def _compare_files(
    table: IcebergTable, current: IcebergSnapshot, by_file: DataFrame
) -> list[ArchiveProblem]:
    """Compare the rows of each file with those that the manifests record.

    Compares nothing if other writers have deleted rows without rewriting the files.
    """
    if table.metadata("delete_files", current.id).limit(1).count():
        return []
    from pyspark.sql.functions import coalesce, expr, lit

    listed = table.metadata("data_files", current.id).selectExpr(
        "file_path AS _file", "record_count AS listed"
    )
    counted = by_file.groupBy("_file").agg(expr("sum(rows)").alias("rows"))
    joined = listed.join(counted, "_file", "left").withColumn("rows", coalesce("rows", lit(0)))
    wrong = joined.where("rows <> listed").limit(PROBLEMS_MAX).collect()
    return [
        ArchiveProblem(row["_file"], f"{row['rows']} rows instead of {row['listed']}")
        for row in wrong
    ]


def compare_partitions(
    history: ArchiveHistory, found: dict[TopicPartition, RecordSum], topics: Sequence[str]
) -> list[ArchiveProblem]:
    """Compare the sums of partitions with those of the commits, and rows with the ranges.

    Where other writers have deleted records, nothing can be compared.
    """
    lengths = _lengths(history, topics)
    recorded = {at: each for at, each in history.sums.items() if not topics or at.topic in topics}
    problems: list[ArchiveProblem] = []
    for partition in sorted({*found, *recorded}):
        there, known = found.get(partition, NO_RECORDS), recorded.get(partition)
        problem = ""
        if history.deleted and known is not None and there.rows < known.rows:
            continue
        if there.rows > lengths.get(partition, 0):
            problem = f"{there.rows} rows of {lengths.get(partition, 0)} archived offsets"
        elif known is not None and there.rows != known.rows:
            problem = f"{there.rows} rows, the commits have {known.rows}"
        elif known is not None and there != known:
            problem = "the content of some records has changed"
        if problem:
            problems.append(ArchiveProblem(str(partition), problem))
    return problems


def _lengths(history: ArchiveHistory, topics: Sequence[str]) -> dict[TopicPartition, int]:
    lengths: dict[TopicPartition, int] = {}
    for each in history.ranges:
        if not topics or each.topic in topics:
            before = lengths.get(each.topic_partition, 0)
            lengths[each.topic_partition] = before + each.length
    return lengths
