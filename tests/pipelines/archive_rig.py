"""A gateway with a producer, and jobs into one archive, for the tests of the archive job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as PartitionOffset
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from gateway.pipelines.archives.archive_job import ArchiveJob
from gateway.pipelines.archives.archive_model import ArchiveReport, ArchiveRequest, ArchiveWatcher
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.rounds import ArchiveRound
from gateway.pipelines.replays.blocking_connection import BlockingConnection
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange
from tests.peers.gateway import Gateway
from tests.pipelines.archive_contract import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2024, 2, 28, 23, 59, 50, tzinfo=UTC)


def record(topic: str, partition: int, offset: int) -> Row:
    """Return the record that `Broker.produce` writes: nulls, empty ones, headers in turn."""
    time = START + timedelta(seconds=offset)
    key = (None, b"", b"key %d" % offset)[offset % 3]
    value = None if offset % 7 == 6 else b"\x00\xff %d %d" % (partition, offset)
    headers = (("n", b"%d" % offset), ("none", None), ("n", b"")) if offset % 4 == 0 else None
    return Row(key, value, topic, partition, offset, time, 0, headers, time.date())


def records(*ranges: OffsetRange) -> list[Row]:
    return [record(*r.topic_partition, offset) for r in ranges for offset in range(r.start, r.end)]


class Broker(NamedTuple):
    """The gateway, with the operations of the tests."""

    gateway: Gateway
    admin: AdminClient

    @property
    def bootstrap(self) -> str:
        return self.gateway.bootstrap

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        made = self.admin.create_topics([NewTopic(topic, partitions, config=config)])
        made[topic].result(60)
        return topic

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(60)

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(60)

    def truncate(self, topic: str, before: int) -> None:
        at = PartitionOffset(topic, 0, before)
        self.admin.delete_records([at])[at].result(60)

    def produce(self, *ranges: OffsetRange, codec: str = "none") -> None:
        """Produce the records of these ranges, in batches of about ten."""
        settings = {"bootstrap.servers": self.bootstrap, "batch.num.messages": 10}
        producer = Producer({**settings, "compression.type": codec, "linger.ms": 5})
        for one in records(*ranges):
            producer.produce(
                one.topic,
                one.value,
                one.key,
                one.partition,
                timestamp=int(one.timestamp.timestamp() * 1000),
                headers=list(one.headers or ()),
            )
        assert producer.flush(60) == 0

    def produce_batch(self, topic: str, batch: bytes) -> None:
        """Produce a batch that no client library makes."""
        rows = [{"index": 0, "records": batch}]
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [{"name": topic, "partition_data": rows}],
        }
        host, _, port = self.bootstrap.rpartition(":")
        with closing(BlockingConnection(host, int(port), 10.0)) as connection:
            answer = connection.ask(0, fields, 9)
        (done,) = answer.responses[0].partition_responses
        assert not done.error_code.value, done


class Rig:
    """Jobs into one archive."""

    def __init__(self, spark: SparkSession, bootstrap: str, path: Path) -> None:
        self.spark, self.bootstrap, self.path = spark, bootstrap, path

    def job(self, *topics: str, at_step: Any = lambda _: None, **wanted: Any) -> ArchiveJob:
        archive = ParquetArchive(self.spark, str(self.path), at_step=at_step)
        keys = ("watcher", "stop")
        more = {key: wanted.pop(key) for key in keys if key in wanted}
        return ArchiveJob(
            self.spark, archive, self.bootstrap, ArchiveRequest(topics, **wanted), **more
        )

    def run(self, *topics: str, **wanted: Any) -> ArchiveReport:
        return self.job(*topics, **wanted).run()

    def ranges(self) -> list[OffsetRange]:
        return ParquetArchive(self.spark, str(self.path)).ranges()


class Between(ArchiveWatcher):
    """Makes one change after each commit, in turn."""

    def __init__(self, *work: Callable[[], object]) -> None:
        self._work = list(work)
        self.retries: list[JobError] = []

    def on_committed(self, done: ArchiveRound) -> None:
        if self._work:
            self._work.pop(0)()

    def on_retry(self, error: JobError, wait_s: float) -> None:
        self.retries.append(error)
