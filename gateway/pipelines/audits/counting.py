"""Sides as Spark frames: records hashed and counted in buckets, and small helpers for ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gateway.pipelines.audits.columns import BUCKET, BUCKETS, PARTIALS, SUMS
from gateway.pipelines.audits.model import Ranges, Side
from gateway.pipelines.shared.frames import small_frame
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKET_KEYS = ["topic", "partition", "bucket"]
PARTITION_KEYS = ["topic", "partition"]

_HASH = (
    "xxhash64(key IS NULL, key, value IS NULL, value, timestamp, timestampType,"
    " coalesce(size(headers), 0),"
    " CASE WHEN size(headers) > 0 THEN"
    " transform(headers, one -> struct(one.key, one.value IS NULL, one.value)) END)"
)
"""SQL for a hash of the whole record. Spark's hash ignores nulls, so each null adds a flag."""
MS = "coalesce(unix_millis(timestamp), -1L)"


class TimeRange(NamedTuple):
    """A range of timestamps from `start_ms` up to, not including, `end_ms`. None means no bound."""

    start_ms: int | None = None
    end_ms: int | None = None


def rename_topic(side: Side, name: str) -> Side:
    """Return the side with its only topic renamed to `name`."""
    from pyspark.sql import functions as F

    (topic,) = side.topics
    if topic == name:
        return side

    def original(partitions: Ranges) -> Ranges:
        return {
            TopicPartition(topic, partition.partition): each
            for partition, each in partitions.items()
        }

    def now() -> Ranges:
        return {
            TopicPartition(name, partition.partition): each
            for partition, each in side.now().items()
        }

    def renamed(frame: DataFrame) -> DataFrame:
        return frame.withColumn("topic", F.lit(name))

    def read(ranges: Ranges) -> DataFrame:
        return renamed(side.read(original(ranges)))

    def uncommitted(ranges: Ranges) -> DataFrame:
        assert side.uncommitted is not None
        return renamed(side.uncommitted(original(ranges)))

    def holes(ranges: Ranges) -> DataFrame:
        assert side.holes is not None
        return renamed(side.holes(original(ranges)))

    return replace(
        side,
        bounds={
            TopicPartition(name, partition.partition): each
            for partition, each in side.bounds.items()
        },
        read=read,
        uncommitted=None if side.uncommitted is None else uncommitted,
        holes=None if side.holes is None else holes,
        rules={name: side.rules[topic]} if topic in side.rules else {},
        accepted=tuple(each._replace(topic=name) for each in side.accepted),
        topic_ids={},
        logs={
            TopicPartition(name, partition.partition): each for partition, each in side.logs.items()
        },
        now=now,
    )


def ignore_timestamp_type(side: Side) -> Side:
    """Return the side with the timestampType of CreateTime in all records."""
    from pyspark.sql import functions as F

    def changed(read: Callable[[Ranges], DataFrame]) -> Callable[[Ranges], DataFrame]:
        return lambda ranges: read(ranges).withColumn("timestampType", F.lit(0))

    uncommitted = None if side.uncommitted is None else changed(side.uncommitted)
    return replace(side, read=changed(side.read), uncommitted=uncommitted)


def hash_records(frame: DataFrame, times: TimeRange) -> DataFrame:
    """Reduce each record to its partition, offset, timestamp and hash."""
    chosen = frame.selectExpr(*PARTITION_KEYS, "offset", f"{MS} AS ms", f"{_HASH} AS hash")
    return filter_times(chosen, times)


def filter_times(frame: DataFrame, times: TimeRange) -> DataFrame:
    if times.start_ms is not None:
        frame = frame.where(f"ms >= {times.start_ms}")
    return frame if times.end_ms is None else frame.where(f"ms < {times.end_ms}")


def count_buckets(side: Side, bases: Mapping[TopicPartition, int], times: TimeRange) -> DataFrame:
    """Count the records of a side into rows of BUCKETS, one per bucket that contains records."""
    from pyspark.sql import functions as F

    # Imported here because `partials` needs numpy.
    from gateway.pipelines.audits.partials import add_density, count_partials

    plain = {
        (partition.topic, partition.partition): base for partition, base in bases.items() if base
    }
    counted = hash_records(side.read(side.bounds), times).mapInArrow(
        count_partials(plain, side.ordered), PARTIALS
    )
    lowest = [F.min(name).alias(name) for name in ("first", "first_ms")]
    highest = [F.max(name).alias(name) for name in ("last", "last_ms")]
    sums = [F.sum(name).alias(name) for name in SUMS]
    order = [column.split()[0] for column in PARTIALS.split(", ")]
    merged = counted.groupBy(*BUCKET_KEYS).agg(*lowest, *highest, *sums).select(*order)
    return merged.mapInArrow(add_density, BUCKETS)


def add_positions(
    spark: SparkSession, frame: DataFrame, bases: Mapping[TopicPartition, int]
) -> DataFrame:
    """Add the column `position`: the offset minus the base of its partition."""
    from pyspark.sql import functions as F

    if not any(bases.values()):
        return frame.withColumn("position", F.col("offset"))
    rows = [(*partition, base) for partition, base in bases.items()]
    known = small_frame(spark, rows, "topic STRING, partition INT, base BIGINT")
    found = frame.join(F.broadcast(known), PARTITION_KEYS)
    return found.withColumn("position", F.col("offset") - F.col("base")).drop("base")


def bucket_of(position: Column) -> Column:
    from pyspark.sql import functions as F

    return F.shiftright(position, BUCKET.bit_length() - 1)


def clip(bounds: OffsetBounds, first: int, end: int) -> OffsetBounds:
    start = min(max(bounds.earliest, first), bounds.latest)
    return OffsetBounds(start, max(start, min(bounds.latest, end)))


def non_empty(
    ranges: Mapping[TopicPartition, OffsetBounds], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetBounds]:
    """Return the ranges of these partitions that are not empty."""
    found = {partition: ranges[partition] for partition in partitions if partition in ranges}
    return {partition: each for partition, each in found.items() if each.latest > each.earliest}
