"""Proofs that offsets hold no record: the markers of transactions, and what was aborted.

The proof is what the brokers answer to read_committed fetches: all batches, and the list of aborted
transactions. Nothing is concluded from the absence of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gateway.admin.client import AdminClient
from gateway.pipelines.archives.checking import FOLD
from gateway.pipelines.archives.exact_read import TASK_COLUMNS, fetch_all, tasks_of
from gateway.pipelines.archives.port import Holes, HoleSum
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import OffsetRange, partition_of
from gateway.pipelines.shared.refusals import refusals_named
from gateway.pipelines.shared.topics import run_admin

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

HOLE_COLUMNS = TASK_COLUMNS
"""The columns of holes: topic, partition, start and end."""
OFFSETS_PER_TASK = 250_000


def find_holes(
    spark: SparkSession,
    bootstrap: KafkaServers,
    ranges: Iterable[OffsetRange],
    isolation: Isolation,
) -> DataFrame:
    """Find the offsets of these ranges at which no reader of this isolation gets a record.

    A frame of `HOLE_COLUMNS`, without overlaps.
    """

    def find(given: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        with refusals_named():
            for some in given:
                for row in some.to_pylist():
                    found = _holes(bootstrap, OffsetRange(**row), isolation)
                    rows = [each._asdict() for each in found]
                    yield pyarrow.RecordBatch.from_pylist(rows, some.schema)

    return tasks_of(spark, ranges, OFFSETS_PER_TASK).mapInArrow(find, HOLE_COLUMNS)


def _holes(bootstrap: KafkaServers, wanted: OffsetRange, isolation: Isolation) -> list[OffsetRange]:
    found: list[tuple[int, int]] = []

    async def work(client: AdminClient) -> None:
        async for each in fetch_all(client, wanted, isolation):
            found.extend(each.holes)

    run_admin(bootstrap, work)
    return clip_holes(found, wanted)


def clip_holes(found: Iterable[tuple[int, int]], wanted: OffsetRange) -> list[OffsetRange]:
    """Return the parts of these holes that lie in the range, in order. Merges those that touch."""
    clipped: list[OffsetRange] = []
    for first, end in found:
        each = wanted._replace(start=max(first, wanted.start), end=min(end, wanted.end))
        if each.start >= each.end:
            continue
        if clipped and clipped[-1].end == each.start:
            clipped[-1] = clipped[-1]._replace(end=each.end)
        else:
            clipped.append(each)
    return clipped


def hole_offsets(holes: DataFrame) -> DataFrame:
    """Return one row for each offset: topic, partition and offset."""
    return holes.selectExpr(
        "topic", "partition", "explode(sequence(start, end - 1)) AS offset"
    ).distinct()


def sum_holes(holes: DataFrame) -> Holes:
    """Add up the holes of each partition. The driver receives one row for each."""
    from pyspark.sql import functions as F

    grouped = hole_offsets(holes).groupBy("topic", "partition")
    rows = grouped.agg(F.count("*").alias("offsets"), F.expr(FOLD).alias("fold")).collect()
    return {partition_of(row): HoleSum(row["offsets"], row["fold"]) for row in rows}
