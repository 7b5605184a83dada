"""The real bookie of a simulated cluster, over a simulated disk and table.

A crash is a kill (the machine keeps what was written) or a power cut (what was not synced may be
gone, torn or kept), by seed. A restarting bookie replays its log before it is `up`.
"""

import asyncio
from dataclasses import replace

from ledger.bookie.bookie import EVERY_LEDGER, Bookie
from ledger.bookie.in_process import LocalBookies
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
        self._boots = 1
        self.on_lost = lambda: None  # told when a crash may have lost what it said it has
        self.next_ledger = lambda: EVERY_LEDGER  # as metadata would say
        self._starting = None
        self._bookie = None
        self._port = None
        self.up = False

    async def start(self):
        """The bookie serves over whatever its disk and table hold."""
        bookie = Bookie(
            self._disk,
            self._table,
            SimClock(),
            lambda: self._draw.randbytes(16),
            config=self._config,
        )
        await bookie.start(boot_id=f"boot-{self._boots}", next_ledger=self.next_ledger())
        self._bookie = bookie
        self._port = LocalBookies([bookie])
        self.up = True

    def never_sync(self):
        """From its first start on; a power cut may lose anything, and the next boot knows it."""
        self._config = replace(self._config, journal_sync="never")

    @property
    def bookie(self):
        """The real one, which serves or has ended."""
        return self._bookie

    @property
    def disk(self):
        return self._disk

    def crash(self):
        assert self.up
        self.up = False
        if self._draw.random() < 0.5:
            self._boots += 1
            self._disk, self._table = self._disk.crash(), self._table.crash()
            if self._config.journal_sync == "never":
                self.on_lost()
        else:
            self._disk, self._table = self._disk.restart(), self._table.crash()

    def restart(self):
        if self._starting is not None and not self._starting.done():
            return
        self._starting = asyncio.get_running_loop().create_task(self._try_to_start())

    async def _try_to_start(self):
        """A start may fail, as a process that ends at once; the disk stays as it is."""
        try:
            await self.start()
        except OSError:
            self._disk, self._table = self._disk.restart(), self._table.crash()

    @property
    def replayed(self):
        """What the last start found in the log."""
        return self._bookie.replayed

    @property
    def writable(self):
        return self.up and self._bookie.writable

    @property
    def conflicts(self):
        return self._bookie.conflicts

    def add(self, ledger, entry, master_key, body, on_added, *, recovery=False):
        bookie = self._bookie

        def answered(status):
            if bookie is self._bookie and self.up:
                on_added(status)

        bookie.add(ledger, entry, master_key, body, answered, recovery=recovery)

    async def read(self, ledger, entry, *, fence_key=None):
        return await self._ask("read", ledger, entry, fence_key=fence_key)

    async def read_many(self, ledger, first, last, max_bytes):
        return await self._ask("read_many", ledger, first, last, max_bytes)

    async def read_lac(self, ledger):
        return await self._ask("read_lac", ledger)

    async def write_lac(self, ledger, master_key, lac):
        return await self._ask("write_lac", ledger, master_key, lac)

    async def wait_lac(self, ledger, previous, timeout_s):
        return await self._ask("wait_lac", ledger, previous, timeout_s)

    async def list_entries(self, ledger):
        return await self._ask("list_entries", ledger)

    async def end_limbo(self, ledger, master_key):
        return await self._ask("end_limbo", ledger, master_key)

    async def stats(self):
        return await self._ask("stats")

    async def _ask(self, name, *args, **named):
        """As the port in process answers; nobody hears of it if the bookie crashes meanwhile."""
        bookie, port = self._bookie, self._port
        reply = await getattr(port, name)(bookie.bookie_id, *args, **named)
        if bookie is not self._bookie or not self.up:
            await asyncio.get_running_loop().create_future()
        return reply
