"""Goal: a bookie without room refuses adds and keeps every promise: reads, fences, what it
acknowledged; it takes adds again when room came back.

Method: the real process on a small file system that the test mounts; the same facts, and each
single write without room, on the simulated disk. Where mounting is not allowed, a test of the
process says so by running its simulated twin instead.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.bookie.gc.collector import collect
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import KEY, SMALL, Rig, started_bookie
from tests.node.cluster_rig import Cluster
from tests.peers.bookie import BookieProcess
from tests.peers.zookeeper import ZooKeeper
from tests.sim.bookie_world import entry_bytes
from tests.sim.disk import DiskFaults, SimDisk, SimLogFile
from tests.sim.loop import simulate

MIB = 1 << 20
DISK_BYTES = 208 * MIB
FREE_MIN = 96 * MIB  # two thirds of it are the reserve


# -- the simulated disk ----------------------------------------------------------------------------

TIGHT = replace(
    SMALL,
    headroom_bytes=200_000,
    headroom_resume_bytes=300_000,
    fence_reserve_bytes=100_000,
    headroom_check_ms=1,
)


class RationedDisk(SimDisk):
    """Says how much is free; nothing else is short."""

    free = 1 << 40

    def free_bytes(self) -> int:
        return self.free


@asynccontextmanager
async def rationed_bookie():
    async with started_bookie(TIGHT) as (rig, bookie):
        rig.disk.__class__ = RationedDisk
        yield rig, bookie


async def looks_again() -> None:
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("free", "add", "recovery"),
    [
        (300_000, Status.OK, Status.OK),
        (200_000, Status.OK, Status.OK),
        (199_999, Status.READ_ONLY, Status.OK),
        (100_000, Status.READ_ONLY, Status.OK),
        (99_999, Status.READ_ONLY, Status.READ_ONLY),
        (20_000, Status.READ_ONLY, Status.READ_ONLY),
    ],
)
async def test_adds_go_first_then_recovery_and_fences_are_taken_to_the_end(free, add, recovery):
    async with rationed_bookie() as (rig, bookie):
        assert await rig.add(1, 0) is Status.OK
        rig.disk.free = free
        bookie.check_disk_space()
        assert bookie.writable == (add is Status.OK)
        assert await rig.add(1, 1) is add
        assert await rig.add(1, 2, recovery=True) is recovery
        assert await bookie.fence(1, KEY) is Status.OK
        assert await bookie.write_lac(1, KEY, 0) is Status.OK
        assert (await bookie.read(1, 0)).status is Status.OK
        rig.disk.free = 1 << 40
        await rig.kill()
        assert await rig.add(1, 3) is Status.FENCED


async def test_it_is_writable_again_only_with_clearly_more_room():
    async with rationed_bookie() as (rig, bookie):
        seen = []
        for free in (250_000, 199_999, 250_000, 299_999, 300_000, 250_000, 199_999):
            rig.disk.free = free
            bookie.check_disk_space()
            seen.append(bookie.writable)
        assert seen == [True, False, False, False, True, True, False]


async def test_without_anybody_asking_it_sees_room_that_came_back():
    async with rationed_bookie() as (rig, bookie):
        rig.disk.free = 0
        bookie.check_disk_space()
        rig.disk.free = 1 << 40
        await looks_again()
        assert await rig.add(1, 0) is Status.OK


class Mute:
    """A disk that does not say what is free."""

    def free_bytes(self) -> int:
        raise OSError(errno.EIO, "statvfs")


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["room", "no room"])
async def test_a_disk_that_does_not_say_what_is_free_holds_up_nobody(free):
    async with started_bookie(replace(TIGHT, file_bytes=64 * MIB)) as (rig, bookie):
        rig.disk.__class__ = RationedDisk
        rig.disk.free = free
        bookie.check_disk_space()
        writable, room = bookie.writable, bookie.disk_space
        rig.disk.free = 1 << 40
        bookie._disk_space._disk = Mute()
        for entry in range(12):  # more than is logged between two looks
            expected = Status.OK if free else Status.READ_ONLY
            async with asyncio.timeout(60):
                assert await rig.add(1, entry, bytes(1000_000)) is expected
            await looks_again()
        bookie.check_disk_space()
        assert (bookie.writable, bookie.disk_space) == (writable, room)
        bookie._disk_space._disk = rig.disk
        bookie.check_disk_space()
        assert bookie.writable


async def test_rewriting_leaves_the_reserve_alone():
    async with rationed_bookie() as (rig, bookie):
        await rig.add(1, 0, b"living" * 100)
        for entry in range(60):
            await rig.add(2, entry, bytes(4000))

        async def list_ledgers():
            return [1]

        rig.disk.free = 100_000
        assert (await collect(bookie, list_ledgers, compaction_threshold=0.9)).files_rewritten == 0
        rig.disk.free = 110_000
        assert (await collect(bookie, list_ledgers, compaction_threshold=0.9)).files_rewritten == 1
        assert (await bookie.read(1, 0)).status is Status.OK


class Refusing:
    """The n-th write to any file finds no room."""

    def __init__(self, refused: int) -> None:
        self._left = refused
        self.writes = 0

    def __call__(self, file, buffers, position, write=SimLogFile.write) -> None:
        self.writes += 1
        if self.writes == self._left:
            raise OSError(errno.ENOSPC, "no room")
        write(file, buffers, position)


async def work(rig) -> tuple[set[tuple[int, int]], set[int]]:
    """Entries that were acknowledged and ledgers whose fence was."""
    acked, fenced = set(), set()
    for entry in range(40):
        ledger = entry % 3
        if await rig.add(ledger, entry, bytes(5000)) is Status.OK:
            acked.add((ledger, entry))
        if entry % 13 == 12 and await rig.bookie.fence(ledger, KEY) is Status.OK:
            fenced.add(ledger)
        await asyncio.sleep(2)  # it looks for room again
    assert rig.bookie.failure is None
    return acked, fenced


async def expect(rig, acked, fenced) -> None:
    for ledger, entry in acked:
        assert (await rig.bookie.read(ledger, entry)).body == entry_bytes(
            ledger, entry, bytes(5000)
        )
    for ledger in fenced:
        assert await rig.add(ledger, 99) is Status.FENCED


async def test_any_one_write_without_room_leaves_it_consistent(monkeypatch):
    async def writes_of_a_run(refused: int) -> int:
        rig, refusing = Rig(SMALL), Refusing(refused)
        await rig.start()
        with monkeypatch.context() as patch:
            patch.setattr(SimLogFile, "write", lambda *words: refusing(*words))
            acked, fenced = await work(rig)
        await expect(rig, acked, fenced)
        await rig.kill()
        assert not rig.bookie.replayed.corrupt
        await expect(rig, acked, fenced)
        return refusing.writes

    first = 1
    while first <= await writes_of_a_run(first):
        first += 1
    assert first > 40


# -- the process -----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[bool]:
    """A file system of this size at `place`; False where this user may not mount one."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)],
        capture_output=True,
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(place)], check=True)


