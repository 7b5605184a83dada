"""Goal: the plan of a replay names each record once, and its tasks get their own partitions only.

Method: plans, chunks and ranges made here; one test asks Spark where it sends rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import pyarrow
import pytest

from gateway.pipelines.replays.plan import (
    PartitionPlan,
    ReplayChunk,
    ReplayPlan,
    Selection,
    join_ranges,
    next_chunk,
    parse_offsets,
    select_ranges,
    subtract_ranges,
)
from gateway.pipelines.replays.selected import murmur3, one_task_each
from gateway.pipelines.replays.task import number_records
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.frames import filter_offsets
from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")

SOURCE = "source"


@pytest.mark.parametrize("offsets", [[3, 4, 4], [3, 5], [4, 3], [4, 5]])
def test_changed_source_offsets_are_an_error(offsets: list[int]):
    batch = pyarrow.record_batch(
        {
            "partition": pyarrow.array([0] * len(offsets), pyarrow.int32()),
            "offset": pyarrow.array(offsets, pyarrow.int64()),
        }
    )
    with pytest.raises(JobError) as failed:
        chunk = ReplayChunk(0, 3, 6, 3, last=False)
        list(number_records(PartitionPlan(0, 0, 10, 0, 9), chunk, iter([(0, batch)])))
    assert failed.value.code == "SOURCE_CHANGED"


def test_chunks_skip_unselected_offsets_and_end_with_the_last_record():
    ranges = (OffsetRange(SOURCE, 1, 0, 99), *(OffsetRange(SOURCE, 0, n, n + 4) for n in (2, 20)))
    held, partition = Selection(SOURCE, ranges).by_partition()[0], PartitionPlan(0, 7, 8, 2, 23)
    assert next_chunk(held, partition, 2, 0, 3) == ReplayChunk(0, 2, 5, 0, last=False)
    assert next_chunk(held, partition, 5, 3, 3) == ReplayChunk(0, 5, 8, 3, last=False)
    assert next_chunk(held, partition, 8, 4, 4) == ReplayChunk(0, 20, 24, 4, last=True)
    assert next_chunk(held, partition, 2, 0, 99) == ReplayChunk(0, 2, 24, 0, last=True)


def test_a_plan_that_is_damaged_or_newer_is_refused():
    for text in ("", "{}", "[]", '{"format": 1}', '{"format": 2}', '{"format": 3}'):
        with pytest.raises(JobError) as failed:
            ReplayPlan.decode(text.encode(), "place")
        assert failed.value.code == "BAD_STATE" and "place" in str(failed.value)


def test_offsets_that_are_not_archived_are_reported():
    archived = [OffsetRange("t", 0, 5, 10), OffsetRange("t", 0, 12, 20), OffsetRange("u", 0, 0, 9)]
    assert select_ranges("t", archived, None) == tuple(archived[:2])
    assert select_ranges("t", archived, {0: (6, 9)}) == (OffsetRange("t", 0, 6, 9),)
    for asked in ({0: (4, 6)}, {0: (9, 13)}, {0: (19, 21)}, {1: (0, 1)}):
        with pytest.raises(JobError, match="not all archived"):
            select_ranges("t", archived, asked)


def test_ranges_are_subtracted_and_joined():
    covered = [OffsetRange("t", 0, 2, 4), OffsetRange("t", 0, 6, 8), OffsetRange("t", 1, 0, 9)]
    whole = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 9), OffsetRange("t", 2, 3, 4)]
    rest = subtract_ranges(whole, covered)
    assert rest == tuple(
        OffsetRange("t", *each) for each in ((0, 0, 2), (0, 4, 6), (0, 8, 10), (2, 3, 4))
    )
    assert join_ranges(covered, rest) == tuple(whole)
    assert subtract_ranges(whole, whole) == () == subtract_ranges((), whole)


def test_offsets_are_given_as_json():
    assert parse_offsets('{"0": [1, 5], "12": [0, 1]}', "t") == {0: (1, 5), 12: (0, 1)}
    assert parse_offsets('{"t": {"0": [1, 5]}}', "t") == {0: (1, 5)}
    for text in ("", "{}", "[]", '{"0": 5}', '{"0": [5, 5]}', '{"0": [-1, 5]}', '{"x": [1, 5]}'):
        with pytest.raises(JobError) as failed:
            parse_offsets(text, "t")
        assert failed.value.code == "USAGE"


def test_each_partition_has_a_task_of_its_own_and_no_row_carries_all_partitions(
    spark: SparkSession,
):
    from pyspark.sql import functions as F

    numbers = [0, 1, 7, 41, 42, 2**31 - 1]
    hashed = spark.range(1).select(*(F.hash(F.lit(each)) for each in numbers)).first()
    assert hashed is not None
    assert murmur3(numpy.array(numbers, numpy.uint32)).tolist() == list(hashed)
    partitions = list(range(100, 140))
    rows = spark.range(400).selectExpr("CAST(100 + id % 40 AS INT) AS partition", "id AS offset")
    spread = one_task_each(spark, rows, partitions)
    assert spread.columns == ["partition", "offset"]
    found = spread.withColumn("task", F.spark_partition_id()).select("partition", "task").distinct()
    assert sorted((row["partition"], row["task"]) for row in found.collect()) == [
        (each, each - 100) for each in partitions
    ]
    plan = spread._jdf.queryExecution().analyzed().toString()  # pyright: ignore
    assert "map(" not in plan
    many = [OffsetRange(SOURCE, 100 + n % 40, n // 40, n // 40 + 1) for n in range(90)]
    named = rows.selectExpr(f"'{SOURCE}' AS topic", "partition", "CAST(offset / 40 AS INT) offset")
    assert filter_offsets(spark, named, many).count() == 90
