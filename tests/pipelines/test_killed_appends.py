"""Goal: whichever step the driver dies at, by kill -9, the store ends with each record once.

Method: an append in a process of its own stands still at a step, on the S3 server or in the REST
catalog, and is killed with its JVM. Then another job continues; pyarrow or PyIceberg counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyiceberg.catalog import load_catalog

from gateway.pipelines.archives.iceberg import IcebergArchive
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import Archive
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from tests.peers.iceberg_rest import IcebergRest
from tests.peers.processes import Process
from tests.peers.s3 import S3Server
from tests.pipelines.archive_contract import commit, frame, read, rows
from tests.pipelines.stopped_append import Order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]
HERE = TopicPartition("a", 0)
START_S_MAX = 300.0
PARQUET_STEPS = ("staged", "checked", "committed", "moved one", "finished")
ICEBERG_STEPS = ("branch", "write", "check", "publish")


def span(start: int, end: int) -> OffsetRange:
    return OffsetRange(*HERE, start, end)


def put(spark: SparkSession, archive: Archive, wanted: OffsetRange) -> bool:
    return archive.append(frame(spark, rows(wanted)), commit(wanted), archive.state())


def killed(order: Order, work: Path) -> None:
    """Let a process append, and kill it with its JVM at the step of the order."""
    file = work / "order.json"
    file.write_text(json.dumps(order._asdict()))
    argv = [sys.executable, "-m", "tests.pipelines.stopped_append", str(file)]
    with Process(argv, work / "append.log") as process:
        process.wait_for(Path(order.reached).exists, order.step, START_S_MAX)
        process.kill()


@pytest.mark.parametrize("step", PARQUET_STEPS)
def test_on_s3(spark: SparkSession, s3: S3Server, tmp_path: Path, step: str):
    name = f"killed-{uuid4().hex}"
    place = s3.path(name)
    assert put(spark, ParquetArchive(spark, place), span(0, 4))
    order = Order(
        *("parquet", place, 4, 14, step, str(tmp_path / "reached"), str(tmp_path / "work")),
        hadoop=s3.hadoop(),
        spark={},
    )
    killed(order, tmp_path)
    again = ParquetArchive(spark, place)
    committed = step not in ("staged", "checked")
    assert again.state().ends == {HERE: 14 if committed else 4}
    if not committed:
        assert put(spark, again, span(4, 14))
    assert put(spark, again, span(14, 16))
    assert read(again) == rows(span(0, 16))
    # Each object of the bucket is a file of the server's directory.
    files = {str(each.relative_to(s3.local(name))) for each in s3.local(name).rglob("*.parquet")}
    archived = {file.path for file in again.files()}
    assert archived == {each for each in files if each.startswith("topic=")}


@pytest.mark.parametrize("step", ICEBERG_STEPS)
def test_in_the_rest_catalog(
    spark: SparkSession, iceberg_rest: IcebergRest, tmp_path: Path, step: str
):
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", **iceberg_rest.settings()}
    conf = {f"spark.sql.catalog.killed{key}": value for key, value in settings.items()}
    for key, value in conf.items():
        spark.conf.set(key, value)
    table = f"archives.k{uuid4().hex}"
    assert put(spark, IcebergArchive(spark, f"killed.{table}"), span(0, 4))
    reached, work = str(tmp_path / "reached"), str(tmp_path / "work")
    order = Order("iceberg", f"killed.{table}", 4, 14, step, reached, work, {}, conf)
    killed(order, tmp_path)
    again = IcebergArchive(spark, f"killed.{table}")
    assert again.state().ends == {HERE: 4}
    assert put(spark, again, span(4, 16))
    assert read(again) == rows(span(0, 16))
    found = load_catalog("judge", type="rest", uri=iceberg_rest.uri).load_table(table)
    assert found.scan().to_arrow().num_rows == 16
