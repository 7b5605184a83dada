"""What the tests of Spark share: known records, what Spark reads of them, and watched streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.compat.clients.base import ProducerOptions, Record, Stored
from tests.compat.clients.suite import START_MS
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.peers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Unused = Callable[[], str]
PARTITIONS = 3
CODECS = (None, "zstd", "lz4")
QUERY_S_MAX = 90
ONE_BATCH_A_FETCH = {"kafka.max.partition.fetch.bytes": 1, "kafka.max.poll.records": 10}
"""Executors then hold nothing that they have not been asked for: what is gone is missed."""
QUICK_RETRIES = {"fetchOffset.numRetries": 1, "fetchOffset.retryIntervalMs": 50}


def some_records(partition: int, first: int, count: int) -> list[Record]:
    """Records with nulls and headers, one per 10 ms and partition, times rising."""
    records = []
    for n in range(first, first + count):
        key = None if n % 7 == 0 else b"key %d" % n
        value = None if n % 11 == 0 and key else b"\x00\xff %d %d" % (partition, n)
        headers = (("n", b"%d" % n), ("empty", None)) if n % 3 == 0 else ()
        records.append(Record(key, value, headers, START_MS + 10 * n + partition))
    return records


def load(
    client: Aiokafka,
    topic: str,
    first: int,
    count: int,
    *,
    partitions: Iterable[int] = range(PARTITIONS),
    batch: int = 0,
) -> list[Stored]:
    """Add `count` records to each partition, each partition in a codec of its own.

    `first` is the offset of the first; no batch has more than `batch` records, if given.
    """
    written = []
    for partition in partitions:
        options = ProducerOptions(codec=CODECS[partition % len(CODECS)], idempotent=True)
        producer = client.producer(options)
        records = some_records(partition, first, count)
        size = batch or count
        for start in range(0, count, size):
            part = records[start : start + size]
            producer.send(topic, part, partition)
            assert producer.wait() == [first + start + n for n in range(len(part))]
        producer.close()
        written += [Stored(partition, first + n, one) for n, one in enumerate(records)]
    return written


def source(spark: SparkSession, broker: Broker, topic: str = "", **options: Any) -> DataFrame:
    """All of Spark's batch source, subscribed to `topic` if there is one."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    if topic:
        options["subscribe"] = topic
    return reader.options(**{"includeHeaders": True, **options}).load()


def streamed(spark: SparkSession, broker: Broker, topic: str = "", **options: Any) -> DataFrame:
    """The same as a stream, from the beginning unless told otherwise."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    if topic:
        options["subscribe"] = topic
    if not any(name.startswith("starting") for name in options):
        options["startingOffsets"] = "earliest"
    return reader.options(**{"includeHeaders": True, **options}).load()


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


def in_order(written: list[Stored]) -> list[Stored]:
    """As `collected` gives them."""
    return sorted(written, key=lambda one: one[:2])


class Watched:
    """Micro-batches as they were read, one list for each; `before(n)` runs before batch `n` is.

    A batch is planned when `before` is called: what happens there happens under the query.
    """

    def __init__(self, before: Callable[[int], None] = lambda _n: None) -> None:
        self.batches: list[list[Stored]] = []
        self._before = before

    def start(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(checkpoint))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def run(self, frame: DataFrame, checkpoint: Path) -> None:
        """Read what there is now; raises what the query fails with."""
        assert self.start(frame, checkpoint).awaitTermination(QUERY_S_MAX)

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))

    @property
    def records(self) -> list[Stored]:
        """All that was read, in order of partition and offset, doubles included."""
        return in_order([one for batch in self.batches for one in batch])

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        self._before(number)
        self.batches.append(collected(frame))


def copy_into_files(frame: DataFrame, place: Path, **trigger: Any) -> StreamingQuery:
    """Start a query that copies a stream into Parquet files; it goes on from its checkpoint."""
    writer = frame.writeStream.format("parquet").option("path", str(place / "files"))
    return writer.option("checkpointLocation", str(place / "checkpoint")).trigger(**trigger).start()
