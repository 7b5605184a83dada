"""Goal: `gateway job audit` compares a topic, its segments, its archive and its copies.

Method: one gateway with a ledger port, and the command line in the Spark of the tests. Records are
added, deleted and changed; the JSON and the exit code are checked.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from gateway.pipelines.audits.audit_job import AuditRequest, audit
from gateway.pipelines.audits.counting import rename_topic
from gateway.pipelines.audits.model import Side
from gateway.pipelines.audits.sources import AuditSource, SourceAccess, open_sides
from gateway.pipelines.job import run_job
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from gateway.process.cli import program
from gateway.wire.client_link import AdminError
from ledger.command_line.output import Format
from ledger.errors import MetadataUnavailable
from tests.command_output import check_output
from tests.compat.clients.base import ProducerOptions, Record
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.peers.gateway import Gateway
from tests.peers.processes import ports_in_a_row, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

START_MS = 1_760_000_000_000
COUNT = 300
KEPT = {"retention.ms": "-1"}


def records(count: int = COUNT) -> list[Record]:
    """Make records with nulls, headers, and timestamps that decrease every hundred records."""
    return [
        Record(
            None if n % 7 == 0 else b"key %d" % n,
            None if n % 11 == 0 and n % 7 else b"value %d" % n,
            (("n", b"%d" % n), ("empty", None)) if n % 3 == 0 else (),
            START_MS + 10 * n - (50 if n % 100 == 99 else 0),
        )
        for n in range(count)
    ]


class Rig:
    """A gateway, its topics, and the command line."""

    def __init__(self, gateway: Gateway, metadata: str, work: Path) -> None:
        self.gateway, self.metadata, self.work = gateway, metadata, work
        self.loader = Aiokafka(gateway.bootstrap)

    def topic(self, name: str, *parts: list[Record]) -> None:
        self.loader.create_topic(name, len(parts), KEPT)
        for partition, part in enumerate(parts):
            self.append(name, part, partition)

    def append(self, name: str, part: list[Record], partition: int = 0) -> None:
        producer = self.loader.producer(ProducerOptions(codec="zstd", idempotent=True))
        producer.send(name, part, partition)
        producer.wait()
        producer.close()

    def job(self, name: str, *words: str) -> tuple[int, str, str]:
        server = ["--bootstrap", self.gateway.bootstrap]
        done = CliRunner().invoke(program, ["job", name, *words, *server])
        check_output(["job", name, *words], done.stdout, done.exit_code)
        return done.exit_code, done.stdout, done.stderr

    def audit(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, said, error = self.job("audit", *words, "-o", "json")
        assert said, error
        return code, json.loads(said)


@pytest.fixture(scope="module")
def rig(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    assert spark.getActiveSession() is not None, "the jobs take the session of the tests"
    work = tmp_path_factory.mktemp("audit")
    (port,) = ports_in_a_row(1)
    options = ("--ledger-port", str(port), "--journal-sync", "never")
    with Gateway(work / "data", options) as gateway:
        rig = Rig(gateway, f"grpc://127.0.0.1:{port}", work)
        rig.topic("source", records(), records(50))
        yield rig
        rig.loader.close()


def test_a_topic_and_its_segments_are_equal(rig: Rig) -> None:
    code, told = rig.audit("topic:source", "segments:source", "--metadata", rig.metadata)
    assert (code, told["verdict"], told["differences"]) == (0, "equal", 0)
    assert told["records"] == {"left": COUNT + 50, "right": COUNT + 50}
    first, second = told["partitions"]
    assert first["left"] == first["right"] and first["left"]["checksum"] != "0"
    assert (first["left"]["back"], second["left"]["back"]) == (3, 0)


def test_an_archive_still_has_records_deleted_from_its_topic(rig: Rig) -> None:
    place = str(rig.work / "archive")
    rig.topic("cut", records())
    code, _, error = rig.job("archive", "cut", "--to", place)
    assert code == 0, error
    words = ["topic", "truncate", "cut", "--to", "40", "--yes"]
    done = CliRunner().invoke(program, [*words, "--bootstrap", rig.gateway.bootstrap])
    assert done.exit_code == 0
    code, said, _ = rig.job("audit", "topic:cut", f"archive:{place}")
    assert code == 0
    assert "truncated" in said and "0..39" in said
    assert (
        "No difference; all missing records could be removed legitimately. Records: 40 truncated."
        in said
    )
    code, told = rig.audit("topic:cut", f"archive:{place}", "--strict")
    assert (code, told["differences"], told["losses"]["truncated"]) == (3, 40, 40)


def test_an_archive_is_behind_its_topic_and_a_topic_is_not_behind_its_archive(rig: Rig) -> None:
    place = str(rig.work / "behind")
    rig.topic("behind", records(30))
    code, _, error = rig.job("archive", "behind", "--to", place)
    assert code == 0, error
    rig.append("behind", records(5))
    code, told = rig.audit("topic:behind", f"archive:{place}")
    assert (code, told["verdict"], told["later"]) == (0, "equal", {"left": 5, "right": 0})
    assert told["records"] == {"left": 30, "right": 30}


def test_an_archive_alone_is_compared_with_its_own_log(rig: Rig) -> None:
    """A value is changed, or a row dropped; the same archive compared with its copy is equal."""
    place = rig.work / "money"
    rig.topic("money", records(50))
    code, _, error = rig.job("archive", "money", "--to", str(place))
    assert code == 0, error
    code, told = rig.audit(f"archive:{place}")
    assert (code, told["verdict"], told["records"], told["problems"]) == (0, "equal", 50, [])
    (path,) = place.rglob("*.parquet")
    sound = path.read_bytes()
    table = pyarrow.parquet.read_table(path)
    values = table.column("value").to_pylist()
    changed = [b"value 9" if each == b"value 8" else each for each in values]
    at = table.schema.get_field_index("value")
    kind = table.schema.field(at)
    for damaged in (
        table.set_column(at, kind, pyarrow.array(changed, kind.type)),
        pyarrow.concat_tables([table.slice(0, 20), table.slice(21)]),
    ):
        pyarrow.parquet.write_table(damaged, path, coerce_timestamps="us")
        for each in path.parent.glob(".*.crc"):
            each.unlink()
        code, told = rig.audit(f"archive:{place}#money")
        assert (code, told["verdict"]) == (3, "differs") and told["differences"] >= 1
        assert path.name in told["problems"][0]["where"]
        code, said, _ = rig.job("audit", f"archive:{place}")
        assert code == 3 and path.name in said and "DIFFERENT: the archive is damaged" in said
    path.write_bytes(sound)
    assert rig.audit(f"archive:{place}")[0] == 0


def test_a_topic_that_is_written_meanwhile_equals_its_segments(rig: Rig) -> None:
    rig.topic("written", records(100))
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            rig.append("written", records(20))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for words in (("topic:written", "segments:written"), ("segments:written", "topic:written")):
            code, told = rig.audit(*words, "--metadata", rig.metadata)
            assert (code, told["verdict"]) == (0, "equal"), told
            assert told["records"]["left"] == told["records"]["right"] > 100
    finally:
        ended.set()
        writing.join()


def test_one_look_after_another_leaves_no_traceback(
    spark: SparkSession, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look runs in a loop of its own, and gRPC completes calls of loops that have ended."""
    _, segments = twice(spark, rig, AuditSource("segments", "source", None))
    for _ in range(20):
        assert segments.now() == segments.bounds
    assert [each for each in caplog.records if each.name == "asyncio"] == []


