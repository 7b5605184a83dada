"""Goal: a replay survives a store that is away for a while, and gives up after its timeout.

Method: an archive whose reads and checks fail at given calls, in Spark's tasks or on the driver,
as those of a store that is away; the others are real. librdkafka compares the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import Archive, ArchiveProof
from gateway.pipelines.replays.model import ReplayRequest
from gateway.pipelines.replays.plan_store import FilePlans
from gateway.pipelines.replays.replay_job import ReplayWatcher
from gateway.pipelines.replays.replay_job import replay as run_replay
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange
from tests.peers.gateway import Gateway
from tests.pipelines.archive_rig import Broker, Rig, record
from tests.pipelines.test_archive_parquet import HandClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

COUNT = 40
AT_ONCE = 15
"""Offsets of a chunk: a replay has three."""
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Gateway(tmp_path_factory.mktemp("retries") / "data") as gateway:
        admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
        started = Broker(gateway, admin)
        started.create("source", **{"retention.ms": "-1"})
        started.produce(OffsetRange("source", 0, 0, COUNT))
        yield started


@pytest.fixture(scope="module")
def archive(
    spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> ParquetArchive:
    path = tmp_path_factory.mktemp("archived")
    Rig(spark, broker.bootstrap, path).run("source")
    return ParquetArchive(spark, str(path))


class Away:
    """An archive in a store that is away at these calls of `verify` and `read`, counted from 1."""

    def __init__(self, archive: Archive, calls: range) -> None:
        self._archive = archive
        self._away = calls
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def _is_away(self) -> bool:
        self._calls += 1
        return self._calls in self._away

    def verify(self, topics: Sequence[str], within: Sequence[OffsetRange]) -> ArchiveProof:
        if self._is_away():
            raise JobError("s3a://bucket: connection refused", "FILE_SYSTEM")
        return self._archive.verify(topics, within)

    def read(self, topics: Sequence[str], within: Sequence[OffsetRange]) -> Any:
        records = self._archive.read(topics, within)
        # Spark evaluates this in its tasks.
        return records.where("raise_error('refused') IS NULL") if self._is_away() else records


class Watched(ReplayWatcher):
    """The codes of the retried errors. Each retry takes `wait_s` seconds on `clock`."""

    def __init__(self, clock: HandClock, wait_s: float = 0.0) -> None:
        self.codes: list[str] = []
        self._clock = clock
        self._wait_s = wait_s

    def on_retry(self, error: JobError, wait_s: float) -> None:
        self.codes.append(error.code)
        self._clock.ms += int(self._wait_s * 1000)


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge"})
    place = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=60)
    consumer.assign([place])
    found = []
    while len(found) < end:
        found += consumer.consume(end - len(found), 10.0)
    consumer.close()
    assert [one.offset() for one in found] == list(range(end))
    return [one.value() for one in found]


ORIGINALS = [record("source", 0, offset).value for offset in range(COUNT)]


@pytest.mark.parametrize(
    ("calls", "codes"),
    [
        pytest.param(
            range(1, 3),
            ["FILE_SYSTEM"] * 2,
            id="while-the-archive-is-proved",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            range(2, 3),
            ["SPARK_FAILED"],
            id="while-the-records-are-measured",
            marks=pytest.mark.proof,
        ),
        pytest.param(range(4, 7), ["SPARK_FAILED"] * 3, id="after-a-chunk"),
    ],
)
def test_a_replay_continues_when_the_store_is_back(
    spark: SparkSession,
    broker: Broker,
    archive: ParquetArchive,
    tmp_path: Path,
    calls: range,
    codes: list[str],
):
    target = f"target-{calls.start}"
    watched = Watched(HandClock())
    report = run_replay(
        spark,
        Away(archive, calls),
        broker.bootstrap,
        ReplayRequest("source", target, create=True, stall_s_max=TIMEOUT_S),
        FilePlans(spark, str(tmp_path)),
        watcher=watched,
        offsets_at_once=AT_ONCE,
    )
    assert watched.codes == codes
    assert (report.records, report.written, report.resumed) == (COUNT, COUNT, False)
    assert [each.written for each in report.partitions] == [COUNT]
    assert values(broker.bootstrap, target) == ORIGINALS


def test_a_replay_gives_up_when_the_store_stays_away(
    spark: SparkSession, broker: Broker, archive: ParquetArchive, tmp_path: Path
):
    """Each failure takes 40 s: after 60 s without progress, the third one is not retried."""
    clock = HandClock()
    watched = Watched(clock, wait_s=40.0)
    with pytest.raises(JobError, match="refused") as caught:
        run_replay(
            spark,
            Away(archive, range(4, 1000)),
            broker.bootstrap,
            ReplayRequest("source", "given-up", create=True, stall_s_max=TIMEOUT_S),
            FilePlans(spark, str(tmp_path)),
            watcher=watched,
            clock=clock,
            offsets_at_once=AT_ONCE,
        )
    assert caught.value.code == "SPARK_FAILED"
    assert watched.codes == ["SPARK_FAILED"] * 2
    assert values(broker.bootstrap, "given-up") == ORIGINALS[:AT_ONCE]
