"""Spark reads one partition: from Apache Kafka, through the gateway, and straight from bookies.

    make bench-spark                 10 million records of 100 B, the worst of three rounds
    python -m tests.bench.spark --records 1000000 --rounds 1 --no-memory

One Spark (local[2]) reads all three in turn, round after round, every row into the `noop` sink, so
that a ratio compares two reads that ran beside each other. The sums over all rows must agree. Then
the same reads, and the archive job, in a Spark of their own: once over a tenth of the records and
once over all, for what a larger topic costs in memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.sides import create_topic, produce
from tests.bench.spark_memory import Memory, measure
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.install import CACHE
from tests.peers.kafka import ONE_NODE, ApacheKafka
from tests.peers.spark import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, SMALL_TOPIC = "records", "tenth"
SIDES = ("kafka", "gateway", "direct")
RECORD_BYTES = 100


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Readers:
    """The three ways to the same records."""

    def __init__(self, spark: SparkSession, kafka: Broker, gateway: Broker, metadata: str) -> None:
        self._spark = spark
        self._servers = {"kafka": kafka.bootstrap, "gateway": gateway.bootstrap}
        self._metadata = metadata

    def frame(self, side: str, topic: str) -> DataFrame:
        if side == "direct":
            reader = self._spark.read.format("ledger").option("metadata", self._metadata)
            return reader.load(topic)
        reader = self._spark.read.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self._servers[side])
        return reader.option("subscribe", topic).load()

    def per_s(self, side: str, topic: str, records: int) -> float:
        """Records per second of a whole read, planning included."""
        started = time.monotonic()
        self.frame(side, topic).write.format("noop").mode("overwrite").save()
        return records / (time.monotonic() - started)

    def sums(self, side: str, topic: str) -> tuple[object, ...]:
        """What must be the same of gateway and direct: count, offsets, and every row's hash."""
        row = self.frame(side, topic).selectExpr(
            "count(*)",
            "min(offset)",
            "max(offset)",
            "sum(CAST(xxhash64(key, value, topic, partition, offset, timestamp, timestampType)"
            " AS DECIMAL(38, 0)))",
        )
        return tuple(row.first())


def fill(broker: Broker, records: int) -> None:
    for topic, count in ((TOPIC, records), (SMALL_TOPIC, records // 10)):
        create_topic(broker, topic, 1)
        produced = produce(broker, topic, RECORD_BYTES, count)
        say(f"{broker.name}: {count:,} records at {produced.records_per_s:,.0f}/s")


def measured_rounds(readers: Readers, records: int, rounds: int) -> list[dict[str, float]]:
    for side in SIDES:  # the first read of each also warms Spark's code
        readers.per_s(side, SMALL_TOPIC, records // 10)
        readers.per_s(side, TOPIC, records)
    found: list[dict[str, float]] = []
    for number in range(rounds):
        order = SIDES[:: -1 if number % 2 else 1]
        said = {side: readers.per_s(side, TOPIC, records) for side in order}
        say(f"round {number + 1}: " + ", ".join(f"{s} {said[s]:,.0f}/s" for s in SIDES))
        found.append(said)
    return found


def worst(found: list[dict[str, float]], side: str, other: str) -> float:
    """The lowest ratio of one side to another in any round."""
    return round(min(each[side] / each[other] for each in found), 2)


def growth(gateway: Broker, metadata: str, scratch: Path) -> dict[str, Memory]:
    """How much more each way took for ten times the records."""
    found: dict[str, Memory] = {}
    for what in ("gateway", "direct", "archive"):
        small, large = (
            measure(what, topic, gateway.bootstrap, metadata, scratch / f"{what}-{topic}")
            for topic in (SMALL_TOPIC, TOPIC)
        )
        found[what] = large.over(small)
        say(f"memory of {what}: {small} for a tenth, {large} for all")
    return found


def run(asked: argparse.Namespace, scratch: Path) -> dict[str, object]:
    result: dict[str, object] = {"bench": "spark"}
    with Gateway(scratch / "gateway", ("--journal-sync", "never")) as gateway:
        metadata = gateway.ledgers
        with ApacheKafka(scratch / "kafka", ONE_NODE, heap="1g") as kafka:
            for broker in (kafka, gateway):
                fill(broker, asked.records)
            spark = new_session("bench", scratch / "spark")
            try:
                from gateway.pipelines.direct import register

                register(spark)
                readers = Readers(spark, kafka, gateway, metadata)
                found = measured_rounds(readers, asked.records, asked.rounds)
                sums = {side: readers.sums(side, TOPIC) for side in ("gateway", "direct")}
            finally:
                spark.stop()
        assert sums["gateway"] == sums["direct"], sums
        assert sums["direct"][0] == asked.records, sums
        result["direct_vs_format_kafka"] = worst(found, "direct", "gateway")
        result["gateway_vs_apache_kafka"] = worst(found, "gateway", "kafka")
        for side in SIDES:
            result[f"{side}_records_per_s"] = round(min(each[side] for each in found))
        if asked.memory:
            result["memory_growth"] = {
                what: each.as_json() for what, each in growth(gateway, metadata, scratch).items()
            }
    result |= {"records": asked.records, "rounds": asked.rounds}
    return result


def main() -> int:
    """Run, and print one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--records", type=int, default=10_000_000)
    words.add_argument("--rounds", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    asked = words.parse_args()
    warnings.simplefilter("ignore")  # pyspark on newer pandas
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=CACHE))
    try:
        print(json.dumps(run(asked, scratch)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
