"""One bookie under load, power cuts and kills, and a checker that knows every acknowledgement."""

from __future__ import annotations

import asyncio
import errno
import struct
from dataclasses import replace
from random import Random

from crc32c import crc32c

from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.gc.collector import collect
from ledger.core.group_commit import GroupCommitLimits
from ledger.core.journal_format import file_name
from ledger.ports.bookies import Status
from tests.sim.disk import ACCIDENTS, EIO_ON_A_READ, URING_ACCIDENTS, DiskFaults, SimDisk
from tests.sim.loop import SimClock
from tests.sim.table import SimTable

KEY = b"k" * 20
ACCIDENT_AT_START = 0.02  # chance of each accident
DIGEST_AT = 32  # in an entry
ANSWER_S_MAX = 5.0  # every add is answered by then, whatever the disk does


def entry_bytes(ledger: int, entry: int, payload: bytes, lac: int | None = None) -> bytes:
    """An entry in BookKeeper's layout with a CRC32C digest."""
    head = struct.pack(">qqqq", ledger, entry, entry - 1 if lac is None else lac, len(payload))
    return head + struct.pack(">I", crc32c(payload, crc32c(head))) + payload


def entry_buffers(ledger: int, entry: int, payload: bytes, lac: int | None = None) -> list[bytes]:
    """As a writer hands it over: header and payload."""
    whole = entry_bytes(ledger, entry, payload, lac)
    return [whole[:36], whole[36:]]


def small_config(random: Random, journal_sync: str = "group") -> BookieConfig:
    """Everything tiny, so that rolls, batches and flushes happen all the time."""
    preallocate_bytes = random.choice([4096, 16 * 1024, 64 * 1024])
    return BookieConfig(
        journal_sync=journal_sync,
        file_bytes=64 * 1024,
        preallocate_bytes=preallocate_bytes,
        group=GroupCommitLimits(
            group_bytes_max=random.choice([4096, 32 * 1024]),
            group_entries_max=random.choice([1, 3, 64]),
            wait_us_max=random.choice([0, 500, 3000]),
        ),
        index_batch_entries=random.choice([1, 4, 32, 512]),
        index_flush_bytes=random.choice([8 * 1024, 64 * 1024]),
        idle_mark_ms=5,
        headroom_bytes=0,
        headroom_check_ms=1,
        open_files_max=2,
        write_cache_bytes={4096: 0, 16 * 1024: 3000, 64 * 1024: 1 << 20}[preallocate_bytes],
        read_ahead_bytes=preallocate_bytes if preallocate_bytes > 4096 else 0,
        ledgers_in_memory_max=random.choice([2, 100]),
        roll_dead_bytes_min=8 * 1024,
    )


