"""The bookies port over gRPC: one connection to each bookie, made when it is first needed.

A connection that breaks answers all that was under way with UNREACHABLE, at once; then it is made
again in the background, first at once and then ever less often, where the bookie is registered by
then. Until it stands, calls are answered UNREACHABLE without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from google.protobuf.message import DecodeError, Message

from ledger.adapters.grpc.grpc_channel import client_credentials
from ledger.adapters.grpc.grpc_config import GrpcClientConfig, TlsFiles
from ledger.adapters.grpc.grpc_library import grpc, keep_running
from ledger.adapters.grpc.grpc_link import Address, Link
from ledger.adapters.system.memory import keep_freed_memory
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import (
    BookieInfo,
    BookieStats,
    EntriesReply,
    OnAdded,
    ReadManyReply,
    ReadReply,
    Status,
)
from ledger.wire import bookie_pb2 as pb
from ledger.wire.bookie_frames import ReadOp, ReadRequest, ReadResponse

Registered = Callable[[], Mapping[BookieId, BookieInfo]]
_Reply = pb.StatusReply | pb.LacReply | pb.EntriesReply | pb.StatsReply
_BOUND_MAX = 2**32 - 1


class Peer:
    """One bookie: the connection that takes calls, if there is one, and the task that mends it."""

    def __init__(
        self,
        bookie: BookieId,
        registered: Registered,
        config: GrpcClientConfig,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self._bookie = bookie
        self._registered = registered
        self._config = config
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None  # takes calls
        self._newest: Link | None = None  # that one, or one that is being made
        self._keeper: asyncio.Task[None] | None = None
        self._refusal = Status.UNREACHABLE
        self._moved = asyncio.Event()
        self._closed = False

    def link(self) -> Link | Status:
        """Where to send a call now, or why nowhere."""
        link = self._link
        if link is not None and not link.adds.over:
            return link
        address = self._address()
        if address is None or self._closed:
            return Status.UNREACHABLE
        if self._keeper is None or self._keeper.done():
            link = self._new_link(address)
            self._keeper = asyncio.create_task(self._keep(link))
            self._use(link)
            return link
        if self._newest is not None and self._newest.address != address:
            self._moved.set()
        return self._refusal

    async def close(self) -> None:
        """The connection is gone; what was under way is answered."""
        self._closed = True
        newest, keeper = self._newest, self._keeper
        if newest is None or keeper is None:
            return
        if newest.is_open:
            newest.close()
        else:
            keeper.cancel()
        await asyncio.wait([keeper])

    async def _keep(self, link: Link) -> None:
        """Connections follow each other as long as the bookie is registered."""
        wait_s = 0.0
        while True:
            started_s = self._loop.time()
            await link.run(partial(self._use, link))
            self._link = None
            self._refusal = link.refusal
            if self._closed:
                return
            lasted = self._loop.time() - started_s >= self._config.reconnect_s_max
            wait_s = 0.0 if lasted and link.was_open else self._longer(wait_s)
            await self._pause(wait_s)
            address = self._address()
            if address is None:
                return
            link = self._new_link(address)

    def _address(self) -> Address | None:
        info = self._registered().get(self._bookie)
        return None if info is None else (info.host, info.port)

    def _new_link(self, address: Address) -> Link:
        self._newest = Link(self._bookie, address, self._config, self._credentials)
        return self._newest

    def _use(self, link: Link) -> None:
        self._link = link

    def _longer(self, wait_s: float) -> float:
        config = self._config
        return min(max(2 * wait_s, config.reconnect_s_min), config.reconnect_s_max)

    async def _pause(self, wait_s: float) -> None:
        """Time passed, or the bookie is registered elsewhere."""
        self._moved.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._moved.wait()
        except TimeoutError:
            pass


class GrpcBookies:
    """Bookies by id, found where `registered()` says. A bookie not named there is UNREACHABLE."""

    def __init__(
        self, registered: Registered, config: GrpcClientConfig, tls: TlsFiles | None = None
    ) -> None:
        self._registered = registered
        self._config = config
        self._credentials = None if tls is None else client_credentials(tls)
        self._loop = asyncio.get_running_loop()
        self._peers: dict[BookieId, Peer] = {}
        self._closed = False
        keep_running()
        keep_freed_memory()

    async def close(self) -> None:
        """Every connection is gone; what was under way is answered UNREACHABLE."""
        self._closed = True
        await asyncio.gather(*[peer.close() for peer in self._peers.values()])

    def available(self) -> tuple[BookieId, ...]:
        return tuple(name for name, info in self._registered().items() if not info.read_only)

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        return self._registered()

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
        link = self._link(bookie)
        if isinstance(link, Status):
            self._loop.call_soon(on_added, link)
        else:
            link.adds.add(ledger, entry, master_key, body, on_added, recovery)

    async def read(
        self,
        bookie: BookieId,
        ledger: LedgerId,
        entry: EntryId,
        *,
        fence_key: bytes | None = None,
    ) -> ReadReply:
        ask = ReadOp.READ if fence_key is None else ReadOp.FENCE_AND_READ
        return _read_reply(
            await self._ask(bookie, ReadRequest(ask, 0, ledger, entry, key=fence_key or b""))
        )

    async def read_many(
        self, bookie: BookieId, ledger: LedgerId, first: EntryId, last: EntryId, max_bytes: int
    ) -> ReadManyReply:
        bound = min(max(max_bytes, 0), _BOUND_MAX)
        question = ReadRequest(ReadOp.READ_MANY, 0, ledger, first, last, bound)
        answer = await self._ask(bookie, question)
        return ReadManyReply(answer.status, answer.bodies, answer.lac)

    async def wait_lac(
        self, bookie: BookieId, ledger: LedgerId, previous: EntryId, timeout_s: float
    ) -> ReadReply:
        bound = min(max(int(timeout_s * 1000), 0), _BOUND_MAX)
        question = ReadRequest(ReadOp.WAIT_LAC, 0, ledger, previous, bound=bound)
        return _read_reply(await self._ask(bookie, question))

    async def read_lac(self, bookie: BookieId, ledger: LedgerId) -> ReadReply:
        request = pb.LedgerRequest(bookie=bookie, ledger=ledger)
        reply = pb.LacReply(lac=-1)
        await self._call(bookie, "ReadLac", request, reply)
        return ReadReply(_status(reply.status), lac=EntryId(reply.lac))

    async def write_lac(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, lac: EntryId
    ) -> Status:
        request = pb.LedgerRequest(bookie=bookie, ledger=ledger, master_key=master_key, lac=lac)
        reply = pb.StatusReply()
        await self._call(bookie, "WriteLac", request, reply)
        return _status(reply.status)

    async def list_entries(self, bookie: BookieId, ledger: LedgerId) -> EntriesReply:
        request = pb.LedgerRequest(bookie=bookie, ledger=ledger)
        reply = pb.EntriesReply()
        await self._call(bookie, "ListEntries", request, reply)
        return EntriesReply(_status(reply.status), _runs(reply.runs))

    async def end_limbo(self, bookie: BookieId, ledger: LedgerId, master_key: bytes) -> Status:
        request = pb.LedgerRequest(bookie=bookie, ledger=ledger, master_key=master_key)
        reply = pb.StatusReply()
        await self._call(bookie, "EndLimbo", request, reply)
        return _status(reply.status)

    async def stats(self, bookie: BookieId) -> BookieStats:
        reply = pb.StatsReply()
        await self._call(bookie, "Stats", pb.StatsRequest(bookie=bookie), reply)
        return BookieStats(
            _status(reply.status),
            reply.disk_bytes,
            reply.free_bytes,
            reply.ledgers,
            reply.writable,
        )

    def _link(self, bookie: BookieId) -> Link | Status:
        """Where to send a call to this bookie now, or why nowhere."""
        peer = self._peers.get(bookie)
        if peer is None:
            if self._closed or bookie not in self._registered():
                return Status.UNREACHABLE
            peer = Peer(bookie, self._registered, self._config, self._credentials)
            self._peers[bookie] = peer
        return peer.link()

    async def _ask(self, bookie: BookieId, question: ReadRequest) -> ReadResponse:
        if question.ledger < 0 or question.first < -1 or question.last < -1:
            return ReadResponse(0, Status.BAD_REQUEST)
        link = self._link(bookie)
        if isinstance(link, Status):
            return ReadResponse(0, link)
        return await link.reads.ask(question)

    async def _call(self, bookie: BookieId, method: str, request: Message, reply: _Reply) -> None:
        """The bookie's answer is in `reply`, or in its status why there is none."""
        link = self._link(bookie)
        if isinstance(link, Status):
            reply.status = link
            return
        answer = await link.call(method, request.SerializeToString())
        try:
            if answer is not None:
                reply.ParseFromString(answer)
                return
        except DecodeError:
            reply.Clear()
        reply.status = link.refusal


def _read_reply(answer: ReadResponse) -> ReadReply:
    body = bytes(answer.bodies[0]) if answer.bodies else b""
    return ReadReply(answer.status, body, answer.lac)


_STATUSES = {int(status): status for status in Status}


def _status(code: int) -> Status:
    """A status of a later version says nothing to this one."""
    return _STATUSES.get(code, Status.UNREACHABLE)


def _runs(gaps_and_counts: Sequence[int]) -> tuple[tuple[EntryId, EntryId], ...]:
    """See bookie.proto, EntriesReply."""
    runs: list[tuple[EntryId, EntryId]] = []
    at = 0
    for gap, count in zip(gaps_and_counts[::2], gaps_and_counts[1::2], strict=True):
        first = at + gap
        at = first + count
        runs.append((EntryId(first), EntryId(at - 1)))
    return tuple(runs)
