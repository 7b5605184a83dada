"""Goal: Spark and the jobs pass accepted losses as the topic and the query say, never unnoticed.

Method: entries are taken from a real gateway's bookie, in topics with each setting of
gateway.loss.delivery. Offsets 40 to 59 and 90 to 99 are lost; one topic ends there, one has its
copies back, and one has a loss that nobody accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner

from gateway.pipelines.archives.archive_job import ArchiveJob
from gateway.pipelines.archives.archive_model import ArchiveRequest
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.direct import register
from gateway.pipelines.direct.batch import LedgerBatchReader
from gateway.pipelines.direct.losses import LossNotAccepted
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.stream import LedgerStreamReader
from gateway.pipelines.shared.errors import DataLost
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.process.cli import program
from tests.command_output import check_output
from tests.compat.clients.base import ProducerOptions
from tests.peers.gateway import Gateway
from tests.peers.losses import ACCEPTED_AT, Loss, lose
from tests.pipelines.direct_rig import Rig, differences, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

GONE = [range(40, 60), range(90, 100)]
END = 120
MODES = ("skip", "marker", "stop")
READABLE = [at for at in range(END) if not any(at in gone for gone in GONE)]


class World(NamedTuple):
    """The gateway, both sources, and the archive that was made before the records were lost."""

    gateway: Gateway
    rig: Rig
    archive: Path


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    register(spark)
    archive = tmp_path_factory.mktemp("archive") / "before"
    with Gateway(tmp_path_factory.mktemp("lossy") / "data", ("--journal-sync", "never")) as gateway:
        rig = Rig(spark, gateway.bootstrap, gateway.ledgers)
        for topic in (*MODES, "ending", "again", "trimmed", "none"):
            mode = topic if topic in MODES else "skip"
            rig.loader.create_topic(topic, 1, {"gateway.loss.delivery": mode})
            add(rig, topic, range(100))
        archive_job(rig, archive, "skip").run()
        lose(
            gateway,
            [
                Loss(topic, gone[0], gone[-1], topic != "none", topic == "again")
                for topic in (*MODES, "ending", "again", "trimmed", "none")
                for gone in (GONE if topic != "none" else GONE[:1])
            ],
        )
        for topic in (*MODES, "again"):
            add(rig, topic, range(100, END))
        rig.loader.delete_records("trimmed", 50)
        yield World(gateway, rig, archive)
        rig.loader.close()


def add(rig: Rig, topic: str, numbers: range) -> None:
    """Add records, each in a batch of its own."""
    producer = rig.loader.producer(ProducerOptions())
    for number in numbers:
        producer.send(topic, records(number, 1))
        producer.wait()
    producer.close()


def archive_job(rig: Rig, path: Path, topic: str, **wanted: Any) -> ArchiveJob:
    archive = ParquetArchive(rig.spark, str(path))
    return ArchiveJob(rig.spark, archive, rig.bootstrap, ArchiveRequest((topic,), **wanted))


def read_directly(world: World, topic: str, **options: str) -> list[int]:
    """Read in this process, without Spark. Returns the offsets of the rows."""
    given = {"metadata": world.rig.metadata, "path": topic, "sliceBytes": "2000", **options}
    reader = LedgerBatchReader(parse(given))
    rows = [rows for task in reader.partitions() for rows in reader.read(task)]
    return [offset for each in rows for offset in each.column("offset").to_pylist()]


# -- format("ledger") ----------------------------------------------------------------------------


def test_an_accepted_loss_fails_the_read_with_its_place_and_evidence(world: World) -> None:
    with pytest.raises(DataLost) as lost:
        read_directly(world, "skip")
    assert lost.value.code == "DATA_LOST"
    assert lost.value.ranges == (OffsetRange("skip", 0, 40, 60),)
    said = str(lost.value)
    assert said.startswith("skip-0[40..60): DATALOSS, ledger ")
    assert " denied (FULLY_AUTHORITATIVE)" in said
    assert f"accepted by tests at {ACCEPTED_AT[:19]}Z" in said
    assert "failOnDataLoss=false" in said
    with pytest.raises(Exception, match=r"DataLost: skip-0\[40\.\.60\): DATALOSS"):
        world.rig.direct("skip").count()


def test_without_fail_on_data_loss_the_read_goes_on_and_logs_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_directly(world, "skip", failOnDataLoss="false") == READABLE
    said = capsys.readouterr().err
    assert "format(ledger): skipped skip-0[40..60): DATALOSS, ledger " in said
    assert "format(ledger): skipped skip-0[90..100): DATALOSS, ledger " in said
    assert world.rig.direct("skip", failOnDataLoss=False).count() == len(READABLE)


def test_a_loss_at_the_end_of_the_log_is_passed_too(world: World) -> None:
    with pytest.raises(DataLost) as lost:
        read_directly(world, "ending", startingOffsets='{"ending":{"0":60}}')
    assert lost.value.ranges == (OffsetRange("ending", 0, 90, 100),)
    wanted = [at for at in READABLE if at < 90]
    assert read_directly(world, "ending", failOnDataLoss="false") == wanted


def test_copies_that_were_found_again_stay_lost(world: World) -> None:
    assert read_directly(world, "again", failOnDataLoss="false") == READABLE
    assert world.rig.kafka("again").count() == len(READABLE)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_loss_that_nobody_accepted_fails_every_read_with_its_range(
    world: World, fail: str
) -> None:
    with pytest.raises(LossNotAccepted) as lost:
        read_directly(world, "none", failOnDataLoss=fail)
    assert lost.value.code == "DATALOSS"
    assert lost.value.ranges == (OffsetRange("none", 0, 40, 60),)
    said = str(lost.value)
    assert said.startswith("none-0[40..60): DATALOSS, not accepted: ledger ")
    assert " denied (FULLY_AUTHORITATIVE)" in said
    with pytest.raises(Exception, match=r"LossNotAccepted: none-0\[40\.\.60\): DATALOSS"):
        world.rig.direct("none", failOnDataLoss=fail).count()


def test_records_around_a_loss_that_nobody_accepted_are_read(world: World) -> None:
    for first, end in ((0, 40), (60, 100), (75, 80), (99, 100)):
        part = {
            "startingOffsets": f'{{"none":{{"0":{first}}}}}',
            "endingOffsets": f'{{"none":{{"0":{end}}}}}',
        }
        assert read_directly(world, "none", **part) == list(range(first, end))


def test_a_read_from_inside_a_loss_reports_it(world: World) -> None:
    inside = {"startingOffsets": '{"skip":{"0":50}}', "endingOffsets": '{"skip":{"0":55}}'}
    with pytest.raises(DataLost) as lost:
        read_directly(world, "skip", **inside)
    assert lost.value.ranges == (OffsetRange("skip", 0, 40, 60),)
    assert read_directly(world, "skip", failOnDataLoss="false", **inside) == []


def test_the_setting_stop_fails_every_read(world: World) -> None:
    for fail in ("true", "false"):
        with pytest.raises(LossNotAccepted, match=r"stop-0\[40\.\.60\): DATALOSS") as stopped:
            read_directly(world, "stop", failOnDataLoss=fail)
        assert stopped.value.code == "DATALOSS"
        assert "gateway.loss.delivery=stop" in str(stopped.value)


def test_a_marker_is_a_row_that_sql_can_count(world: World) -> None:
    frame = world.rig.direct("marker")
    markers = frame.where("exists(headers, each -> each.key = 'gateway.loss')")
    rows = markers.orderBy("offset").collect()
    assert [(row.offset, row.key, row.value) for row in rows] == [
        (59, None, None),
        (99, None, None),
    ]
    told = json.loads(rows[0].headers[0].value)
    assert (told["type"], told["first"], told["last"]) == ("DATALOSS", 40, 59)
    assert frame.count() == len(READABLE) + 2
    inside = frame.where("offset >= 45 AND offset < 55")
    assert inside.count() == 0


def test_both_sources_have_the_same_markers(world: World) -> None:
    assert differences(world.rig.direct("marker"), world.rig.kafka("marker")) == 0


def test_a_query_can_pass_losses_in_silence_whatever_the_topic_is_set_to(world: World) -> None:
    for topic in MODES:
        assert read_directly(world, topic, acceptedLoss="skip") == READABLE


def test_a_stream_fails_or_goes_on_and_its_triggers_do_not_count_lost_offsets(
    world: World,
) -> None:
    given = {"metadata": world.rig.metadata, "path": "skip", "startingOffsets": "earliest"}
    limited = given | {"maxOffsetsPerTrigger": "30", "failOnDataLoss": "false"}
    reader = LedgerStreamReader(parse(limited, streaming=True))
    ends: list[int] = []
    rows: list[int] = []
    try:
        at = reader.initialOffset()
        while (end := reader.latestOffset()) != at:
            read = [batch for task in reader.partitions(at, end) for batch in reader.read(task)]
            rows += [offset for each in read for offset in each.column("offset").to_pylist()]
            ends.append(end["skip"]["0"])
            at = end
    finally:
        reader.stop()
    assert ends == [30, 80, 120]
    assert rows == READABLE


def test_a_query_of_spark_streams_past_a_loss_and_keeps_its_checkpoint(
    world: World, tmp_path: Path
) -> None:
    def copied(**options: Any) -> int:
        frame = world.rig.spark.readStream.format("ledger").option("metadata", world.rig.metadata)
        frame = frame.options(startingOffsets="earliest", **options).load("skip")
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "files"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
            return sum(each["numInputRows"] for each in query.recentProgress)
        finally:
            query.stop()

    with pytest.raises(Exception, match=r"DataLost: skip-0\[40\.\.60\)"):
        copied()
    assert copied(failOnDataLoss=False) == len(READABLE)
    assert copied() == 0


def test_truncation_up_to_a_loss_is_data_loss_for_both_sources(world: World) -> None:
    """The log starts inside the first loss, of which the rest is reported as such."""
    early = {"startingOffsets": '{"trimmed":{"0":30}}'}
    with pytest.raises(DataLost) as lost:
        read_directly(world, "trimmed", **early)
    assert lost.value.ranges == (OffsetRange("trimmed", 0, 30, 50),)
    assert "DATALOSS" not in str(lost.value)
    wanted = list(range(60, 90))
    assert read_directly(world, "trimmed", failOnDataLoss="false", **early) == wanted
    assert read_directly(world, "trimmed", failOnDataLoss="false") == wanted
    with pytest.raises(Exception, match="Some data may have been lost"):
        world.rig.kafka("trimmed", **early).count()
    found = world.rig.kafka("trimmed", failOnDataLoss=False, **early).select("offset").collect()
    assert sorted(row.offset for row in found) == wanted


# -- Spark's own source ---------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["skip", "ending"])
def test_the_kafka_source_passes_a_loss_in_silence(world: World, topic: str) -> None:
    """Also with failOnDataLoss, its default."""
    end = END if topic == "skip" else 100
    found = world.rig.kafka(topic, failOnDataLoss=True).select("offset").collect()
    assert sorted(row.offset for row in found) == [at for at in READABLE if at < end]


@pytest.mark.parametrize("trigger", [{}, {"availableNow": True}])
def test_the_kafka_source_streams_past_a_loss_in_silence(
    world: World, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    frame = world.rig.spark.readStream.format("kafka").option("subscribe", "skip,ending")
    frame = frame.option("kafka.bootstrap.servers", world.rig.bootstrap)
    frame = frame.options(startingOffsets="earliest", maxOffsetsPerTrigger=45).load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "files"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        if trigger:
            assert query.awaitTermination(120)
        else:
            query.processAllAvailable()
    finally:
        query.stop()
    rows = world.rig.spark.read.schema(frame.schema).parquet(str(tmp_path / "files"))
    assert rows.where("topic = 'skip'").count() == len(READABLE)
    assert rows.where("topic = 'ending'").count() == len([at for at in READABLE if at < 90])
    logs = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    newest = max(logs, key=lambda path: int(path.name))
    ends = json.loads(newest.read_text().splitlines()[-1])
    assert ends == {"skip": {"0": END}, "ending": {"0": 100}}


@pytest.mark.parametrize("topic", [pytest.param("stop", marks=pytest.mark.proof), "none"])
def test_the_kafka_source_runs_into_its_timeout_where_nobody_may_pass(
    world: World, topic: str
) -> None:
    ends = f'{{"{topic}":{{"0":40}}}}'
    assert world.rig.kafka(topic, endingOffsets=ends, failOnDataLoss=False).count() == 40
    hurried = {"kafkaConsumer.pollTimeoutMs": 3000, "failOnDataLoss": False}
    with pytest.raises(Exception, match=r"Cannot fetch record for offset 40"):
        world.rig.kafka(topic, **hurried).count()


# -- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["skip", "marker"])
def test_an_archive_stops_at_a_loss_until_it_is_told_to_record_it(
    world: World, tmp_path: Path, topic: str
) -> None:
    spark, place = world.rig.spark, tmp_path / "archive"
    lost = archive_job(world.rig, place, topic).run().set_aside[topic]
    assert isinstance(lost, DataLost)
    assert lost.ranges == (OffsetRange(topic, 0, 40, 60),)
    assert "20 offsets are lost, and an operator accepted that" in str(lost)
    assert ParquetArchive(spark, str(place)).ranges() == [OffsetRange(topic, 0, 0, 40)]
    report = archive_job(world.rig, place, topic, accept_loss=frozenset({topic})).run()
    assert report.lost == 30
    archive = ParquetArchive(spark, str(place))
    assert archive.ranges() == [
        OffsetRange(topic, 0, 0, 40),
        OffsetRange(topic, 0, 60, 90),
        OffsetRange(topic, 0, 100, END),
    ]
    assert [each.range for each in archive.state().lost] == [
        OffsetRange(topic, 0, 40, 60),
        OffsetRange(topic, 0, 90, 100),
    ]
    assert archive.read().count() == len(READABLE)
    again = archive_job(world.rig, place, topic).run()
    assert (again.commits, again.lost) == (0, 0)


def test_an_archive_of_a_compacted_topic_stops_at_a_loss_too(world: World, tmp_path: Path) -> None:
    report = archive_job(world.rig, tmp_path / "archive", "ending", allow_gaps=True).run()
    assert isinstance(report.set_aside["ending"], DataLost)


def audit(world: World, *words: str) -> tuple[int, dict[str, Any]]:
    server = ["--bootstrap", world.rig.bootstrap, "--metadata", world.rig.metadata]
    done = CliRunner().invoke(program, ["job", "audit", *words, *server, "-o", "json"])
    check_output(["job", "audit", "-o", "json"], done.stdout, done.exit_code)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("left", ["topic:skip", "segments:skip"])
def test_an_audit_counts_accepted_losses_as_accepted(world: World, left: str) -> None:
    code, report = audit(world, left, f"archive:{world.archive}", "--common")
    assert (code, report["verdict"]) == (0, "explained")
    assert report["losses"]["accepted"] == 30
    assert report["losses"]["LOST"] == 0


@pytest.mark.parametrize("topic", ["skip", "marker", "ending"])
def test_an_audit_explains_offsets_that_are_lost_on_both_sides(world: World, topic: str) -> None:
    code, report = audit(world, f"topic:{topic}", f"segments:{topic}")
    assert (code, report["verdict"], report["gaps_unexplained"]) == (0, "equal", 0)
    (partition,) = report["partitions"]
    assert partition["gaps"] == 30
    assert report["records"]["left"] == report["records"]["right"]
