"""Servers that many tests share: started at the first use, one per test session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from ledger.tasks import ends_by
from tests.ledger.transports import on_transport
from tests.peers.iceberg_rest import IcebergRest
from tests.peers.s3 import S3Server
from tests.peers.spark import reach
from tests.peers.zookeeper import ZooKeeper

pytest_plugins = (
    "pytester",
    "tests.async_tests",
    "tests.drawn",
    "tests.marks",
    "tests.schedule",
    "tests.standstill",
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The profiles of the person who runs the tests are none of their business.
os.environ["GATEWAY_PROFILE"] = "none"

# Without a bound on the time of one example, which a busy machine may keep waiting for seconds.
settings.register_profile("unhurried", settings.default, deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def no_process_ends() -> Iterator[None]:
    """Fail the test where a server would end its process; a test that wants it says `ends_by`."""
    ended: list[str] = []
    with ends_by(lambda name, error: ended.append(f"{name}: {error!r}")):
        yield
    assert not ended, f"the process would have ended: {ended}"


@pytest.fixture(params=["tcp", "grpc"])
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """The transport between clients and bookies, for tests that hold over each of them."""
    with on_transport(request.param) as name:
        yield name


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A ZooKeeper for tests that leave it alone: `zookeeper.unused_chroot()` is theirs.

    Whoever stops, kills or pauses it starts a `ZooKeeper(tmp_path / "zookeeper")` of their own.
    """
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper") / "data") as started:
        yield started


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests, with its Kafka connector and an Iceberg catalog called `lake`."""
    from tests.peers.spark import new_session

    session = new_session("tests", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for all tests that leave it alone; the shared Spark reaches its bucket."""
    with S3Server(tmp_path_factory.mktemp("s3") / "data") as server:
        reach(spark, server.hadoop())
        yield server


@pytest.fixture(scope="session")
def iceberg_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    """One REST catalog for all tests that leave it alone."""
    with IcebergRest(tmp_path_factory.mktemp("rest") / "data") as server:
        yield server
