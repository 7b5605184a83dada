"""Goal: format("ledger") returns the rows and offsets of format("kafka").

Method: one gateway with a ledger port, one Spark. Both sources read the same records, and the
frames are subtracted from each other, both ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.pipelines.direct import register
from gateway.pipelines.direct.batch import LedgerBatchReader
from gateway.pipelines.direct.checkpoint import OffsetsJson
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.stream import LIMITS, LedgerStreamReader
from gateway.pipelines.shared.errors import DataLost
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.topics import Topics
from tests.peers.gateway import Gateway
from tests.peers.processes import ports_in_a_row, wait_until
from tests.pipelines.direct_rig import START_MS, Rig, differences, unused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
SENDS = 10
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.fixture(scope="module")
def rig(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    (port,) = ports_in_a_row(1)
    options = ("--ledger-port", str(port), "--journal-sync", "never")
    register(spark)
    with Gateway(tmp_path_factory.mktemp("direct") / "data", options) as gateway:
        rig = Rig(spark, gateway.bootstrap, f"grpc://127.0.0.1:{port}")
        yield rig
        rig.loader.close()


@pytest.fixture(scope="module")
def known(rig: Rig) -> str:
    """A read-only topic: two partitions, each of several segments and all codecs."""
    topic = "known.topic-1"
    rig.loader.create_topic(topic, 2, {"segment.bytes": str(1 << 20)})
    for number in range(SENDS):
        for partition in range(2):
            rig.add(topic, partition, codec=CODECS[number % len(CODECS)])
    return topic


def test_rows_are_those_of_the_kafka_source(rig: Rig, known: str) -> None:
    direct = rig.direct(known, endingOffsets=rig.ends(known), sliceBytes=300_000)
    assert direct.columns == COLUMNS
    assert differences(direct, rig.kafka(known)) == 0


@pytest.mark.proof
def test_one_partition_is_read_by_several_tasks(rig: Rig, known: str) -> None:
    frame = rig.direct(assign=json.dumps({known: [0]}), sliceBytes=300_000)
    assert frame.rdd.getNumPartitions() >= 3


def test_without_headers_there_is_no_column_for_them(rig: Rig, known: str) -> None:
    frame = rig.direct(known, includeHeaders=False)
    assert frame.schema == rig.kafka(known, includeHeaders=False).schema


@pytest.mark.proof
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {
                "startingOffsets": {"0": 307, "1": -2},
                "endingOffsets": {"0": 2222, "1": 13},
            },
            id="offsets",
        ),
        pytest.param(
            {"startingTimestamp": START_MS + 7_001, "endingTimestamp": START_MS + 21_335},
            id="times",
        ),
        pytest.param(
            {
                "startingOffsetsByTimestamp": {"0": START_MS + 15_000, "1": START_MS + 29_990},
                "endingOffsetsByTimestamp": {"0": START_MS + 15_010, "1": START_MS + 99_999},
            },
            id="times of partitions",
        ),
    ],
)
def test_a_range_is_the_kafka_sources(rig: Rig, known: str, options: dict[str, Any]) -> None:
    told = {
        name: json.dumps({known: value}) if isinstance(value, dict) else value
        for name, value in options.items()
    }
    assert rig.ends(known)
    kafka = rig.kafka(known, **told)
    assert differences(rig.direct(known, **told), kafka) == 0
    assert kafka.count() > 0


@pytest.mark.proof
def test_a_time_after_the_last_record_is_an_error_or_the_end(rig: Rig, known: str) -> None:
    after = START_MS + 10**9
    with pytest.raises(Exception, match="has no record that new"):
        rig.direct(known, startingTimestamp=after).count()
    rows = rig.direct(known, startingTimestamp=after, startingOffsetsByTimestampStrategy="latest")
    assert rows.count() == 0


@pytest.mark.proof
def test_topics_come_by_pattern_and_by_names(rig: Rig) -> None:
    one, two = unused(), unused()
    for topic in (one, two):
        rig.loader.create_topic(topic)
        rig.add(topic, count=5)
    ends = rig.ends(one, two)
    by_names = rig.direct(subscribe=f"{one},{two}", endingOffsets=ends)
    pattern = f"{one}|{two}"
    assert differences(by_names, rig.kafka(subscribePattern=pattern)) == 0
    assert rig.direct(subscribePattern=pattern).count() == 10


def test_an_empty_topic_has_no_rows(rig: Rig) -> None:
    topic = unused()
    rig.loader.create_topic(topic)
    assert rig.direct(topic).count() == 0


@pytest.mark.proof
def test_records_below_the_log_start_are_gone(rig: Rig) -> None:
    topic = unused()
    rig.loader.create_topic(topic, 1, {"segment.bytes": str(1 << 20)})
    for _ in range(6):
        rig.add(topic)
    rig.loader.delete_records(topic, 1000)
    ends = rig.ends(topic)
    whole = rig.direct(topic, endingOffsets=ends)
    assert differences(whole, rig.kafka(topic)) == 0
    early = {"startingOffsets": json.dumps({topic: {"0": 990}}), "endingOffsets": ends}
    with pytest.raises(Exception, match=r"DataLost: .*\[990\.\.1000\)"):
        rig.direct(topic, **early).count()
    assert rig.direct(topic, failOnDataLoss=False, **early).count() == 800


@pytest.mark.parametrize("fail", [True, False])
def test_records_deleted_during_a_read_are_reported(rig: Rig, fail: bool) -> None:
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic, count=20)
    given = {"metadata": rig.metadata, "path": topic, "failOnDataLoss": str(fail)}
    reader = LedgerBatchReader(parse(given | {"endingOffsets": rig.ends(topic)}))
    (planned,) = reader.partitions()
    assert sum(each.num_rows for each in reader.read(planned)) == 20
    rig.loader.delete_topic(topic)
    wait_until(lambda: topic not in rig.loader.topics(), "the topic to go")

    def rows() -> int:
        """Until its ledger is gone, too, all is still there."""
        return sum(each.num_rows for each in reader.read(planned))

    if fail:
        with pytest.raises(DataLost) as lost:
            wait_until(lambda: rows() != 20, "its ledger to go")
        assert lost.value.ranges == (OffsetRange(topic, 0, 0, 20),)
    else:
        wait_until(lambda: rows() == 0, "its ledger to go")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nobody-made-it"}, "nobody-made-it"),
        ({"subscribe": "x", "startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"assign": '{"known.topic-1":[7]}'}, "has 2 partitions, not 7"),
        (
            {"subscribe": "known.topic-1", "startingOffsets": '{"known.topic-1":{"0":1}}'},
            "lacks known.topic-1-1",
        ),
        (
            {"assign": '{"known.topic-1":[0]}', "endingOffsets": '{"known.topic-1":{"0":99999}}'},
            "ends at 3000, before 99999",
        ),
    ],
)
@pytest.mark.usefixtures("known")
def test_an_impossible_read_reports_the_reason(
    rig: Rig, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match="JobError") as refused:
        rig.direct(**options).count()
    assert message in str(refused.value)


@pytest.mark.proof
def test_a_stream_continues_from_its_checkpoint(rig: Rig, tmp_path: Path) -> None:
    """Also if a partition was added meanwhile, and with limited triggers."""
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic)
    first = run_stream(rig, topic, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert [rows for rows in first if rows] == [100, 100, 100]
    rig.add(topic, count=30)
    rig.loader.add_partitions(topic, 2)
    rig.add(topic, 1, count=20)
    rig.loader.read(topic, 19, 1, 1)
    rig.direct(topic, endingOffsets=rig.ends(topic)).count()  # so readers see the last records
    second = run_stream(rig, topic, tmp_path, maxOffsetsPerTrigger=1000)
    assert sum(second) == 50
    assert last_offsets(tmp_path) == {topic: {"0": 330, "1": 20}, topic_key(rig, topic): {}}
    copied = rig.spark.read.schema(rig.kafka(topic).schema).parquet(str(tmp_path / "files"))
    assert differences(copied, rig.kafka(topic)) == 0


@pytest.mark.proof
def test_a_stream_that_lost_records_fails(rig: Rig, tmp_path: Path) -> None:
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic, count=10)
    run_stream(rig, topic, tmp_path, startingOffsets="earliest")
    rig.add(topic, count=10)
    rig.loader.delete_records(topic, 15)
    with pytest.raises(Exception, match=r"DataLost: .*\[10\.\.15\)"):
        run_stream(rig, topic, tmp_path)


@pytest.fixture
def again(rig: Rig, tmp_path: Path) -> str:
    """Recreate a topic, longer, after a query has read the old one to its end."""
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic, count=10)
    assert sum(run_stream(rig, topic, tmp_path, startingOffsets="earliest")) == 10
    rig.loader.delete_topic(topic)
    wait_until(lambda: topic not in rig.loader.topics(), "the topic to go")
    rig.loader.create_topic(topic)
    rig.add(topic, count=25)
    rig.direct(topic, endingOffsets=rig.ends(topic)).count()  # so readers see the last records
    return topic


@pytest.mark.proof
def test_a_checkpoint_of_a_recreated_topic_is_refused(rig: Rig, again: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"TopicRecreated: .*another checkpointLocation"):
        run_stream(rig, again, tmp_path)


@pytest.mark.proof
def test_without_fail_on_data_loss_a_recreated_topic_is_read_from_its_start(
    rig: Rig, again: str, tmp_path: Path
) -> None:
    told = run_stream(rig, again, tmp_path, failOnDataLoss=False)
    assert sum(told) == 25
    assert last_offsets(tmp_path) == {again: {"0": 25}, topic_key(rig, again): {}}
    rig.add(again, count=5)
    rig.direct(again, endingOffsets=rig.ends(again)).count()
    assert sum(run_stream(rig, again, tmp_path)) == 5


def test_a_running_stream_continues_at_the_start_of_the_recreated_topic(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch planned for the old topic reads nothing of the new one."""
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic, count=10)
    given = {"metadata": rig.metadata, "path": topic, "startingOffsets": "earliest"}
    reader = LedgerStreamReader(parse(given | {"failOnDataLoss": "false"}, streaming=True))

    def rows(start: OffsetsJson, end: OffsetsJson) -> list[int]:
        planned = reader.partitions(start, end)
        found = [rows for each in planned for rows in reader.read(each)]
        return [offset for each in found for offset in each.column("offset").to_pylist()]

    try:
        first = reader.initialOffset()
        old: OffsetsJson = {}
        wait_until(lambda: old.update(reader.latestOffset()) or old[topic] == {"0": 10}, "its end")
        rig.loader.delete_topic(topic)
        wait_until(lambda: topic not in rig.loader.topics(), "the topic to go")
        rig.loader.create_topic(topic)
        rig.add(topic, count=15)
        rig.direct(topic, endingOffsets=rig.ends(topic)).count()
        assert rows(first, old) == []
        new = reader.latestOffset()
        assert new == {topic: {"0": 15}, topic_key(rig, topic): {}}
        assert rows(old, new) == list(range(15))
        assert rows(old, old) == []
    finally:
        reader.stop()
    assert f"{topic} (its id was" in capsys.readouterr().err


