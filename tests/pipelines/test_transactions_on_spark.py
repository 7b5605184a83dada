"""Goal: Spark, the archive and the audit see committed records only, and prove every hole.

Method: one gateway with transactions, stock transactional producers, one Spark. A stock consumer
says what is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.pipelines.audits.audit_job import AuditRequest, audit
from gateway.pipelines.audits.model import AuditReport, LossReason
from gateway.pipelines.audits.sources import SourceAccess, open_sides, parse_source
from gateway.pipelines.direct import register
from gateway.pipelines.shared.kafka_source import Isolation
from tests.compat.committed import wait_ended
from tests.peers.gateway import Gateway
from tests.pipelines.archive_rig import Rig
from tests.pipelines.transactional_rig import (
    Writer,
    consumed,
    create,
    plain,
    transactional_gateway,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = Isolation.read_uncommitted


@pytest.fixture(scope="module")
def gateway(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    register(spark)
    with transactional_gateway(tmp_path_factory.mktemp("transactions")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def mixed(gateway: Gateway) -> str:
    """A read-only topic with committed and aborted transactions, and plain records."""
    topic = create(gateway, "mixed", **{"segment.bytes": str(1 << 20)})
    writers = [Writer(gateway, f"mixed-{n}") for n in range(2)]
    for turn in range(6):
        writers[0].begin(topic, [b"first %d" % turn, b"." * 200_000])
        writers[1].begin(topic, [b"second %d %d" % (turn, n) for n in range(3)])
        plain(gateway, topic, [b"plain %d" % turn])
        writers[turn % 2].commit()
        writers[1 - turn % 2].abort()
    wait_ended(gateway.bootstrap, topic, 1)
    return topic


def rows(frame: DataFrame) -> list[tuple[int, bytes]]:
    found = frame.select("offset", "value").orderBy("offset").collect()
    return [(row[0], bytes(row[1])) for row in found]


def source(spark: SparkSession, gateway: Gateway, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", gateway.bootstrap)
    return reader.options(**{**COMMITTED, "subscribe": topic, **options}).load()


COUNT = 3 * 2 + 3 * 3 + 6


def test_both_sources_read_what_is_committed(
    spark: SparkSession, gateway: Gateway, mixed: str
) -> None:
    committed = consumed(gateway, mixed, COUNT)
    assert rows(source(spark, gateway, mixed)) == committed
    direct = spark.read.format("ledger").option("metadata", gateway.ledgers)
    assert rows(direct.options(**COMMITTED, sliceBytes=300_000).load(mixed)) == committed
    assert rows(source(spark, gateway, mixed, minPartitions=5)) == committed


@pytest.mark.parametrize("kind", ["kafka", "ledger"])
def test_a_stream_waits_for_an_open_transaction(
    spark: SparkSession, gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    topic = create(gateway, f"stream-{kind}")
    plain(gateway, topic, [b"before"])
    reader = spark.readStream.format(kind).options(**COMMITTED, startingOffsets="earliest")
    if kind == "kafka":
        reader = reader.options(**{"kafka.bootstrap.servers": gateway.bootstrap})
        frame = reader.option("subscribe", topic).load()
    else:
        frame = reader.option("metadata", gateway.ledgers).load(topic)
    name = f"rows_{kind}"
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        aborts, commits = (Writer(gateway, f"{topic}-{n}") for n in range(2))
        aborts.begin(topic, [b"aborted"])
        commits.begin(topic, [b"committed"])
        plain(gateway, topic, [b"behind"])
        query.processAllAvailable()
        assert rows(spark.table(name)) == [(0, b"before")]
        aborts.abort()
        query.processAllAvailable()
        assert rows(spark.table(name)) == [(0, b"before")]
        commits.commit()
        wait_ended(gateway.bootstrap, topic, 1)
        query.processAllAvailable()
        assert rows(spark.table(name)) == consumed(gateway, topic, 3)
    finally:
        query.stop()


def audited(
    spark: SparkSession, gateway: Gateway, left: str, right: str, **wanted: Any
) -> AuditReport:
    isolation = wanted.pop("isolation", Isolation.read_committed)
    access = SourceAccess(gateway.bootstrap, gateway.ledgers, isolation)
    sides = open_sides(spark, parse_source(left), parse_source(right), access, access)
    return audit(spark, *sides, AuditRequest(**wanted))


def test_an_archive_holds_what_is_committed_and_the_holes_are_proved(
    spark: SparkSession, gateway: Gateway, mixed: str, tmp_path: Path
) -> None:
    committed = consumed(gateway, mixed, COUNT)
    rig = Rig(spark, gateway.bootstrap, tmp_path / "archive")
    rig.run(mixed, offsets_per_round_max=25)  # rounds begin and end within transactions
    held = spark.read.parquet(str(rig.path / f"topic={mixed}"))
    assert rows(held) == committed
    place = f"archive:{rig.path}"
    for one, other in (
        (f"topic:{mixed}", place),
        (f"segments:{mixed}", place),
        (f"topic:{mixed}", f"segments:{mixed}"),
    ):
        report = audited(spark, gateway, one, other)
        assert report.verdict == "equal", (one, other, report)
        assert sum(each.gaps for each in report.partitions) > COUNT // 2
        assert sum(each.unexplained_gaps for each in report.partitions) == 0
    access = SourceAccess(gateway.bootstrap, gateway.ledgers)
    left, right = open_sides(
        spark, parse_source(f"topic:{mixed}"), parse_source(place), access, access
    )
    blind = audit(spark, replace(left, holes=None), right, AuditRequest())
    assert blind.verdict == "differs", "without the lists, a hole is a difference"


def test_an_archive_of_everything_has_aborted_records_that_the_audit_explains(
    spark: SparkSession, gateway: Gateway, mixed: str, tmp_path: Path
) -> None:
    rig = Rig(spark, gateway.bootstrap, tmp_path / "archive")
    rig.run(mixed, isolation=UNCOMMITTED)
    report = audited(spark, gateway, f"topic:{mixed}", f"archive:{rig.path}")
    assert report.losses[LossReason.aborted] == 6 * (2 + 3) - (COUNT - 6)
    assert report.verdict == "explained"
    again = audited(spark, gateway, f"topic:{mixed}", f"archive:{rig.path}", isolation=UNCOMMITTED)
    assert again.verdict == "equal"


def test_an_archive_ends_before_an_open_transaction(
    spark: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    topic = create(gateway, "archived-open")
    plain(gateway, topic, [b"before"])
    writer = Writer(gateway, "archived-open").begin(topic, [b"open"])
    plain(gateway, topic, [b"behind"])
    rig = Rig(spark, gateway.bootstrap, tmp_path / "archive")
    rig.run(topic)
    held = str(rig.path / f"topic={topic}")
    assert rows(spark.read.parquet(held)) == [(0, b"before")]
    writer.abort()
    wait_ended(gateway.bootstrap, topic, 1)
    rig.run(topic)
    assert rows(spark.read.parquet(held)) == [(0, b"before"), (2, b"behind")]
    (held_range,) = rig.ranges()
    assert (held_range.start, held_range.end) == (0, 4)
