"""Goal: Spark's own Kafka source and sink work unchanged, in batches.

Method: one Spark session and one topic of known records; what Spark reads is compared record by
record with what aiokafka wrote, and the other way round.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.compat.clients.base import Stored
from tests.compat.clients.suite import START_MS
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.spark.rig import (
    ONE_BATCH_A_FETCH,
    PARTITIONS,
    QUICK_RETRIES,
    Unused,
    collected,
    load,
    some_records,
    source,
)
from tests.peers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

PER_PARTITION = 400
NEVER_MS = START_MS + 10 * PER_PARTITION + 60_000

Known = tuple[str, list[Stored]]


@pytest.fixture(scope="module")
def known(loader: Aiokafka) -> Known:
    """A topic for reading only, and all that is in it."""
    topic = "spark-reads"
    loader.create_topic(topic, PARTITIONS)
    return topic, load(loader, topic, 0, PER_PARTITION)


def test_a_batch_reads_every_record_exactly(spark: SparkSession, broker: Broker, known: Known):
    topic, written = known
    assert collected(source(spark, broker, topic)) == written


def test_a_batch_reads_the_partitions_it_is_assigned(
    spark: SparkSession, broker: Broker, known: Known
):
    topic, written = known
    frame = source(spark, broker, assign=json.dumps({topic: [0, 2]}))
    assert collected(frame) == [one for one in written if one.partition != 1]


def test_a_batch_reads_between_offsets(spark: SparkSession, broker: Broker, known: Known):
    topic, written = known
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


def test_a_batch_reads_between_times(spark: SparkSession, broker: Broker, known: Known):
    topic, written = known
    first, last = START_MS + 1_001, START_MS + 3_335
    frame = source(spark, broker, topic, startingTimestamp=first, endingTimestamp=last)
    expected = [one for one in written if first <= one.record.timestamp_ms < last]
    assert collected(frame) == expected


def test_each_partition_may_have_times_of_its_own(
    spark: SparkSession, broker: Broker, known: Known
):
    topic, written = known
    # Of the first partition a time between two records, of the second one that a record has.
    starts = {0: START_MS + 1_001, 1: START_MS + 11, 2: START_MS - 5}
    ends = {0: START_MS + 2_000, 1: NEVER_MS, 2: START_MS + 3_992}
    frame = source(
        spark,
        broker,
        topic,
        startingOffsetsByTimestamp=json.dumps({topic: starts}),
        endingOffsetsByTimestamp=json.dumps({topic: ends}),
    )
    assert collected(frame) == [
        one
        for one in written
        if starts[one.partition] <= one.record.timestamp_ms < ends[one.partition]
    ]


def test_a_start_later_than_all_records_is_an_error_by_default(
    spark: SparkSession, broker: Broker, known: Known
):
    topic, _written = known
    frame = source(spark, broker, topic, startingTimestamp=NEVER_MS, **QUICK_RETRIES)
    with pytest.raises(Exception, match="No offset matched from request of topic-partition"):
        frame.count()


def test_a_start_later_than_all_records_may_mean_the_end(
    spark: SparkSession, broker: Broker, known: Known
):
    topic, _written = known
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert source(spark, broker, topic, startingTimestamp=NEVER_MS, **strategy).count() == 0


def test_one_partition_is_split_among_many_tasks(spark: SparkSession, broker: Broker, known: Known):
    topic, written = known
    frame = source(spark, broker, topic, minPartitions=12)
    assert frame.rdd.getNumPartitions() >= 12
    assert collected(frame) == written


def test_a_reader_of_committed_records_reads_all_where_there_are_no_transactions(
    spark: SparkSession, broker: Broker, known: Known
):
    topic, written = known
    committed = {"kafka.isolation.level": "read_committed"}
    assert collected(source(spark, broker, topic, **committed)) == written


def test_headers_are_a_column_only_when_asked_for(
    spark: SparkSession, broker: Broker, known: Known
):
    topic, _written = known
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert source(spark, broker, topic, includeHeaders=False).columns == columns
    assert source(spark, broker, topic).columns == [*columns, "headers"]


@pytest.mark.proof
def test_the_time_of_appending_is_told_from_that_of_creation(
    spark: SparkSession, broker: Broker, loader: Aiokafka, known: Known, unused: Unused
):
    created, _written = known
    appended = unused()
    loader.create_topic(appended, 1, {"message.timestamp.type": "LogAppendTime"})
    load(loader, appended, 0, 10, partitions=[0])
    frame = source(spark, broker, f"{created},{appended}")
    kinds = frame.select("topic", "timestampType").distinct().collect()
    assert {tuple(row) for row in kinds} == {(created, 0), (appended, 1)}
    old = source(spark, broker, appended).where(f"unix_millis(timestamp) <= {START_MS + 1_000}")
    assert old.count() == 0


@pytest.mark.proof
def test_a_pattern_finds_topics(spark: SparkSession, broker: Broker, loader: Aiokafka):
    for name in ("pattern-a", "pattern-b", "other-pattern"):
        loader.create_topic(name, PARTITIONS)
    load(loader, "pattern-a", 0, 5)
    load(loader, "pattern-b", 0, 3)
    frame = source(spark, broker, subscribePattern="pattern-.*")
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"pattern-a": 15, "pattern-b": 9}


def test_a_topic_that_does_not_exist_is_an_error(
    spark: SparkSession, broker: Broker, unused: Unused
):
    with pytest.raises(Exception, match="UnknownTopicOrPartitionException"):
        source(spark, broker, unused()).count()


def test_offsets_that_are_gone_are_an_error_by_default(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused
):
    topic = unused()
    loader.create_topic(topic, 1)
    load(loader, topic, 0, 50, partitions=[0])
    loader.delete_records(topic, 20)
    starts = {"startingOffsets": json.dumps({topic: {"0": 10}}), **ONE_BATCH_A_FETCH}
    with pytest.raises(Exception, match="Some data may have been lost"):
        source(spark, broker, topic, **starts, failOnDataLoss=True).count()


def test_offsets_that_are_gone_may_be_left_out(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused
):
    topic = unused()
    loader.create_topic(topic, 1)
    written = load(loader, topic, 0, 50, partitions=[0])
    loader.delete_records(topic, 20)
    starts = {"startingOffsets": json.dumps({topic: {"0": 10}}), **ONE_BATCH_A_FETCH}
    assert collected(source(spark, broker, topic, **starts, failOnDataLoss=False)) == written[20:]


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


def test_rows_name_the_topics_that_the_sink_writes_to(
    spark: SparkSession, broker: Broker, loader: Aiokafka, known: Known, unused: Unused
):
    topic, _written = known
    targets = [unused() for _ in range(PARTITIONS)]
    for target in targets:
        loader.create_topic(target, 1)
    names = ", ".join(f"'{target}'" for target in targets)
    rows = source(spark, broker, topic).selectExpr(
        "key", "value", "headers", f"array({names})[partition] AS topic"
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("includeHeaders", True).save()
    for partition, target in enumerate(targets):
        found = [one.record[:3] for one in loader.read(target, 0, PER_PARTITION)]
        assert found == [one[:3] for one in some_records(partition, 0, PER_PARTITION)]
