"""Goal: a consumer that is blocked by a lost entry goes on as soon as the loss is accepted, without
a restart of anything.

Method: ZooKeeper, three bookies and a gateway as real processes; all three copies of some entries
are deleted from disk, and `topic accept-loss` runs while a stock consumer waits.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.compat.clients.base import Stored
from tests.compat.clients.with_confluent import Confluent
from tests.compat.test_accepted_loss import blocked, consume, send
from tests.gateway.admin_commands import run
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.losses import Loss, entries_of, forget
from tests.peers.processes import wait_until
from tests.peers.zookeeper import ZooKeeper

pytestmark = [pytest.mark.compat, pytest.mark.proof]

TOPIC, GROUP = "t", "readers"
WAIT_S_MAX = 60.0


def command(gateway: ClusterGateway, *words: str) -> str:
    code, printed, errors = run(*words, bootstrap=gateway.bootstrap)
    assert code == 0, errors
    return printed


def lose(place: str, gateway: ClusterGateway, bookies: list[BookieProcess], loss: Loss) -> None:
    """Delete all copies of the entries, while no process runs."""
    ((_, first, last),) = asyncio.run(entries_of(f"zk://{place}", [loss]))
    listed = json.loads(command(gateway, "ledger", "list", "-o", "json"))
    (ledger,) = [row["ledger"] for row in listed if row["topic"] == TOPIC and row["entries"]]
    assert gateway.stop() == 0
    for bookie in bookies:
        bookie.stop()
        forget(bookie.data / "index", ledger, first, last)
        bookie.start()
    gateway.start()


def test_a_blocked_consumer_goes_on_once_the_loss_is_accepted(zookeeper: ZooKeeper, tmp_path: Path):
    place = f"{zookeeper.servers}{zookeeper.unused_chroot()}"
    bookies = [
        BookieProcess(tmp_path / f"b{n}", place, name=f"b{n}", session="20s") for n in range(3)
    ]
    gateway = ClusterGateway(tmp_path / "gateway", place, session_ms=20_000)
    try:
        for bookie in bookies:
            bookie.start()
        gateway.start()
        command(gateway, "topic", "create", TOPIC, "-p", "1", "-r", "3")
        send(gateway, TOPIC, range(10))
        gateway.restart()  # completes the segment
        lose(place, gateway, bookies, Loss(TOPIC, 3, 5))

        client = Confluent(gateway.bootstrap)
        member = client.member(GROUP, TOPIC)
        found: list[Stored] = consume(member, 3)

        def shown() -> bool:
            found.extend(member.poll())
            return blocked(gateway, GROUP) == "blocked at offset 3: lost"

        wait_until(shown, "the group to be blocked", WAIT_S_MAX)
        assert [each.offset for each in found] == [0, 1, 2]
        command(gateway, "topic", "accept-loss", TOPIC, "-p", "0", "--offsets", "3-5", "--yes")
        found += consume(member, 4)
        assert [each.offset for each in found] == [0, 1, 2, 6, 7, 8, 9]
        assert blocked(gateway, GROUP) is None
        member.close()
        client.close()
    finally:
        for process in (gateway, *bookies):
            if process.running:
                process.kill()
