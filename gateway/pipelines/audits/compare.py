"""The comparison: first all records by buckets, then single records where buckets differ.

Each side is first read once, into sums per bucket (`counting`). Buckets with equal sums contain the
same records. Only the records of the other buckets are read again and joined, as hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.pipelines.audits.columns import BUCKET
from gateway.pipelines.audits.counting import (
    BUCKET_KEYS,
    PARTITION_KEYS,
    TimeRange,
    add_positions,
    bucket_of,
    clip,
    count_buckets,
    hash_records,
    non_empty,
)
from gateway.pipelines.audits.model import SIDES, Align, Side, unrelated_topics
from gateway.pipelines.shared.frames import small_frame
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition, partition_of
from gateway.pipelines.shared.topics import OffsetBounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """The sums over a partition's buckets.

    `left` and `right` are None for a side without records.
    """

    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None
    same: int
    """The number of records in buckets that are equal and contain each position once."""
    open_first: int | None
    open_end: int | None
    """The bounds of the positions that contain all other buckets.

    Both are None if there are no other buckets.
    """


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts of positions in the open buckets of a partition.

    `union` counts positions on either side, and `differ` positions whose records differ. The
    duplicates count the additional records at a position.
    """

    union: int = 0
    left: int = 0
    right: int = 0
    left_duplicates: int = 0
    right_duplicates: int = 0
    differ: int = 0


