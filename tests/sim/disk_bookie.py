"""The real bookie of a simulated cluster, over a simulated disk and table.

A crash is a kill (the machine keeps what was written) or a power cut (what was not synced may be
gone, torn or kept), by seed. A restarting bookie replays its log before it is `up`. Its disk may be
wiped, put back as it once was, or rot.
"""

import asyncio
from dataclasses import replace

from ledger.bookie import directory
from ledger.bookie.bookie import EVERY_LEDGER, Bookie
from ledger.bookie.gc.collector import collect
from ledger.bookie.in_process import LocalBookies
from ledger.core.journal_format import file_name
from ledger.errors import MetadataUnavailable
from tests.sim.bookie_world import small_config
from tests.sim.disk import SimDisk
from tests.sim.loop import SimClock
from tests.sim.table import SimTable

OTHER_BOOT = b"the boot before"  # no boot of a simulated machine


async def survived(work):
    """Do this part of a bookie's work; the bookie may be told to stop, or die, meanwhile."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=5)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, Exception) and not isinstance(outcome, OSError | MetadataUnavailable):
        raise outcome


async def _rewrite(bookie, listing):
    await bookie.storage.journal.roll()
    await collect(bookie, listing, compaction_threshold=1.0)


class DiskBookie:
    """Its name stays, whatever its instance: the cluster's tests name bookies themselves."""

    def __init__(self, draw):
        self._draw = draw
        self._config = replace(small_config(draw), index_flush_entries=draw.choice([4, 50_000]))
        self._disk = SimDisk(draw)
        self._table = SimTable(draw)
        self._boots = 1
        self.on_lost = lambda: None  # told when a crash may have lost what it said it has
        self.next_ledger = lambda: EVERY_LEDGER  # as metadata would say
        self._starting = None
        self._rots = None  # a random source: it rots at its next start
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
        if self._rots is not None:
            self._rot(bookie, self._rots)
            self._rots = None
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

    def kill(self):
        """Nothing of its process is left, whether it serves, starts or is down."""
        if self.up:
            self.crash()
        elif self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self._disk, self._table = self._disk.restart(), self._table.crash()

    def keep(self):
        """A copy of its disk and table as they are now, for `put_back`."""
        return self._disk.copy(), self._table.copy()

    def put_back(self, kept):
        """Its disk is as it once was. It does not serve until `restart`."""
        self.kill()
        disk, table = kept
        self._disk, self._table = disk.copy(), table.copy()

    def wipe(self):
        """Its disk is empty but for its stamp. It does not serve until `restart`."""
        self.kill()
        disk = self._disk.copy()
        for name in disk.names():
            if name != directory.VERSION:
                disk.unlink(name)
        disk.sync_directory()
        self._disk, self._table = disk, SimTable(self._draw)

    def begin_limbo(self, next_ledger):
        """The next start finds what a boot after lost writes finds."""
        if directory.UNSYNCED in self._disk.names():
            self._disk.unlink(directory.UNSYNCED)
        self._disk.put(directory.UNSYNCED, OTHER_BOOT)

    def rot(self, draw):
        """It crashes; from its next start on, all that it holds now is damaged. False if nothing
        is.
        """
        if not self.up or not self._bookie.ledgers():
            return False
        self.crash()
        self._rots = draw
        return True

    async def rewrite(self):
        """Compact every log file, or as many as a crash leaves time for."""
        bookie = self._bookie

        async def all_exist():
            return bookie.ledgers()

        await survived(_rewrite(bookie, all_exist))

    def _rot(self, bookie, draw):
        """All lies before the index's mark, so no later start reads these groups again."""
        index = bookie.storage.index
        for ledger in bookie.ledgers():
            for entry, place in index.rows(ledger, 0, 1 << 20):
                disk, name = self._disk, file_name(place.file_id)
                damage = draw.choice(["ids", "payload", "lac"])
                if damage == "ids":
                    disk.flip_bit(name, place.position + 7)
                elif damage == "payload":
                    disk.flip_bit(name, place.position + place.length - 1)
                else:
                    disk.overwrite(
                        name, place.position + 16, (entry - 1).to_bytes(8, "big", signed=True)
                    )

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
