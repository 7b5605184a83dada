"""Goal: Spark's own Kafka source and sink work unchanged, as streams, while topics change.

Method: queries whose micro-batches are watched: what Spark read of each is compared with what
aiokafka wrote. What happens to a topic under a query happens after a batch was planned and before
it is read, in the callback that gets the batch: each test is the same every time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compat.clients.base import Stored
from tests.compat.clients.suite import START_MS
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.spark.rig import (
    ONE_BATCH_A_FETCH,
    PARTITIONS,
    QUERY_S_MAX,
    QUICK_RETRIES,
    Unused,
    Watched,
    collected,
    copy_into_files,
    in_order,
    load,
    streamed,
)
from tests.peers.broker import Broker
from tests.peers.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

DATA_LOST = "Some data may have been lost"


def caught_up(query: StreamingQuery, topic: str, total: int) -> bool:
    """True when the query has read `total` records of the topic; raises what it failed with."""
    failure = query.exception()
    if failure is not None:
        raise failure
    if not query.lastProgress:
        return False
    ends = json.loads(query.lastProgress["sources"][0]["endOffset"] or "{}")
    return sum(ends.get(topic, {}).values()) >= total


def test_a_stream_resumes_from_its_checkpoint_without_loss_or_repetition(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    frame = streamed(spark, broker, topic, maxOffsetsPerTrigger=500)
    written = load(loader, topic, 0, 300)
    query = copy_into_files(frame, tmp_path, processingTime="100 milliseconds")
    wait_until(lambda: query.lastProgress, "the first micro-batch", QUERY_S_MAX)
    query.stop()
    written += load(loader, topic, 300, 200)
    query = copy_into_files(frame, tmp_path, availableNow=True)
    assert query.awaitTermination(QUERY_S_MAX)
    written += load(loader, topic, 500, 20)
    query = copy_into_files(frame, tmp_path, availableNow=True)
    assert query.awaitTermination(QUERY_S_MAX)
    copied = collected(spark.read.parquet(str(tmp_path / "files")))
    assert copied == in_order(written)


def test_available_now_means_what_there_was_at_the_start_in_batches_of_the_size_asked_for(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    written = load(loader, topic, 0, 90)
    watched = Watched(lambda n: load(loader, topic, 90, 10) if n == 0 else None)
    watched.run(streamed(spark, broker, topic, maxOffsetsPerTrigger=100), tmp_path)
    sizes = [len(batch) for batch in watched.batches]
    assert sizes == [99, 99, 72]  # a third of the limit for each partition, rounded down
    assert watched.records == written


def test_the_checkpoint_names_offsets_as_the_source_takes_them(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    load(loader, topic, 0, 30, partitions=[0, 2])
    starts = json.dumps({topic: {"0": 11, "1": -1, "2": -2}})
    watched = Watched()
    watched.run(streamed(spark, broker, topic, startingOffsets=starts), tmp_path)
    assert [one.offset for one in watched.records] == [*range(11, 30), *range(30)]
    last = (tmp_path / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(last) == {topic: {"0": 30, "1": 0, "2": 30}}


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_a_stream_starts_where_a_time_says(
    spark: SparkSession,
    broker: Broker,
    loader: Aiokafka,
    unused: Unused,
    tmp_path: Path,
    strategy: str,
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    written = load(loader, topic, 0, 30)
    times = {"0": START_MS + 95, "1": START_MS + 101, "2": START_MS + 9_999}
    options = {
        "startingOffsetsByTimestamp": json.dumps({topic: times}),
        "startingOffsetsByTimestampStrategy": strategy,
        **QUICK_RETRIES,
    }
    watched = Watched()
    if strategy == "error":
        with pytest.raises(Exception, match="No offset matched"):
            watched.run(streamed(spark, broker, topic, **options), tmp_path)
        assert watched.batches == []
    else:
        watched.run(streamed(spark, broker, topic, **options), tmp_path)
        late = [one for one in written if one.partition < 2 and one.offset >= 10]
        assert watched.records == late


def test_partitions_that_come_under_a_query_are_read_from_their_beginning(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    loader.create_topic(topic, 1)
    load(loader, topic, 0, 10, partitions=[0])
    watched = Watched()
    # From the end on: what partitions that come later have is read all the same.
    frame = streamed(spark, broker, topic, startingOffsets="latest")
    query = watched.start(frame, tmp_path, processingTime="50 milliseconds")
    wait_until(lambda: (tmp_path / "offsets" / "0").exists(), "the query to begin", QUERY_S_MAX)
    loader.add_partitions(topic, 3)
    written = load(loader, topic, 10, 15, partitions=[0])
    written += load(loader, topic, 0, 20, partitions=[1, 2])
    wait_until(lambda: caught_up(query, topic, 25 + 40), "all to be read", QUERY_S_MAX)
    query.stop()
    assert watched.records == in_order(written)


def test_topics_that_come_under_a_query_are_found_by_its_pattern(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    name = unused()
    old, new = f"{name}-old", f"{name}-new"
    loader.create_topic(old, 1)
    watched = Watched()
    frame = streamed(spark, broker, subscribePattern=f"{name}-.*", startingOffsets="latest")
    query = watched.start(frame, tmp_path, processingTime="50 milliseconds")
    wait_until(lambda: (tmp_path / "offsets" / "0").exists(), "the query to begin", QUERY_S_MAX)
    loader.create_topic(new, 1)
    written = load(loader, new, 0, 20, partitions=[0])
    wait_until(lambda: caught_up(query, new, 20), "all to be read", QUERY_S_MAX)
    query.stop()
    assert watched.records == written


@pytest.mark.parametrize("fail", [True, False])
def test_records_deleted_under_a_query_end_it_unless_loss_is_accepted(
    spark: SparkSession,
    broker: Broker,
    loader: Aiokafka,
    unused: Unused,
    tmp_path: Path,
    fail: bool,
):
    topic = unused()
    loader.create_topic(topic, PARTITIONS)
    written = load(loader, topic, 0, 100, batch=10)
    watched = Watched(lambda n: loader.delete_records(topic, 90) if n == 1 else None)
    limits = {"maxOffsetsPerTrigger": 150, "failOnDataLoss": fail, **ONE_BATCH_A_FETCH}
    frame = streamed(spark, broker, topic, **limits)
    if fail:
        with pytest.raises(Exception, match=DATA_LOST):
            watched.run(frame, tmp_path)
        assert len(watched.batches) == 1
    else:
        watched.run(frame, tmp_path)
        lost = {(0, offset) for offset in range(50, 90)}
        assert watched.records == [one for one in written if one[:2] not in lost]


def test_a_topic_made_anew_ends_the_query_that_had_read_the_old_one(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    loader.create_topic(topic, 1)
    load(loader, topic, 0, 100, partitions=[0])
    frame = streamed(spark, broker, topic, **QUICK_RETRIES)
    watched = Watched()
    watched.run(frame, tmp_path)
    loader.delete_topic(topic)
    wait_until(lambda: topic not in loader.topics(), "the topic to be gone")
    loader.create_topic(topic, 1)
    load(loader, topic, 0, 20, partitions=[0])
    with pytest.raises(Exception, match=f"{topic}-0 offset was changed from 100 to 20"):
        watched.run(frame, tmp_path)
    assert len(watched.batches) == 1


def test_a_stream_copies_one_topic_into_another(
    spark: SparkSession, broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic, target = unused(), unused()
    for name in (topic, target):
        loader.create_topic(name, PARTITIONS)
    written: list[Stored] = load(loader, topic, 0, 400)
    frame = streamed(spark, broker, topic)
    rows = frame.selectExpr("key", "value", "headers", "partition", f"'{target}' AS topic")
    writer = rows.writeStream.format("kafka").trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    writer = writer.option("includeHeaders", "true")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(QUERY_S_MAX)
    copied = [
        one.record[:3]
        for partition in range(PARTITIONS)
        for one in loader.read(target, 0, 400, partition)
    ]
    assert copied == [one.record[:3] for one in written]
