"""The fences of one bookie: a fence is answered once it is durable, and so is every earlier add."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ledger.bookie.ledger_descriptor import LedgerDescriptor
from ledger.bookie.storage import BookieStorage
from ledger.core.journal_format import RecordType
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.ports.bookies import ReadReply, Status

FENCED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of entries in the replies of `fence_many`, unless the caller bounds them."""


class Fences:
    """Fences ledgers of the bookie whose storage it is given."""

    def __init__(
        self,
        storage: BookieStorage,
        authorize: Callable[[LedgerId, bytes], LedgerDescriptor | Status],
        read: Callable[[LedgerId, EntryId], Awaitable[ReadReply]],
    ) -> None:
        """`authorize` returns a ledger, created if necessary, or the status that refuses a key."""
        self._storage = storage
        self._authorize = authorize
        self._read = read

    async def fence(self, ledger: LedgerId, master_key: bytes) -> Status:
        """Fence one ledger durably. See `Bookie.fence`."""
        state = self._authorize(ledger, master_key)
        if isinstance(state, Status):
            return state
        state.fenced = True
        if not state.fence_logged:
            return await self._storage.append(RecordType.FENCE, state, -1)
        await self._storage.journal.settled()
        return Status.OK if self._storage.failure is None else Status.IO_ERROR

    async def fence_many(
        self, ledgers: Sequence[tuple[LedgerId, bytes]], bytes_max: int
    ) -> list[ReadReply]:
        """Fence ledgers durably in one group. See `Bookie.fence_many`."""
        states = [self.begin(ledger, key) for ledger, key in ledgers]
        await self._storage.journal.settled()  # all fences, and all adds accepted before them
        replies: list[ReadReply] = []
        for (ledger, _), state in zip(ledgers, states, strict=True):
            reply = await self._reply(ledger, state)
            if len(reply.body) > bytes_max:  # a shorter one may still have room
                reply = ReadReply(Status.OVERLOADED)
            bytes_max -= len(reply.body)
            replies.append(reply)
        return replies

    def begin(self, ledger: LedgerId, master_key: bytes) -> LedgerDescriptor | Status:
        """Fence the ledger and log that. The fence is durable once the journal has settled."""
        state = self._authorize(ledger, master_key)
        if isinstance(state, Status):
            return state
        state.fenced = True
        if not state.fence_logged:
            self._storage.append(RecordType.FENCE, state, -1)
        return state

    async def _reply(self, ledger: LedgerId, state: LedgerDescriptor | Status) -> ReadReply:
        if isinstance(state, Status):
            return ReadReply(state)
        if self._storage.failure is not None or not (state.fence_logged or state.deleted):
            return ReadReply(Status.IO_ERROR)
        return await self._read(ledger, NO_ENTRY)
