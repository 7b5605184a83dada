"""Goal: the archive job archives every record of its topics exactly once, and never guesses.

Method: one gateway. librdkafka produces, the job runs in this process on the shared Spark, and
pyarrow reads the files. The job's watcher makes changes between two rounds; signals are real ones.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as PartitionOffset
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from gateway.pipelines.archives.archive_job import (
    ArchiveJob,
    ArchiveReport,
    ArchiveRequest,
    ArchiveWatcher,
)
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import ArchiveState
from gateway.pipelines.archives.rounds import ArchiveRound, next_round
from gateway.pipelines.commands import job
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until
from tests.pipelines.archive_contract import Row
from tests.pipelines.test_archive_parquet import at_once, judged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")

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
        made[topic].result(10)
        return topic

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(10)

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(10)

    def truncate(self, topic: str, before: int) -> None:
        at = PartitionOffset(topic, 0, before)
        self.admin.delete_records([at])[at].result(10)

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
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Gateway(tmp_path_factory.mktemp("archive") / "data") as gateway:
        yield Broker(gateway, AdminClient({"bootstrap.servers": gateway.bootstrap}))


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


@pytest.fixture
def rig(spark: SparkSession, broker: Broker, tmp_path: Path) -> Rig:
    return Rig(spark, broker.bootstrap, tmp_path / "archive")


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


# --- new records -----------------------------------------------------------------------------


def test_a_run_archives_all_records_and_the_next_run_the_new_ones(broker: Broker, rig: Rig):
    topic = broker.create("all", 2)
    first = OffsetRange(topic, 0, 0, 50), OffsetRange(topic, 1, 0, 33)
    then = OffsetRange(topic, 0, 50, 61)
    broker.produce(first[0], codec="zstd")
    broker.produce(first[1], codec="lz4")
    report = rig.run(topic)
    assert (report.commits, report.offsets, report.lost) == (1, 83, 0)
    assert judged(rig.path) == records(*first)
    assert rig.run(topic).commits == 0
    broker.produce(then, codec="gzip")
    assert rig.run(topic).offsets == 11
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 61), first[1])


def test_rounds_are_bounded_and_later_records_are_left_for_the_next_run(broker: Broker, rig: Rig):
    topic = broker.create("rounds", 2)
    ranges = OffsetRange(topic, 0, 0, 30), OffsetRange(topic, 1, 0, 10)
    broker.produce(*ranges)
    late = Between(lambda: broker.produce(OffsetRange(topic, 0, 30, 35)))
    report = rig.run(topic, offsets_per_round_max=20, watcher=late)
    assert (report.commits, report.offsets) == (2, 40)
    assert judged(rig.path) == records(*ranges)


def test_a_pattern_finds_topics_and_partitions_created_later(broker: Broker, rig: Rig):
    one, other = broker.create("log-1"), "log-2"
    first = OffsetRange(one, 0, 0, 5)
    broker.produce(first)
    assert rig.run(pattern="log-.").offsets == 5
    broker.create(other)
    broker.add_partitions(one, 2)
    later = OffsetRange(one, 1, 0, 4), OffsetRange(other, 0, 0, 3)
    broker.produce(*later)
    # The second topic is new, so it begins at its end; the second partition is not a new topic.
    assert rig.run(pattern="log-.", start="latest").offsets == 4
    broker.produce(OffsetRange(other, 0, 3, 5))
    rig.run(pattern="log-.", start="latest")
    assert judged(rig.path) == records(first, later[0], OffsetRange(other, 0, 3, 5))


def test_a_first_run_may_begin_at_a_time_and_a_later_one_continues(broker: Broker, rig: Rig):
    topic = broker.create("times", 2)
    broker.produce(OffsetRange(topic, 0, 0, 9), OffsetRange(topic, 1, 0, 3))
    start_ms = int(START.timestamp() * 1000) + 3_500
    rig.run(topic, start=start_ms)
    assert judged(rig.path) == records(OffsetRange(topic, 0, 4, 9))
    broker.produce(OffsetRange(topic, 1, 3, 6))
    rig.run(topic, start="latest")
    assert judged(rig.path) == records(OffsetRange(topic, 0, 4, 9), OffsetRange(topic, 1, 3, 6))


def test_concurrent_jobs_archive_no_record_twice(broker: Broker, rig: Rig):
    topic = broker.create("two-jobs")
    broker.produce(OffsetRange(topic, 0, 0, 20))

    def other() -> None:
        assert rig.run(topic, offsets_per_round_max=7, stop=lambda: rig.ranges() != []).commits == 1

    report = rig.run(topic, at_step=at_once("checked", other))
    assert (report.commits, report.offsets) == (1, 13)
    assert rig.ranges() == [OffsetRange(topic, 0, 0, 20)]
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 20))


def test_following_survives_an_absent_gateway_and_compacts(broker: Broker, rig: Rig):
    topic = broker.create("follow")
    parts = [OffsetRange(topic, 0, start, start + 5) for start in (0, 5, 10)]
    broker.produce(parts[0])
    watcher = Between(lambda: broker.produce(parts[1]), broker.gateway.kill)
    watcher.on_retry = lambda error, _: (  # type: ignore[method-assign]
        watcher.retries.append(error),
        broker.gateway.start(),
        broker.produce(parts[2]),
    )
    job = rig.job(
        topic,
        watcher=watcher,
        interval_s=0.1,
        file_bytes=10**9,
        stop=lambda: job.report.offsets == 15,
    )
    report = job.follow()
    assert [error.code for error in watcher.retries] == ["UNREACHABLE"]
    assert (report.commits, report.compacted) == (3, (3, 2))
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 15))


# --- refusals -------------------------------------------------------------------------------------


def test_records_deleted_before_archiving_stop_the_job_until_the_loss_is_accepted(
    broker: Broker, rig: Rig
):
    topic = broker.create("lost")
    broker.produce(OffsetRange(topic, 0, 0, 10))
    broker.truncate(topic, 3)
    assert rig.run(topic).lost == 0, "what was never promised is not lost"
    broker.produce(OffsetRange(topic, 0, 10, 20))
    broker.truncate(topic, 14)
    with pytest.raises(DataLost, match=r"4 offsets .*lost-0\[10\.\.14\).*--accept-loss") as raised:
        rig.run(topic)
    assert raised.value.ranges == (OffsetRange(topic, 0, 10, 14),)
    report = rig.run(topic, accept_loss=True)
    assert (report.offsets, report.lost) == (6, 4)
    kept = OffsetRange(topic, 0, 3, 10), OffsetRange(topic, 0, 14, 20)
    assert rig.ranges() == list(kept)
    assert judged(rig.path) == records(*kept)
    lost = ParquetArchive(rig.spark, str(rig.path)).state().lost
    assert [each.range for each in lost] == [OffsetRange(topic, 0, 10, 14)]


def test_a_recreated_topic_is_not_mistaken_for_the_old_one(broker: Broker, rig: Rig):
    topic = broker.create("anew")
    broker.produce(OffsetRange(topic, 0, 0, 4))
    rig.run(topic)
    broker.delete(topic)
    broker.create(topic)
    broker.produce(OffsetRange(topic, 0, 0, 9))
    with pytest.raises(JobError, match=r"recreated.*--to") as raised:
        rig.run(topic)
    assert raised.value.code == "TOPIC_MADE_ANEW"
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 4))


def test_a_missing_topic_and_an_unreachable_server_are_reported_at_once(broker: Broker, rig: Rig):
    with pytest.raises(JobError, match="does not exist"):
        rig.run("nowhere")
    away = Rig(rig.spark, "127.0.0.1:1", rig.path)
    with pytest.raises(JobError) as raised:
        away.run("nowhere")
    assert raised.value.code == "UNREACHABLE"


# --- the plan -------------------------------------------------------------------------------------


def state(**ends: int) -> ArchiveState:
    return ArchiveState("1", {TopicPartition(topic, 0): end for topic, end in ends.items()})


def planned(before: ArchiveState, bounds: dict[str, tuple[int, int]], most: int) -> ArchiveRound:
    found = {TopicPartition(topic, 0): OffsetBounds(*each) for topic, each in bounds.items()}
    return next_round(before, found, {}, {}, most, 7)


def test_a_round_is_shared_by_size_and_skips_no_partition():
    bounds = {"a": (0, 1_000_000), "b": (5, 105), "c": (0, 1), "d": (4, 4)}
    plan = planned(state(d=4), bounds, 1_000)
    assert plan.ranges == (
        OffsetRange("a", 0, 0, 999),
        OffsetRange("b", 0, 5, 6),
        OffsetRange("c", 0, 0, 1),
    )


def test_a_topic_that_lost_all_records_has_an_empty_range_at_its_new_start():
    plan = planned(state(a=4), {"a": (9, 9)}, 10)
    assert plan.ranges == (OffsetRange("a", 0, 9, 9),)
    assert [each.range for each in plan.lost] == [OffsetRange("a", 0, 4, 9)]


def test_a_topic_that_ends_before_its_archive_is_refused():
    with pytest.raises(JobError, match="ends at offset 3, but is archived up to 4"):
        planned(state(a=4), {"a": (0, 3)}, 10)


# --- the command ----------------------------------------------------------------------------------


def command(broker: Broker, path: Path, *words: str) -> Result:
    where = ["--to", str(path), "--bootstrap", broker.bootstrap]
    return CliRunner().invoke(job, ["archive", *words, *where])


@pytest.mark.usefixtures("spark")
def test_the_command_prints_a_table_or_json_and_one_line_for_a_failure(
    broker: Broker, tmp_path: Path
):
    topic = broker.create("printed")
    broker.produce(OffsetRange(topic, 0, 0, 8))
    path = tmp_path / "archive"
    told = command(broker, path, topic, "--max-offsets-per-round", "5")
    assert (told.exit_code, told.stderr) == (0, "")
    assert told.stdout == (
        "TOPIC   PARTITION START END OFFSETS LOST\n"
        "printed 0         0     8   8       0\n\n"
        f"8 offsets archived to {path}; commits: 2\n"
    )
    told = command(broker, path, topic, "--compact", "-o", "json")
    assert json.loads(told.stdout) == {
        "archive": str(path),
        "format": "parquet",
        "commits": 0,
        "offsets": 0,
        "lost": 0,
        "places": [],
        "compacted": {"files_before": 2, "files_after": 1},
    }
    told = command(broker, path, "nowhere", "-o", "json")
    assert (told.exit_code, told.stdout) == (1, "")
    assert json.loads(told.stderr)["code"] == "UNKNOWN_TOPIC"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "--to"),
        (["--to", "x"], "name a topic, or a --pattern"),
        (["a", "--to", "x", "--from", "noon"], "--from: 'noon' is not a time"),
        (["a", "--to", "x", "--from", "1969-12-31T23:59:59.999Z"], "before 1970; pass earliest"),
    ],
)
def test_invalid_options_are_reported_before_spark_starts(words: list[str], said: str):
    told = CliRunner().invoke(job, ["archive", *words])
    assert told.exit_code == 2
    assert said in told.stderr


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_following_job_finishes_its_round_on_a_signal(
    broker: Broker, tmp_path: Path, number: signal.Signals
):
    topic = broker.create(f"polite-{number.name}")
    broker.produce(OffsetRange(topic, 0, 0, 8))
    path = tmp_path / "archive"

    def send_signal() -> None:
        wait_until(lambda: len(judged(path)) == 8, "the first round", 100)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=send_signal)
    sender.start()
    told = command(broker, path, topic, "--follow", "--interval", "600", "-o", "json")
    sender.join()
    assert told.exit_code == 0
    assert json.loads(told.stdout)["offsets"] == 8
    assert signal.getsignal(number) == before
