"""Goal: an embedded gateway that cannot write says what is wrong, once, and goes on by itself when
it can again; what a bookie found damaged at its start is said too.

Method: the watch over bookies on simulated disks; then the real process on a small file system
that the test mounts and makes larger. Where mounting is not allowed, the test of the process runs
its simulated twin instead.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

from confluent_kafka import KafkaError, Producer

from gateway.process.disk_monitor import EmbeddedBookieMonitor
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import started_bookie
from tests.node.test_full_disk import TIGHT, RationedDisk, small_disk
from tests.peers.gateway import Gateway
from tests.sim.loop import simulate

DATA = Path("data/bookie-1")
PLENTY = 1 << 40
SMALL_BYTES, LARGE_BYTES = 200 << 20, 600 << 20  # a bookie's headroom is 256 MiB
HEADROOM_BYTES = 256 << 20
SHORT = "short of room: read-only"
AGAIN = "writable again"
ENDED = "a bookie ended"
LACK = "too few bookies take writes"
PARTITIONS = 3
S_MAX = 20.0


# -- over simulated disks --------------------------------------------------------------------------


@asynccontextmanager
async def watched(capsys):
    """A bookie and its watch; `lines()` are those since the last call."""

    def lines():
        return capsys.readouterr().err.splitlines()

    async with started_bookie(TIGHT) as (rig, bookie):
        rig.disk.__class__ = RationedDisk
        rig.collections = 0

        async def collect():
            rig.collections += 1

        watch = EmbeddedBookieMonitor([(DATA, bookie)], collect)
        try:
            yield rig, bookie, watch, lines
        finally:
            await watch.stop()


async def test_nothing_is_said_of_bookies_that_take_writes(capsys):
    async with watched(capsys) as (rig, _bookie, watch, lines):
        watch.start()
        await asyncio.sleep(100)
        assert lines() == []
        assert rig.collections == 0


async def test_a_bookie_that_begins_without_room_is_said_at_once_with_what_it_takes(capsys):
    async with watched(capsys) as (rig, bookie, watch, lines):
        rig.disk.free = 150_000
        watch.start()
        (line,) = lines()
        assert SHORT in line
        assert f"bookie={bookie.bookie_id}" in line
        assert "free_bytes=150000 needed_bytes=300000" in line
        assert f"data={DATA}" in line
        assert "fix=" in line


async def test_each_turn_is_one_line_and_room_that_came_back_is_seen_though_nobody_writes(capsys):
    async with watched(capsys) as (rig, bookie, watch, lines):
        watch.start()
        for free, said in ((100_000, SHORT), (PLENTY, AGAIN), (100_000, SHORT), (PLENTY, AGAIN)):
            rig.disk.free = free
            await asyncio.sleep(50)
            (line,) = lines()
            assert said in line
            assert f"free_bytes={free}" in line
            assert bookie.writable == (said == AGAIN)
        assert await rig.add(1, 0) is Status.OK


async def test_while_it_is_short_deleted_topics_are_looked_for_now_and_then(capsys):
    async with watched(capsys) as (rig, _bookie, watch, _lines):
        rig.disk.free = 0
        watch.start()
        await asyncio.sleep(0.5)
        assert rig.collections == 1
        await asyncio.sleep(90)
        assert rig.collections == 4
        rig.disk.free = PLENTY
        await asyncio.sleep(90)
        assert rig.collections == 4


async def test_one_that_ended_is_said_with_its_reason_and_not_as_one_without_room(capsys):
    async with watched(capsys) as (rig, _bookie, watch, lines):
        watch.start()
        rig.disk.fail_next_sync = True
        assert await rig.add(1, 0) is Status.IO_ERROR
        rig.disk.free = 0
        await asyncio.sleep(50)
        (line,) = lines()
        assert ENDED in line
        assert "sync failed" in line
        assert f"data={DATA}" in line


# -- the process -----------------------------------------------------------------------------------


def sent(gateway, **settings):
    """The producer of a record for each partition, and what it is told; None: it is written."""
    told = []
    producer = Producer(
        {"bootstrap.servers": gateway.bootstrap, "log_level": 0, "acks": "all", **settings}
    )
    for partition in range(PARTITIONS):
        producer.produce("t", b"x", partition=partition, on_delivery=lambda e, _: told.append(e))
    return producer, told


def outcomes(gateway, **settings):
    producer, told = sent(gateway, **settings)
    assert producer.flush(60) == 0
    return told


def lines_of(gateway, words):
    return [line for line in gateway.process.output().splitlines() if words in line]


def test_a_gateway_without_room_says_so_once_and_writes_again_when_there_is_room(tmp_path, capsys):
    place = tmp_path / "disk"
    with small_disk(place, SMALL_BYTES) as mounted:
        if not mounted:
            twin = test_each_turn_is_one_line_and_room_that_came_back_is_seen_though_nobody_writes
            simulate(twin(capsys))
            return
        with Gateway(place / "data", ["--partitions", str(PARTITIONS)]) as gateway:
            (line,) = lines_of(gateway, SHORT)
            free, needed = (int(number) for number in re.findall(r"_bytes=(\d+)", line))
            assert free < HEADROOM_BYTES < needed
            assert str(place / "data" / "bookie-1") in line
            patient, written = sent(gateway)
            for _ in range(2):
                told = outcomes(gateway, retries=0)
                assert {error.code() for error in told} == {KafkaError.NOT_ENOUGH_REPLICAS}
            assert written == []
            (line,) = lines_of(gateway, LACK)
            assert "0 of 1 bookies take writes (1 read-only: low on disk space)" in line
            words = ["mount", "-o", f"remount,size={LARGE_BYTES}", str(place)]
            subprocess.run(words, check=True)
            gateway.process.wait_for(lambda: lines_of(gateway, AGAIN), AGAIN, S_MAX)
            assert patient.flush(60) == 0
            assert written == [None] * PARTITIONS
            assert len(lines_of(gateway, SHORT)) == 1


def test_rot_that_a_start_finds_is_said_with_its_place_and_the_way_out(tmp_path):
    gateway = Gateway(tmp_path / "data", ["--partitions", str(PARTITIONS)])
    with gateway:
        assert outcomes(gateway) == [None] * PARTITIONS
        gateway.kill()
        bookie = gateway.data / "bookie-1"
        log = min(bookie.glob("log-*"))
        content = bytearray(log.read_bytes())
        content[4096 + 90] ^= 1
        log.write_bytes(content)
        shutil.rmtree(bookie / "index")
        gateway.start()
        (damage,) = lines_of(gateway, "damaged log")
        assert "places=" in damage
        assert f"data={bookie}" in damage
        (loss,) = lines_of(gateway, "may have lost entries")
        assert "--accept-loss" in loss
