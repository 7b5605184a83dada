"""Goal: Spark's own Kafka source and sink work unchanged, batch and streaming.

Method: one Spark session and one topic of known records; what Spark reads is compared record by
record with what aiokafka wrote, and the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.clients.base import ProducerOptions, Record, Stored
from tests.compat.clients.suite import START_MS
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.peers.broker import Broker
from tests.peers.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

Unused = Callable[[], str]
PARTITIONS = 3
PER_PARTITION = 400


def some_records(partition: int, first: int, count: int) -> list[Record]:
    """Records with nulls and headers, one per 10 ms and partition, times rising."""
    records = []
    for n in range(first, first + count):
        key = None if n % 7 == 0 else b"key %d" % n
        value = None if n % 11 == 0 and key else b"\x00\xff %d %d" % (partition, n)
        headers = (("n", b"%d" % n), ("empty", None)) if n % 3 == 0 else ()
        records.append(Record(key, value, headers, START_MS + 10 * n + partition))
    return records


def load(client: Aiokafka, topic: str, first: int, count: int) -> list[Stored]:
    """Add `count` records to each partition, each partition in a codec of its own."""
    written = []
    for partition, codec in zip(range(PARTITIONS), (None, "zstd", "lz4"), strict=True):
        producer = client.producer(ProducerOptions(codec=codec, idempotent=True))
        records = some_records(partition, first, count)
        producer.send(topic, records, partition)
        assert producer.wait() == list(range(first, first + count))
        producer.close()
        written += [Stored(partition, first + n, one) for n, one in enumerate(records)]
    return written


@pytest.fixture(scope="module")
def flights(loader: Aiokafka) -> tuple[str, list[Stored]]:
    """A topic for reading only, and all that is in it."""
    topic = "spark-reads"
    loader.create_topic(topic, PARTITIONS)
    return topic, load(loader, topic, 0, PER_PARTITION)


def source(spark: SparkSession, broker: Broker, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(subscribe=topic, includeHeaders=True, **options).load()


def collected(frame: DataFrame) -> list[Stored]:
    """The records of a frame of the Kafka source, in order of partition and offset."""

    def binary(value: bytearray | None) -> bytes | None:
        return None if value is None else bytes(value)

    found = []
    columns = ("partition", "offset", "key", "value", "headers")
    time = "unix_millis(timestamp) AS ms"
    for row in frame.selectExpr(*columns, time).collect():
        headers = tuple((one["key"], binary(one["value"])) for one in row["headers"] or ())
        record = Record(binary(row["key"]), binary(row["value"]), headers, row["ms"])
        found.append(Stored(row["partition"], row["offset"], record))
    return sorted(found, key=lambda one: one[:2])


def test_a_batch_reads_every_record_exactly(
    spark: SparkSession, broker: Broker, flights: tuple[str, list[Stored]]
):
    topic, written = flights
    assert collected(source(spark, broker, topic)) == written


def test_a_batch_reads_between_offsets(
    spark: SparkSession, broker: Broker, flights: tuple[str, list[Stored]]
):
    topic, written = flights
    starts, ends = {"0": 7, "1": -2, "2": 399}, {"0": 251, "1": 13, "2": -1}
    frame = source(
        spark,
        broker,
        topic,
        startingOffsets=json.dumps({topic: starts}),
        endingOffsets=json.dumps({topic: ends}),
    )
    ranges = {0: range(7, 251), 1: range(13), 2: range(399, 400)}
    assert collected(frame) == [one for one in written if one.offset in ranges[one.partition]]


def test_a_batch_reads_between_times(
    spark: SparkSession, broker: Broker, flights: tuple[str, list[Stored]]
):
    topic, written = flights
    first, last = START_MS + 1_001, START_MS + 3_335
    frame = source(spark, broker, topic, startingTimestamp=first, endingTimestamp=last)
    expected = [one for one in written if first <= one.record.timestamp_ms < last]
    assert collected(frame) == expected


def test_one_partition_is_split_among_many_tasks(
    spark: SparkSession, broker: Broker, flights: tuple[str, list[Stored]]
):
    topic, written = flights
    frame = source(spark, broker, topic, minPartitions=12)
    assert frame.rdd.getNumPartitions() >= 12
    assert collected(frame) == written


def test_a_pattern_finds_topics(spark: SparkSession, broker: Broker, loader: Aiokafka):
    for name in ("pattern-a", "pattern-b", "other-pattern"):
        loader.create_topic(name, PARTITIONS)
    load(loader, "pattern-a", 0, 5)
    load(loader, "pattern-b", 0, 3)
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = reader.option("subscribePattern", "pattern-.*").load()
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"pattern-a": 15, "pattern-b": 9}


def streaming(
    spark: SparkSession, broker: Broker, topic: str, place: Path, **trigger: Any
) -> StreamingQuery:
    """Start a query that copies a topic into Parquet files, from its checkpoint if there is one."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 500, "includeHeaders": True}
    frame = reader.options(subscribe=topic, **options).load()
    writer = frame.writeStream.format("parquet").option("path", str(place / "files"))
    return writer.option("checkpointLocation", str(place / "checkpoint")).trigger(**trigger).start()


def test_a_stream_resumes_from_its_checkpoint_without_loss_or_repetition(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    written = load(loader, topic, 0, 300)
    query = streaming(spark, broker, topic, tmp_path, processingTime="100 milliseconds")
    wait_until(lambda: query.lastProgress, "the first micro-batch", 60.0)
    query.stop()
    written += load(loader, topic, 300, 200)
    query = streaming(spark, broker, topic, tmp_path, availableNow=True)
    assert query.awaitTermination(90)
    written += load(loader, topic, 500, 20)
    query = streaming(spark, broker, topic, tmp_path, availableNow=True)
    assert query.awaitTermination(90)
    copied = collected(spark.read.parquet(str(tmp_path / "files")))
    assert copied == sorted(written, key=lambda one: one[:2])


def test_the_idempotent_sink_writes_each_row_once(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id % 10 = 0, NULL, CAST(id * 3 AS STRING)) AS value",
        "CAST(id % 3 AS INT) AS partition",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(topic=topic, includeHeaders=True).option(
        "kafka.enable.idempotence", "true"
    ).save()
    for partition in range(PARTITIONS):
        numbers = range(partition, 1000, 3)
        assert loader.bounds(topic, partition) == (0, len(numbers))
        found = [one.record for one in loader.read(topic, 0, len(numbers), partition)]
        assert {record.key: record[1:3] for record in found} == {
            b"%d" % n: (None if n % 10 == 0 else b"%d" % (3 * n), (("n", b"%d" % n),))
            for n in numbers
        }


def test_a_stream_copies_one_topic_into_another(
    spark: SparkSession,
    broker: Broker,
    loader: Aiokafka,
    flights: tuple[str, list[Stored]],
    unused: Unused,
    tmp_path: Path,
):
    topic, written = flights
    target = unused()
    loader.create_topic(target, PARTITIONS)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = reader.options(subscribe=topic, startingOffsets="earliest").load()
    rows = frame.selectExpr("key", "value", "partition", f"'{target}' AS topic")
    writer = rows.writeStream.format("kafka").trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(90)
    copied = [
        one.record[:2]
        for partition in range(PARTITIONS)
        for one in loader.read(target, 0, PER_PARTITION, partition)
    ]
    assert copied == [one.record[:2] for one in written]
