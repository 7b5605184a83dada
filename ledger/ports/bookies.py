"""The port to the storage nodes. In process: `local_bookies`; over the network: gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    WRONG_INSTANCE = 901  # ours: another bookie serves there; this one did nothing


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


class EntriesReply(NamedTuple):
    """`runs` are the ids held durably: disjoint, rising (first, last) pairs; only with OK."""

    status: Status
    runs: tuple[tuple[EntryId, EntryId], ...] = ()


class BookieStats(NamedTuple):
    """How full a bookie is. Zeros when it could not be asked (`status`)."""

    status: Status
    disk_bytes: int = 0
    free_bytes: int = 0
    ledgers: int = 0
    writable: bool = False


DEFAULT_RACK = "/default-rack"


class BookieInfo(NamedTuple):
    """Where a registered bookie is and what it says of itself."""

    host: str = "127.0.0.1"
    port: int = 0
    rack: str = DEFAULT_RACK
    read_only: bool = False


OnAdded = Callable[[Status], None]


class Bookies(Protocol):
    """All bookies this process can reach, by id."""

    def available(self) -> tuple[BookieId, ...]:
        """Writable bookies, in no special order."""
        ...

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        """All bookies that are alive as far as is known, read-only ones too."""
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

    async def wait_lac(
        self, bookie: BookieId, ledger: LedgerId, previous: EntryId, timeout_s: float
    ) -> ReadReply:
        """Answers once the bookie knows a LAC above `previous`, was fenced, or time is up.

        With a higher LAC, `body` is entry previous + 1 when it is stored there, else empty: all
        in one round trip (BookKeeper's long poll with entry piggyback). OK in each of these
        cases. `timeout_s` is bounded by the bookie.
        """
        ...

    async def list_entries(self, bookie: BookieId, ledger: LedgerId) -> EntriesReply:
        """Which entries it holds. NO_LEDGER by evidence only, UNKNOWN_LEDGER_STATE in limbo."""
        ...

    async def end_limbo(self, bookie: BookieId, ledger: LedgerId, master_key: bytes) -> Status:
        """Its share of the ledger is complete again (or its loss accepted): it answers plainly."""
        ...

    async def stats(self, bookie: BookieId) -> BookieStats:
        """As it is now; UNREACHABLE without an answer."""
        ...