@pytest.mark.proof
def test_either_source_continues_from_the_others_checkpoint(rig: Rig, tmp_path: Path) -> None:
    topic = unused()
    rig.loader.create_topic(topic)
    rows: list[int] = []
    for source in ("kafka", "ledger", "kafka", "ledger"):
        rig.add(topic, count=10 + len(rows))
        rig.direct(topic, endingOffsets=rig.ends(topic)).count()
        if source == "kafka":
            reader = rig.spark.readStream.format("kafka").option("subscribe", topic)
            reader = reader.option("kafka.bootstrap.servers", rig.bootstrap)
            frame = reader.options(includeHeaders=True, startingOffsets="earliest").load()
            rows.append(sum(run_query(frame, tmp_path)))
        else:
            rows.append(sum(run_stream(rig, topic, tmp_path)))
    assert rows == [10, 11, 12, 13]


@pytest.mark.proof
def test_available_now_reads_one_batch_of_all_records_or_of_its_limit(
    rig: Rig, tmp_path: Path
) -> None:
    topic = unused()
    rig.loader.create_topic(topic)
    found: list[list[int]] = []
    for limit in (1000, 1000, 20):
        rig.add(topic, count=100)
        rig.direct(topic, endingOffsets=rig.ends(topic)).count()
        frame = stream(rig, topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit)
        found.append([rows for rows in run_query(frame, tmp_path, availableNow=True) if rows])
    assert found == [[100], [100], [20] * 5 if LIMITS else [20]]  # all, from PySpark 4.2 on