def test_an_error_of_the_storage_is_one_line(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_: SparkSession) -> None:
        raise MetadataUnavailable("no quorum")

    with pytest.raises(click.exceptions.Exit) as ended:
        run_job("audit", "", (), Format.table, work)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "gateway: MetadataUnavailable: no quorum\n"


@pytest.mark.parametrize("error_type", [AdminError, JobError])
@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("SASL_AUTHENTICATION_FAILED", 77),
        ("TOPIC_AUTHORIZATION_FAILED", 77),
        ("UNKNOWN_TOPIC_OR_PARTITION", 1),
    ],
)
def test_a_login_or_a_right_that_is_refused_has_its_own_exit_code(
    spark: SparkSession, error_type: type[AdminError | JobError], code: str, exit_code: int
) -> None:
    def work(_: SparkSession) -> None:
        raise error_type("not so", code)

    with pytest.raises(click.exceptions.Exit) as ended:
        run_job("audit", "", (), Format.table, work)
    assert ended.value.exit_code == exit_code


def test_kafka_client_properties_and_tls_reach_the_driver_and_the_tasks(rig: Rig) -> None:
    """A client that asks for TLS finds none here, and says so in one line, as any client does."""
    client = ["--option", "kafka.client.id=auditor", "--option", "kafka.request.timeout.ms=20000"]
    words = ["topic:source", "segments:source", "--metadata", rig.metadata]
    code, told = rig.audit(*words, *client)
    assert (code, told["verdict"], told["records"]["left"]) == (0, "equal", COUNT + 50)
    tls = ["kafka.security.protocol=SSL", "kafka.default.api.timeout.ms=4000"]
    tls += ["kafka.request.timeout.ms=3000"]
    for wrong, fix in (
        ([f"--option={each}" for each in tls], "Kafka at 127.0.0.1"),
        ([f"--right-option={each}" for each in ("tls.ca=/a", "tls.key=/b")], "tls.certificate"),
        (["--option", "kafka.security.protocol=NONSENSE"], "security.protocol"),
        (["--option", "kafka.bootstrap.servers=x"], "must be one of"),
        (["--option", "fetch"], "must be key=value"),
    ):
        code, said, error = rig.job("audit", *words, *wrong)
        assert code in (1, 2, 69) and said == "" and error.count("\n") == 1, error
        assert fix in error


