"""Goal: the archive job archives every record of its topics exactly once, and never guesses.

Method: one gateway. librdkafka produces, the job runs in this process on the shared Spark, and
pyarrow reads the files. The job's watcher makes changes between two rounds; signals are real ones.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from gateway.admin.client import AdminClient as AdminConnection
from gateway.admin.client import Unreachable
from gateway.pipelines.archives.exact_read import (
    fetch_batches,
    find_unrepresentable,
    read_exactly,
)
from gateway.pipelines.archives.lives import select_life
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import Commit
from gateway.pipelines.commands import job
from gateway.pipelines.direct.batch import LedgerBatchReader
from gateway.pipelines.direct.options import parse
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import Topics
from gateway.wire.batches import read_header
from tests.batches import plain_batch, raw_batch, varint
from tests.command_output import check_output
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until
from tests.pipelines.archive_rig import START, Between, Broker, Rig, records
from tests.pipelines.test_archive_parquet import at_once, judged
from tests.sim.seeds import first_at_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Gateway(tmp_path_factory.mktemp("archive") / "data") as gateway:
        yield Broker(gateway, AdminClient({"bootstrap.servers": gateway.bootstrap}))


@pytest.fixture
def rig(spark: SparkSession, broker: Broker, tmp_path: Path) -> Rig:
    return Rig(spark, broker.bootstrap, tmp_path / "archive")


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


@pytest.mark.proof
def test_rounds_are_bounded_and_later_records_are_left_for_the_next_run(broker: Broker, rig: Rig):
    topic = broker.create("rounds", 2)
    ranges = OffsetRange(topic, 0, 0, 30), OffsetRange(topic, 1, 0, 10)
    broker.produce(*ranges)
    late = Between(lambda: broker.produce(OffsetRange(topic, 0, 30, 35)))
    report = rig.run(topic, offsets_per_round_max=20, watcher=late)
    assert (report.commits, report.offsets) == (2, 40)
    assert judged(rig.path) == records(*ranges)


@pytest.mark.proof
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
    report = rig.run(pattern="log-.", start="latest")
    assert (report.offsets, report.lost, report.skipped) == (4, 0, 3)
    skipped = ParquetArchive(rig.spark, str(rig.path)).state().lost
    assert [(each.range, each.reason) for each in skipped] == [
        (OffsetRange(other, 0, 0, 3), "skipped")
    ]
    broker.produce(OffsetRange(other, 0, 3, 5))
    rig.run(pattern="log-.", start="latest")
    assert judged(rig.path) == records(first, later[0], OffsetRange(other, 0, 3, 5))


@pytest.mark.proof
def test_a_first_run_may_begin_at_a_time_and_a_later_one_continues(broker: Broker, rig: Rig):
    topic = broker.create("times", 2)
    broker.produce(OffsetRange(topic, 0, 0, 9), OffsetRange(topic, 1, 0, 3))
    start_ms = int(START.timestamp() * 1000) + 3_500
    rig.run(topic, start=start_ms)
    assert judged(rig.path) == records(OffsetRange(topic, 0, 4, 9))
    broker.produce(OffsetRange(topic, 1, 3, 6))
    rig.run(topic, start="latest")
    assert judged(rig.path) == records(OffsetRange(topic, 0, 4, 9), OffsetRange(topic, 1, 3, 6))


@pytest.mark.proof
def test_concurrent_jobs_archive_no_record_twice(broker: Broker, rig: Rig):
    topic = broker.create("two-jobs")
    broker.produce(OffsetRange(topic, 0, 0, 20))

    def other() -> None:
        assert rig.run(topic, offsets_per_round_max=7, stop=lambda: rig.ranges() != []).commits == 1

    report = rig.run(topic, at_step=at_once("checked", other))
    assert (report.commits, report.offsets) == (1, 13)
    assert rig.ranges() == [OffsetRange(topic, 0, 0, 20)]
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 20))


@pytest.mark.proof
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


@pytest.mark.parametrize("step", first_at_commit(["checked", "staged", "committed"], 1))
def test_a_store_that_does_not_answer_for_a_moment_ends_no_job(broker: Broker, rig: Rig, step: str):
    topic = broker.create(f"store-away-{step}")
    broker.produce(OffsetRange(topic, 0, 0, 5))
    away = [JobError("s3a://lake: no answer", "FILE_SYSTEM")]

    def at_step(name: str) -> None:
        if name == step and away:
            raise away.pop()

    watcher = Between()
    report = rig.run(topic, at_step=at_step, watcher=watcher)
    assert [error.code for error in watcher.retries] == ["FILE_SYSTEM"]
    assert report.set_aside == {}
    assert (report.offsets, report.commits) == (5, 1)
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 5))


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
    report = rig.run(topic)
    error = report.set_aside[topic]
    assert isinstance(error, DataLost)
    assert error.ranges == (OffsetRange(topic, 0, 10, 14),)
    assert "lost-0[10..14)" in str(error)
    assert str(error).endswith("use --accept-loss lost")
    assert rig.run(topic, accept_loss=frozenset({"another"})).set_aside.keys() == {topic}
    report = rig.run(topic, accept_loss=frozenset({topic}))
    assert (report.offsets, report.lost) == (6, 4)
    kept = OffsetRange(topic, 0, 3, 10), OffsetRange(topic, 0, 14, 20)
    assert rig.ranges() == list(kept)
    assert judged(rig.path) == records(*kept)
    lost = ParquetArchive(rig.spark, str(rig.path)).state().lost
    assert [(each.range, each.reason) for each in lost] == [
        (OffsetRange(topic, 0, 10, 14), "deleted")
    ]


def test_a_recreated_topic_is_not_mistaken_for_the_old_one(broker: Broker, rig: Rig):
    topic = broker.create("anew")
    broker.produce(OffsetRange(topic, 0, 0, 4))
    rig.run(topic)
    broker.delete(topic)
    broker.create(topic)
    broker.produce(OffsetRange(topic, 0, 0, 9))
    error = rig.run(topic).set_aside[topic]
    assert error.code == "TOPIC_MADE_ANEW"
    assert "--accept-loss anew" in str(error)
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 4))


@pytest.mark.proof
@pytest.mark.parametrize("wanted", [{"topics": ("swap-n",)}, {"pattern": "swap-p"}])
def test_no_record_of_a_topic_recreated_during_a_round_is_committed(
    broker: Broker, rig: Rig, wanted: dict[str, Any]
):
    topic = broker.create(wanted.get("pattern") or wanted["topics"][0])
    broker.produce(OffsetRange(topic, 0, 0, 10))
    job = rig.job(*wanted.pop("topics", ()), **wanted, timeout_s=0)
    append = ParquetArchive.append

    def recreate_first(archive: ParquetArchive, *given: Any) -> bool:
        broker.delete(topic)
        broker.create(topic)
        broker.produce(OffsetRange(topic, 0, 0, 15))
        return append(archive, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetArchive, "append", recreate_first)
        report = job.run()
    assert report.set_aside[topic].code == "TOPIC_CHANGED"
    assert not (rig.path / "_commits").exists()
    assert list(rig.path.rglob("*.parquet")) == [], "what was staged is removed"
    assert rig.run(topic).offsets == 15, "a new archive begins with the new topic"
    assert judged(rig.path) == records(OffsetRange(topic, 0, 0, 15))


@pytest.mark.proof
def test_the_lives_of_a_topic_are_kept_apart(broker: Broker, rig: Rig):
    topic = broker.create("twice")
    broker.produce(OffsetRange(topic, 0, 0, 4))
    rig.run(topic)
    broker.delete(topic)
    broker.create(topic)
    broker.produce(OffsetRange(topic, 0, 0, 9))
    assert rig.run(topic, accept_loss=frozenset({topic}), start="latest").offsets == 9
    broker.produce(OffsetRange(topic, 0, 9, 12))
    report = rig.run(topic)
    assert (report.offsets, report.set_aside) == (3, {})
    archive = ParquetArchive(rig.spark, str(rig.path))
    ids = archive.state().topic_ids
    life = select_life(ids, ids, topic, next(ids[each] for each in ids if each != topic))
    assert life == f"{topic}@{ids[life]}"
    assert archive.ranges() == [OffsetRange(topic, 0, 0, 4), OffsetRange(life, 0, 0, 12)]
    kept = [each._replace(topic=life) for each in records(OffsetRange(topic, 0, 0, 12))]
    assert judged(rig.path) == [*records(OffsetRange(topic, 0, 0, 4)), *kept]
    command = ["audit", f"topic:{topic}", f"archive:{rig.path}", "-b", broker.bootstrap]
    told = CliRunner().invoke(job, command)
    assert told.exit_code == 0, (told.stdout, told.stderr)
    words = ["replay", "--from", str(rig.path), "--topic", topic, "-b", broker.bootstrap]
    words += ["--to-topic", "once", "--create", "-o", "json"]
    told = CliRunner().invoke(job, words)
    assert told.exit_code == 1
    assert json.loads(told.stderr)["code"] == "SEVERAL_LIVES"
    told = CliRunner().invoke(job, [*words, "--topic-id", ids[life]])
    assert told.exit_code == 0, (told.stdout, told.stderr)
    assert json.loads(told.stdout)["written"] == 12


@pytest.mark.proof
def test_a_bad_topic_does_not_stop_the_others(broker: Broker, rig: Rig):
    names = [broker.create(f"apart-{each}") for each in ("anew", "gone", "lost", "well")]
    first = [OffsetRange(name, 0, 0, 10) for name in names]
    broker.produce(*first)
    rig.run(pattern="apart-.*")
    for name in names:
        broker.produce(OffsetRange(name, 0, 10, 20))
    broker.truncate("apart-lost", 13)
    broker.delete("apart-anew")
    broker.create("apart-anew")
    broker.delete("apart-gone")
    report = rig.run("apart-gone", pattern="apart-.*")
    assert {topic: error.code for topic, error in report.set_aside.items()} == {
        "apart-anew": "TOPIC_MADE_ANEW",
        "apart-gone": "UNKNOWN_TOPIC",
        "apart-lost": "DATA_LOST",
    }
    assert report.offsets == 10
    assert judged(rig.path) == records(*first[:3], OffsetRange("apart-well", 0, 0, 20))


@pytest.mark.proof
def test_a_topic_whose_round_fails_is_found_among_the_others(broker: Broker, rig: Rig):
    names = [broker.create(f"fails-{each}") for each in ("a", "b", "c")]
    ranges = [OffsetRange(name, 0, 0, 5) for name in names]
    broker.produce(*ranges)
    job = rig.job(pattern="fails-.*")
    append = ParquetArchive.append
    away = [JobError("the store does not answer for a moment", "FILE_SYSTEM")]

    def refuse_b(archive: ParquetArchive, frame: Any, commit: Commit, on: Any) -> bool:
        if "fails-b" in commit.topic_ids:
            raise JobError("5 records of 6 offsets", "WRONG_RECORDS")
        if away:
            raise away.pop()
        return append(archive, frame, commit, on)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetArchive, "append", refuse_b)
        report = job.run()
    assert [(topic, error.code) for topic, error in report.set_aside.items()] == [
        ("fails-b", "WRONG_RECORDS")
    ]
    assert not away
    assert judged(rig.path) == records(ranges[0], ranges[2])


@pytest.mark.proof
def test_a_topic_that_recovers_is_no_longer_set_aside(broker: Broker, rig: Rig):
    well, late = broker.create("well"), "late"
    watcher = Between()
    watcher.on_set_aside = lambda topic, _: broker.create(topic)  # type: ignore[method-assign]
    broker.produce(OffsetRange(well, 0, 0, 5))
    job = rig.job(
        well,
        late,
        watcher=watcher,
        interval_s=0.1,
        stop=lambda: TopicPartition(late, 0) in job.report.partitions,
    )
    report = job.follow()
    assert (report.offsets, report.set_aside) == (5, {})


@pytest.mark.proof
def test_a_record_that_spark_cannot_represent_is_named_and_may_be_left_out(
    broker: Broker, rig: Rig
):
    topic = broker.create("nanos", **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    other = broker.create("nanos-not")
    nanos = 1_760_000_000_000_000_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    broker.produce(OffsetRange(topic, 0, 0, 3), OffsetRange(other, 0, 0, 4))
    producer.produce(topic, b"v", timestamp=nanos)
    producer.flush()
    broker.produce(OffsetRange(topic, 0, 4, 6))
    for late in range(2):
        producer.produce(topic, b"v", timestamp=nanos + late)
    producer.flush()
    broker.produce(OffsetRange(topic, 0, 8, 10))

    report = rig.run(topic, other)
    assert report.offsets == 7
    error = report.set_aside[topic]
    assert "nanos-0[3..4)" in str(error)
    assert f"timestamp {nanos} ms" in str(error)
    report = rig.run(topic, other, accept_loss=frozenset({topic}))
    assert (report.offsets, report.lost, report.set_aside) == (4, 3, {})
    lost = ParquetArchive(rig.spark, str(rig.path)).state().lost
    assert [(each.range, each.reason) for each in lost] == [
        (OffsetRange(topic, 0, 3, 4), f"unrepresentable: timestamp {nanos} ms"),
        (OffsetRange(topic, 0, 6, 8), f"unrepresentable: timestamp {nanos} ms to {nanos + 1} ms"),
    ]
    kept = [OffsetRange(topic, 0, *each) for each in ((0, 3), (4, 6), (8, 10))]
    assert judged(rig.path) == records(*kept, OffsetRange(other, 0, 0, 4))


def test_a_record_that_spark_cannot_represent_is_found_without_spark(broker: Broker):
    topic = broker.create("unseen", **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    beyond = 10**16
    broker.produce_batch(topic, plain_batch([1, 2, beyond, beyond + 1]))
    broker.produce_batch(topic, plain_batch([3, beyond, 4]))
    place = TopicPartition(topic, 0)
    whole = OffsetRange(topic, 0, 0, 7)
    for isolation in Isolation:
        assert find_unrepresentable(broker.bootstrap, [whole], isolation) == [
            (place, 2, beyond),
            (place, 3, beyond + 1),
            (place, 5, beyond),
        ]
    some = whole._replace(start=3, end=5)
    found = find_unrepresentable(broker.bootstrap, [some], Isolation.read_committed)
    assert found == [(place, 3, beyond + 1)]

    def read_directly(**options: str) -> list[tuple[int, int | None]]:
        given = {"metadata": broker.gateway.ledgers, "path": topic, **options}
        reader = LedgerBatchReader(parse(given))
        rows = [rows for task in reader.partitions() for rows in reader.read(task)]
        return [
            (offset, time)
            for each in rows
            for offset, time in zip(
                each["offset"].to_pylist(), each["timestamp"].cast("int64").to_pylist(), strict=True
            )
        ]

    message = rf"unseen-0: the record at offset 2 has the timestamp {beyond} ms.*OutOfRange=null"
    with pytest.raises(JobError, match=message) as refused:
        read_directly()
    assert refused.value.code == "TIMESTAMP_OUT_OF_RANGE"
    times = [1000, 2000, None, None, 3000, None, 4000]
    assert read_directly(timestampOutOfRange="null") == list(enumerate(times))


def test_every_broker_is_asked_for_the_ids(broker: Broker):
    topic = broker.create("asked")
    topics = Topics(broker.bootstrap)
    (found,) = topics.ids_at_brokers([topic, "nowhere"])
    assert found == {topic: topics.listed()[topic].topic_id}
    before = found[topic]
    broker.delete(topic)
    assert topics.ids_at_brokers([topic]) == [{}]
    broker.create(topic)
    (found,) = topics.ids_at_brokers([topic])
    assert found[topic] not in (None, before)


@pytest.mark.proof
def test_the_keys_of_headers_keep_their_bytes(broker: Broker, rig: Rig):
    topic = broker.create("keys", 2)
    broker.produce(OffsetRange(topic, 0, 0, 30), OffsetRange(topic, 1, 0, 3))
    key = b"k\xff"
    name = varint(len(key)) + key + varint(1) + b"v"
    fields = b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + name
    batch = raw_batch(varint(len(fields)) + fields, base_timestamp=5, max_timestamp=5)
    broker.produce_batch(topic, batch)
    assert rig.run(topic).offsets == 34
    archive = ParquetArchive(rig.spark, str(rig.path))
    found = archive.read([topic]).where("partition = 0 AND offset = 30")
    assert found.selectExpr("hex(headers[0].key) AS key").collect() == [(key.hex().upper(),)]
    rest = archive.read([topic]).where("partition = 1 OR offset < 30").count()
    assert rest == 33
    words = ["--from", str(rig.path), "--topic", topic, "--to-topic", "keys-again", "--create"]
    told = CliRunner().invoke(job, ["replay", *words, "--bootstrap", broker.bootstrap])
    assert told.exit_code == 0, (told.stdout, told.stderr)
    again = [OffsetRange("keys-again", 0, 29, 31)]
    written = read_exactly(rig.spark, broker.bootstrap, again, Isolation.read_committed, 1)
    assert written.selectExpr("offset", "hex(headers[0].key)").collect() == [
        (29, None),
        (30, key.hex().upper()),
    ]


class Moving(AdminConnection):
    """A client whose first `faults` fetches fail: one half gets no reply, the others an error."""

    faults = 0

    async def at_broker(self, broker: Any, key: int, fields: Any, version_max: int) -> Any:
        if key == 1 and self.faults:
            self.faults -= 1
            if self.faults % 2:
                raise Unreachable("no reply")
            asked = fields(version_max)
            asked["topics"][0]["partitions"][0]["fetch_offset"] = 10**6
            return await super().at_broker(broker, key, lambda _: asked, version_max)
        return await super().at_broker(broker, key, fields, version_max)


@pytest.mark.real_loop
async def test_an_exact_read_survives_a_leader_that_moves(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    topic = broker.create("moving")
    broker.produce(OffsetRange(topic, 0, 0, 25))
    monkeypatch.setattr("gateway.pipelines.archives.exact_read._RETRY_S", 0)
    whole = OffsetRange(topic, 0, 3, 25)
    async with Moving(broker.bootstrap) as client:
        for client.faults in (4, 10):
            fetched = fetch_batches(client, whole, Isolation.read_committed)
            found = [
                read_header(batch) for some in [each async for each in fetched] for batch in some
            ]
            assert found[0].base_offset <= 3
            assert found[-1].base_offset + found[-1].last_offset_delta == 24
        client.faults = 11
        with pytest.raises(JobError, match=r"moving-0: offset 3: offset_out_of_range"):
            await anext(fetch_batches(client, whole, Isolation.read_committed))


def test_an_unreachable_server_is_reported_at_once(rig: Rig):
    away = Rig(rig.spark, "127.0.0.1:1", rig.path)
    with pytest.raises(JobError) as raised:
        away.run("nowhere")
    assert raised.value.code == "UNREACHABLE"


# --- the command ----------------------------------------------------------------------------------


def command(broker: Broker, path: Path, *words: str) -> Result:
    where = ["--to", str(path), "--bootstrap", broker.bootstrap]
    done = CliRunner().invoke(job, ["archive", *words, *where])
    check_output(["job", "archive", *words], done.stdout, done.exit_code)
    return done


@pytest.mark.proof
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
        "skipped": 0,
        "losses": [],
        "set_aside": [],
        "places": [],
        "compacted": {"files_before": 2, "files_after": 1},
    }
    broker.produce(OffsetRange(topic, 0, 8, 9))
    told = command(broker, path, topic, "nowhere", "-o", "json")
    assert told.exit_code == 1
    summary = json.loads(told.stdout)
    assert (summary["offsets"], [each["topic"] for each in summary["set_aside"]]) == (
        1,
        ["nowhere"],
    )
    assert json.loads(told.stderr)["code"] == "UNKNOWN_TOPIC"
    told = command(broker, path, "nowhere", "no-more")
    assert told.exit_code == 1
    assert "Topic no-more is set aside (UNKNOWN_TOPIC)" in told.stdout
    assert "2 topics are set aside: no-more: topic" in told.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "--to"),
        (["--to", "x"], "name a topic, or a --pattern"),
        (["a", "--to", "x", "--accept-loss", "b"], "--accept-loss b: the command names no"),
        (["--to", "x", "--pattern", "a("], "--pattern 'a(': "),
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
