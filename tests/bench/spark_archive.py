"""The archive job beside Spark's own streaming write of the same topic, both in one Spark.

Both read the topic through the gateway and write Parquet files, or an Iceberg table, with all
columns, partitioned by topic, partition and day. Spark's query takes the whole topic in one batch.
Each side writes in turn into a place of its own, round after round. The rows are counted.

What the archive job gives besides, which Spark's write does not: `GUARANTEES`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from gateway.process.cli import program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "iceberg")
GUARANTEES = (
    "offset ranges are committed with their files, in the archive itself: no checkpoint to lose",
    "of two runs at once, one commits each range",
    "records that were lost, truncated or expired before they were read are named and recorded",
    "a topic that was deleted and created again is refused",
    "row counts and sums in each commit, which the audit compares with the topic",
    "replay writes each record back once",
)


class Sides:
    """Both ways to copy one topic. Each call writes into a new place."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, scratch: Path) -> None:
        self._spark, self._bootstrap, self._topic = spark, bootstrap, topic
        self._scratch = scratch
        # The number of copies so far; it names the next one.
        self._copies = 0

    def job(self, kind: str) -> int:
        """Archive the topic. Returns the rows."""
        to = self._place(kind)
        words = ["job", "archive", self._topic, "--to", to, "--format", kind]
        done = CliRunner().invoke(program, [*words, "--bootstrap", self._bootstrap])
        assert done.exit_code == 0, done.output
        return self._rows(kind, to)

    def spark(self, kind: str) -> int:
        """Copy the topic by a streaming query. Returns the rows."""
        to = self._place(kind)
        source = self._spark.readStream.format("kafka")
        source = source.option("kafka.bootstrap.servers", self._bootstrap)
        source = source.option("subscribe", self._topic).option("includeHeaders", "true")
        frame = source.option("startingOffsets", "earliest").load()
        frame = frame.selectExpr("*", "to_date(timestamp) AS day")
        by = ("topic", "partition", "day")
        writer = frame.writeStream.format(kind).partitionBy(*by).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._scratch / f"at-{self._copies}"))
        writer = writer.option("fanout-enabled", "true")
        query = writer.start(to) if kind == "parquet" else writer.toTable(to)
        query.awaitTermination()
        return self._rows(kind, to)

    def _place(self, kind: str) -> str:
        self._copies += 1
        if kind == "parquet":
            return str(self._scratch / f"copy-{self._copies}")
        self._spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
        return f"lake.bench.copy{self._copies}"

    def _rows(self, kind: str, to: str) -> int:
        reader = self._spark.read
        return (reader.parquet(to) if kind == "parquet" else reader.table(to)).count()


def measured(
    spark: SparkSession, bootstrap: str, topic: str, records: int, scratch: Path, rounds: int
) -> dict[str, object]:
    """Return records per second of both sides, and the lowest ratio of any round."""
    sides = Sides(spark, bootstrap, topic, scratch)
    result: dict[str, object] = {}
    for kind in FORMATS:
        ratios: list[float] = []
        rates: dict[str, list[float]] = {"job": [], "spark": []}
        for number in range(rounds + 1):
            for name in ("job", "spark")[:: -1 if number % 2 else 1]:
                began_s = time.monotonic()
                rows = sides.job(kind) if name == "job" else sides.spark(kind)
                rates[name].append(records / (time.monotonic() - began_s))
                assert rows == records, f"{name} wrote {rows} rows of {records}"
            ratios.append(rates["job"][-1] / rates["spark"][-1])
        # The first round also warms Spark's code.
        result[f"archive_vs_spark_{kind}"] = round(min(ratios[1:]), 2)
        for name, found in rates.items():
            result[f"{name}_{kind}_records_per_s"] = round(min(found[1:]))
        print(f"archive to {kind}: {result}", file=sys.stderr, flush=True)
    return {**result, "guarantees": GUARANTEES}
