"""Goal: archived records return to a topic unchanged and once, with every option of the job.

Method: records with everything that Kafka allows pass through a topic into a Parquet archive and
back. An independent consumer (librdkafka) compares both topics record by record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.pipelines.archives import open_archive
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import Archive, ArchiveState, Commit
from gateway.pipelines.commands import job
from gateway.pipelines.replays.model import ReplayReport, ReplayRequest, default_state
from gateway.pipelines.replays.plan import (
    PartitionPlan,
    ReplayChunk,
    ReplayPlan,
    Selection,
    next_chunk,
    parse_offsets,
    select_ranges,
)
from gateway.pipelines.replays.replay_job import check_other_topic
from gateway.pipelines.replays.replay_job import replay as run_replay
from gateway.pipelines.replays.task import number_records
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import read_ranges
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.topics import Topics
from tests.peers.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")

SOURCE = "source"
PARTITIONS = 3
EACH = 400
START_MS = int(datetime(2024, 2, 28, 23, 59, tzinfo=UTC).timestamp() * 1000)


class Record(NamedTuple):
    """A record as it comes back. None means no headers."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] | None


def record(partition: int, number: int) -> Record:
    """Make nulls, empty ones, repeated headers, decreasing times, and a large record in turn."""
    key = (None, b"", b"key %d" % number)[number % 3]
    value: bytes | None = b"\x00\xff %d %d" % (partition, number)
    value = (value, None, b"")[number % 5 % 3]
    if number == 77:
        value = b"x" * 900_000
    time_ms = START_MS + (number - number % 7 * 3) * 1_000
    headers = (("a", b"%d" % number), ("a", None), ("b", b"")) if number % 4 == 0 else None
    return Record(key, value, time_ms, headers)


class World(NamedTuple):
    """A gateway with an archived topic."""

    gateway: Gateway
    archive: ParquetArchive
    path: str


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    work = tmp_path_factory.mktemp("replay")
    with Gateway(work / "data") as gateway:
        new_topic(gateway, SOURCE, PARTITIONS, {"retention.ms": "-1"})
        producer = Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 5})
        for partition in range(PARTITIONS):
            for number in range(EACH):
                one = record(partition, number)
                producer.produce(
                    SOURCE,
                    one.value,
                    one.key,
                    partition,
                    timestamp=one.timestamp_ms,
                    headers=list(one.headers or ()),
                )
        assert producer.flush(30) == 0
        archive = ParquetArchive(spark, str(work / "archive"))
        ranges = tuple(OffsetRange(SOURCE, each, 0, EACH) for each in range(PARTITIONS))
        topic_id = Topics(gateway.bootstrap).describe(SOURCE).topic_id or ""
        records = read_ranges(spark, gateway.bootstrap, ranges)
        assert archive.append(records, Commit(ranges, {SOURCE: topic_id}), archive.state())
        yield World(gateway, archive, str(work / "archive"))


@pytest.fixture(scope="module")
def unused(world: World) -> Callable[[], str]:
    numbers = iter(range(1_000_000))
    return lambda: f"target-{next(numbers)}"


def new_topic(gateway: Gateway, name: str, partitions: int, config: dict[str, str]) -> str:
    client = AdminClient({"bootstrap.servers": gateway.bootstrap})
    client.create_topics([NewTopic(name, partitions, config=config)])[name].result(10)
    return name


@pytest.fixture
def replay(spark: SparkSession, world: World) -> Callable[[ReplayRequest], ReplayReport]:
    def run(request: ReplayRequest) -> ReplayReport:
        state = default_state(world.path, request)
        return run_replay(spark, world.archive, world.gateway.bootstrap, request, state)

    return run


def read(world: World, topic: str) -> dict[int, list[Record]]:
    """Read all records by partition and offset. Offsets must have no gaps."""
    consumer = Consumer({"bootstrap.servers": world.gateway.bootstrap, "group.id": "judge"})
    found: dict[int, list[Record]] = {}
    for partition in consumer.list_topics(topic, 10).topics[topic].partitions:
        place = TopicPartition(topic, partition, 0)
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        messages: list[Message] = []
        while len(messages) < end:
            messages += consumer.consume(end - len(messages), 10.0)
        assert [one.offset() for one in messages] == list(range(end))
        found[partition] = [_record(one) for one in messages]
    consumer.close()
    return found


