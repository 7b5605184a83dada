"""A read-only view of a bookie in this process, for readers elsewhere on the machine.

Adds, fences, LAC writes and the end of a limbo are refused with READ_ONLY, so no reader can fence a
ledger against its writer. The writer is in the same process, so the view returns the writer's LAC.
Readers therefore see an entry as soon as it is acknowledged, without waiting for the next entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ledger.bookie.answer_room import Share
from ledger.bookie.bookie import Bookie
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

_POLL_S: Final = 0.05
"""How often a long poll reads the writer's LAC. The bookie's own LAC is one entry behind."""


class ReadOnlyView:
    """A `ServedBookie` that answers reads of one bookie and refuses everything else."""

    def __init__(self, bookie: Bookie, confirmed: Callable[[LedgerId], EntryId]) -> None:
        """`confirmed` returns the LAC of a ledger's writer in this process, or -1 if it
        has none.
        """
        self._bookie = bookie
        self._confirmed = confirmed
        self._loop = asyncio.get_running_loop()

    @property
    def bookie_id(self) -> BookieId:
        return self._bookie.bookie_id

    @property
    def writable(self) -> bool:
        return False

    # -- refused -------------------------------------------------------------------------------

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

    async def fence_many(
        self, ledgers: Sequence[tuple[LedgerId, bytes]], bytes_max: int = 0
    ) -> Sequence[ReadReply]:
        return [ReadReply(Status.READ_ONLY)] * len(ledgers)

    async def write_lac(self, ledger: LedgerId, master_key: bytes, lac: EntryId) -> Status:
        return Status.READ_ONLY

    async def end_limbo(
        self, ledger: LedgerId, master_key: bytes | None = None, start: str = ""
    ) -> Status:
        return Status.READ_ONLY

    # -- answered ------------------------------------------------------------------------------

    async def read(self, ledger: LedgerId, entry: EntryId, room: Share = None) -> ReadReply:
        return self._with_writer_lac(ledger, await self._bookie.read(ledger, entry, room))

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
        return await self._bookie.read_many(
            ledger, first, last, max_bytes, room, from_disk=from_disk
        )

    async def read_lac(self, ledger: LedgerId) -> ReadReply:
        return self._with_writer_lac(ledger, await self._bookie.read_lac(ledger))

    async def wait_lac(
        self, ledger: LedgerId, previous: EntryId, timeout_s: float, room: Share = None
    ) -> ReadReply:
        end_s = self._loop.time() + timeout_s
        while True:
            if self._confirmed(ledger) > previous:
                entry = await self.read(ledger, EntryId(previous + 1), room)
                return entry if entry.status is Status.OK else await self.read_lac(ledger)
            began_s = self._loop.time()
            poll_s = max(0.0, min(_POLL_S, end_s - began_s))
            reply = await self._bookie.wait_lac(ledger, previous, poll_s, room)
            now_s = self._loop.time()
            advanced = reply.status is not Status.OK or reply.lac > previous
            # The bookie did not wait: avoid a busy loop
            returned_early = now_s - began_s < poll_s / 2
            if advanced or now_s >= end_s or returned_early:
                return self._with_writer_lac(ledger, reply)

    async def list_entries(self, ledger: LedgerId) -> EntriesReply:
        return await self._bookie.list_entries(ledger)

    async def locate(self, ledger: LedgerId, entry: EntryId) -> LocateReply:
        return await self._bookie.locate(ledger, entry)

    async def stats(self) -> BookieStats:
        return await self._bookie.stats()

    def _with_writer_lac(self, ledger: LedgerId, reply: ReadReply) -> ReadReply:
        """Raise the reply's LAC to the LAC of this process's writer."""
        if reply.status is not Status.OK:
            return reply
        return reply._replace(lac=max(reply.lac, self._confirmed(ledger)))