def free_bytes(place: Path) -> int:
    return shutil.disk_usage(place).free


def on_small_disk(zookeeper: ZooKeeper, tmp_path: Path, body, twin) -> None:
    async def main() -> None:
        async with Cluster(bookie.zookeeper) as cluster:
            await asyncio.to_thread(bookie.start)
            await cluster.until_serves(bookie.id)
            await body(cluster, bookie, place)

    place = tmp_path / "disk"
    with small_disk(place, DISK_BYTES) as mounted:
        if not mounted:
            simulate(twin())
            return
        chroot = zookeeper.servers + zookeeper.unused_chroot()
        options = ["--disk-free-min", str(FREE_MIN), "--gc-interval", "300ms"]
        bookie = BookieProcess(place / "bookie", chroot, options, session="20s")
        bookie.log = tmp_path / "bookie.log"
        try:
            asyncio.run(main())
        finally:
            if bookie.running:
                bookie.kill()


async def fill(cluster: Cluster, bookie: BookieProcess, ledger: int) -> list[int]:
    """Adds until it refuses; which were taken."""
    acked: list[int] = []
    payload = os.urandom(MIB)
    for entry in range(DISK_BYTES // MIB):
        status = await cluster.add(bookie.id, ledger, entry, payload)
        if status is Status.READ_ONLY:
            return acked
        assert status is Status.OK
        acked.append(entry)
    raise AssertionError("it took more than the disk holds")


def test_the_process_turns_read_only_and_back(zookeeper, tmp_path):
    async def body(cluster, bookie, place):
        await cluster.name_ledger(bookie.id, 1)
        await cluster.name_ledger(bookie.id, 2)
        assert await cluster.add(bookie.id, 2, 0) is Status.OK
        acked = await fill(cluster, bookie, 1)
        await cluster.until_registered(bookie.id, read_only=True)
        assert free_bytes(place) > FREE_MIN - 16 * MIB
        assert (await cluster.read(bookie.id, 1, acked[-1])).status is Status.OK
        assert await cluster.add(bookie.id, 2, 1) is Status.READ_ONLY
        assert await cluster.add(bookie.id, 2, 1, recovery=True) is Status.OK
        fence = await cluster.bookies.read(BookieId(bookie.id), LedgerId(2), 1, fence_key=KEY)
        assert fence.status is Status.OK
        await asyncio.to_thread(lambda: bookie.restart(kill=True))
        await cluster.until_registered(bookie.id, read_only=True)
        await cluster.forget_ledger(1)
        await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 3, 0) is Status.OK
        assert await cluster.add(bookie.id, 2, 2) is Status.FENCED

    on_small_disk(
        *(zookeeper, tmp_path, body),
        test_it_is_writable_again_only_with_clearly_more_room,
    )