def test_an_archived_topic_without_records_is_not_mistaken_for_another(rig: Rig) -> None:
    place = str(rig.work / "two")
    rig.topic("some", records(3))
    rig.loader.create_topic("none", 1, KEPT)
    code, _, error = rig.job("archive", "some", "none", "--to", place)
    assert code == 0, error
    code, told = rig.audit("topic:none", f"archive:{place}")
    assert (code, told["verdict"], told["records"]) == (0, "equal", {"left": 0, "right": 0})


def test_a_copy_that_lacks_a_record_and_changed_one_ends_with_3(rig: Rig) -> None:
    whole = records(30)
    worse = [*whole[:4], whole[4]._replace(value=b"other"), *whole[5:-1]]
    rig.topic("whole", whole)
    rig.topic("worse", worse)
    code, told = rig.audit("topic:whole", "topic:worse", "--align", "rank")
    assert (code, told["verdict"], told["differences"]) == (3, "differs", 2)
    assert (told["losses"]["LOST"], told["differ"]) == (1, 1)
    assert [each["what"] for each in told["examples"]] == [["value"], ["missing on the right"]]


def twice(spark: SparkSession, rig: Rig, source: AuditSource) -> tuple[Side, Side]:
    """Open both sides of an audit without reading them."""
    access = SourceAccess(rig.gateway.bootstrap, rig.metadata)
    return open_sides(spark, source, source, access, access)


@pytest.mark.parametrize("kind", ["topic", "segments"])
def test_a_topic_recreated_during_an_audit_gets_no_verdict(
    spark: SparkSession, rig: Rig, kind: str
) -> None:
    name = f"anew-{kind}"
    rig.topic(name, records(20))
    sides = twice(spark, rig, AuditSource(kind, name, None))
    rig.loader.delete_topic(name)
    wait_until(lambda: name not in rig.loader.topics(), "the topic to go")
    rig.topic(name, records(20))
    wait_until(lambda: rig.loader.bounds(name, 0)[1] == 20, "its records to be there")
    with pytest.raises(JobError, match="deleted and recreated while it was read") as refused:
        audit(spark, *sides, AuditRequest())
    assert refused.value.code == "TOPIC_MADE_ANEW"


@pytest.mark.parametrize("kind", ["topic", "segments"])
def test_records_deleted_during_an_audit_are_neither_lost_nor_equal(
    spark: SparkSession, rig: Rig, kind: str
) -> None:
    name = f"moves-{kind}"
    rig.topic(name, records(20))
    sides = twice(spark, rig, AuditSource(kind, name, None))
    rig.loader.delete_records(name, 5)
    with pytest.raises(Exception, match=r"(?i)data.?lo(ss|st)"):
        audit(spark, *sides, AuditRequest())


def test_records_missing_in_segments_are_never_compacted(spark: SparkSession, rig: Rig) -> None:
    rig.loader.create_topic("tidy", 1, {"cleanup.policy": "compact"})
    access = SourceAccess(rig.gateway.bootstrap, rig.metadata)
    sides = open_sides(
        spark,
        AuditSource("topic", "tidy", None),
        AuditSource("segments", "tidy", None),
        access,
        access,
    )
    assert [side.rules["tidy"].compact for side in sides] == [True, False]


def test_a_side_returns_the_current_bounds_of_its_topic(spark: SparkSession, rig: Rig) -> None:
    """Under the name that it has in the audit."""
    rig.topic("grows", records(3))
    access = SourceAccess(rig.gateway.bootstrap)
    source = AuditSource("topic", "grows", None)
    side = rename_topic(open_sides(spark, source, source, access, access)[1], "as-this")
    rig.loader.delete_records("grows", 1)
    producer = rig.loader.producer(ProducerOptions())
    producer.send("grows", records(2), 0)
    producer.wait()
    producer.close()
    place = TopicPartition("as-this", 0)
    assert (side.bounds, side.now()) == ({place: OffsetBounds(0, 3)}, {place: OffsetBounds(1, 5)})


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        (["topic:x", "kafka:x"], 2, "topic:NAME"),
        (["topic:source", "topic:nowhere"], 1, "'nowhere' does not exist"),
        (["topic:source", "segments:source"], 2, "--metadata"),
        (["topic:source", "topic:source", "--left-offsets", "{}"], 2, '{"topic":{"0":[0,100]}}'),
        (["topic:source", "archive:/nowhere/at/all"], 1, "the archive is empty"),
        (["archive:/nowhere/at/all"], 1, "the archive is empty"),
        (["topic:source"], 2, "only an archive is audited alone"),
    ],
)
def test_sources_that_cannot_be_compared_are_one_line_with_the_remedy(
    rig: Rig, words: list[str], code: int, fix: str
) -> None:
    found, said, error = rig.job("audit", *words)
    assert (found, said, error.count("\n")) == (code, "", 1)
    assert fix in error
