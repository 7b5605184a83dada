"""One Java process for the whole session; a `/ledgers` tree of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.bookkeeper.java import Cluster, Java
from tests.peers.zookeeper import ZooKeeper


@pytest.fixture(scope="session")
def java(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    with Java(zookeeper.servers, tmp_path_factory.mktemp("java") / "interop.log") as started:
        yield started


@pytest.fixture
def cluster(java: Java, zookeeper: ZooKeeper) -> Cluster:
    return Cluster(java, zookeeper)