def _record(message: Message) -> Record:
    assert message.error() is None
    headers: Any = message.headers()
    return Record(
        message.key(),
        message.value(),
        message.timestamp()[1],
        None if headers is None else tuple(headers),
    )


def originals() -> dict[int, list[Record]]:
    return {p: [record(p, number) for number in range(EACH)] for p in range(PARTITIONS)}


def test_all_records_come_back_unchanged_and_a_second_run_adds_nothing(
    world: World, replay: Callable[[ReplayRequest], ReplayReport], unused: Callable[[], str]
):
    request = ReplayRequest(SOURCE, unused(), create=True)
    first = replay(request)
    assert read(world, request.target) == originals() == read(world, SOURCE)
    assert [(each.records, each.written) for each in first.partitions] == [(EACH, EACH)] * 3
    again = replay(request)
    assert again.resumed and not first.resumed
    assert sum(each.written for each in again.partitions) == 0
    assert read(world, request.target) == originals()


class _Noted:
    """An archive that records how many offsets of a partition each read asks for."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.spans: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def read(self, topics: Sequence[str], within: Sequence[OffsetRange]) -> Any:
        for partition in {each.partition for each in within}:
            own = [each for each in within if each.partition == partition]
            self.spans.append(max(each.end for each in own) - min(each.start for each in own))
        return self._archive.read(topics, within)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "at_once"),
    [(None, None, 150), (START_MS + 50_000, START_MS + 52_000, 3)],
    ids=["all", "a-time"],
)
def test_a_long_topic_is_replayed_one_chunk_at_a_time(
    spark: SparkSession,
    world: World,
    unused: Callable[[], str],
    tmp_path: Path,
    start_ms: int | None,
    end_ms: int | None,
    at_once: int,
):
    """A task's sort does not grow with the topic. Some chunks of two seconds are empty."""
    request = ReplayRequest(SOURCE, unused(), start_ms, end_ms, create=True)
    archive, bootstrap = _Noted(world.archive), world.gateway.bootstrap
    report = run_replay(spark, archive, bootstrap, request, str(tmp_path), offsets_at_once=at_once)
    chosen = {
        partition: [
            one for one in records if (start_ms or 0) <= one.timestamp_ms < (end_ms or 1 << 60)
        ]
        for partition, records in originals().items()
    }
    assert read(world, request.target) == chosen
    assert [each.written for each in report.partitions] == [len(chosen[0])] * PARTITIONS
    measured, chunks = archive.spans[:PARTITIONS], archive.spans[PARTITIONS:]
    assert measured == [EACH] * PARTITIONS
    assert max(chunks) == at_once and len(chunks) >= 3 * PARTITIONS


@pytest.mark.parametrize("at_once", [1_000, 120])
@pytest.mark.parametrize("start_ms", [None, START_MS + 20_000], ids=["all", "since"])
def test_a_killed_job_is_continued(
    spark: SparkSession, world: World, unused: Callable[[], str], start_ms: int | None, at_once: int
):
    """A killed job leaves its state and a part of its records, which are made by hand here.

    All offsets, or those of a time range, so with gaps; at once, or in chunks.
    """
    request = ReplayRequest(SOURCE, unused(), start_ms, create=True, codec="zstd")
    chosen = {
        partition: [one for one in records if one.timestamp_ms >= (start_ms or 0)]
        for partition, records in originals().items()
    }
    there = sum(one.timestamp_ms >= (start_ms or 0) for one in originals()[0][:150])
    state = default_state(world.path, request)
    bootstrap = world.gateway.bootstrap
    whole = _Cut(world.archive, 150)
    with pytest.raises(JobError) as failed:
        run_replay(spark, whole, bootstrap, request, state, offsets_at_once=at_once)
    assert failed.value.code == "SOURCE_CHANGED"
    assert {len(each) for each in read(world, request.target).values()} == {there}
    report = run_replay(spark, world.archive, bootstrap, request, state, offsets_at_once=at_once)
    assert report.resumed
    assert [each.written for each in report.partitions] == [len(chosen[0]) - there] * PARTITIONS
    assert read(world, request.target) == chosen


