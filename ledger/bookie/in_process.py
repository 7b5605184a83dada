"""The bookies port over bookies in this process, without a network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from ledger.adapters.posix.posix_disk import PosixDisk, SyncMode
from ledger.adapters.rocksdb.rocks_table import RocksTable
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.system.machine import boot_id, new_instance
from ledger.bookie.bookie import EVERY_LEDGER, Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.directory import bookie_id, claim_directory
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import (
    BookieInfo,
    BookieStats,
    EntriesReply,
    LocateReply,
    OnAdded,
    ReadManyReply,
    ReadReply,
    Status,
)
from ledger.ports.clock import Clock, Histogram
from ledger.ports.disk import Disk, IoMode
from ledger.tasks import do_each


class DirectoryIdentity(Protocol):
    """The comparison of a bookie's directory with the metadata that names its ledgers."""

    @property
    def loss(self) -> str:
        """The reason why the directory may lack entries, or "". Valid after `check`."""
        ...

    @property
    def served_before(self) -> bool:
        """True if the directory was started before. Valid after `check`."""
        ...

    async def check(self, disk: Disk, bookie: BookieId) -> None:
        """Raise ForeignDirectory, without writing, if the metadata belongs to other data."""
        ...

    async def stopped(self) -> None:
        """Record a clean stop of the bookie."""
        ...


ADD_TIMEOUT_S: Final = 10.0
"""Longest time that an add takes; a disk that hangs would otherwise leave it unanswered."""
_TICKS: Final = 8  # checks in that time


class _PendingAdds:
    """Adds in flight. One that is late is answered UNREACHABLE, and its real answer is dropped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Callbacks of unanswered adds, by rising numbers.
        self._pending: dict[int, OnAdded] = {}
        # The number of the next add.
        self._next = 0
        # `_next` at each of the last `_TICKS` ticks, while adds are pending.
        self._ticks: deque[int] = deque()

    def track(self, on_added: OnAdded) -> OnAdded:
        """Return the callback for the bookie."""
        number = self._next
        self._next = number + 1
        if not self._pending and not self._ticks:
            self._watch()
        self._pending[number] = on_added
        return partial(self._on_answer, number)

    def _on_answer(self, number: int, status: Status) -> None:
        on_added = self._pending.pop(number, None)
        if on_added is not None:
            on_added(status)

    def _watch(self) -> None:
        self._ticks.append(self._next)
        self._loop.call_later(ADD_TIMEOUT_S / _TICKS, self._on_tick)

    def _on_tick(self) -> None:
        late_below = self._ticks.popleft() if len(self._ticks) > _TICKS else 0
        pending = self._pending
        late: list[OnAdded] = []
        while pending and (number := next(iter(pending))) < late_below:
            late.append(pending.pop(number))
        if pending:
            self._watch()
        else:
            self._ticks.clear()
        do_each("an answer to a late add", lambda on_added: on_added(Status.UNREACHABLE), late)


class LocalBookies:
    """Bookies by id. Calls to an unknown id return UNREACHABLE."""

    def __init__(self, bookies: Sequence[Bookie]) -> None:
        self._bookies = {bookie.bookie_id: bookie for bookie in bookies}
        self._loop = asyncio.get_running_loop()
        self._adds = _PendingAdds()

    def available(self) -> tuple[BookieId, ...]:
        return tuple(name for name, bookie in self._bookies.items() if bookie.writable)

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        return {
            name: BookieInfo(read_only=not bookie.writable, start=bookie.start_id)
            for name, bookie in self._bookies.items()
            if bookie.failure is None
        }

    def add(
        self,
        bookie: BookieId,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        *,
        recovery: bool = False,
    ) -> None:
        node = self._bookies.get(bookie)
        if node is None:
            self._loop.call_soon(on_added, Status.UNREACHABLE)
        else:
            told = self._adds.track(on_added)
            node.add(ledger, entry, master_key, body, told, recovery=recovery)

    async def read(
        self,
        bookie: BookieId,
        ledger: LedgerId,
        entry: EntryId,
        *,
        fence_key: bytes | None = None,
    ) -> ReadReply:
        node = self._bookies.get(bookie)
        if node is None:
            return ReadReply(Status.UNREACHABLE)
        if fence_key is not None:
            status = await node.fence(ledger, fence_key)
            if status is not Status.OK:
                return ReadReply(status)
        return await node.read(ledger, entry)

    async def fence_many(
        self, bookie: BookieId, ledgers: Sequence[tuple[LedgerId, bytes]]
    ) -> Sequence[ReadReply]:
        node = self._bookies.get(bookie)
        if node is None:
            return [ReadReply(Status.UNREACHABLE)] * len(ledgers)
        return await node.fence_many(ledgers)

    async def read_many(
        self,
        bookie: BookieId,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: int,
        *,
        from_disk: bool = False,
    ) -> ReadManyReply:
        node = self._bookies.get(bookie)
        if node is None:
            return ReadManyReply(Status.UNREACHABLE)
        return await node.read_many(ledger, first, last, max_bytes, from_disk=from_disk)

    async def read_lac(self, bookie: BookieId, ledger: LedgerId) -> ReadReply:
        node = self._bookies.get(bookie)
        return ReadReply(Status.UNREACHABLE) if node is None else await node.read_lac(ledger)

    async def write_lac(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, lac: EntryId
    ) -> Status:
        node = self._bookies.get(bookie)
        if node is None:
            return Status.UNREACHABLE
        return await node.write_lac(ledger, master_key, lac)

    async def wait_lac(
        self, bookie: BookieId, ledger: LedgerId, previous: EntryId, timeout_s: float
    ) -> ReadReply:
        node = self._bookies.get(bookie)
        if node is None:
            return ReadReply(Status.UNREACHABLE)
        return await node.wait_lac(ledger, previous, timeout_s)

    async def list_entries(self, bookie: BookieId, ledger: LedgerId) -> EntriesReply:
        node = self._bookies.get(bookie)
        return EntriesReply(Status.UNREACHABLE) if node is None else await node.list_entries(ledger)

    async def end_limbo(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, start: str = ""
    ) -> Status:
        node = self._bookies.get(bookie)
        if node is None:
            return Status.UNREACHABLE
        return await node.end_limbo(ledger, master_key, start)

    async def locate(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> LocateReply:
        node = self._bookies.get(bookie)
        if node is None:
            return LocateReply(Status.UNREACHABLE)
        return await node.locate(ledger, entry)

    async def stats(self, bookie: BookieId) -> BookieStats:
        node = self._bookies.get(bookie)
        return BookieStats(Status.UNREACHABLE) if node is None else await node.stats()


class LocalBookie:
    """A bookie with the disk and the table that it uses."""

    def __init__(
        self,
        path: Path,
        bookie: Bookie,
        disk: PosixDisk,
        table: RocksTable,
        identity: DirectoryIdentity | None,
    ) -> None:
        self.path = path
        self.bookie = bookie
        self._disk = disk
        self._table = table
        self._identity = identity

    @property
    def blocked(self) -> Histogram:
        """How long this bookie's writes blocked the event loop."""
        return self._disk.blocked

    async def close(self) -> None:
        """Stop the bookie, record a clean stop, and close its disk and table."""
        failed = self.bookie.failure is not None
        try:
            await self.bookie.stop()
            if self._identity is not None and not failed:
                await self._identity.stopped()
        finally:
            self._table.close()
            self._disk.close()


