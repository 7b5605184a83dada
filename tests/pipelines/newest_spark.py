"""What differs from PySpark 4.0, on the Spark of this interpreter: one JSON object on stdout.

.venv-spark-newest/bin/python -m tests.pipelines.newest_spark METADATA BOOTSTRAP TOPIC WORK
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.pipelines.direct import register
from tests.peers.spark import new_session
from tests.pipelines.direct_rig import differences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 30


def main() -> int:
    metadata, bootstrap, topic, work = sys.argv[1:]
    spark = new_session("newest", Path(work))
    try:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        register(spark)
        direct = spark.read.format("ledger").option("metadata", metadata).load(topic)
        kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        filtered = direct.where("partition = 1 AND offset >= 40 AND offset < 45")
        found: dict[str, Any] = {
            "version": spark.version,
            "differences": differences(direct, kafka.option("subscribe", topic).load()),
            "tasks": direct.rdd.getNumPartitions(),
            "filtered_tasks": filtered.rdd.getNumPartitions(),
            "filtered": sorted(row.offset for row in filtered.select("offset").collect()),
            "available_now": copied(spark, metadata, topic, Path(work), limit=LIMIT),
            "available_now_again": copied(spark, metadata, topic, Path(work), limit=LIMIT),
            "once": copied(spark, metadata, topic, Path(work) / "once", limit=LIMIT, once=True),
        }
        print(json.dumps(found))
        return 0
    finally:
        spark.stop()


def copied(
    spark: SparkSession, metadata: str, topic: str, work: Path, *, limit: int, once: bool = False
) -> list[int]:
    """Copy what is there to files, from the checkpoint on. Returns the rows of each trigger."""
    reader = spark.readStream.format("ledger").option("metadata", metadata)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", limit)
    frame: DataFrame = reader.load(topic)
    writer = frame.writeStream.format("parquet").option("path", str(work / "files"))
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    writer = writer.trigger(once=True) if once else writer.trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return [rows for each in query.recentProgress if (rows := each["numInputRows"])]


if __name__ == "__main__":
    sys.exit(main())