class BookieWorld:
    """A bookie, what was asked of it, and what it answered. Raises AssertionError on a lie."""

    def __init__(
        self, seed: int, *, faults: DiskFaults | None = None, journal_sync: str = "group"
    ) -> None:
        self.random = Random(seed)
        self.glances: Random | None = None  # reads of what is on its way or was just deleted
        self.config = small_config(self.random, journal_sync)
        self.disk = SimDisk(self.random, faults)
        self.table = SimTable(self.random, flush_s_max=self.random.choice([0.01, 0.01, 0.3]))
        # Without syncs, UNSYNCED torn by an accident is taken for a lost boot: limbo without loss
        self.accidents = ACCIDENTS if journal_sync == "group" else ()
        self.reads_fail = False  # a read of this boot may have ended with EIO
        self.rotten = False  # acknowledged entries may be damaged: `check` looks after that
        self.asked = 0  # adds of this boot that are not answered
        self.sent: dict[tuple[int, int], bytes] = {}
        self.acked: set[tuple[int, int]] = set()
        self.next_entry: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.fence_asked: set[int] = set()
        self.lac: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.delete_asked: set[int] = set()
        self.ledgers = 0
        self.boot = "boot-0"
        self.boots = 0
        self.bookie: Bookie | None = None

    def glance(self) -> None:
        """Read what is on its way, and what was just deleted. Call before `start`."""
        self.glances = Random(0)  # of its own, so that other draws are as without glances

    def use_uring(self) -> None:
        """The disk completes writes as io_uring does. Call before `start`."""
        self.disk.faults = replace(self.disk.faults, uring=True)
        self.accidents = URING_ACCIDENTS

    async def start(self) -> None:
        """The bookie serves over whatever the disk and the table hold.

        A start that an accident ends is followed by another.
        """
        self.boots += 1
        self.disk.full = False
        self.disk.accidents = [
            each for each in self.accidents if self.random.random() < ACCIDENT_AT_START
        ]
        while True:
            self.bookie = Bookie(
                self.disk,
                self.table,
                SimClock(),
                lambda: self.random.randbytes(16),
                config=self.config,
            )
            try:
                await self.bookie.start(boot_id=self.boot, next_ledger=self.ledgers)
            except OSError:
                self.kill()
            else:
                break
        self.disk.accidents.clear()
        self.reads_fail, self.asked = False, 0

    def power_cut(self, *, same_boot_id: bool = False) -> None:
        """What was not synced may be gone, in whole or in part."""
        self.disk, self.table = self.disk.crash(), self.table.crash()
        if not same_boot_id:
            self.boot = f"boot-{self.boots}"

    def kill(self) -> None:
        """The process is gone; the machine keeps what was written."""
        self.disk, self.table = self.disk.restart(), self.table.crash()

    async def work(self, steps: int) -> None:
        """Random calls, some of them still under way when this returns."""
        for _ in range(steps):
            await self._step()

    async def _step(self) -> None:
        draw = self.random.random()
        if draw < 0.65:
            self.add_some()
        elif draw < 0.70:
            self._later(self._fence())
        elif draw < 0.76:
            self._later(self._write_lac())
        elif draw < 0.86:
            self._later(self._read_one())
        elif draw < 0.90:
            self._later(self._collect())
        elif draw < 0.91:
            self.disk.full = True
        elif draw < 0.94:
            self.disk.full = False
        elif draw < 0.95:
            self._accident()
        else:
            await asyncio.sleep(self.random.random() * 0.01)

    def _accident(self) -> None:
        if not self.accidents:
            return
        accident = self.random.choice(self.accidents)
        self.disk.accidents.append(accident)
        self.reads_fail = self.reads_fail or accident == EIO_ON_A_READ

    async def check_answered(self) -> None:
        """No add waits for ever."""
        await asyncio.sleep(ANSWER_S_MAX)
        assert self.asked == 0, f"{self.asked} adds are never answered"

    def collect_soon(self) -> None:
        """A collection begins, beside whatever follows."""
        self._later(self._collect())

    def _later(self, work) -> None:
        self._tasks = {task for task in getattr(self, "_tasks", set()) if not task.done()}
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    def stop_tasks(self) -> None:
        """Callers die with the process; what they found wrong so far is raised."""
        for task in getattr(self, "_tasks", set()):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()
            task.cancel()

    def _a_ledger(self) -> int:
        if self.ledgers == 0 or self.random.random() < 0.15:
            self.ledgers += 1
        return self.random.randrange(max(0, self.ledgers - 5), self.ledgers)

    def add_some(self) -> None:
        ledger = self._a_ledger()
        if ledger in self.delete_asked:
            return
        bookie, asked_fenced = self.bookie, ledger in self.fenced
        for _ in range(self.random.randint(1, 6)):
            entry = self.next_entry.get(ledger, 0)
            recovery = self.random.random() < 0.05
            payload = self.random.randbytes(self.random.choice([0, 10, 500, 6000]))
            body = entry_buffers(ledger, entry, payload)

            def on_added(status, place=(ledger, entry), recovery=recovery, bookie=bookie):
                if bookie is not self.bookie:
                    return
                self.asked -= 1
                assert not (asked_fenced and not recovery and status is Status.OK), "fence broken"
                if status is Status.OK:
                    self.acked.add(place)

            self.asked += 1
            self.next_entry[ledger] = entry + 1
            self.sent[ledger, entry] = b"".join(body)
            bookie.add(ledger, entry, KEY, body, on_added, recovery=recovery)
        if self.glances is not None and self.glances.random() < 0.3:
            self._later(self._glance(ledger, entry))

    async def _glance(self, ledger: int, entry: int) -> None:
        """Read an entry on its way: what is shown is as durable as what is acknowledged."""
        bookie = self.bookie
        reply = await bookie.read(ledger, entry)
        if reply.status is Status.OK and bookie is self.bookie:
            assert reply.body == self.sent[ledger, entry], f"garbage at {ledger}/{entry}"
            self.acked.add((ledger, entry))

    async def _glance_at_deleted(self, ledgers: set[int]) -> None:
        """Read the last entries of ledgers that were just deleted: none is served any more."""
        bookie = self.bookie
        for ledger, entry in sorted(self.sent):
            if ledger in ledgers and entry >= self.next_entry[ledger] - 3:
                reply = await bookie.read(ledger, entry)
                assert reply.status is not Status.OK, f"deleted ledger {ledger} is served"

    async def _fence(self) -> None:
        ledger, bookie = self._a_ledger(), self.bookie
        if ledger in self.delete_asked:
            return
        accepted = self.next_entry.get(ledger, 0)
        self.fence_asked.add(ledger)
        if await bookie.fence(ledger, KEY) is not Status.OK or bookie is not self.bookie:
            return
        self.fenced.add(ledger)
        highest = await bookie.read(ledger, -1)
        if highest.status is Status.OK and bookie is self.bookie:
            seen = struct.unpack_from(">q", highest.body, 8)[0]
            late = [e for it, e in self.acked if it == ledger and seen < e < accepted]
            assert not late, f"acknowledged after the fence and unseen by it: {late}"

    async def _write_lac(self) -> None:
        ledger, bookie = self._a_ledger(), self.bookie
        if ledger in self.delete_asked:
            return
        lac = self.next_entry.get(ledger, 0) - 1
        if await bookie.write_lac(ledger, KEY, lac) is Status.OK and bookie is self.bookie:
            self.lac[ledger] = max(lac, self.lac.get(ledger, -1))

    async def _read_one(self) -> None:
        if self.rotten:
            return
        if self.acked and self.bookie.failure is None:
            await self._check_entry(*self.random.choice(sorted(self.acked)), certain=True)

    async def _collect(self) -> None:
        bookie = self.bookie
        share = self.random.choice([0.1, 0.5, 1.0])
        dead = {it for it in range(self.ledgers - 3) if self.random.random() < share}
        self.delete_asked |= dead

        async def list_ledgers() -> set[int]:
            return set(range(self.ledgers)) - self.delete_asked

        try:
            await collect(
                bookie, list_ledgers, compaction_threshold=self.random.choice([0.0, 0.5, 1.0])
            )
        except OSError as error:
            assert bookie.failure is not None or error.errno in (errno.ENOSPC, errno.EIO)
            return
        if bookie is self.bookie:
            self.deleted |= dead
            if self.glances is not None:
                await self._glance_at_deleted(dead)

    async def rot_and_repair(self, ledger: int, entry: int) -> None:
        """Damage a durable entry on disk and add it again, as a repair does. It is sound then."""
        storage = self.bookie.storage
        await storage.checkpoint()
        if ledger in self.delete_asked:
            return
        place = storage.index.find(storage.index.state(ledger), entry)
        self.disk.flip_bit(file_name(place.file_id), place.position + DIGEST_AT)
        statuses: list[Status] = []
        whole = self.sent[ledger, entry]
        self.bookie.add(ledger, entry, KEY, [whole], statuses.append, recovery=True)
        await asyncio.sleep(ANSWER_S_MAX)
        assert statuses, f"the repair of {ledger}/{entry} is never answered"
        if ledger in self.delete_asked:
            return
        assert statuses == [Status.OK], f"no repair of {ledger}/{entry}: {statuses}"
        for _ in range(2):
            await self._check_entry(ledger, entry, certain=True)
            await storage.checkpoint()

    async def check(self, *, limbo: bool = False, corrupt: bool = False) -> None:
        """Everything acknowledged is there, nothing else is invented, fences hold.

        `limbo`: the bookie may say that it does not know. `corrupt`: a reader may have to see by
        the digest that an entry is damaged.
        """
        for ledger, entry in sorted(self.sent):
            if corrupt and await self._is_damaged(ledger, entry):
                continue
            await self._check_entry(ledger, entry, (ledger, entry) in self.acked, limbo=limbo)
        index = self.bookie.storage.index
        for ledger in sorted(self.deleted):
            assert not index.rows(ledger, 0, 1), f"an extent of the deleted ledger {ledger}"
        for ledger in sorted(self.fenced - self.delete_asked):
            statuses: list[Status] = []
            entry = self.next_entry.get(ledger, 0) + 1000
            body = entry_buffers(ledger, entry, b"zombie")
            self.bookie.add(ledger, entry, KEY, body, statuses.append)
            await asyncio.sleep(0.05)
            assert statuses == [Status.FENCED], f"fence of ledger {ledger} forgotten: {statuses}"
        for ledger, lac in self.lac.items():
            if ledger not in self.delete_asked and not limbo:
                assert (await self.bookie.read_lac(ledger)).lac >= lac, "LAC fell"

    async def _is_damaged(self, ledger: int, entry: int) -> bool:
        """It cannot be read, or its digest tells the reader that it is not what was written."""
        reply = await self.bookie.read(ledger, entry)
        if reply.status is not Status.OK:
            return reply.status is Status.IO_ERROR
        digest = crc32c(reply.body[36:], crc32c(reply.body[:32]))
        return reply.body[32:36] != struct.pack(">I", digest)

    async def _check_entry(
        self, ledger: int, entry: int, certain: bool, *, limbo: bool = False
    ) -> None:
        bookie = self.bookie
        reply = await bookie.read(ledger, entry)
        if bookie is not self.bookie or bookie.failure is not None:
            return
        if self.reads_fail and reply.status is Status.IO_ERROR:
            return
        if reply.status is Status.OK:
            assert reply.body == self.sent[ledger, entry], f"garbage at {ledger}/{entry}"
            assert ledger not in self.deleted, f"deleted ledger {ledger} is back"
        elif limbo:
            assert reply.status in (Status.UNKNOWN_LEDGER_STATE, Status.NO_LEDGER, Status.IO_ERROR)
            assert reply.status is not Status.NO_LEDGER or ledger in self.delete_asked
        elif certain and ledger not in self.delete_asked:
            raise AssertionError(f"acknowledged {ledger}/{entry} is lost: {reply.status!r}")
        else:
            assert reply.status in (Status.NO_ENTRY, Status.NO_LEDGER)
