"""Goal: kill -9 of the broker or of a query of Spark's neither loses nor doubles a record.

Method: a broker of this file's own, so that it may die. Queries and sinks are in the middle of
their work when it does: a batch that is planned and not read, a write that is half acknowledged.
Judges: aiokafka reads topics; files are counted by pyarrow, by the names that the sink committed.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from tests.compat.clients.base import ProducerOptions, Record
from tests.compat.clients.suite import START_MS
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.conftest import new_broker
from tests.compat.spark.rig import (
    ONE_BATCH_A_FETCH,
    PARTITIONS,
    QUERY_S_MAX,
    Unused,
    Watched,
    copy_into_files,
    in_order,
    load,
    streamed,
)
from tests.peers.broker import Broker
from tests.peers.processes import Process, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

LONG = [pytest.mark.proof, pytest.mark.timeout(1_800)]
START_S_MAX = 240  # another Spark starts, beside whatever else runs on two cores


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that nobody else uses."""
    with new_broker(tmp_path_factory.mktemp("mortal") / "data") as started:
        yield started


@pytest.fixture
def writer(mortal: Broker) -> Iterator[Aiokafka]:
    client = Aiokafka(mortal.bootstrap)
    yield client
    client.close()


def test_a_query_goes_on_where_it_was_when_the_broker_is_killed_and_comes_back(
    spark: SparkSession, mortal: Broker, writer: Aiokafka, unused: Unused, tmp_path: Path
):
    topic = unused()
    writer.create_topic(topic, PARTITIONS)
    written = load(writer, topic, 0, 100, batch=10)
    dead = threading.Event()

    def before(number: int) -> None:
        if number == 1:
            mortal.kill()
            dead.set()

    watched = Watched(before)
    limits = {"maxOffsetsPerTrigger": 100, **ONE_BATCH_A_FETCH}
    query = watched.start(streamed(spark, mortal, topic, **limits), tmp_path)
    wait_until(dead.is_set, "the second batch to be planned", QUERY_S_MAX)
    mortal.start()
    assert query.awaitTermination(QUERY_S_MAX)
    assert watched.records == in_order(written)


def test_the_sink_writes_each_row_once_when_the_broker_is_killed_and_comes_back(
    spark: SparkSession, mortal: Broker, writer: Aiokafka, unused: Unused
):
    """It is repeated with more rows if the kill came after half of them."""
    assert any(
        write_with_a_kill(spark, mortal, writer, unused(), count)
        for count in (20_000, 60_000, 150_000)
    ), "too late to harm anybody"


def write_with_a_kill(
    spark: SparkSession, mortal: Broker, writer: Aiokafka, topic: str, count: int
) -> bool:
    """Check that each row is written once; return True if the broker died before half of them."""
    writer.create_topic(topic, 1)
    rows = spark.range(count).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    sink = rows.write.format("kafka").option("kafka.bootstrap.servers", mortal.bootstrap)
    sink = sink.options(**{"topic": topic, "kafka.batch.size": 200, "kafka.linger.ms": 0})
    failures: list[Exception] = []

    def save() -> None:
        try:
            sink.save()
        except Exception as failure:  # the assertion below shows it
            failures.append(failure)

    saving = threading.Thread(target=save)
    saving.start()
    some = wait_until(lambda: writer.bounds(topic)[1], "the first rows", QUERY_S_MAX)
    mortal.kill()
    mortal.start()
    saving.join(3 * QUERY_S_MAX)
    assert failures == []
    assert writer.bounds(topic) == (0, count)
    found = Counter(one.record.key for one in writer.read(topic, 0, count))
    assert found == Counter(b"%d" % n for n in range(count))
    return some < count / 2


def committed_offsets(place: Path) -> list[tuple[int, int]]:
    """Partition and offset of all rows in the files that the sink's log names, sorted."""
    logs = (place / "files" / "_spark_metadata").glob("[0-9]*")
    # A set: every tenth log, *.compact, says again what those before it said.
    names = {
        Path(json.loads(line)["path"]).name
        for log in logs
        for line in log.read_text().splitlines()[1:]
    }
    found = []
    for name in names:
        columns = pyarrow.parquet.read_table(place / "files" / name).to_pydict()
        found += zip(columns["partition"], columns["offset"], strict=True)
    return sorted(found)


@pytest.mark.parametrize("kills", [pytest.param(kills, marks=LONG) for kills in (1, 5)])
def test_files_hold_each_record_once_when_the_query_is_killed(
    spark: SparkSession,
    mortal: Broker,
    writer: Aiokafka,
    unused: Unused,
    tmp_path: Path,
    kills: int,
):
    topic, count, limit = unused(), 2_000, 200
    writer.create_topic(topic, PARTITIONS)
    producer = writer.producer(ProducerOptions())
    for partition in range(PARTITIONS):
        records = [Record(None, b"%d" % n, (), START_MS + n) for n in range(count)]
        producer.send(topic, records, partition)
    producer.wait()
    producer.close()
    log = tmp_path / "checkpoint" / "offsets"
    for n in range(kills):
        argv = [sys.executable, "-m", "tests.compat.spark.copying"]
        argv += [mortal.bootstrap, topic, str(tmp_path), str(limit)]
        copying = Process(argv, tmp_path / f"run-{n}.log")
        # Two batches further than before: the second is planned, and being written.
        planned = str(2 * n + 1)
        try:
            copying.wait_for((log / planned).exists, f"batch {planned}", START_S_MAX)
        finally:
            copying.kill()
    frame = streamed(spark, mortal, topic, maxOffsetsPerTrigger=10 * limit)
    assert copy_into_files(frame, tmp_path, availableNow=True).awaitTermination(QUERY_S_MAX)
    everything = [(p, offset) for p in range(PARTITIONS) for offset in range(count)]
    assert committed_offsets(tmp_path) == everything