@pytest.mark.real_loop
async def test_a_process_that_starts_without_room_says_what_is_short(zookeeper, tmp_path):
    """Its disk has less free than it is told to keep: read-only from the start, and it says why."""
    chroot = zookeeper.servers + zookeeper.unused_chroot()
    wanted = shutil.disk_usage(tmp_path).total  # never all free
    bookie = BookieProcess(
        tmp_path / "bookie", chroot, ["--disk-free-min", str(wanted)], session="6s"
    )
    try:
        bookie.start()
        async with Cluster(chroot) as cluster:
            await cluster.until_registered(bookie.id, read_only=True)
            assert await cluster.add(bookie.id, 1, 0) is Status.READ_ONLY
        bookie.process.wait_output("short of room", 60.0)
        (line,) = (one for one in bookie.process.output().splitlines() if "short of room" in one)
        free, needed = (int(number) for number in re.findall(r"_bytes=(\d+)", line))
        assert free < needed and needed >= wanted
        assert "--disk-free-min" in line and str(bookie.data) in line
    finally:
        if bookie.running:
            bookie.kill()


def test_the_process_outlives_a_disk_that_others_filled(zookeeper, tmp_path):
    async def body(cluster, bookie, place):
        await cluster.name_ledger(bookie.id, 1)
        assert await cluster.add(bookie.id, 1, 0) is Status.OK
        filler = place / "filler"
        left = free_bytes(place)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, left)
        assert free_bytes(place) == 0
        statuses = {await cluster.add(bookie.id, 1, entry, bytes(MIB)) for entry in range(1, 30)}
        assert statuses & {Status.READ_ONLY, Status.IO_ERROR, Status.UNREACHABLE}
        found = [(await cluster.read(bookie.id, 1, entry)).status for entry in range(30)]
        stored = [entry for entry, status in enumerate(found) if status is Status.OK]
        bookie.kill()
        filler.unlink()
        await asyncio.to_thread(bookie.start)
        await cluster.until_serves(bookie.id)
        for entry in stored:
            assert (await cluster.read(bookie.id, 1, entry)).status is Status.OK
        assert await cluster.add(bookie.id, 1, 100) is Status.OK

    async def twin() -> None:
        faults = DiskFaults(capacity_bytes=1_000_000)
        async with started_bookie(SMALL, faults) as (rig, _):
            statuses = {await rig.add(1, entry, bytes(9000)) for entry in range(200)}
            assert statuses == {Status.OK, Status.READ_ONLY}

    on_small_disk(zookeeper, tmp_path, body, twin)
