"""What Spark reads of a topic with lost records, held against what a stock consumer read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.pipelines.direct import register
from tests.histories.history import FINAL, Op, place_of
from tests.peers.spark import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = dict[tuple[int, int], str]  # value by partition and offset

SHOWN_MAX = 5


def rows_of(ops: Iterable[Op]) -> Rows:
    """Return what the last reader was shown."""
    return {
        (place_of(key)[1], offset): str(value)
        for op in ops
        if op.kind == "poll" and op.process.startswith(FINAL)
        for key, pairs in op.value.items()
        for offset, value in pairs
    }


class SparkJudge:
    """Reads a topic with both sources. `faults` has a line for each difference."""

    def __init__(self, work: Path, bootstrap: str, zookeeper: str, topic: str) -> None:
        self.faults: list[str] = []
        self._topic = topic
        self._bootstrap = bootstrap
        self._metadata = f"zk://{zookeeper}"
        self._spark = new_session("losses", work)
        register(self._spark)

    def close(self) -> None:
        self._spark.stop()

    def judge(self, expected: Rows, *, lost: bool) -> int:
        """Compare both sources with `expected`. Returns the number of rows of each.

        With `lost` the ledger source must refuse the topic, unless it is told to pass losses.
        """
        self._compare("kafka", self._kafka(), expected)
        self._compare("ledger", self._ledger(fail=False), expected)
        if not lost:
            return len(expected)
        try:
            self._ledger(fail=True).count()
        except Exception as error:
            if "DATALOSS" not in str(error):
                self.faults.append(f"ledger: failed without naming the loss: {error}"[:500])
        else:
            self.faults.append("ledger: passed a loss with failOnDataLoss=true")
        return len(expected)

    def _kafka(self) -> DataFrame:
        reader = self._spark.read.format("kafka").option("subscribe", self._topic)
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("startingOffsets", "earliest").load()

    def _ledger(self, *, fail: bool) -> DataFrame:
        reader = self._spark.read.format("ledger").option("metadata", self._metadata)
        return reader.option("failOnDataLoss", str(fail).lower()).load(self._topic)

    def _compare(self, source: str, frame: DataFrame, expected: Rows) -> None:
        rows = frame.selectExpr("partition", "offset", "CAST(value AS STRING)").collect()
        found = {(partition, offset): value for partition, offset, value in rows}
        if len(found) != len(rows):
            self.faults.append(f"{source}: {len(rows) - len(found)} offsets came twice")
        wrong = sorted(dict(found.items() ^ expected.items()))
        for at in wrong[:SHOWN_MAX]:
            told = f"{at} is {found.get(at)} and should be {expected.get(at)}"
            self.faults.append(f"{source}: {told} ({len(wrong)} differ)")
