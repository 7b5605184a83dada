"""The comparison: whole sides by buckets, then record by record where buckets differ.

First, each side is read once, and only sums come out of it (`counting`). Buckets with equal sums
hold the same records; only those of the others are read again and joined, hashes alone.
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
    small_frame,
)
from gateway.pipelines.audits.model import SIDES, Align, Side, unrelated_topics
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """A partition as its buckets say: `left` and `right` have the figures of a side, or None.

    `same`: records in buckets that are equal and hold each position once; `open_first` and
    `open_end`: positions that hold all other buckets, None where there are none.
    """

    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None
    same: int
    open_first: int | None
    open_end: int | None


@dataclass(frozen=True, slots=True)
class PairCounts:
    """What joining the open buckets of a partition says; positions, not records, but `again`:
    records that are there once too often."""

    union: int = 0
    left: int = 0
    right: int = 0
    left_again: int = 0
    right_again: int = 0
    differ: int = 0


class Comparison:
    """One audit under way. The owner calls `close` in the end."""

    def __init__(
        self, spark: SparkSession, left: Side, right: Side, align: Align, times: TimeRange
    ) -> None:
        self.spark = spark
        self.sides = {"left": left, "right": right}
        self.align = align
        self.times = times
        self.strangers = unrelated_topics(left, right)
        self.bases = {name: self._bases(side) for name, side in self.sides.items()}
        self._kept: list[DataFrame] = []

    def _bases(self, side: Side) -> dict[TopicPartition, int]:
        ranked = self.align is Align.rank
        return {place: each.earliest if ranked else 0 for place, each in side.bounds.items()}

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once: in memory, and on disk what does not fit."""
        self._kept.append(frame.persist())
        return frame

    def joined_buckets(self) -> DataFrame:
        """BUCKET_KEYS, the columns of BUCKETS as left_... and right_..., and `same`."""
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
        return self.keep(joined.withColumn("same", F.coalesce(equal, F.lit(False))))

    def sums(self, joined: DataFrame) -> dict[TopicPartition, PartitionSums]:
        """Per partition. Of many buckets, one row comes to the driver."""
        from pyspark.sql import functions as F

        figures: list[Column] = [
            F.sum(F.when(F.col("same"), F.col("left_records")).otherwise(0)).alias("same"),
            F.min(F.when(~F.col("same"), F.col("bucket"))).alias("open_first"),
            F.max(F.when(~F.col("same"), F.col("bucket"))).alias("open_last"),
        ]
        for name in SIDES:
            figures += _figures(name)
        rows = joined.groupBy(*PARTITION_KEYS).agg(*figures).collect()
        return {TopicPartition(row["topic"], row["partition"]): _sums(row) for row in rows}

    def unranked(self, sums: Mapping[TopicPartition, PartitionSums]) -> set[TopicPartition]:
        """Partitions whose records have to be numbered: an offset less the base is no rank."""
        if self.align is Align.offset:
            return set()
        return {
            place for place, each in sums.items() if not (_dense(each.left) and _dense(each.right))
        }

    def groups(
        self,
        joined: DataFrame,
        sums: Mapping[TopicPartition, PartitionSums],
        numbered: set[TopicPartition],
    ) -> DataFrame | None:
        """Group the records of open buckets, and all of `numbered` partitions, by position.

        Columns: topic, partition, position; left and right (the number of records there);
        left_offset, left_ms, left_low and left_high (the smallest and the greatest hash), and the
        same for right. Returns None if no bucket is open.
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
        return self.keep(rows.groupBy(*PARTITION_KEYS, "position").agg(*figures))

    def held_in(
        self, joined: DataFrame, groups: DataFrame | None, ranges: Sequence[OffsetRange]
    ) -> dict[TopicPartition, int]:
        """Per partition: positions that a side has among these ranges, which do not overlap."""
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
                place = TopicPartition(row["topic"], row["partition"])
                found[place] = found.get(place, 0) + row["held"]
        return found

    def doubled(self, numbered: set[TopicPartition]) -> dict[tuple[str, TopicPartition], int]:
        """Per side and numbered partition: records whose offset was there before."""
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
                found[name, TopicPartition(row["topic"], row["partition"])] = row["again"]
        return found

    def ranges(
        self, name: str, sums: Mapping[TopicPartition, PartitionSums]
    ) -> dict[TopicPartition, OffsetBounds]:
        """Offsets of a side that hold its open buckets."""
        side, bases = self.sides[name], self.bases[name]
        found: dict[TopicPartition, OffsetBounds] = {}
        for place, each in sums.items():
            if place in side.bounds and each.open_first is not None and each.open_end is not None:
                base = bases[place]
                bounds = side.bounds[place]
                found[place] = clip(bounds, base + each.open_first, base + each.open_end)
        return non_empty(found, found)

    def _open_rows(
        self,
        name: str,
        joined: DataFrame,
        sums: Mapping[TopicPartition, PartitionSums],
        numbered: set[TopicPartition],
    ) -> DataFrame | None:
        from pyspark.sql import functions as F

        ranges = self.ranges(name, {p: each for p, each in sums.items() if p not in numbered})
        if not ranges:
            return None
        rows = hash_records(self.sides[name].read(ranges), self.times)
        rows = add_positions(self.spark, rows, self.bases[name])
        rows = rows.withColumn("bucket", bucket_of(F.col("position")))
        wanted = joined.where("NOT same").select(*BUCKET_KEYS)
        return rows.join(F.broadcast(wanted), BUCKET_KEYS, "left_semi").drop("bucket")

    def _numbered_rows(self, name: str, places: list[TopicPartition]) -> DataFrame | None:
        """Whole partitions with `position` by rank: sorted, on disk where memory does not do."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        ranges = non_empty(self.sides[name].bounds, places)
        if not ranges:
            return None
        rows = hash_records(self.sides[name].read(ranges), self.times)
        rank = F.row_number().over(Window.partitionBy(*PARTITION_KEYS).orderBy("offset"))
        return rows.withColumn("position", rank.cast("bigint") - 1)