class _Cut:
    """An archive that shows all records to the scan, and afterwards only offsets below a bound."""

    def __init__(self, archive: Archive, bound: int) -> None:
        self._archive = archive
        self._bound = bound
        self._reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def read(self, topics: Sequence[str], within: Sequence[OffsetRange]) -> Any:
        self._reads += 1
        whole = self._archive.read(topics, within)
        return whole if self._reads == 1 else whole.where(f"offset < {self._bound}")


def test_a_range_of_time_is_chosen_by_the_records_own_times(
    world: World, replay: Callable[[ReplayRequest], ReplayReport], unused: Callable[[], str]
):
    start_ms, end_ms = START_MS + 50_000, START_MS + 90_000
    request = ReplayRequest(SOURCE, unused(), start_ms, end_ms, create=True)
    replay(request)
    assert read(world, request.target) == {
        partition: [one for one in records if start_ms <= one.timestamp_ms < end_ms]
        for partition, records in originals().items()
    }


def test_a_range_of_offsets_is_chosen(
    world: World, replay: Callable[[ReplayRequest], ReplayReport], unused: Callable[[], str]
):
    request = ReplayRequest(SOURCE, unused(), offsets={1: (5, 300)}, create=True)
    replay(request)
    assert read(world, request.target) == {0: [], 1: originals()[1][5:300], 2: []}