@pytest.mark.proof
def test_a_stream_with_an_end_reads_up_to_there_in_limited_triggers(
    rig: Rig, tmp_path: Path
) -> None:
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic, count=100)
    rig.direct(topic, endingOffsets=rig.ends(topic)).count()
    given = {"startingOffsets": "earliest", "endingOffsets": "latest", "maxOffsetsPerTrigger": 40}
    writer = stream(rig, topic, **given).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        rig.add(topic, count=7)
        rig.direct(topic, endingOffsets=rig.ends(topic)).count()
        query.processAllAvailable()
        rows = [progress["numInputRows"] for progress in query.recentProgress]
    finally:
        query.stop()
    assert [each for each in rows if each] == [40, 40, 20]
    assert sum(run_stream(rig, topic, tmp_path)) == 7


@pytest.mark.proof
def test_a_stream_that_begins_at_the_end_reads_no_earlier_record(rig: Rig, tmp_path: Path) -> None:
    """Also with a limited trigger: its end is never before its start."""
    topic = unused()
    rig.loader.create_topic(topic)
    rig.add(topic, count=100)
    rig.direct(topic, endingOffsets=rig.ends(topic)).count()
    assert sum(run_stream(rig, topic, tmp_path, maxOffsetsPerTrigger=20)) == 0
    rig.add(topic, count=5)
    rig.direct(topic, endingOffsets=rig.ends(topic)).count()
    assert sum(run_stream(rig, topic, tmp_path, maxOffsetsPerTrigger=20)) == 5


