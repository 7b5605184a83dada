"""The steps of the demo; each returns the summary that it found."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.demo.flights import COLUMNS, Flight, summary
from tests.peers.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
GROUP = "flight-counters"
PARTITIONS = 6
STEP_S_MAX = 300


def create_topic(bootstrap: str) -> None:
    # The records carry the times of 2013: a retention would be free to remove them.
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient(
        {"bootstrap.servers": bootstrap, "log_level": 3}
    )  # named: it must outlive the call
    admin.create_topics([topic])[TOPIC].result(60)


def produce(bootstrap: str, flights: Iterable[Flight]) -> int:
    """Produce all flights keyed by carrier; returns how many were acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "log_level": 3,
        }
    )
    acknowledged = 0

    def on_delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            raise RuntimeError(str(error))
        acknowledged += 1

    for carrier, line, hour_ms in flights:
        while True:
            try:
                producer.produce(TOPIC, line, carrier, timestamp=hour_ms, on_delivery=on_delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(STEP_S_MAX)
    assert left == 0, f"{left} flights were never acknowledged"
    return acknowledged


class Member(threading.Thread):
    """One member of the group: keeps what it read, commits as it goes."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.rows: list[tuple[int, int, bytes, bytes, int]] = []
        self.partitions: set[int] = set()
        self.ends: dict[int, int] = {}  # per partition, the offset after the last one read
        self.enough = threading.Event()
        self.failure: BaseException | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 10_000,
                "log_level": 3,
            }
        )

    def run(self) -> None:
        try:
            self._consumer.subscribe([TOPIC])
            while not self.enough.is_set():
                messages = self._consumer.consume(5_000, timeout=0.2)
                self._keep(messages)
                self.partitions = {one.partition for one in self._consumer.assignment()}
            self._consumer.commit(asynchronous=False)
        except BaseException as failure:
            self.failure = failure
        finally:
            self._consumer.close()

    def _keep(self, messages: list[Message]) -> None:
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            _kind, timestamp_ms = message.timestamp()
            partition, offset = message.partition(), message.offset()
            self.rows.append((partition, offset, message.key(), message.value(), timestamp_ms))
            self.ends[partition] = offset + 1


def consume_in_group(bootstrap: str, count: int, distance: int) -> tuple[pandas.DataFrame, int]:
    """Read all with two members; returns the summary and how many records came twice."""
    members = [Member(bootstrap), Member(bootstrap)]
    for member in members:
        member.start()

    def done() -> bool:
        for member in members:
            if member.failure is not None:
                raise member.failure
        shares = [len(member.partitions) for member in members]
        ends = [
            max(member.ends.get(partition, 0) for member in members)
            for partition in range(PARTITIONS)
        ]
        return shares == [PARTITIONS // 2] * 2 and sum(ends) >= count

    try:
        wait_until(done, f"two members to read {count} flights", STEP_S_MAX)
    finally:
        for member in members:
            member.enough.set()
            member.join(60)
    names = ["partition", "offset", "carrier", "line", "hour_ms"]
    frame = pandas.DataFrame([row for one in members for row in one.rows], columns=names)
    unique = frame.drop_duplicates(["partition", "offset"])
    assert all(one["offset"].max() == len(one) - 1 for _, one in unique.groupby("partition"))
    fields = unique["line"].str.decode("utf-8").str.split(",").str[distance]
    unique = unique.assign(distance=fields.astype("int64"))
    unique = unique.assign(carrier=unique["carrier"].str.decode("utf-8"))
    return summary(unique), len(frame) - len(unique)


def _summary_by_spark(frame: DataFrame, distance: int) -> pandas.DataFrame:
    """Spark's own aggregation over the columns of the Kafka source."""
    wanted = frame.selectExpr(
        "CAST(key AS STRING) AS carrier",
        f"CAST(split(CAST(value AS STRING), ',')[{distance}] AS BIGINT) AS distance",
        "unix_millis(timestamp) AS hour_ms",
    )
    wanted.createOrReplaceTempView("flights")
    rows = frame.sparkSession.sql(
        "SELECT carrier, count(*), sum(distance), min(hour_ms), max(hour_ms)"
        " FROM flights GROUP BY carrier"
    ).collect()
    found = pandas.DataFrame([tuple(row) for row in rows], columns=["carrier", *COLUMNS])
    return found.set_index("carrier").sort_index().astype("int64")


def spark_batch(spark: SparkSession, bootstrap: str, distance: int) -> pandas.DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return _summary_by_spark(reader.option("subscribe", TOPIC).load(), distance)


def spark_stream(
    spark: SparkSession, bootstrap: str, distance: int, work: Path
) -> tuple[pandas.DataFrame, int]:
    """Copy by a streaming query that is stopped and resumed; returns summary and rows at the stop.

    The sum is taken over the files that the query wrote: a loss or a repetition would show.
    """
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 60_000}
    frame = reader.options(subscribe=TOPIC, **options).load()
    writer = frame.writeStream.format("parquet").option("path", str(work / "files"))
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    wait_until(lambda: query.lastProgress or query.exception(), "a first micro-batch", STEP_S_MAX)
    query.stop()
    rows_at_stop = spark.read.parquet(str(work / "files")).count()
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(STEP_S_MAX), "the resumed query did not end"
    return _summary_by_spark(spark.read.parquet(str(work / "files")), distance), rows_at_stop