async def open_local_bookie(
    path: Path,
    *,
    name: str = "bookie",
    config: BookieConfig | None = None,
    sync_mode: SyncMode = "auto",
    io: IoMode = "auto",
    next_ledger: LedgerId = EVERY_LEDGER,
    clock: Clock | None = None,
    identity: DirectoryIdentity | None = None,
) -> LocalBookie:
    """Start a bookie on the directory `path`, which is created if necessary.

    Raises DirectoryInUse, ForeignDirectory (without writing), UringUnavailable, OSError,
    CorruptFormat. `next_ledger` is described at `Bookie.start`. With `identity`, no other metadata
    ever named ledgers of this bookie, so metadata that is older than the directory raises
    ForeignDirectory too.
    """
    disk = PosixDisk(path, sync_mode, io)
    table: RocksTable | None = None
    try:
        instance = await claim_directory(disk, new_instance)
        if identity is not None:
            await identity.check(disk, bookie_id(name, instance))
        table = RocksTable(path / "index")
        bookie = Bookie(
            *(disk, table, clock or SystemClock(), new_instance),
            name=name,
            config=config,
            start_id=new_instance().hex()[:8],
        )
        await bookie.start(
            boot_id=boot_id(),
            next_ledger=next_ledger,
            lost=identity is not None and bool(identity.loss),
            served_before=identity is not None and identity.served_before,
            refuse_newer=identity is not None,
        )
    except BaseException:
        if table is not None:
            table.close()
        disk.close()
        raise
    return LocalBookie(path, bookie, disk, table, identity)
