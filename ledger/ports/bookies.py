"""The port to the bookies. The embedded gateway calls its bookies in process; a cluster
uses TCP or gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple, Protocol

from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId


class Status(IntEnum):
    """The answer code of a bookie. The numbers are BookKeeper's (BookkeeperProtocol.proto)."""

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
    UNREACHABLE = 900  # Not a code of BookKeeper. No answer came, so the outcome is unknown
    # Not a code of BookKeeper. Another bookie, or another start of it, serves at this address, so
    # the request had no effect
    WRONG_INSTANCE = 901
    # Not a code of BookKeeper. The roles of the client's certificate do not permit the request. It
    # had no effect, and says nothing about entries and ledgers: it counts as unknown
    PERMISSION_DENIED = 902


class BookieTransport(StrEnum):
    """How a process reaches bookies."""

    TCP = "tcp"  # our frames
    GRPC = "grpc"


class ReadReply(NamedTuple):
    """One entry. `body` is the stored entry, with header and digest; it is empty unless the status
    is OK.
    """

    status: Status
    body: bytes = b""
    lac: EntryId = EntryId(-1)


class ReadManyReply(NamedTuple):
    """Consecutive entries: `bodies[i]` is entry first + i.

    An OK reply may have fewer entries than requested, because of a size limit or a hole.
    """

    status: Status
    bodies: Sequence[Buffer] = ()
    lac: EntryId = EntryId(-1)


class EntriesReply(NamedTuple):
    """The entry ids that a bookie stores durably, as disjoint, rising (first, last) pairs.

    The pairs are empty unless the status is OK.
    """

    status: Status
    runs: tuple[tuple[EntryId, EntryId], ...] = ()


class LocateReply(NamedTuple):
    """The place of an entry in the log files of a bookie. All numbers are 0 unless the status
    is OK.
    """

    status: Status
    file_id: int = 0
    position: int = 0  # of the entry's first byte in the file, behind the record header
    length: int = 0  # of the entry: header, digest and payload


class BookieStats(NamedTuple):
    """The disk usage and the clock of a bookie. All fields are zero if it did not answer."""

    status: Status
    disk_bytes: int = 0
    free_bytes: int = 0
    ledgers: int = 0
    writable: bool = False
    time_ms: int = 0  # the bookie's wall clock; 0 if it reports none
    release: str = ""  # empty if it reports none
    syncs: int = 0  # groups written and synced since it started; 0 if none, or not reported
    sync_us: int = 0  # microseconds of all of them


DEFAULT_RACK = "/default-rack"


class BookieInfo(NamedTuple):
    """The address of a registered bookie, and the properties that it published."""

    host: str = "127.0.0.1"
    port: int = 0  # of gRPC; 0 if the bookie serves none
    rack: str = DEFAULT_RACK
    read_only: bool = False
    start: str = ""  # differs with each start of the process; empty if it is unknown
    tcp_port: int = 0  # of our frames over TCP; 0 if only gRPC is served, at `port`

    @property
    def main_port(self) -> int:
        """The port by which people know the bookie."""
        return self.tcp_port or self.port


FENCED_MAX = 100
"""Ledgers of one `Bookies.fence_many`."""

OnAdded = Callable[[Status], None]


class Bookies(Protocol):
    """All bookies that this process can reach, by id."""

    def available(self) -> tuple[BookieId, ...]:
        """Return the writable bookies, in no particular order."""
        ...

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        """Return all bookies that are registered as alive, including read-only ones."""
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
        """Queue one entry without waiting; `body` joined is header, digest and payload.

        `on_added(OK)` runs once the entry is durable on that bookie. Any other status means that
        the bookie refused the entry or that the outcome is unknown. `on_added` runs exactly once,
        and never inside this call. The adds of one bookie are processed in call order.
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
        """Read one entry, or the highest stored one if `entry` is -1.

        The state of the bookie is in the status; a failed read raises nothing. With `fence_key` the
        bookie fences the ledger durably before it replies; a ledger that it does not store is
        created fenced. `reply.lac` is the highest LAC that the bookie has, a hint for
        readers. No digest covers it, so a recovery uses the LAC inside the entry.
        """
        ...

    async def fence_many(
        self, bookie: BookieId, ledgers: Sequence[tuple[LedgerId, bytes]]
    ) -> Sequence[ReadReply]:
        """Fence ledgers, each with its key, and read the highest entry of each.

        Reply i is that of `read(bookie, ledger, -1, fence_key=key)` for ledger i: it comes after
        the fence is durable. The bookie makes all fences durable together. An implementation may
        send single requests, as `fence_each` does. At most `FENCED_MAX` ledgers.
        """
        ...

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
        """Read consecutive entries from `first`: at least one if it is stored, whatever
        its size.

        With `from_disk` the bookie reads its log files even if its memory has the entries, so that
        the copies on its disk are checked. A bookie without caches ignores this.
        """
        ...

    async def read_lac(self, bookie: BookieId, ledger: LedgerId) -> ReadReply:
        """Read the LAC; `body` of the reply is empty."""
        ...

    async def write_lac(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, lac: EntryId
    ) -> Status:
        """Store `lac` durably as the explicit LAC of the ledger."""
        ...

    async def wait_lac(
        self, bookie: BookieId, ledger: LedgerId, previous: EntryId, timeout_s: float
    ) -> ReadReply:
        """Wait until the bookie has a LAC above `previous`, is fenced, or `timeout_s` has passed.

        The status is OK in each of these cases. If the LAC is higher, `body` is entry previous + 1,
        or empty if the bookie does not store that entry. One round trip brings both, as in
        BookKeeper's long poll with entry piggyback. The bookie bounds `timeout_s`.
        """
        ...

    async def list_entries(self, bookie: BookieId, ledger: LedgerId) -> EntriesReply:
        """List the stored entries. NO_LEDGER needs evidence; in limbo it is
        UNKNOWN_LEDGER_STATE.
        """
        ...

    async def end_limbo(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, start: str = ""
    ) -> Status:
        """End the limbo of a ledger whose copies are complete again, or whose loss was accepted.

        `start` is the `BookieInfo.start` from before the copies were examined. A later start may
        have lost entries again, so it answers WRONG_INSTANCE. An earlier release ignores `start`.
        """
        ...

    async def locate(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> LocateReply:
        """Return the place of a durable entry, as the index has it and its log file confirms it.

        The log file has a record header with these ids and this length there. An entry that its
        file does not have where the index says is IO_ERROR, a denied one NO_ENTRY or NO_LEDGER.
        BAD_VERSION if the bookie is of a release without this call.
        """
        ...

    async def stats(self, bookie: BookieId) -> BookieStats:
        """Return the current statistics. The status is UNREACHABLE if no answer came."""
        ...


async def fence_each(
    bookies: Bookies, bookie: BookieId, ledgers: Sequence[tuple[LedgerId, bytes]]
) -> Sequence[ReadReply]:
    """Implement `Bookies.fence_many` by single requests, all in flight at once."""
    import asyncio  # a command's help loads this module, and needs no event loop

    asked = (bookies.read(bookie, each, NO_ENTRY, fence_key=key) for each, key in ledgers)
    return await asyncio.gather(*asked)
