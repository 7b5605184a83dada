"""A bookie of this process as others on the machine may use it: for reading only.

Adds, fences, LACs and the end of a limbo are refused with READ_ONLY, so nobody can take a ledger
away from its writer here. And since that writer lives in the same process, readers are told its
LAC: they see an entry as soon as it is acknowledged, without another one behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ledger.bookie.bookie import Bookie
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import (
    BookieStats,
    EntriesReply,
    OnAdded,
    ReadManyReply,
    ReadReply,
    Status,
)

_LOOK_S: Final = 0.05
"""So often a long poll asks the writer; the bookie itself tells at once, an entry later."""


class ServedBookie(Protocol):
    """What the wire needs of a bookie. See `Bookies` for what each call means."""

    @property
    def bookie_id(self) -> BookieId: ...

    @property
    def writable(self) -> bool: ...

    def add(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        *,
        recovery: bool = False,
    ) -> None: ...

    async def fence(self, ledger: LedgerId, master_key: bytes) -> Status: ...

    async def write_lac(self, ledger: LedgerId, master_key: bytes, lac: EntryId) -> Status: ...

    async def end_limbo(self, ledger: LedgerId, master_key: bytes | None = None) -> Status: ...

    async def read(self, ledger: LedgerId, entry: EntryId) -> ReadReply: ...

    async def read_many(
        self, ledger: LedgerId, first: EntryId, last: EntryId, max_bytes: int
    ) -> ReadManyReply: ...

    async def read_lac(self, ledger: LedgerId) -> ReadReply: ...

    async def wait_lac(
        self, ledger: LedgerId, previous: EntryId, timeout_s: float
    ) -> ReadReply: ...

    async def list_entries(self, ledger: LedgerId) -> EntriesReply: ...

    async def stats(self) -> BookieStats: ...


class ReadOnlyBookie:
    """A `ServedBookie` over one whose writers are in this process."""

    def __init__(self, bookie: Bookie, confirmed: Callable[[LedgerId], EntryId]) -> None:
        """`confirmed`: the LAC of this process's own writer of a ledger, -1 without one."""
        self._bookie = bookie
        self._confirmed = confirmed
        self._loop = asyncio.get_running_loop()

    @property
    def bookie_id(self) -> BookieId:
        return self._bookie.bookie_id

    @property
    def writable(self) -> bool:
        return False

    # Refused.

    def add(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        *,
        recovery: bool = False,
    ) -> None:
        self._loop.call_soon(on_added, Status.READ_ONLY)

    async def fence(self, ledger: LedgerId, master_key: bytes) -> Status:
        return Status.READ_ONLY

    async def write_lac(self, ledger: LedgerId, master_key: bytes, lac: EntryId) -> Status:
        return Status.READ_ONLY

    async def end_limbo(self, ledger: LedgerId, master_key: bytes | None = None) -> Status:
        return Status.READ_ONLY

    # Answered.

    async def read(self, ledger: LedgerId, entry: EntryId) -> ReadReply:
        return self._told(ledger, await self._bookie.read(ledger, entry))

    async def read_many(
        self, ledger: LedgerId, first: EntryId, last: EntryId, max_bytes: int
    ) -> ReadManyReply:
        return await self._bookie.read_many(ledger, first, last, max_bytes)

    async def read_lac(self, ledger: LedgerId) -> ReadReply:
        return self._told(ledger, await self._bookie.read_lac(ledger))

    async def wait_lac(self, ledger: LedgerId, previous: EntryId, timeout_s: float) -> ReadReply:
        end_s = self._loop.time() + timeout_s
        while True:
            if self._confirmed(ledger) > previous:
                entry = await self.read(ledger, EntryId(previous + 1))
                return entry if entry.status is Status.OK else await self.read_lac(ledger)
            began_s = self._loop.time()
            look_s = max(0.0, min(_LOOK_S, end_s - began_s))
            reply = await self._bookie.wait_lac(ledger, previous, look_s)
            now_s = self._loop.time()
            news = reply.status is not Status.OK or reply.lac > previous
            if news or now_s >= end_s or now_s - began_s < look_s / 2:  # or it does not wait
                return self._told(ledger, reply)

    async def list_entries(self, ledger: LedgerId) -> EntriesReply:
        return await self._bookie.list_entries(ledger)

    async def stats(self) -> BookieStats:
        return (await self._bookie.stats())._replace(writable=False)

    def _told(self, ledger: LedgerId, reply: ReadReply) -> ReadReply:
        """What the writer knows is as good as what the bookie heard of it."""
        if reply.status is not Status.OK:
            return reply
        return reply._replace(lac=max(reply.lac, self._confirmed(ledger)))
