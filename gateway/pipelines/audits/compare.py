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
    KEYS,
    PLACE,
    Times,
    bucket_of,
    buckets,
    clipped,
    narrow,
    positioned,
    some,
    table,
)
from gateway.pipelines.audits.model import SIDES, Align, Side, strangers
from gateway.pipelines.shared.partitions import OffsetRange, Place
from gateway.pipelines.shared.topics import Bounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class Sums:
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
class Pairs:
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
        self, spark: SparkSession, left: Side, right: Side, align: Align, times: Times
    ) -> None:
        self.spark = spark
        self.sides = {"left": left, "right": right}
        self.align = align
        self.times = times
        self.strangers = strangers(left, right)
        self.bases = {name: self._bases(side) for name, side in self.sides.items()}
        self._kept: list[DataFrame] = []

    def _bases(self, side: Side) -> dict[Place, int]:
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
        """KEYS, the columns of BUCKETS as left_... and right_..., and `same`."""
        from pyspark.sql import functions as F

        frames: list[DataFrame] = []
        for name, side in self.sides.items():
            frame = buckets(side, self.bases[name], self.times)
            others = [column for column in frame.columns if column not in KEYS]
            frames.append(
                frame.select(*KEYS, *(F.col(each).alias(f"{name}_{each}") for each in others))
            )
        equal = F.col("left_dense") & F.col("right_dense")
        for each in ("first", "last", "records", "placed_high", "placed_low"):
            equal &= F.col(f"left_{each}") == F.col(f"right_{each}")
        joined = frames[0].join(frames[1], KEYS, "full_outer")
        return self.keep(joined.withColumn("same", F.coalesce(equal, F.lit(False))))

    def sums(self, joined: DataFrame) -> dict[Place, Sums]:
        """Per partition. Of many buckets, one row comes to the driver."""
        from pyspark.sql import functions as F

        figures: list[Column] = [
            F.sum(F.when(F.col("same"), F.col("left_records")).otherwise(0)).alias("same"),
            F.min(F.when(~F.col("same"), F.col("bucket"))).alias("open_first"),
            F.max(F.when(~F.col("same"), F.col("bucket"))).alias("open_last"),
        ]
        for name in SIDES:
            figures += _figures(name)
        rows = joined.groupBy(*PLACE).agg(*figures).collect()
        return {Place(row["topic"], row["partition"]): _sums(row) for row in rows}

    def unranked(self, sums: Mapping[Place, Sums]) -> set[Place]:
        """Partitions whose records have to be numbered: an offset less the base is no rank."""
        if self.align is Align.offset:
            return set()
        return {
            place for place, each in sums.items() if not (_dense(each.left) and _dense(each.right))
        }

    def groups(
        self, joined: DataFrame, sums: Mapping[Place, Sums], numbered: set[Place]
    ) -> DataFrame | None:
        """A row for each position of the open buckets, and of all positions of `numbered` places.

        Columns: PLACE, position, left and right (how many), left_offset, left_ms, left_low and
        left_high (the least and the greatest hash), the same of right. None: nothing is open.
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
        return self.keep(rows.groupBy(*PLACE, "position").agg(*figures))

    def held_in(
        self, joined: DataFrame, groups: DataFrame | None, ranges: Sequence[OffsetRange]
    ) -> dict[Place, int]:
        """Per partition: positions that a side has among these ranges, which do not overlap."""
        from pyspark.sql import functions as F

        if not ranges:
            return {}
        known = F.broadcast(
            table(self.spark, ranges, "topic STRING, partition INT, start BIGINT, end BIGINT")
        )
        same = joined.where("same").join(known, PLACE)
        length = F.least(F.col("left_last") + 1, "end") - F.greatest("left_first", "start")
        parts = [same.select(*PLACE, F.greatest(length, F.lit(0)).alias("held"))]
        if groups is not None:
            here = groups.join(known, PLACE).where("position >= start AND position < end")
            parts.append(here.select(*PLACE, F.lit(1).cast("bigint").alias("held")))
        found: dict[Place, int] = {}
        for part in parts:
            for row in part.groupBy(*PLACE).agg(F.sum("held").alias("held")).collect():
                place = Place(row["topic"], row["partition"])
                found[place] = found.get(place, 0) + row["held"]
        return found

    def doubled(self, numbered: set[Place]) -> dict[tuple[str, Place], int]:
        """Per side and numbered partition: records whose offset was there before."""
        from pyspark.sql import functions as F

        found: dict[tuple[str, Place], int] = {}
        for name, side in self.sides.items():
            ranges = some(side.bounds, numbered)
            if not ranges:
                continue
            rows = narrow(side.read(ranges), self.times).groupBy(*PLACE, "offset").count()
            rows = rows.groupBy(*PLACE).agg(F.sum(F.col("count") - 1).alias("again"))
            for row in rows.collect():
                found[name, Place(row["topic"], row["partition"])] = row["again"]
        return found

    def ranges(self, name: str, sums: Mapping[Place, Sums]) -> dict[Place, Bounds]:
        """Offsets of a side that hold its open buckets."""
        side, bases = self.sides[name], self.bases[name]
        found: dict[Place, Bounds] = {}
        for place, each in sums.items():
            if place in side.bounds and each.open_first is not None and each.open_end is not None:
                base = bases[place]
                bounds = side.bounds[place]
                found[place] = clipped(bounds, base + each.open_first, base + each.open_end)
        return some(found, found)

    def _open_rows(
        self, name: str, joined: DataFrame, sums: Mapping[Place, Sums], numbered: set[Place]
    ) -> DataFrame | None:
        from pyspark.sql import functions as F

        ranges = self.ranges(name, {p: each for p, each in sums.items() if p not in numbered})
        if not ranges:
            return None
        rows = narrow(self.sides[name].read(ranges), self.times)
        rows = positioned(self.spark, rows, self.bases[name])
        rows = rows.withColumn("bucket", bucket_of(F.col("position")))
        wanted = joined.where("NOT same").select(*KEYS)
        return rows.join(F.broadcast(wanted), KEYS, "left_semi").drop("bucket")

    def _numbered_rows(self, name: str, places: list[Place]) -> DataFrame | None:
        """Whole partitions with `position` by rank: sorted, on disk where memory does not do."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        ranges = some(self.sides[name].bounds, places)
        if not ranges:
            return None
        rows = narrow(self.sides[name].read(ranges), self.times)
        rank = F.row_number().over(Window.partitionBy(*PLACE).orderBy("offset"))
        return rows.withColumn("position", rank.cast("bigint") - 1)


def pairs(groups: DataFrame) -> dict[Place, Pairs]:
    """Per partition, from `Comparison.groups`."""
    from pyspark.sql import functions as F

    figures = [
        F.count("*").alias("union"),
        F.count_if(F.col("left") > 0).alias("left"),
        F.count_if(F.col("right") > 0).alias("right"),
        F.sum(F.greatest(F.col("left") - 1, F.lit(0))).alias("left_again"),
        F.sum(F.greatest(F.col("right") - 1, F.lit(0))).alias("right_again"),
        F.count_if(differing()).alias("differ"),
    ]
    rows = groups.groupBy(*PLACE).agg(*figures).collect()
    names = list(Pairs.__slots__)
    return {
        Place(row["topic"], row["partition"]): Pairs(**{name: row[name] for name in names})
        for row in rows
    }


def differing() -> Column:
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


def _sums(row: Row) -> Sums:
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
    return Sums(
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
