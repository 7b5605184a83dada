"""Goal: stock clients pass the offsets that a forced close reserved, more than one batch can cover.

Method: a real gateway with reserved offsets between two runs of records, read by every client.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from ledger.core.accepted_losses import RESERVED_OFFSETS
from tests.compat.clients.base import Client
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.clients.with_confluent import Confluent
from tests.compat.clients.with_kafka_python import KafkaPython
from tests.compat.conftest import AT_ONCE
from tests.compat.test_accepted_loss import KCAT_S_MAX, send
from tests.gateway.admin_commands import invoke
from tests.peers import install, java_tools
from tests.peers.gateway import Gateway
from tests.peers.losses import reserve

pytestmark = [pytest.mark.compat, pytest.mark.proof]

TOPIC = "t"
OFFSETS = [0, 1, 2, 3 + RESERVED_OFFSETS, 4 + RESERVED_OFFSETS]


@pytest.fixture(scope="module", params=["skip", "marker"])
def jumped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, list[int]]]:
    """A gateway, and the offsets that its consumers receive."""
    with Gateway(tmp_path_factory.mktemp("jumped") / "data", AT_ONCE) as gateway:
        setting = f"gateway.loss.delivery={request.param}"
        words = ("topic", "create", TOPIC, "-c", setting)
        assert invoke(*words, bootstrap=gateway.bootstrap)[0] == 0
        send(gateway, TOPIC, range(3))
        reserve(gateway, TOPIC)
        send(gateway, TOPIC, range(2))
        marker = [2 + RESERVED_OFFSETS] if request.param == "marker" else []
        yield gateway, sorted([*OFFSETS, *marker])


@pytest.mark.parametrize("connect", [Aiokafka, Confluent, KafkaPython])
def test_clients_of_python_pass_reserved_offsets(
    jumped: tuple[Gateway, list[int]], connect: Callable[[str], Client]
):
    gateway, offsets = jumped
    client = connect(gateway.bootstrap)
    assert [each.offset for each in client.read(TOPIC, 0, len(offsets))] == offsets
    inside = client.read(TOPIC, 3 + RESERVED_OFFSETS // 2, 2)
    assert [each.offset for each in inside] == [at for at in offsets if at > 2][:2]
    assert client.bounds(TOPIC) == (0, OFFSETS[-1] + 1)
    client.close()


def test_the_java_consumer_passes_reserved_offsets(jumped: tuple[Gateway, list[int]]):
    gateway, offsets = jumped
    printed = java_tools.run(
        java_tools.CONSOLE_CONSUMER,
        *("--bootstrap-server", gateway.bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--max-messages", str(len(offsets)), "--formatter-property", "print.offset=true"),
    )
    rows = [line.split("\t")[0] for line in printed.splitlines() if "Offset:" in line]
    assert [int(row.removeprefix("Offset:")) for row in rows] == offsets


def test_kcat_passes_reserved_offsets(jumped: tuple[Gateway, list[int]]):
    gateway, offsets = jumped
    words = ("-C", "-e", "-q", "-p", "0", "-o", "beginning", "-f", "%o\n", "-t", TOPIC)
    done = subprocess.run(
        [install.kcat(), "-b", gateway.bootstrap, "-m", "60", *words],
        capture_output=True,
        timeout=KCAT_S_MAX,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert [int(line) for line in done.stdout.split()] == offsets
