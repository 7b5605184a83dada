"""The interface that the gRPC server needs of a bookie: `Bookie` itself, or a read-only view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledger.bookie.answer_room import Share
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


class ServedBookie(Protocol):
    """A bookie served over the network. `Bookies` describes each call."""

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

    async def fence_many(
        self, ledgers: Sequence[tuple[LedgerId, bytes]], bytes_max: int
    ) -> Sequence[ReadReply]: ...

    async def write_lac(self, ledger: LedgerId, master_key: bytes, lac: EntryId) -> Status: ...

    async def end_limbo(
        self, ledger: LedgerId, master_key: bytes | None = None, start: str = ""
    ) -> Status: ...

    async def read(self, ledger: LedgerId, entry: EntryId, room: Share = None) -> ReadReply: ...

    async def read_many(
        self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: int,
        room: Share = None,
        *,
        from_disk: bool = False,
    ) -> ReadManyReply: ...

    async def read_lac(self, ledger: LedgerId) -> ReadReply: ...

    async def wait_lac(
        self, ledger: LedgerId, previous: EntryId, timeout_s: float, room: Share = None
    ) -> ReadReply: ...

    async def list_entries(self, ledger: LedgerId) -> EntriesReply: ...

    async def locate(self, ledger: LedgerId, entry: EntryId) -> LocateReply: ...

    async def stats(self) -> BookieStats: ...
