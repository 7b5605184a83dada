"""A bookie as peers with certain roles see it: what they may not do is refused.

A refusal is PERMISSION_DENIED in the body of the answer, on every transport. It has no effect, not
even that of creating a ledger, and no gRPC error stands for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ledger.bookie.answer_room import Share
from ledger.bookie.served_bookie import ServedBookie
from ledger.core.bookie_roles import Operation, Role, permitted
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import (
    BookieStats,
    EntriesReply,
    LocateReply,
    OnAdded,
    ReadManyReply,
    ReadReply,
    Status,
)

_DENIED = Status.PERMISSION_DENIED


class _Add(Protocol):
    def __call__(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        *,
        recovery: bool = False,
    ) -> None: ...


class PermittedBookie:
    """A `ServedBookie` that passes on what these roles permit."""

    def __init__(
        self,
        bookie: ServedBookie,
        roles: Collection[Role],
        on_denied: Callable[[Operation], None],
    ) -> None:
        """`on_denied` is called for each operation that is refused."""
        self._bookie = bookie
        self._may = permitted(roles)
        self._on_denied = on_denied
        self._loop = asyncio.get_running_loop()
        # The adds of gateways, which may add everything, pay nothing for the check.
        may_all = {Operation.ADD, Operation.RECOVERY_ADD} <= self._may
        self.add: _Add = bookie.add if may_all else self._add

    def _denies(self, operation: Operation) -> bool:
        if operation in self._may:
            return False
        self._on_denied(operation)
        return True

    @property
    def bookie_id(self) -> BookieId:
        return self._bookie.bookie_id

    @property
    def writable(self) -> bool:
        return self._bookie.writable

    def _add(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        *,
        recovery: bool = False,
    ) -> None:
        if self._denies(Operation.RECOVERY_ADD if recovery else Operation.ADD):
            self._loop.call_soon(on_added, _DENIED)
        else:
            self._bookie.add(ledger, entry, master_key, body, on_added, recovery=recovery)

    async def fence(self, ledger: LedgerId, master_key: bytes) -> Status:
        if self._denies(Operation.FENCE):
            return _DENIED
        return await self._bookie.fence(ledger, master_key)

    async def fence_many(
        self, ledgers: Sequence[tuple[LedgerId, bytes]], bytes_max: int
    ) -> Sequence[ReadReply]:
        if self._denies(Operation.FENCE_MANY):
            return [ReadReply(_DENIED)] * len(ledgers)
        return await self._bookie.fence_many(ledgers, bytes_max)

    async def write_lac(self, ledger: LedgerId, master_key: bytes, lac: EntryId) -> Status:
        if self._denies(Operation.WRITE_LAC):
            return _DENIED
        return await self._bookie.write_lac(ledger, master_key, lac)

    async def end_limbo(
        self, ledger: LedgerId, master_key: bytes | None = None, start: str = ""
    ) -> Status:
        if self._denies(Operation.END_LIMBO):
            return _DENIED
        return await self._bookie.end_limbo(ledger, master_key, start)

    async def read(self, ledger: LedgerId, entry: EntryId, room: Share = None) -> ReadReply:
        if self._denies(Operation.READ):
            return ReadReply(_DENIED)
        return await self._bookie.read(ledger, entry, room)

    async def read_many(
        self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: int,
        room: Share = None,
        *,
        from_disk: bool = False,
    ) -> ReadManyReply:
        if self._denies(Operation.READ_MANY):
            return ReadManyReply(_DENIED)
        return await self._bookie.read_many(
            ledger, first, last, max_bytes, room, from_disk=from_disk
        )

    async def read_lac(self, ledger: LedgerId) -> ReadReply:
        if self._denies(Operation.READ_LAC):
            return ReadReply(_DENIED)
        return await self._bookie.read_lac(ledger)

    async def wait_lac(
        self, ledger: LedgerId, previous: EntryId, timeout_s: float, room: Share = None
    ) -> ReadReply:
        if self._denies(Operation.WAIT_LAC):
            return ReadReply(_DENIED)
        return await self._bookie.wait_lac(ledger, previous, timeout_s, room)

    async def list_entries(self, ledger: LedgerId) -> EntriesReply:
        if self._denies(Operation.LIST_ENTRIES):
            return EntriesReply(_DENIED)
        return await self._bookie.list_entries(ledger)

    async def locate(self, ledger: LedgerId, entry: EntryId) -> LocateReply:
        if self._denies(Operation.LOCATE):
            return LocateReply(_DENIED)
        return await self._bookie.locate(ledger, entry)

    async def stats(self) -> BookieStats:
        if self._denies(Operation.STATS):
            return BookieStats(_DENIED)
        return await self._bookie.stats()