def run_stream(rig: Rig, topic: str, place: Path, **options: Any) -> list[int]:
    """Copy all current records into Parquet files. Returns the rows of each trigger."""
    return run_query(stream(rig, topic, **options), place)


def stream(rig: Rig, topic: str, **options: Any) -> DataFrame:
    reader = rig.spark.readStream.format("ledger").option("metadata", rig.metadata)
    return reader.options(**{"includeHeaders": True, **options}).load(topic)


def run_query(frame: DataFrame, place: Path, **trigger: Any) -> list[int]:
    writer = frame.writeStream.format("parquet").option("path", str(place / "files"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        if trigger:
            query.awaitTermination()
        else:
            query.processAllAvailable()
        return [progress["numInputRows"] for progress in query.recentProgress]
    finally:
        query.stop()


def topic_key(rig: Rig, topic: str) -> str:
    """Return the key that holds the topic's id among a checkpoint's offsets."""
    return f"{topic}@{Topics(rig.bootstrap).describe(topic).topic_id}"


def last_offsets(place: Path) -> object:
    """Return the last offsets in the query's checkpoint."""
    logs = (place / "checkpoint" / "offsets").glob("[0-9]*")
    newest = max(logs, key=lambda path: int(path.name))
    return json.loads(newest.read_text().splitlines()[-1])
