"""A bookie on simulated ground for tests: add with one call, stop, kill and start again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random

from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.ports.bookies import Status
from tests.sim.bookie_world import entry_buffers
from tests.sim.disk import DiskFaults, SimDisk
from tests.sim.loop import SimClock
from tests.sim.table import SimTable

KEY = b"k" * 20
OTHER_KEY = b"o" * 20
SMALL = BookieConfig(
    file_bytes=64 * 1024,
    preallocate_bytes=16 * 1024,
    headroom_bytes=0,
    roll_dead_bytes_min=8 * 1024,
    index_batch_entries=4,
)


class Rig:
    """A bookie that can be stopped, killed and started again over the same disk and table."""

    def __init__(self, config: BookieConfig = SMALL, faults: DiskFaults | None = None) -> None:
        self.config = config
        self.disk = SimDisk(Random(1), faults)
        self.table = SimTable(Random(2))
        self.next_ledger = 1000

    async def start(self, boot_id: str = "boot", *, served_before: bool = False) -> Bookie:
        self.bookie = Bookie(
            self.disk, self.table, SimClock(), lambda: b"instance" * 2, config=self.config
        )
        await self.bookie.start(
            boot_id=boot_id, next_ledger=self.next_ledger, served_before=served_before
        )
        return self.bookie

    async def restart(self) -> Bookie:
        await self.bookie.stop()
        return await self.start()

    async def kill(self) -> Bookie:
        self.disk, self.table = self.disk.restart(), self.table.crash()
        return await self.start()

    async def add(self, ledger: int, entry: int, payload: bytes = b"x", **how) -> Status:
        return await add(self.bookie, ledger, entry, payload, **how)

    def log_bytes(self) -> int:
        names = [name for name in self.disk.names() if name.startswith("log-")]
        return sum(self.disk.open(name).size() for name in names)


def add(bookie, ledger, entry, payload=b"x", *, key=KEY, recovery=False, lac=None):
    """A future of the add's status."""
    done = asyncio.get_running_loop().create_future()
    body = entry_buffers(ledger, entry, payload, lac)
    bookie.add(ledger, entry, key, body, done.set_result, recovery=recovery)
    return done


@asynccontextmanager
async def started_bookie(config: BookieConfig = SMALL, faults: DiskFaults | None = None):
    rig = Rig(config, faults)
    await rig.start()
    yield rig, rig.bookie


class Room:
    """Space for answers that is full until the test sets `free`."""

    def __init__(self):
        self.free = asyncio.Event()

    async def take(self, _):
        await self.free.wait()
        return True
