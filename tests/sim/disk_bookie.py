"""The real bookie of a simulated cluster, over a simulated disk and table.

A crash is a kill (the machine keeps what was written) or a power cut (what was not synced may be
gone, torn or kept), by seed. A restarting bookie replays its log before it is `up`.
"""

import asyncio

from ledger.bookie.bookie import Bookie
from ledger.world.bookies import ReadReply, Status
from tests.sim.bookie_world import small_config
from tests.sim.disk import SimDisk
from tests.sim.loop import SimClock
from tests.sim.table import SimTable


class DiskBookie:
    """Its name stays, whatever its instance: the cluster's tests name bookies themselves."""

    def __init__(self, draw):
        self._draw = draw
        self._config = small_config(draw)
        self._disk = SimDisk(draw)
        self._table = SimTable(draw)
        self._boots = 0
        self._starting = None
        self._bookie = None
        self.up = False

    async def start(self):
        """The bookie serves over whatever its disk and table hold."""
        self._boots += 1
        bookie = Bookie(
            self._disk,
            self._table,
            SimClock(),
            lambda: self._draw.randbytes(16),
            config=self._config,
        )
        await bookie.start(boot_id=f"boot-{self._boots}")
        self._bookie = bookie
        self.up = True

    def crash(self):
        assert self.up
        self.up = False
        if self._draw.random() < 0.5:
            self._disk, self._table = self._disk.crash(), self._table.crash()
        else:
            self._disk, self._table = self._disk.restart(), self._table.crash()

    def restart(self):
        if self._starting is not None and not self._starting.done():
            return
        self._starting = asyncio.get_running_loop().create_task(self.start())

    @property
    def replayed(self):
        """What the last start found in the log."""
        return self._bookie.replayed

    def add(self, ledger, entry, master_key, body, on_added, *, recovery=False):
        bookie = self._bookie

        def answered(status):
            if bookie is self._bookie and self.up:
                on_added(status)

        bookie.add(ledger, entry, master_key, body, answered, recovery=recovery)

    async def read(self, ledger, entry, *, fence_key=None):
        bookie = self._bookie
        if fence_key is not None:
            status = await bookie.fence(ledger, fence_key)
            if status is not Status.OK:
                return ReadReply(status)
        return await self._answered(bookie, await bookie.read(ledger, entry))

    async def read_many(self, ledger, first, last, max_bytes):
        bookie = self._bookie
        return await self._answered(bookie, await bookie.read_many(ledger, first, last, max_bytes))

    async def read_lac(self, ledger):
        bookie = self._bookie
        return await self._answered(bookie, await bookie.read_lac(ledger))

    async def write_lac(self, ledger, master_key, lac):
        bookie = self._bookie
        return await self._answered(bookie, await bookie.write_lac(ledger, master_key, lac))

    async def _answered(self, bookie, reply):
        """The reply, unless the bookie crashed meanwhile: then nobody hears of it."""
        if bookie is not self._bookie or not self.up:
            await asyncio.get_running_loop().create_future()
        return reply