def count_pairs(groups: DataFrame) -> dict[TopicPartition, PairCounts]:
    """Per partition, from `Comparison.groups`."""
    from pyspark.sql import functions as F

    figures = [
        F.count("*").alias("union"),
        F.count_if(F.col("left") > 0).alias("left"),
        F.count_if(F.col("right") > 0).alias("right"),
        F.sum(F.greatest(F.col("left") - 1, F.lit(0))).alias("left_again"),
        F.sum(F.greatest(F.col("right") - 1, F.lit(0))).alias("right_again"),
        F.count_if(records_differ()).alias("differ"),
    ]
    rows = groups.groupBy(*PARTITION_KEYS).agg(*figures).collect()
    names = list(PairCounts.__slots__)
    return {
        TopicPartition(row["topic"], row["partition"]): PairCounts(
            **{name: row[name] for name in names}
        )
        for row in rows
    }


def records_differ() -> Column:
    """Both sides have records at the position, and not the same ones."""
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
        told = {
            each: row[f"{name}_{each}"]
            for each in (
                "records", "disorder", "back", "first", "last", "first_ms", "last_ms", "dense"
            )
        }  # fmt: skip
        high, low = int(row[f"{name}_content_high"]), int(row[f"{name}_content_low"])
        sides.append({**told, "checksum": (high << 32) + low})
    first, last = row["open_first"], row["open_last"]
    return PartitionSums(
        sides[0],
        sides[1],
        row["same"],
        None if first is None else first * BUCKET,
        None if last is None else (last + 1) * BUCKET,
    )


def _dense(held: Mapping[str, Any] | None) -> bool:
    """Positions are ranks: each from 0 to the last is there once. Nothing at all is that too."""
    if held is None:
        return True
    return held["dense"] and held["first"] == 0 and held["records"] == held["last"] + 1
