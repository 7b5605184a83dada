"""Goal: after a forced close a partition goes on, and no acknowledged offset is assigned again.

Method: ZooKeeper, three bookies and a gateway as real processes, of which the gateway and two
bookies are killed; stock clients before and after.
"""

import asyncio
import json
import os
import subprocess

from confluent_kafka import Producer

from ledger.core.accepted_losses import RESERVED_OFFSETS
from tests.command_output import check_output
from tests.crash.load import read_all
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until
from tests.repair.test_processes import unregister

RECORDS = 50


def run(zookeeper, *words, code=0):
    argv = [install.gateway_python(), "-m", "gateway", *words]
    environment = {**os.environ, "GATEWAY_ZOOKEEPER": zookeeper}
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    check_output(words, done.stdout, code)
    return done.stdout


def registered(zookeeper):
    """How many bookies are registered. Only others are given up."""
    rows = json.loads(run(zookeeper, "bookie", "list", "-o", "json"))
    return sum(row["address"] is not None for row in rows)


def produce(gateway, first):
    """Produce `RECORDS` records one after the other. Returns offset and value of each."""
    told = []
    settings = {"bootstrap.servers": gateway.bootstrap, "log_level": 0}
    producer = Producer({**settings, "enable.idempotence": True})  # a retry makes no second record
    for number in range(first, first + RECORDS):
        producer.produce(
            "log", b"%d" % number, partition=0, on_delivery=lambda e, m: told.append((e, m))
        )
        assert producer.flush(30.0) == 0
    assert not any(error for error, _ in told)
    return [(message.offset(), message.value()) for _, message in told]


def test_a_partition_goes_on_behind_a_forced_close(zookeeper, tmp_path):
    place = f"{zookeeper.servers}{zookeeper.unused_chroot()}"
    bookies = [
        BookieProcess(tmp_path / f"b{n}", place, (), name=f"b{n}", session="20s") for n in range(3)
    ]
    gateway = ClusterGateway(tmp_path / "gateway", place)
    try:
        for bookie in bookies:
            bookie.start()
        gateway.start()
        words = ("topic", "create", "log", "-p", "1", "-r", "3", "-b", gateway.bootstrap)
        run(place, *words)
        before = produce(gateway, 0)
        gateway.kill()
        for bookie in bookies[1:]:
            bookie.kill()
        listed = json.loads(run(place, "ledger", "list", "--state", "OPEN", "-o", "json"))
        [ledger] = [str(row["ledger"]) for row in listed if row["topic"] == "log"]
        run(place, "ledger", "recover", ledger, "--yes", code=1)
        for bookie in bookies[1:]:
            asyncio.run(unregister(place, bookie.id))  # as the end of its session does
        wait_until(lambda: registered(place) == 1, "one bookie to be left", 90, pause_s=0.5)
        words = ("ledger", "recover", ledger, "--accept-loss", "--yes", "-o", "json")
        closed = json.loads(run(place, *words))
        assert closed["forced"]
        [reserved] = closed["accepted"]
        for bookie in bookies[1:]:
            bookie.start()
        gateway.start()
        after = produce(gateway, RECORDS)
        assert {offset for offset, _ in before}.isdisjoint({offset for offset, _ in after})
        kept = before[: reserved["offsets"][0]]
        assert after[0][0] == len(kept) + RESERVED_OFFSETS
        assert read_all(gateway.bootstrap, "log", 1)[0] == [*kept, *after]
        [gap] = json.loads(run(place, "topic", "gaps", "log", "-o", "json"))
        assert gap["state"] in ("accepted", "found again")
        assert "clean" in run(place, "ledger", "verify")
    finally:
        gateway.kill()
        for bookie in bookies:
            bookie.kill()
