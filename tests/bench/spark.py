"""Spark reads one partition: from Apache Kafka, through the gateway, and straight from bookies.

    make bench-spark                 10 million records of 100 B, the worst of three rounds
    python -m tests.bench.spark --records 1000000 --rounds 1 --no-memory

One Spark (local[2]) reads all three in turn, round after round, every row into the `noop` sink, so
that a ratio compares two reads that ran beside each other, each from the page cache. The sums over
all rows must agree.

Spark itself takes about 95 % of the time of a read from Kafka or the gateway, and its own speed
scatters by 15 % from read to read. So these two are also compared in `--pairs` short reads that
take turns. `gateway_vs_apache_kafka` is the middle of the pairs; the worst whole round is printed
beside it.

Then the same reads, and the jobs (archive, replay, audit of the archive and of the segments), each
in a Spark of its own: over a topic of 4 million records and over one of a tenth, for what a larger
topic costs in memory; so few, because all of it is done in stretches of at most 250,000 offsets, of
which both have some. `memory_mb` has both peaks, `memory_growth` how many times as large the second
one is; tests/bench/spark_memory.py says how the peaks are measured. `--heap 512m` runs them in
almost the smallest heap that Spark starts in.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.sides import create_topic, produce
from tests.bench.spark_archive import measured as archives
from tests.bench.spark_memory import WAYS, Bench, Memory, measure
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.install import CACHE
from tests.peers.kafka import ONE_NODE, ApacheKafka
from tests.peers.spark import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, SMALL_TOPIC, PAIRED_TOPIC = "records", "tenth", "quarter"
SIDES = ("kafka", "gateway", "direct")
RECORD_BYTES = 100


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class ReadOnlyGroups:
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
    counts = {TOPIC: records, SMALL_TOPIC: records // 10, PAIRED_TOPIC: records // 4}
    for topic, count in counts.items():
        create_topic(broker, topic, 1)
        produced = produce(broker, topic, RECORD_BYTES, count)
        say(f"{broker.name}: {count:,} records at {produced.records_per_s:,.0f}/s")


def into_page_cache(data: Path) -> None:
    """Its files were read a moment ago: whose turn came last is not read from the disk alone."""
    buffer = bytearray(1 << 20)
    for path in filter(Path.is_file, data.rglob("*")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def measured_rounds(
    readers: ReadOnlyGroups, data: Mapping[str, Path], records: int, rounds: int
) -> list[dict[str, float]]:
    """Records per second of each side, by round; `data` is where a side's broker keeps them."""
    for side in SIDES:  # the first read of each also warms Spark's code
        readers.per_s(side, SMALL_TOPIC, records // 10)
        readers.per_s(side, TOPIC, records)
    found: list[dict[str, float]] = []
    for number in range(rounds):
        order = SIDES[:: -1 if number % 2 else 1]
        said: dict[str, float] = {}
        for side in order:
            into_page_cache(data[side])
            said[side] = readers.per_s(side, TOPIC, records)
        say(f"round {number + 1}: " + ", ".join(f"{s} {said[s]:,.0f}/s" for s in SIDES))
        found.append(said)
    return found


def paired_ratios(readers: ReadOnlyGroups, records: int, pairs: int) -> list[float]:
    """Return the gateway's rate divided by Apache Kafka's, for reads that take turns, in order."""
    ratios: list[float] = []
    for number in range(pairs + 1):
        order = ("kafka", "gateway")[:: -1 if number % 2 else 1]
        rates = {side: readers.per_s(side, PAIRED_TOPIC, records) for side in order}
        ratios.append(rates["gateway"] / rates["kafka"])
    # The first pair brings the files into the page cache.
    found = sorted(round(ratio, 3) for ratio in ratios[1:])
    say(f"pairs of gateway and Apache Kafka: {found}")
    return found


def worst(found: list[dict[str, float]], side: str, other: str) -> float:
    """The lowest ratio of one side to another in any round."""
    return round(min(each[side] / each[other] for each in found), 2)


def archived(
    asked: argparse.Namespace, spark: SparkSession, gateway: Broker, scratch: Path
) -> dict[str, object]:
    """The archive job beside Spark's own streaming write, of the tenth of the records."""
    if not asked.archive:
        return {}
    scratch.mkdir()
    count = asked.records // 10
    return archives(spark, gateway.bootstrap, SMALL_TOPIC, count, scratch, asked.rounds)


def memory(bench: Bench, gateway: Broker, records: int) -> dict[str, tuple[Memory, Memory]]:
    """What each way took for a tenth of the records, and for all."""
    topics = {"memory-tenth": records // 10, "memory-whole": records}
    for topic, count in topics.items():
        create_topic(gateway, topic, 1)
        produce(gateway, topic, RECORD_BYTES, count)
    found: dict[str, tuple[Memory, Memory]] = {}
    for what in WAYS:
        # The smaller one takes less time, and is looked at more often.
        small, large = (
            measure(bench, what, topic, pause_s)
            for topic, pause_s in zip(topics, (0.1, 0.5), strict=True)
        )
        found[what] = small, large
        say(f"memory of {what}: {small.as_json()} for a tenth, {large.as_json()}")
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
                readers = ReadOnlyGroups(spark, kafka, gateway, metadata)
                data = {"kafka": kafka.data, "gateway": gateway.data, "direct": gateway.data}
                found = measured_rounds(readers, data, asked.records, asked.rounds)
                pairs = paired_ratios(readers, asked.records // 4, asked.pairs)
                sums = {side: readers.sums(side, TOPIC) for side in ("gateway", "direct")}
                result |= archived(asked, spark, gateway, scratch / "copied")
            finally:
                spark.stop()
        assert sums["gateway"] == sums["direct"], sums
        assert sums["direct"][0] == asked.records, sums
        result["direct_vs_format_kafka"] = worst(found, "direct", "gateway")
        result["gateway_vs_apache_kafka"] = round(statistics.median(pairs), 2)
        result["gateway_vs_apache_kafka_pairs"] = pairs
        result["gateway_vs_apache_kafka_worst_round"] = worst(found, "gateway", "kafka")
        for side in SIDES:
            result[f"{side}_records_per_s"] = round(min(each[side] for each in found))
        if asked.memory:
            bench = Bench(gateway.bootstrap, metadata, scratch, asked.heap)
            peaks = memory(bench, gateway, asked.memory_records)
            result["memory_growth"] = {
                what: large.over(small).as_json() for what, (small, large) in peaks.items()
            }
            result["memory_mb"] = {
                what: [small.as_json(), large.as_json()] for what, (small, large) in peaks.items()
            }
            result |= {"memory_records": asked.memory_records, "heap": asked.heap}
    result |= {"records": asked.records, "rounds": asked.rounds}
    return result


def main() -> int:
    """Run, and print one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--records", type=int, default=10_000_000)
    words.add_argument("--rounds", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--pairs", type=int, default=9, help="short reads of gateway and Kafka")
    words.add_argument("--archive", action=argparse.BooleanOptionalAction, default=True)
    words.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    words.add_argument("--memory-records", type=int, default=4_000_000)
    words.add_argument("--heap", default="1g", help="of the JVM whose memory is measured")
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