class Comparison:
    """One audit in progress. The owner must call `close`."""

    def __init__(
        self, spark: SparkSession, left: Side, right: Side, align: Align, times: TimeRange
    ) -> None:
        self.spark = spark
        self.sides = {"left": left, "right": right}
        self.align = align
        self.times = times
        # Topics for which the rules of one side explain no loss on the other side.
        self.unrelated = unrelated_topics(left, right)
        # The base of each partition by side. An offset minus its base is the record's position.
        self.bases = {name: self._bases(side) for name, side in self.sides.items()}
        # Frames that `close` releases.
        self._persisted: list[DataFrame] = []

    def _bases(self, side: Side) -> dict[TopicPartition, int]:
        ranked = self.align is Align.rank
        return {
            partition: each.earliest if ranked else 0 for partition, each in side.bounds.items()
        }

    def close(self) -> None:
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()

    def persist_once(self, frame: DataFrame) -> DataFrame:
        """Persist the frame, so that Spark computes it once.

        The frame spills to disk if necessary.
        """
        self._persisted.append(frame.persist())
        return frame

    def join_buckets(self) -> DataFrame:
        """Count the buckets of both sides and join them.

        Columns: BUCKET_KEYS, the other columns of BUCKETS as left_... and right_..., and `same`.
        """
        from pyspark.sql import functions as F

        frames: list[DataFrame] = []
        for name, side in self.sides.items():
            frame = count_buckets(side, self.bases[name], self.times)
            others = [column for column in frame.columns if column not in BUCKET_KEYS]
            frames.append(
                frame.select(
                    *BUCKET_KEYS, *(F.col(each).alias(f"{name}_{each}") for each in others)
                )
            )
        equal = F.col("left_dense") & F.col("right_dense")
        for each in ("first", "last", "records", "placed_high", "placed_low"):
            equal &= F.col(f"left_{each}") == F.col(f"right_{each}")
        joined = frames[0].join(frames[1], BUCKET_KEYS, "full_outer")
        return self.persist_once(joined.withColumn("same", F.coalesce(equal, F.lit(False))))

    def sums(self, joined: DataFrame) -> dict[TopicPartition, PartitionSums]:
        """Add up the buckets of each partition. The driver receives one row per partition."""
        from pyspark.sql import functions as F

        figures: list[Column] = [
            F.sum(F.when(F.col("same"), F.col("left_records")).otherwise(0)).alias("same"),
            F.min(F.when(~F.col("same"), F.col("bucket"))).alias("open_first"),
            F.max(F.when(~F.col("same"), F.col("bucket"))).alias("open_last"),
        ]
        for name in SIDES:
            figures += _figures(name)
        rows = joined.groupBy(*PARTITION_KEYS).agg(*figures).collect()
        return {partition_of(row): _sums(row) for row in rows}

    def partitions_to_number(
        self, sums: Mapping[TopicPartition, PartitionSums]
    ) -> set[TopicPartition]:
        """Return the partitions whose records must be numbered to get their ranks.

        In other partitions, the offset minus the base equals the rank.
        """
        if self.align is Align.offset:
            return set()
        return {
            partition
            for partition, each in sums.items()
            if not (_dense(each.left) and _dense(each.right))
        }

    def groups(
        self,
        joined: DataFrame,
        sums: Mapping[TopicPartition, PartitionSums],
        numbered: set[TopicPartition],
    ) -> DataFrame | None:
        """Group the records of open buckets, and all records of `numbered` partitions, by position.

        Returns None if no bucket is open. The columns are topic, partition and position, left and
        right (the number of records on each side), and four columns of each side. The left ones are
        left_offset, left_ms, left_low and left_high (the smallest and the greatest hash).
        """
        from pyspark.sql import functions as F

        parts: list[DataFrame] = []
        for name in SIDES:
            parts += [
                frame.withColumn("side", F.lit(name))
                for frame in (
                    self._open_rows(name, joined, sums, numbered),
                    self._numbered_rows(name, sorted(numbered)),
                )
                if frame is not None
            ]
        if not parts:
            return None
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        figures: list[Column] = []
        for name in SIDES:
            here = F.col("side") == name
            figures += [
                F.count_if(here).alias(name),
                F.min(F.when(here, F.col("offset"))).alias(f"{name}_offset"),
                F.min(F.when(here, F.col("ms"))).alias(f"{name}_ms"),
                F.min(F.when(here, F.col("hash"))).alias(f"{name}_low"),
                F.max(F.when(here, F.col("hash"))).alias(f"{name}_high"),
            ]
        return self.persist_once(rows.groupBy(*PARTITION_KEYS, "position").agg(*figures))

    def count_held(
        self, joined: DataFrame, groups: DataFrame | None, ranges: Sequence[OffsetRange]
    ) -> dict[TopicPartition, int]:
        """Count for each partition the positions in these ranges that a side has.

        The ranges must not overlap.
        """
        from pyspark.sql import functions as F

        if not ranges:
            return {}
        known = F.broadcast(
            small_frame(self.spark, ranges, "topic STRING, partition INT, start BIGINT, end BIGINT")
        )
        same = joined.where("same").join(known, PARTITION_KEYS)
        length = F.least(F.col("left_last") + 1, "end") - F.greatest("left_first", "start")
        parts = [same.select(*PARTITION_KEYS, F.greatest(length, F.lit(0)).alias("held"))]
        if groups is not None:
            here = groups.join(known, PARTITION_KEYS).where("position >= start AND position < end")
            parts.append(here.select(*PARTITION_KEYS, F.lit(1).cast("bigint").alias("held")))
        found: dict[TopicPartition, int] = {}
        for part in parts:
            for row in part.groupBy(*PARTITION_KEYS).agg(F.sum("held").alias("held")).collect():
                partition = partition_of(row)
                found[partition] = found.get(partition, 0) + row["held"]
        return found

    def count_duplicates(
        self, numbered: set[TopicPartition]
    ) -> dict[tuple[str, TopicPartition], int]:
        """Count for each side and numbered partition the records whose offset occurred before."""
        from pyspark.sql import functions as F

        found: dict[tuple[str, TopicPartition], int] = {}
        for name, side in self.sides.items():
            ranges = non_empty(side.bounds, numbered)
            if not ranges:
                continue
            rows = (
                hash_records(side.read(ranges), self.times)
                .groupBy(*PARTITION_KEYS, "offset")
                .count()
            )
            rows = rows.groupBy(*PARTITION_KEYS).agg(F.sum(F.col("count") - 1).alias("again"))
            for row in rows.collect():
                found[name, partition_of(row)] = row["again"]
        return found

    def open_ranges(
        self, name: str, sums: Mapping[TopicPartition, PartitionSums]
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return the ranges of offsets that contain the open buckets of a side."""
        side, bases = self.sides[name], self.bases[name]
        found: dict[TopicPartition, OffsetBounds] = {}
        for partition, each in sums.items():
            if (
                partition in side.bounds
                and each.open_first is not None
                and each.open_end is not None
            ):
                base = bases[partition]
                bounds = side.bounds[partition]
                found[partition] = clip(bounds, base + each.open_first, base + each.open_end)
        return non_empty(found, found)

    def _open_rows(
        self,
        name: str,
        joined: DataFrame,
        sums: Mapping[TopicPartition, PartitionSums],
        numbered: set[TopicPartition],
    ) -> DataFrame | None:
        from pyspark.sql import functions as F

        ranges = self.open_ranges(name, {p: each for p, each in sums.items() if p not in numbered})
        if not ranges:
            return None
        rows = hash_records(self.sides[name].read(ranges), self.times)
        rows = add_positions(self.spark, rows, self.bases[name])
        rows = rows.withColumn("bucket", bucket_of(F.col("position")))
        wanted = joined.where("NOT same").select(*BUCKET_KEYS)
        return rows.join(F.broadcast(wanted), BUCKET_KEYS, "left_semi").drop("bucket")

    def _numbered_rows(self, name: str, partitions: list[TopicPartition]) -> DataFrame | None:
        """Read whole partitions with `position` by rank. Sorting spills to disk if necessary."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        ranges = non_empty(self.sides[name].bounds, partitions)
        if not ranges:
            return None
        rows = hash_records(self.sides[name].read(ranges), self.times)
        rank = F.row_number().over(Window.partitionBy(*PARTITION_KEYS).orderBy("offset"))
        return rows.withColumn("position", rank.cast("bigint") - 1)


def count_pairs(groups: DataFrame) -> dict[TopicPartition, PairCounts]:
    """Count the pairs of each partition in a frame of `Comparison.groups`."""
    from pyspark.sql import functions as F

    figures = [
        F.count("*").alias("union"),
        F.count_if(F.col("left") > 0).alias("left"),
        F.count_if(F.col("right") > 0).alias("right"),
        F.sum(F.greatest(F.col("left") - 1, F.lit(0))).alias("left_duplicates"),
        F.sum(F.greatest(F.col("right") - 1, F.lit(0))).alias("right_duplicates"),
        F.count_if(records_differ()).alias("differ"),
    ]
    rows = groups.groupBy(*PARTITION_KEYS).agg(*figures).collect()
    names = list(PairCounts.__slots__)
    return {partition_of(row): PairCounts(**{name: row[name] for name in names}) for row in rows}


def records_differ() -> Column:
    """Return a condition: both sides have records at the position, with different content."""
    from pyspark.sql import functions as F

    both = (F.col("left") > 0) & (F.col("right") > 0)
    return both & (
        (F.col("left_low") != F.col("right_low")) | (F.col("left_high") != F.col("right_high"))
    )


def _figures(name: str) -> list[Column]:
    from pyspark.sql import functions as F

    def total(column: str) -> Column:
        return F.sum(F.col(f"{name}_{column}").cast("decimal(38,0)")).alias(f"{name}_{column}")

    counts = [total(each) for each in ("content_high", "content_low")]
    counts += [
        F.sum(f"{name}_{each}").alias(f"{name}_{each}") for each in ("records", "disorder", "back")
    ]
    return [
        *counts,
        F.min(f"{name}_first").alias(f"{name}_first"),
        F.max(f"{name}_last").alias(f"{name}_last"),
        F.min(f"{name}_first_ms").alias(f"{name}_first_ms"),
        F.max(f"{name}_last_ms").alias(f"{name}_last_ms"),
        F.bool_and(f"{name}_dense").alias(f"{name}_dense"),
    ]


def _sums(row: Row) -> PartitionSums:
    sides: list[dict[str, Any] | None] = []
    for name in SIDES:
        if row[f"{name}_records"] is None:
            sides.append(None)
            continue
        figures = {
            each: row[f"{name}_{each}"]
            for each in (
                "records", "disorder", "back", "first", "last", "first_ms", "last_ms", "dense"
            )
        }  # fmt: skip
        high, low = int(row[f"{name}_content_high"]), int(row[f"{name}_content_low"])
        sides.append({**figures, "checksum": (high << 32) + low})
    first, last = row["open_first"], row["open_last"]
    return PartitionSums(
        sides[0],
        sides[1],
        row["same"],
        None if first is None else first * BUCKET,
        None if last is None else (last + 1) * BUCKET,
    )


def _dense(held: Mapping[str, Any] | None) -> bool:
    """Return whether positions are ranks: each one from 0 to the last occurs exactly once.

    An empty partition is dense.
    """
    if held is None:
        return True
    return held["dense"] and held["first"] == 0 and held["records"] == held["last"] + 1
