"""Real bookies over simulated disks and tables, and one process's way to them."""

import asyncio
from dataclasses import replace
from functools import partial

from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.core.group_commit import GroupCommitLimits
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, ReadManyReply, ReadReply, Status
from tests.sim.disk import SimDisk
from tests.sim.loop import SimClock
from tests.sim.table import SimTable


class Storage:
    """The bookies of one machine or of three, with what stands behind them."""

    def __init__(self, draw, count):
        self.draw = draw
        self.disks = [SimDisk(draw) for _ in range(count)]
        self.tables = [SimTable(draw) for _ in range(count)]
        self.config = BookieConfig(
            file_bytes=64 * 1024,
            preallocate_bytes=draw.choice([4096, 64 * 1024]),
            group=GroupCommitLimits(wait_us_max=draw.choice([0, 500])),
            index_batch_entries=draw.choice([1, 32]),
            idle_mark_ms=50,
            headroom_bytes=0,
        )
        if self.config.preallocate_bytes == 4096:
            self.config = replace(self.config, write_cache_bytes=20_000)
        self.bookies = {}
        self.boots = 0

    async def start(self, next_ledger):
        self.boots += 1
        self.bookies = {}
        for number, (disk, table) in enumerate(zip(self.disks, self.tables, strict=True)):
            bookie = Bookie(
                disk,
                table,
                SimClock(),
                lambda: self.draw.randbytes(16),
                name=f"bookie-{number}",
                config=self.config,
            )
            await bookie.start(boot_id=f"boot-{self.boots}", next_ledger=next_ledger)
            self.bookies[BookieId(bookie.bookie_id)] = bookie

    def power_cut(self):
        self.disks = [disk.crash() for disk in self.disks]
        self.tables = [table.crash() for table in self.tables]

    def kill(self):
        self.disks = [disk.restart() for disk in self.disks]
        self.tables = [table.crash() for table in self.tables]


class Port:
    """One gateway's way to the bookies. A dead gateway neither asks nor hears."""

    def __init__(self, bookies):
        self.bookies = bookies
        self.dead = False

    def available(self):
        return tuple(name for name, bookie in self.bookies.items() if bookie.writable)

    def registered(self):
        return {
            name: BookieInfo(read_only=not bookie.writable) for name, bookie in self.bookies.items()
        }

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        if self.dead:
            return
        node = self.bookies[bookie]
        node.add(ledger, entry, master_key, body, partial(self._tell, on_added), recovery=recovery)

    def _tell(self, on_added, status):
        if not self.dead:
            on_added(status)

    async def read(self, bookie, ledger, entry, *, fence_key=None):
        node = await self._node(bookie)
        if fence_key is not None:
            status = await node.fence(ledger, fence_key)
            if status is not Status.OK:
                return ReadReply(status)
        return await self._heard(await node.read(ledger, entry))

    async def fence_many(self, bookie, ledgers):
        node = await self._node(bookie)
        return await self._heard(await node.fence_many(ledgers))

    async def read_many(self, bookie, ledger, first, last, max_bytes, *, from_disk=False):
        node = await self._node(bookie)
        reply = await node.read_many(ledger, first, last, max_bytes, from_disk=from_disk)
        assert isinstance(reply, ReadManyReply)
        return await self._heard(reply)

    async def read_lac(self, bookie, ledger):
        return await self._heard(await (await self._node(bookie)).read_lac(ledger))

    async def wait_lac(self, bookie, ledger, previous, timeout_s):
        node = await self._node(bookie)
        return await self._heard(await node.wait_lac(ledger, previous, timeout_s))

    async def write_lac(self, bookie, ledger, master_key, lac):
        return await (await self._node(bookie)).write_lac(ledger, master_key, lac)

    async def _node(self, bookie):
        await self._heard(None)
        return self.bookies[bookie]

    async def _heard(self, reply):
        if self.dead:
            await asyncio.Event().wait()
        return reply
