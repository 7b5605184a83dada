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
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.pipelines.archives import open_archive
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import Archive, ArchiveState, Commit
from gateway.pipelines.commands import job
from gateway.pipelines.replays.model import ReplayReport, ReplayRequest
from gateway.pipelines.replays.plan_store import (
    FilePlans,
    PlanStore,
    StoredPlan,
    TablePlans,
    default_state,
)
from gateway.pipelines.replays.replay_job import check_other_topic
from gateway.pipelines.replays.replay_job import replay as run_replay
from gateway.pipelines.replays.target import cluster_id
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import read_ranges
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.topics import Topics
from tests.command_output import check_output
from tests.peers.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

SOURCE = "source"
SOURCE_0 = OffsetRange(SOURCE, 0, 0, 0).topic_partition
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
        assert producer.flush(60) == 0
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
    client.create_topics([NewTopic(name, partitions, config=config)])[name].result(60)
    return name


@pytest.fixture
def replay(spark: SparkSession, world: World) -> Callable[[ReplayRequest], ReplayReport]:
    def run(request: ReplayRequest) -> ReplayReport:
        plans = FilePlans(spark, default_state(world.path, request.digest()))
        return run_replay(spark, world.archive, world.gateway.bootstrap, request, plans)

    return run


def read(world: World, topic: str) -> dict[int, list[Record]]:
    """Read all records by partition and offset. Offsets must have no gaps."""
    consumer = Consumer({"bootstrap.servers": world.gateway.bootstrap, "group.id": "judge"})
    found: dict[int, list[Record]] = {}
    for partition in consumer.list_topics(topic, 60).topics[topic].partitions:
        place = TopicPartition(topic, partition, 0)
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=60)
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
    [
        pytest.param(None, None, 150, id="all"),
        pytest.param(START_MS + 50_000, START_MS + 52_000, 3, id="a-time"),
    ],
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
    plans = FilePlans(spark, str(tmp_path))
    report = run_replay(spark, archive, bootstrap, request, plans, offsets_at_once=at_once)
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


@pytest.mark.parametrize("at_once", [pytest.param(1_000, marks=pytest.mark.proof), 120])
@pytest.mark.parametrize(
    "start_ms",
    [
        pytest.param(None, id="all"),
        pytest.param(START_MS + 20_000, marks=pytest.mark.proof, id="since"),
    ],
)
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
    state = FilePlans(spark, default_state(world.path, request.digest()))
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


def archived(spark: SparkSession, world: World, path: Path, *ends: int) -> ParquetArchive:
    """Make an archive of partition 0 in commits that end at these offsets."""
    archive = ParquetArchive(spark, str(path))
    for end in ends:
        start = archive.state().ends.get(SOURCE_0, 0)
        archive_more(spark, world, archive, start, end)
    return archive


def archive_more(spark: SparkSession, world: World, archive: Archive, start: int, end: int) -> None:
    ranges = (OffsetRange(SOURCE, 0, start, end),)
    records = read_ranges(spark, world.gateway.bootstrap, ranges)
    assert archive.append(records, Commit(ranges, {SOURCE: "an id"}), archive.state())


