"""Worlds of one real bookie for `mutations`: meetings that a cluster seldom makes.

As a family of swarms, each takes a seed, and `run` returns what it found wrong.
"""

import asyncio
from dataclasses import replace
from random import Random

from ledger.bookie.bookie import Bookie
from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.core.fencing import has_valid_digest
from ledger.core.journal_format import file_name
from ledger.ports.bookies import Status
from tests.sim.bookie_world import KEY, BookieWorld, entry_buffers, small_config
from tests.sim.disk import SimDisk
from tests.sim.loop import SimClock
from tests.sim.table import SimTable

BOOT, NEXT_BOOT = "boot-0", "boot-1"


class OneBookie:
    """A bookie, and the ways in which its process and its index are lost."""

    journal_sync = "group"

    def __init__(self, seed):
        draw = self.draw = Random(f"{seed}:{type(self).__name__}")
        self.config = small_config(draw, self.journal_sync)
        self.disk, self.table = SimDisk(draw), SimTable(draw)
        self.bookie = None

    async def start(self, boot_id=BOOT):
        chance = self.draw
        self.bookie = Bookie(
            self.disk, self.table, SimClock(), lambda: chance.randbytes(16), config=self.config
        )
        await self.bookie.start(boot_id=boot_id, next_ledger=10)

    def kill(self):
        """The process ends; at times the index goes with it, so that the log alone tells."""
        self.disk = self.disk.restart()
        lost = self.draw.random() < 0.5
        self.table = SimTable(self.draw) if lost else self.table.crash()

    async def add(self, ledger, entry, *, recovery=False):
        done = asyncio.get_running_loop().create_future()
        body = entry_buffers(ledger, entry, b"%d:" % entry + bytes(900))
        self.bookie.add(ledger, entry, KEY, body, done.set_result, recovery=recovery)
        return await done


class RepairBesideRewrite(OneBookie):
    """Corrupt entries are repaired while their log file is compacted."""

    async def run(self):
        draw = self.draw
        await self.start()
        await asyncio.gather(*(self.add(1, entry) for entry in range(20)))
        storage = self.bookie.storage
        await storage.checkpoint()
        place = storage.index.find(storage.index.state(1), 0)
        await storage.journal.roll()
        await storage.checkpoint()
        rotten = sorted(draw.sample(range(20), 3))
        for entry in rotten:
            where = storage.index.find(storage.index.state(1), entry)
            self.disk.flip_bit(file_name(where.file_id), where.position + 500)
        rewriting = asyncio.ensure_future(LogCleaner(storage).compact_file(place.file_id))
        await asyncio.sleep(draw.random() * 0.002)
        statuses = await asyncio.gather(*(self.add(1, one, recovery=True) for one in rotten))
        await rewriting
        self.kill()
        await self.start()
        found = []
        for entry, status in zip(rotten, statuses, strict=True):
            body = (await self.bookie.read(1, entry)).body
            if status is Status.OK and not has_valid_digest(body):
                found.append(f"L7: repaired entry {entry} is corrupt again")
        return found


class LimboAtBoot(OneBookie):
    """A power cut loses unsynced entries; after the next boot the process is killed."""

    journal_sync = "never"

    async def run(self):
        await self.start()
        for entry in range(self.draw.randint(1, 5)):
            await self.add(1, entry)
        self.disk, self.table = self.disk.crash(), self.table.crash()
        await self.start(NEXT_BOOT)
        self.kill()
        await self.start(NEXT_BOOT)
        found = []
        reply = await self.bookie.read(1, 99)
        if reply.status is not Status.UNKNOWN_LEDGER_STATE:
            found.append(f"L15: it may have lost entries and answers {reply.status.name}")
        if await self.add(2, 0) is not Status.FENCED:
            found.append("L15: it may have lost a fence and takes an add")
        return found


class FullDisks(BookieWorld):
    """Fences and adds while the disk is full now and then; in the end the log alone tells."""

    def __init__(self, seed):
        super().__init__(seed)
        self.config = replace(
            self.config, index_batch_entries=1, ledgers_in_memory_max=1, preallocate_bytes=4096
        )

    async def run(self):
        await self.start()
        for _ in range(40):
            self.add_some()
            self._later(self._fence())
            await asyncio.sleep(self.random.random() * 0.002)
            self.disk.full = self.random.random() < 0.3
            self.bookie.check_disk_space()
        self.stop_tasks()
        self.kill()
        self.table = SimTable(self.random)
        await self.start()
        try:
            await self.check()
        except AssertionError as error:
            return [f"L10: {error}"]
        return []
