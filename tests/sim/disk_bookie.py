"""The real bookie of a simulated cluster, over a simulated disk and table.

A crash is a kill (the machine keeps what was written) or a power cut (what was not synced may be
gone, torn or kept), by seed. A restarting bookie replays its log before it is `up`. Its disk may be
wiped, put back as it once was, or rot.
"""

import asyncio
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial

from ledger.bookie import directory
from ledger.bookie.bookie import EVERY_LEDGER, Bookie
from ledger.bookie.gc.collector import collect
from ledger.bookie.in_process import LocalBookies
from ledger.core.journal_format import file_name
from ledger.errors import MetadataUnavailable
from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from ledger.tasks import ends_by, report
from tests.sim.bookie_world import small_config
from tests.sim.disk import MISDIRECTED_WRITE, DiskFaults, SimDisk
from tests.sim.loop import SimClock
from tests.sim.surprises import Surprising, SurprisingDisk, is_surprise
from tests.sim.table import SimTable

_FAILED = {
    "read": ReadReply(Status.IO_ERROR),
    "wait_lac": ReadReply(Status.IO_ERROR),
    "read_many": ReadManyReply(Status.IO_ERROR),
}
OTHER_BOOT = b"the boot before"  # no boot of a simulated machine


async def survived(work):
    """Do this part of a bookie's work; the bookie may be told to stop, or die, meanwhile."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=5)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, OSError | MetadataUnavailable):
        return
    if isinstance(outcome, Exception) and not is_surprise(outcome):
        raise outcome


async def _rewrite(bookie, listing):
    await bookie.storage.journal.roll()
    await collect(bookie, listing, compaction_threshold=1.0)


class DiskBookie:
    """Its name stays, whatever its instance: the cluster's tests name bookies themselves."""

    def __init__(self, draw):
        self._draw = draw
        self._config = replace(small_config(draw), index_flush_entries=draw.choice([4, 50_000]))
        # Half of the disks complete writes as io_uring does. This takes no number from `draw`.
        uring = draw.getstate()[1][0] % 2 == 1
        self._disk = SimDisk(draw, DiskFaults(uring=uring))
        self._flush_s_max = draw.choice([0.01, 0.01, 0.3])
        self._table = SimTable(draw, flush_s_max=self._flush_s_max)
        self._boots = 1
        self._starts = 0
        self._noticed_at = 0  # groups of this boot after which a misdirected write is noticed
        self.surprising = False  # from the next start on, what is `planted` is raised
        self.planted_disk, self.planted_table = {}, {}
        self.on_ended = lambda name, error: None  # told why the process ended by itself
        self.on_lost = lambda: None  # told when a crash may have lost what it said it has
        self.next_ledger = lambda: EVERY_LEDGER  # as metadata would say
        self._starting = None
        self._rots = None  # a random source: it rots at its next start
        self._bookie = None
        self._port = None
        self.up = False

    async def start(self):
        """The bookie serves over whatever its disk and table hold."""
        disk, table = self._disk, self._table
        if self.surprising:
            disk = SurprisingDisk(disk, self.planted_disk)
            table = Surprising(table, self.planted_table)
        with ends_by(partial(self._end, self._disk)):
            self._context = copy_context()
        bookie = await self.in_process(self._boot(disk, table))
        if self._rots is not None:
            self._rot(bookie, self._rots)
            self._rots = None
        self._bookie = bookie
        self._port = LocalBookies([bookie])
        self.up = True

    async def _boot(self, disk, table):
        new_instance = partial(self._draw.randbytes, 16)
        self._starts += 1
        bookie = Bookie(
            *(disk, table, SimClock(), new_instance), config=self._config, start_id=self.start_id
        )
        await bookie.start(boot_id=f"boot-{self._boots}", next_ledger=self.next_ledger())
        return bookie

    @property
    def start_id(self):
        """As registered: another one at each start of the process."""
        return f"start-{self._starts}"

    def in_process(self, work):
        """A task of the bookie's process, which ends if vital work of it fails."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def _end(self, disk, name, error):
        """The process with this disk ends by itself; nobody hears what it does from now on."""
        if disk is not self._disk:
            return
        self.on_ended(name, error)
        if self.up:
            self.up = False
            self._notice_misdirected()
            self._disk, self._table = disk.restart(), self._table.crash()
        else:
            self.kill()

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
        self._notice_misdirected()
        if self._draw.random() < 0.5:
            self._boots += 1
            self._disk, self._table = self._disk.crash(), self._table.crash()
            if self._config.journal_sync == "never":
                self.on_lost()
        else:
            self._disk, self._table = self._disk.restart(), self._table.crash()

    def misdirect(self):
        """Its next write succeeds, and its bytes are at another place."""
        disk = self._disk

        def on_misdirected():
            self._noticed_at = self._bookie.groups + 2
            self.on_lost()

        disk.accidents.append(MISDIRECTED_WRITE)
        disk.on_misdirected = on_misdirected

    def _notice_misdirected(self):
        """A later group says that the misdirected one was durable, so the next start misses it.

        Without a later group nothing tells it from a torn write, so it was none.
        """
        if self._disk.misdirected is None:
            return
        if self._bookie.groups >= self._noticed_at:
            self.on_lost()
        else:
            self._disk.put_right()

    def slow_flushes(self, flush_s_max):
        """Until they are `usual_flushes` again."""
        self._table.flush_s_max = flush_s_max

    def usual_flushes(self):
        self._table.flush_s_max = self._flush_s_max

    async def settled(self):
        """Wait until all that it accepted is durable or failed, or its process has ended."""
        while True:
            journal = self._bookie.storage.journal  # that of a new process after a restart
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    return await journal.settled()

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
        self._disk, self._table = disk, SimTable(self._draw, flush_s_max=self._flush_s_max)

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

        await survived(self.in_process(_rewrite(bookie, all_exist)))

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
        except Exception as error:
            if not isinstance(error, OSError):
                self.on_ended("a start", error)
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
        """As the server of a bookie does, also with an exception."""
        bookie, given_up = self._bookie, False

        def answered(status):
            if bookie is self._bookie and self.up and not given_up:
                on_added(status)

        add = partial(bookie.add, ledger, entry, master_key, body, answered, recovery=recovery)
        try:
            self._context.run(add)
        except Exception as error:
            report("an add of a client", error)
            answered(Status.IO_ERROR)
            given_up = True

    async def read(self, ledger, entry, *, fence_key=None):
        return await self._ask("read", ledger, entry, fence_key=fence_key)

    async def fence_many(self, ledgers):
        return await self._ask("fence_many", ledgers)

    async def read_many(self, ledger, first, last, max_bytes, *, from_disk=False):
        return await self._ask("read_many", ledger, first, last, max_bytes, from_disk=from_disk)

    async def read_lac(self, ledger):
        return await self._ask("read_lac", ledger)

    async def write_lac(self, ledger, master_key, lac):
        return await self._ask("write_lac", ledger, master_key, lac)

    async def wait_lac(self, ledger, previous, timeout_s):
        return await self._ask("wait_lac", ledger, previous, timeout_s)

    async def list_entries(self, ledger):
        return await self._ask("list_entries", ledger)

    async def end_limbo(self, ledger, master_key, start=""):
        return await self._ask("end_limbo", ledger, master_key, start)

    async def locate(self, ledger, entry):
        return await self._ask("locate", ledger, entry)

    async def stats(self):
        return await self._ask("stats")

    async def _ask(self, name, *args, **named):
        """As the port in process answers; nobody hears of it if the bookie crashes meanwhile.

        After an exception it answers as a server, whose control calls then end without an answer.
        """
        bookie, port = self._bookie, self._port
        try:
            reply = await self.in_process(getattr(port, name)(bookie.bookie_id, *args, **named))
        except Exception as error:
            report("a call of a client", error)
            reply = _FAILED.get(name)
        if bookie is not self._bookie or not self.up:
            await asyncio.get_running_loop().create_future()
        return reply
