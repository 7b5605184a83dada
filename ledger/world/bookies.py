"""The port to the storage nodes. In process: `local_bookies`; over the network: gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from ledger.ids import BookieId, Buffer, EntryId, LedgerId


class Status(IntEnum):
    """What a bookie answers. Numbers are Apache BookKeeper's (BookkeeperProtocol.proto)."""

    OK = 0
    NO_LEDGER = 402
    NO_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    OVERLOADED = 506
    UNKNOWN_LEDGER_STATE = 507
    UNREACHABLE = 900  # ours: no answer; nothing is known


class ReadReply(NamedTuple):
    """`body` is the whole entry as stored, header and digest included; only with OK."""

    status: Status
    body: bytes = b""
    lac: EntryId = EntryId(-1)


class ReadManyReply(NamedTuple):
    """`bodies[i]` is entry first + i. OK with fewer than asked is normal (size limit, hole)."""

    status: Status
    bodies: Sequence[Buffer] = ()
    lac: EntryId = EntryId(-1)


OnAdded = Callable[[Status], None]


class Bookies(Protocol):
    """All bookies this process can reach, by id."""

    def available(self) -> tuple[BookieId, ...]:
        """Writable bookies, in no special order."""
        ...

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
        """Queue one entry (`body` joined is header + digest + payload). Never waits.

        `on_added(OK)` runs once it is durable on that bookie; any other status means that its
        fate there is unknown or that it was refused. Runs exactly once, never inside this call.
        Calls for one bookie are handled in order.
        """
        ...

    async def read(
        self,
        bookie: BookieId,
        ledger: LedgerId,
        entry: EntryId,
        *,
        fence_key: bytes | None = None,
    ) -> ReadReply:
        """One entry, or with entry -1 the highest stored. Never raises for the bookie's state.

        With `fence_key` the ledger is fenced durably there before the reply (created fenced when
        unknown). `reply.lac` is the highest LAC that the bookie knows.
        """
        ...

    async def read_many(
        self, bookie: BookieId, ledger: LedgerId, first: EntryId, last: EntryId, max_bytes: int
    ) -> ReadManyReply:
        """Consecutive entries from `first`; at least one when it is there, whatever its size."""
        ...

    async def read_lac(self, bookie: BookieId, ledger: LedgerId) -> ReadReply:
        """`lac` only."""
        ...

    async def write_lac(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, lac: EntryId
    ) -> Status:
        """The bookie knows this LAC (explicit LAC), durably."""
        ...
