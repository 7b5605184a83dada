"""Small frames, and filters of records by ranges of offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONDITION_RANGES_MAX = 64
"""The maximum number of ranges in one filter condition."""


def small_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """Make a small frame of these rows. Unlike createDataFrame, this starts no Python process."""
    names = [column.split()[0] for column in schema.split(",")]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    fields = ", ".join(f"{name}: {kind}" for name, kind in map(str.split, schema.split(",")))
    query = f"SELECT inline(from_json(:rows, 'ARRAY<STRUCT<{fields}>>'))"
    return spark.sql(query, args={"rows": text})


def filter_offsets(
    spark: SparkSession, records: DataFrame, wanted: Sequence[OffsetRange]
) -> DataFrame:
    """Keep the records at offsets of these ranges, which must not overlap.

    A few ranges become a condition, by which Spark can skip files. Many ranges become a join,
    because a condition is evaluated as a whole for each row.
    """
    from pyspark.sql import functions as F

    offset = F.col("offset")
    if len(wanted) <= CONDITION_RANGES_MAX:
        here = F.lit(False)
        for each in wanted:
            one = (F.col("topic") == each.topic) & (F.col("partition") == each.partition)
            here |= one & (offset >= each.start) & (offset < each.end)
        return records.where(here)
    schema = "its_topic STRING, its_partition INT, its_start BIGINT, its_end BIGINT"
    known = small_frame(spark, wanted, schema)
    here = (F.col("topic") == F.col("its_topic")) & (F.col("partition") == F.col("its_partition"))
    here &= (offset >= F.col("its_start")) & (offset < F.col("its_end"))
    return records.join(F.broadcast(known), here, "left_semi")
