"""Brokers for the compatibility tests: one per session and mode, all real processes.

COMPAT_TARGET=gateway (default) or kafka says who is asked; Apache Kafka is also the oracle of the
differential tests, so the same tests prove themselves against it first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.clients.base import Client
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka

pytest.register_assert_rewrite("tests.compat.clients.suite")
TARGET = os.environ.get("COMPAT_TARGET", "gateway")
AT_ONCE = ("--group-initial-rebalance-delay-ms", "0")  # as the oracle: groups do not wait
MODES = {
    "synced": AT_ONCE,
    "three-bookies": (*AT_ONCE, "--bookies", "3"),
    "unsynced": (*AT_ONCE, "--journal-sync", "never"),
}


def new_broker(data: Path, mode: str = "synced") -> Broker:
    """Return a broker of the kind under test, not started."""
    assert TARGET in ("gateway", "kafka"), TARGET
    return ApacheKafka(data) if TARGET == "kafka" else Gateway(data, MODES[mode])


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker under test as users start it."""
    with new_broker(tmp_path_factory.mktemp("broker") / "data") as started:
        yield started


@pytest.fixture(scope="session", params=["three-bookies", "unsynced"])
def other_mode(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The same broker in its other modes (Apache Kafka has but one)."""
    data = tmp_path_factory.mktemp(request.param) / "data"
    with new_broker(data, request.param) as started:
        yield started


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Apache Kafka itself, whatever the target."""
    with ApacheKafka(tmp_path_factory.mktemp("oracle") / "data") as started:
        yield started


@pytest.fixture(scope="class")
def client(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Client]:
    """The client of the test class, connected to the broker under test."""
    client = request.cls.connect(broker.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="class")
def on_oracle(request: pytest.FixtureRequest, oracle: Broker) -> Iterator[Client]:
    """The same client, connected to Apache Kafka."""
    client = request.cls.connect(oracle.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="session")
def loader(broker: Broker) -> Iterator[Aiokafka]:
    """The aiokafka client on the broker under test: it alone can send a batch made by hand."""
    client = Aiokafka(broker.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="session")
def oracle_loader(oracle: Broker) -> Iterator[Aiokafka]:
    """The same on Apache Kafka."""
    client = Aiokafka(oracle.bootstrap)
    yield client
    client.close()


_numbers = itertools.count(1)


@pytest.fixture
def unused(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Return a maker of topic and group names that nobody has used."""
    place = request.node.name.split("[")[0].removeprefix("test_")[:40]

    def name() -> str:
        return f"{place}-{next(_numbers)}"

    return name
