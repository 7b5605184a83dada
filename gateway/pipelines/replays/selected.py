"""The selected records of an archive as Spark frames: measured, and spread over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.pipelines.archives.port import Archive
from gateway.pipelines.replays.plan import Selection
from gateway.pipelines.shared.frames import filter_offsets, small_frame
from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SALTS = 64  # candidate salts per task, so that Spark's hash maps at least one salt to each task


class PartitionExtent(NamedTuple):
    """The extent of the selected records of one partition."""

    partition: int
    records: int
    first: int
    last: int
    oldest_ms: int
    record_bytes_max: int


def measure(spark: SparkSession, archive: Archive, selection: Selection) -> list[PartitionExtent]:
    """Measure the selected records of each partition. Returns the partitions in order."""
    from pyspark.sql import functions as F

    header_bytes = (
        "aggregate(headers, 0, (a, h) -> a + octet_length(h.key) + coalesce(length(h.value), 0))"
    )
    record_bytes = (
        F.coalesce(F.length("key"), F.lit(0))
        + F.coalesce(F.length("value"), F.lit(0))
        + F.coalesce(F.expr(header_bytes), F.lit(0))
    )
    rows = (
        read_selected(spark, archive, selection, selection.ranges)
        .groupBy("partition")
        .agg(
            F.count("*"),
            F.min("offset"),
            F.max("offset"),
            F.unix_millis(F.min("timestamp")),
            F.max(record_bytes),
        )
        .collect()  # one row per partition
    )
    return sorted(PartitionExtent(*row) for row in rows)


def read_selected(
    spark: SparkSession, archive: Archive, selection: Selection, within: Sequence[OffsetRange]
) -> DataFrame:
    """Read the records of these ranges. The ranges are part of the selection."""
    from pyspark.sql import functions as F

    records = filter_offsets(spark, archive.read([selection.topic], within), within)
    if selection.start_ms is not None:
        records = records.where(F.col("day") >= F.lit(_day(selection.start_ms)))
        records = records.where(F.col("timestamp") >= F.timestamp_millis(F.lit(selection.start_ms)))
    if selection.end_ms is not None:
        records = records.where(F.col("day") <= F.lit(_day(selection.end_ms)))
        records = records.where(F.col("timestamp") < F.timestamp_millis(F.lit(selection.end_ms)))
    return records


def _day(timestamp_ms: int) -> Any:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date()


def one_task_each(spark: SparkSession, records: DataFrame, partitions: Sequence[int]) -> DataFrame:
    """Repartition into one task per partition.

    Spark assigns rows to tasks by a hash. Therefore each partition is joined with a number whose
    hash selects the partition's task.
    """
    from pyspark.sql import functions as F

    count = len(partitions)
    if count == 1:
        return records.repartition(1)
    rows = zip(partitions, task_salts(count), strict=True)
    salts = F.broadcast(small_frame(spark, rows, "partition INT, salt INT"))
    return records.join(salts, "partition").repartition(count, "salt").drop("salt")


@lru_cache(maxsize=8)
def task_salts(count: int) -> tuple[int, ...]:
    """Return for each task a number that Spark's hash assigns to it.

    A task for which no candidate was found gets its own number, and may share another task.
    """
    import numpy as np

    candidates = np.arange(_SALTS * count, dtype=np.uint32)
    tasks = murmur3(candidates).astype(np.int64) % count
    found = dict[int, int]()
    for salt, task in zip(candidates.tolist(), tasks.tolist(), strict=True):
        found.setdefault(task, salt)
    return tuple(found.get(task, task) for task in range(count))


def murmur3(numbers: Any) -> Any:
    """Hash 32-bit numbers as Spark's `hash` does: MurmurHash3 of 4 bytes with the seed 42."""
    import numpy as np

    def rotated(each: Any, bits: int) -> Any:
        return (each << np.uint32(bits)) | (each >> np.uint32(32 - bits))

    mixed = rotated(numbers * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = rotated(np.uint32(42) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> np.uint32(16))).view(np.int32)
