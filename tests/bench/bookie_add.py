"""Microseconds per add and per group, and catch-up reads per second, of one bookie on this machine.

    python -m tests.bench.bookie_add [--bytes 16384] [--seconds 2] [--data DIR]

"no disk" runs over a disk that does nothing, so it shows the CPU of an add and of a group alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import struct
import tempfile
import time
from pathlib import Path

from crc32c import crc32c

from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.adapters.rocksdb.rocks_table import RocksTable
from ledger.adapters.system.clock import SystemClock
from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.in_process import open_local_bookie
from ledger.core.group_commit import GroupCommitLimits

KEY = b"k" * 20


class NoFile:
    """Takes everything, keeps nothing."""

    def write(self, buffers, position):
        pass

    def sync(self, on_synced):
        on_synced(None)

    def preallocate(self, position, size):
        pass

    def truncate(self, size):
        pass

    def close(self):
        pass


class NoDisk(PosixDisk):
    """A real directory whose new log files lead nowhere."""

    def create(self, name, expected_bytes=0):
        return NoFile() if name.startswith("log-") else super().create(name)


def entry_of(ledger: int, entry: int, payload: bytes) -> list[bytes]:
    """As a writer makes it: header and digest, payload."""
    head = struct.pack(">qqqq", ledger, entry, entry - 1, 0)
    return [head + struct.pack(">I", crc32c(payload, crc32c(head))), payload]


class Load:
    """`in_flight` adds at any time, over `ledgers` ledgers."""

    def __init__(
        self, bookie: Bookie, payload: bytes, in_flight: int, ledgers: int, first_ledger: int = 0
    ) -> None:
        self.first_ledger = first_ledger
        self.bookie = bookie
        self.payload = payload
        self.in_flight = in_flight
        self.next_entry = [0] * ledgers
        self.acked = 0
        self.stopping = False
        self.ended = asyncio.get_running_loop().create_future()

    async def run(self, seconds: float) -> tuple[float, float, int]:
        cpu, wall, groups = time.process_time(), time.perf_counter(), self.bookie.groups
        for _ in range(self.in_flight):
            self.send()
        await asyncio.sleep(seconds)
        self.stopping = True
        await self.ended
        return (
            time.process_time() - cpu,
            time.perf_counter() - wall,
            self.bookie.groups - groups,
        )

    def send(self) -> None:
        ledger = self.acked % len(self.next_entry)
        entry = self.next_entry[ledger]
        self.next_entry[ledger] = entry + 1
        ledger += self.first_ledger
        self.bookie.add(ledger, entry, KEY, entry_of(ledger, entry, self.payload), self.on_added)

    def on_added(self, status) -> None:
        assert status == 0, status
        self.acked += 1
        if not self.stopping:
            self.send()
            return
        self.in_flight -= 1
        if self.in_flight == 0:
            self.ended.set_result(None)


async def bench_entry_cost(size: int) -> None:
    payload = os.urandom(size)
    began = time.process_time()
    for entry in range(20_000):
        entry_of(1, entry, payload)
    print(f"making an entry (the writer's part): {(time.process_time() - began) / 0.02:.1f} us")


async def bench_no_disk(path: Path, size: int, seconds: float, ledgers: int) -> None:
    disk = NoDisk(path, "never")
    table = RocksTable(path / "index")
    bookie = Bookie(disk, table, SystemClock(), lambda: bytes(16), config=BookieConfig())
    await bookie.start()
    costs = {}
    for in_flight in (1, 32):
        load = Load(bookie, os.urandom(size), in_flight, ledgers, in_flight * 1000)
        cpu, _, groups = await load.run(seconds)
        costs[in_flight] = cpu / groups * 1e6
    per_add = (costs[32] - costs[1]) / 31
    print(
        f"no disk, {size} B, {ledgers} ledgers: {per_add:.1f} us CPU per add (writer's part "
        f"included), {costs[1] - per_add:.1f} us per group"
    )
    table.close()
    disk.close()


async def bench_disk(path: Path, size: int, seconds: float, in_flight: int, wait_us: int) -> None:
    config = BookieConfig(group=GroupCommitLimits(wait_us_max=wait_us))
    opened = await open_local_bookie(path, config=config)
    load = Load(opened.bookie, os.urandom(size), in_flight, 4)
    cpu, wall, groups = await load.run(seconds)
    adds = load.acked
    print(
        f"disk, {size} B, {in_flight} in flight, wait {wait_us} us: {adds / wall:,.0f} adds/s, "
        f"{adds * size / wall / 1e6:.0f} MB/s, {cpu / adds * 1e6:.1f} us CPU per add, "
        f"{cpu / groups * 1e6:.0f} us CPU and {wall / groups * 1e6:.0f} us wall per group of "
        f"{adds / groups:.1f}"
    )
    await opened.close()


async def bench_reads(path: Path, size: int) -> None:
    opened = await open_local_bookie(path)
    bookie = opened.bookie
    await Load(bookie, os.urandom(size), 32, 1).run(1.0)
    last = 0
    for what in ("first pass", "warm"):
        cpu, wall, read, entry = time.process_time(), time.perf_counter(), 0, 0
        while read < 2_000_000_000:
            reply = await bookie.read_many(0, entry, 1 << 40, 1 << 20)
            if reply.status != 0:
                entry = 0
                continue
            read += sum(map(len, reply.bodies))
            entry += len(reply.bodies)
            last = max(last, entry)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(
            f"read_many 1 MiB of {size} B entries ({what}): {read / wall / 1e9:.2f} GB/s, "
            f"{cpu / read * 1e9:.2f} s CPU per GB"
        )
    began = time.perf_counter()
    for entry in range(min(last, 5000)):
        await bookie.read(0, entry)
    print(f"read of one: {(time.perf_counter() - began) / min(last, 5000) * 1e6:.1f} us")
    await opened.close()


async def bench_replay(path: Path, size: int) -> None:
    opened = await open_local_bookie(path / "bookie")
    await Load(opened.bookie, os.urandom(size), 32, 4).run(1.0)
    shutil.copytree(path / "bookie", path / "crashed")
    await opened.close()
    began = time.perf_counter()
    opened = await open_local_bookie(path / "crashed")
    print(
        f"boot after a crash: {(time.perf_counter() - began) * 1e3:.0f} ms, "
        f"{opened.bookie.replayed.groups} groups replayed"
    )
    await opened.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=16 * 1024)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--data", type=Path, default=None)
    arguments = parser.parse_args()
    size, seconds = arguments.bytes, arguments.seconds

    def fresh() -> Path:
        return Path(tempfile.mkdtemp(dir=top))

    top = Path(tempfile.mkdtemp(dir=arguments.data))
    try:
        asyncio.run(bench_entry_cost(size))
        for ledgers in (1, 16):
            asyncio.run(bench_no_disk(fresh(), size, seconds, ledgers))
        for in_flight in (1, 5, 60):
            asyncio.run(bench_disk(fresh(), size, seconds, in_flight, 0))
        asyncio.run(bench_reads(fresh(), size))
        asyncio.run(bench_replay(fresh(), size))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"peak memory of all this: {peak} MiB")
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