def test_an_iceberg_table_is_as_good(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    table = open_archive(spark, "lake.replays.source", "iceberg")
    ranges = (OffsetRange(SOURCE, 1, 0, EACH),)
    records = read_ranges(spark, world.gateway.bootstrap, ranges)
    assert table.append(records, Commit(ranges, {SOURCE: "an id"}), table.state())
    start_ms = START_MS + 60_000
    request = ReplayRequest(SOURCE, unused(), start_ms, create=True)
    run_replay(spark, table, world.gateway.bootstrap, request, str(tmp_path))
    chosen = [one for one in originals()[1] if one.timestamp_ms >= start_ms]
    assert read(world, request.target) == {0: [], 1: chosen}


def test_an_unsuitable_target_is_reported_before_any_write(
    world: World, replay: Callable[[ReplayRequest], ReplayReport], unused: Callable[[], str]
):
    def fails(request: ReplayRequest, code: str) -> None:
        with pytest.raises(JobError) as failed:
            replay(request)
        assert failed.value.code == code

    keeps = {"retention.ms": "-1"}
    stamped = {**keeps, "message.timestamp.type": "LogAppendTime"}
    fails(ReplayRequest(SOURCE, unused()), "UNKNOWN_TOPIC")
    fails(ReplayRequest(SOURCE, new_topic(world.gateway, unused(), 3, stamped)), "LOG_APPEND_TIME")
    fails(ReplayRequest(SOURCE, new_topic(world.gateway, unused(), 3, {})), "WOULD_EXPIRE")
    fails(ReplayRequest(SOURCE, new_topic(world.gateway, unused(), 2, keeps)), "TOO_FEW_PARTITIONS")
    fails(ReplayRequest("other", unused()), "NOT_ARCHIVED")
    with pytest.raises(JobError, match="--to-topic"):
        check_other_topic(world.archive, world.gateway.bootstrap, SOURCE)


def test_the_state_of_another_replay_is_refused(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    request = ReplayRequest(SOURCE, unused(), offsets={0: (0, 1)}, create=True)
    bootstrap = world.gateway.bootstrap
    run_replay(spark, world.archive, bootstrap, request, str(tmp_path))
    other = replace(request, offsets={0: (0, 2)})
    with pytest.raises(JobError, match="another --state"):
        run_replay(spark, world.archive, bootstrap, other, str(tmp_path))
    with pytest.raises(JobError, match=r"another topic 'source'.*another --state"):
        run_replay(spark, _MadeAnew(world.archive), bootstrap, request, str(tmp_path))


class _MadeAnew:
    """An archive of another topic of the same name."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def state(self) -> ArchiveState:
        return replace(self._archive.state(), topic_ids={SOURCE: "another id"})


@pytest.mark.parametrize("offsets", [[3, 4, 4], [3, 5], [4, 3], [4, 5]])
def test_changed_source_offsets_are_an_error(offsets: list[int]):
    batch = pyarrow.record_batch(
        {
            "partition": pyarrow.array([0] * len(offsets), pyarrow.int32()),
            "offset": pyarrow.array(offsets, pyarrow.int64()),
        }
    )
    with pytest.raises(JobError) as failed:
        chunk = ReplayChunk(0, 3, 6, 3, last=False)
        list(number_records(PartitionPlan(0, 0, 10, 0, 9), chunk, iter([(0, batch)])))
    assert failed.value.code == "SOURCE_CHANGED"


def test_chunks_skip_unselected_offsets_and_end_with_the_last_record():
    ranges = (OffsetRange(SOURCE, 1, 0, 99), *(OffsetRange(SOURCE, 0, n, n + 4) for n in (2, 20)))
    selection, partition = Selection(SOURCE, ranges), PartitionPlan(0, 7, 8, 2, 23)
    assert next_chunk(selection, partition, 2, 0, 3) == ReplayChunk(0, 2, 5, 0, last=False)
    assert next_chunk(selection, partition, 5, 3, 3) == ReplayChunk(0, 5, 8, 3, last=False)
    assert next_chunk(selection, partition, 8, 4, 4) == ReplayChunk(0, 20, 24, 4, last=True)
    assert next_chunk(selection, partition, 2, 0, 99) == ReplayChunk(0, 2, 24, 0, last=True)


def test_a_plan_that_is_damaged_or_newer_is_refused():
    for text in ("", "{}", "[]", '{"format": 1}', '{"format": 2}'):
        with pytest.raises(JobError) as failed:
            ReplayPlan.decode(text.encode(), "place")
        assert failed.value.code == "BAD_STATE" and "place" in str(failed.value)


def test_offsets_that_are_not_archived_are_reported():
    archived = [OffsetRange("t", 0, 5, 10), OffsetRange("t", 0, 12, 20), OffsetRange("u", 0, 0, 9)]
    assert select_ranges("t", archived, None) == tuple(archived[:2])
    assert select_ranges("t", archived, {0: (6, 9)}) == (OffsetRange("t", 0, 6, 9),)
    for asked in ({0: (4, 6)}, {0: (9, 13)}, {0: (19, 21)}, {1: (0, 1)}):
        with pytest.raises(JobError, match="not all archived"):
            select_ranges("t", archived, asked)


def test_offsets_are_given_as_json():
    assert parse_offsets('{"0": [1, 5], "12": [0, 1]}', "t") == {0: (1, 5), 12: (0, 1)}
    assert parse_offsets('{"t": {"0": [1, 5]}}', "t") == {0: (1, 5)}
    for text in ("", "{}", "[]", '{"0": 5}', '{"0": [5, 5]}', '{"0": [-1, 5]}', '{"x": [1, 5]}'):
        with pytest.raises(JobError) as failed:
            parse_offsets(text, "t")
        assert failed.value.code == "USAGE"


def test_the_command_reports_unsupported_options_before_spark_starts(tmp_path: Path):
    words = ["--from", str(tmp_path), "--topic", SOURCE, "-o", "json"]
    for wrong in (
        ["--transactional"],
        ["--format", "iceberg"],
        ["--offsets", "{}"],
        ["--start-time", "2h"],
        ["--end-time", "253402300800000"],
        ["--offsets", '{"0": [0, 1]}', "--end-time", "2024-01-01"],
    ):
        done = CliRunner().invoke(job, ["replay", *words, *wrong])
        assert done.exit_code == 2 and done.stdout == ""
        assert json.loads(done.stderr)["code"] == "USAGE"


def test_the_command_prints_its_result(
    spark: SparkSession, world: World, unused: Callable[[], str]
):
    words = ["--from", world.path, "--topic", SOURCE, "--bootstrap", world.gateway.bootstrap]
    words += ["--to-topic", unused(), "--create", "--offsets", '{"2": [10, 20]}']
    done = CliRunner().invoke(job, ["replay", *words, "-o", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["records"], told["written"], told["resumed"]) == (10, 10, False)
    assert told["partitions"][0]["end_offset"] == 10
    again = CliRunner().invoke(job, ["replay", *words])
    assert "has all 10 records" in again.stdout and "this run wrote 0" in again.stdout
