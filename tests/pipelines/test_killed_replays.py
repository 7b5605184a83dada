"""Goal: a transactional replay commits each record once, whichever step it is killed at.

Method: replays in processes of their own stand still between two requests of a transaction, and are
killed with their JVM, one after the other on one state. Then another run ends the replay. A stock
consumer of committed records compares the target with the archive, record by record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.replays.model import ReplayReport, ReplayRequest
from gateway.pipelines.replays.plan_store import FilePlans
from gateway.pipelines.replays.replay_job import replay
from gateway.pipelines.shared.partitions import OffsetRange
from tests.peers.gateway import Gateway
from tests.peers.processes import Process, wait_until
from tests.pipelines.archive_contract import commit, frame, row, rows
from tests.pipelines.stopped_replay import Order
from tests.pipelines.transactional_rig import create, transactional_gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

STEPS = ("opened", "written", "positions", "committed")
AT_ONCE = 20
EACH = 2 * AT_ONCE * len(STEPS) + 50
PARTITIONS = 2
SPANS = tuple(OffsetRange("a", each, 0, EACH) for each in range(PARTITIONS))
START_S_MAX = 300.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with transactional_gateway(tmp_path_factory.mktemp("killed-replays")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of topic a."""
    place = str(tmp_path_factory.mktemp("archived") / "archive")
    archive = ParquetArchive(spark, place)
    assert archive.append(frame(spark, rows(*SPANS)), commit(*SPANS), archive.state())
    return place


def target(gateway: Gateway, name: str) -> str:
    return create(gateway, name, PARTITIONS, **{"retention.ms": "-1"})


def run(spark: SparkSession, gateway: Gateway, place: str, to: str, state: Path) -> ReplayReport:
    request = ReplayRequest("a", to, transactional=True)
    plans = FilePlans(spark, str(state))
    archive = ParquetArchive(spark, place)
    return replay(spark, archive, gateway.bootstrap, request, plans, offsets_at_once=AT_ONCE)


def expect_each_record_once(gateway: Gateway, topic: str) -> None:
    """Read what is committed up to the end of the log, and compare it with the archive."""
    settings = {"bootstrap.servers": gateway.bootstrap, "group.id": f"of {topic}"}
    consumer = Consumer(
        {**settings, "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    places = [TopicPartition(topic, each, 0) for each in range(PARTITIONS)]
    consumer.assign(places)
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {p.partition: [] for p in places}
    ended: set[int] = set()

    def at_the_end() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is not None:
            ended.add(message.partition())
        elif message is not None:
            found[message.partition()].append((message.key(), message.value()))
        return len(ended) == PARTITIONS

    try:
        wait_until(at_the_end, "the ends of all partitions", 60)
    finally:
        consumer.close()
    for partition, held in found.items():
        wanted = [row("a", partition, offset) for offset in range(EACH)]
        assert held == [(each.key, each.value) for each in wanted], partition


@pytest.mark.proof
def test_a_replay_by_transactions_is_the_archive(
    spark: SparkSession, gateway: Gateway, place: str, tmp_path: Path
) -> None:
    to = target(gateway, "whole")
    report = run(spark, gateway, place, to, tmp_path / "state")
    assert (report.written, report.records) == (PARTITIONS * EACH, PARTITIONS * EACH)
    expect_each_record_once(gateway, to)
    again = run(spark, gateway, place, to, tmp_path / "state")
    assert (again.written, again.resumed) == (0, True)
    expect_each_record_once(gateway, to)


@pytest.mark.proof
def test_a_replay_that_is_killed_at_every_step_commits_each_record_once(
    spark: SparkSession, gateway: Gateway, place: str, tmp_path: Path
) -> None:
    to = target(gateway, "killed")
    for step in STEPS:
        reached = tmp_path / f"{step}.reached"
        order = Order(
            place,
            str(tmp_path / "state"),
            gateway.bootstrap,
            "a",
            to,
            AT_ONCE,
            step,
            str(reached),
            str(tmp_path / "work"),
        )
        file = tmp_path / "order.json"
        file.write_text(json.dumps(order._asdict()))
        argv = [sys.executable, "-m", "tests.pipelines.stopped_replay", str(file)]
        with Process(argv, tmp_path / f"{step}.log") as process:
            process.wait_for(reached.exists, step, START_S_MAX)
            process.kill()
    report = run(spark, gateway, place, to, tmp_path / "state")
    assert report.resumed
    assert 0 < report.written < PARTITIONS * EACH
    expect_each_record_once(gateway, to)