def produce(world: World, topic: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": world.gateway.bootstrap})
    producer.produce(topic, b"foreign", partition=partition)
    assert producer.flush(60) == 0


def test_a_replay_reports_what_was_archived_later_and_continues_with_it(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    archive = archived(spark, world, tmp_path / "archive", 100)
    plans = FilePlans(spark, str(tmp_path / "state"))
    request = ReplayRequest(SOURCE, unused(), create=True)
    later = replace(request, extend=True)

    def run(asked: ReplayRequest) -> tuple[int, int, int, int]:
        done = run_replay(spark, archive, world.gateway.bootstrap, asked, plans)
        return done.records, done.written, done.beyond, done.number

    assert run(later) == (100, 100, 0, 1)
    archive_more(spark, world, archive, 100, 250)
    assert run(request) == (100, 0, 150, 1)
    assert run(later) == (250, 150, 0, 2)
    assert run(later) == (250, 0, 0, 2)
    assert read(world, request.target)[0] == originals()[0][:250]
    produce(world, request.target)
    archive_more(spark, world, archive, 250, 260)
    with pytest.raises(JobError, match="--append") as refused:
        run(later)
    assert refused.value.code == "FOREIGN_WRITES"
    assert run(replace(later, append=True)) == (260, 10, 0, 3)
    assert read(world, request.target)[0][251:] == originals()[0][250:260]


def test_a_replay_whose_state_is_lost_is_not_written_twice(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    request = ReplayRequest(SOURCE, unused(), offsets={0: (0, 50)}, create=True)
    bootstrap = world.gateway.bootstrap
    kept = FilePlans(spark, str(tmp_path / "state"))
    run_replay(spark, world.archive, bootstrap, request, kept)
    lost = FilePlans(spark, str(tmp_path / "other"))
    with pytest.raises(JobError, match="holds 50 records") as refused:
        run_replay(spark, world.archive, bootstrap, request, lost)
    assert refused.value.code == "TARGET_NOT_EMPTY" and lost.last() is None
    late = _Late(kept)
    assert run_replay(spark, world.archive, bootstrap, request, late).written == 0
    assert read(world, request.target)[0] == originals()[0][:50]
    run_replay(spark, world.archive, bootstrap, replace(request, append=True), lost)
    assert read(world, request.target)[0] == originals()[0][:50] * 2


def test_nothing_is_replayed_from_a_damaged_archive(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    """A byte of a value is changed. Afterwards the file is restored, and the replay succeeds."""
    archive = archived(spark, world, tmp_path / "archive", 50, 100)
    request = ReplayRequest(SOURCE, unused(), create=True)
    plans = FilePlans(spark, str(tmp_path / "state"))
    (victim,) = [each for each in archive.files() if each.min_offset == 50]
    path = tmp_path / "archive" / victim.path
    whole = pyarrow.parquet.read_table(path)
    values = whole.column("value").to_pylist()
    at = next(n for n, each in enumerate(values) if each and each.endswith(b" 0 50"))
    wrong = pyarrow.array([*values[:at], b"\x00\xff 0 51", *values[at + 1 :]], pyarrow.binary())
    original = path.read_bytes()
    column = whole.schema.get_field_index("value")
    changed = whole.set_column(column, whole.schema.field(column), wrong)
    pyarrow.parquet.write_table(changed, path, coerce_timestamps="us")
    for each in path.parent.glob(".*.crc"):
        each.unlink()
    with pytest.raises(JobError, match=path.name) as refused:
        run_replay(spark, archive, world.gateway.bootstrap, request, plans)
    assert refused.value.code == "DAMAGED_ARCHIVE" and plans.last() is None
    assert read(world, request.target) == {0: []}
    path.write_bytes(original)
    report = run_replay(spark, archive, world.gateway.bootstrap, request, plans)
    assert (report.written, report.unproved) == (100, 0)
    path.write_bytes(original[:200])  # nothing is left to write, so the archive is not read
    assert run_replay(spark, archive, world.gateway.bootstrap, request, plans).written == 0


class _Late:
    """Plans of which the first look shows none, as if a concurrent run stored its plan then."""

    def __init__(self, plans: PlanStore) -> None:
        self._plans = plans
        self._looks = 0
        self.name = plans.name

    def last(self) -> StoredPlan | None:
        self._looks += 1
        return None if self._looks == 1 else self._plans.last()

    def put_if_absent(self, number: int, data: bytes) -> None:
        self._plans.put_if_absent(number, data)


def test_a_replay_into_another_cluster_is_another_replay(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    bootstrap, plans = world.gateway.bootstrap, FilePlans(spark, str(tmp_path))
    here = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).cluster_id
    assert cluster_id(bootstrap) == here
    request = ReplayRequest(SOURCE, unused(), offsets={0: (0, 1)}, create=True, cluster="here")
    run_replay(spark, world.archive, bootstrap, request, plans)
    other = replace(request, cluster="there")
    assert other.digest() != request.digest()
    with pytest.raises(JobError, match="another --state"):
        run_replay(spark, world.archive, bootstrap, other, plans)


@pytest.fixture(scope="module")
def table(spark: SparkSession, world: World) -> Archive:
    table = open_archive(spark, "lake.replays.source", "iceberg")
    ranges = (OffsetRange(SOURCE, 1, 0, EACH),)
    records = read_ranges(spark, world.gateway.bootstrap, ranges)
    assert table.append(records, Commit(ranges, {SOURCE: "an id"}), table.state())
    return table


def test_the_state_of_a_replay_can_live_in_the_iceberg_table_of_the_archive(
    spark: SparkSession, table: Archive, world: World, unused: Callable[[], str]
):
    target = unused()
    words = ["--from", "lake.replays.source", "--format", "iceberg", "--topic", SOURCE]
    words += ["--to-topic", target, "--create", "--bootstrap", world.gateway.bootstrap]
    for written in (EACH, 0):
        done = CliRunner().invoke(job, ["replay", *words, "-o", "json"])
        assert done.exit_code == 0, done.output
        check_output(["job", "replay", "-o", "json"], done.stdout)
        told = json.loads(done.stdout)
        assert (told["written"], told["resumed"]) == (written, not written)
        assert told["state"].startswith("lake.replays.source, property archive.replay.")
    assert read(world, target)[1] == originals()[1]


class _Begins:
    """A table of Iceberg whose transactions begin with `begin`."""

    def __init__(self, table: Any, begin: Callable[[], Any]) -> None:
        self._table = table
        self.newTransaction = begin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def test_of_two_plans_that_are_stored_at_once_in_an_iceberg_table_the_first_one_stays(
    spark: SparkSession, world: World
):
    table = open_archive(spark, "lake.replays.plans", "iceberg")

    def append(start: int, end: int) -> bool:
        ranges = (OffsetRange(SOURCE, 2, start, end),)
        records = read_ranges(spark, world.gateway.bootstrap, ranges)
        return table.append(records, Commit(ranges, {SOURCE: "an id"}), table.state())

    assert append(0, 5)
    first, second = (TablePlans(spark, "lake.replays.plans", "digest") for _ in range(2))
    assert first.last() is None and second.last() is None
    before = table.state()
    begin = second._loaded.newTransaction

    def late() -> Any:
        """Store another plan after this transaction has read the table, before its commit."""
        transaction = begin()
        if first.last() is None:
            first.put_if_absent(1, b"first")
        return transaction

    second._loaded = _Begins(second._loaded, late)
    second.put_if_absent(1, b"second")
    stored = second.last()
    assert stored is not None and (stored.number, stored.data) == (1, b"first")
    for number in (2, 3, 4):
        second.put_if_absent(number, b"%d" % number)
    assert stored != first.last() == (4, b"4", stored.where[:-1] + "4")
    assert sorted(first._numbers(first._properties())) == [3, 4]
    assert table.state() == before
    assert append(5, 10)


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
    spark: SparkSession,
    table: Archive,
    world: World,
    unused: Callable[[], str],
    tmp_path: Path,
):
    start_ms = START_MS + 60_000
    request = ReplayRequest(SOURCE, unused(), start_ms, create=True)
    run_replay(spark, table, world.gateway.bootstrap, request, FilePlans(spark, str(tmp_path)))
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
        check_other_topic(world.archive.state().topic_ids[SOURCE], world.gateway.bootstrap, SOURCE)


def test_the_state_of_another_replay_is_refused(
    spark: SparkSession, world: World, unused: Callable[[], str], tmp_path: Path
):
    request = ReplayRequest(SOURCE, unused(), offsets={0: (0, 1)}, create=True)
    bootstrap, plans = world.gateway.bootstrap, FilePlans(spark, str(tmp_path))
    run_replay(spark, world.archive, bootstrap, request, plans)
    other = replace(request, offsets={0: (0, 2)})
    with pytest.raises(JobError, match="another --state"):
        run_replay(spark, world.archive, bootstrap, other, plans)
    with pytest.raises(JobError, match=r"another topic 'source'.*another --state"):
        run_replay(spark, _MadeAnew(world.archive), bootstrap, request, plans)


class _MadeAnew:
    """An archive of another topic of the same name."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def state(self) -> ArchiveState:
        return replace(self._archive.state(), topic_ids={SOURCE: "another id"})


def test_the_command_reports_unsupported_options_before_spark_starts(tmp_path: Path):
    words = ["--from", str(tmp_path), "--topic", SOURCE, "-o", "json"]
    for wrong in (
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
    check_output(["job", "replay", "-o", "json"], done.stdout)
    told = json.loads(done.stdout)
    assert (told["records"], told["written"], told["resumed"]) == (10, 10, False)
    assert told["partitions"][0]["end_offset"] == 10
    again = CliRunner().invoke(job, ["replay", *words])
    assert (
        "has the 10 records of this replay of source" in again.stdout
        and "this run wrote 0" in again.stdout
    )
