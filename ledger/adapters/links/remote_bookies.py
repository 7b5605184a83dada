"""The bookies port over a network: one connection to each bookie, established at first use.

When a connection breaks, all requests in flight are answered UNREACHABLE at once. A background task
reconnects, first at once and then at growing intervals, to the address that the bookie has
registered by then. Calls made meanwhile are answered UNREACHABLE without a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from google.protobuf.message import DecodeError, Message

from ledger.adapters.links.link import Endpoint, Link
from ledger.adapters.links.link_config import LinkConfig
from ledger.adapters.system.memory import keep_freed_memory
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.log import Throttle, logger
from ledger.ports.bookies import (
    BookieInfo,
    BookieStats,
    EntriesReply,
    LocateReply,
    OnAdded,
    ReadManyReply,
    ReadReply,
    Status,
    fence_each,
)
from ledger.tasks import start_once
from ledger.wire import bookie_pb2 as pb
from ledger.wire.bookie_frames import (
    FROM_DISK,
    BadBookieFrame,
    ReadOp,
    ReadRequest,
    ReadResponse,
)
from ledger.wire.fence_frames import decode_fence_replies, encode_fences
from ledger.wire.locate_frames import decode_locate_reply, encode_locate

Registered = Callable[[], Mapping[BookieId, BookieInfo]]
EndpointOf = Callable[[BookieId, BookieInfo], Endpoint | None]
"""Returns the endpoint at which a bookie is reached, or None if it has none for this client."""
NewLink = Callable[[BookieId, Endpoint], Link]
"""Returns a connection that has not begun."""
_Reply = pb.StatusReply | pb.LacReply | pb.EntriesReply | pb.StatsReply
_BOUND_MAX = 2**32 - 1


class BookiePeer:
    """One bookie: its current connection, if any, and the task that reconnects."""

    def __init__(
        self,
        bookie: BookieId,
        config: LinkConfig,
        endpoint: Callable[[], Endpoint | None],
        new_link: NewLink,
    ) -> None:
        """`endpoint` returns where the bookie is registered, or None if it is not."""
        self._bookie = bookie
        self._config = config
        self._endpoint = endpoint
        self._make_link = new_link
        self._loop = asyncio.get_running_loop()
        # The connection that takes calls. None while disconnected.
        self._link: Link | None = None
        # The connection of `link`, or the connection that is being established.
        self._newest: Link | None = None
        # The task that reconnects, while the bookie is registered and a connection is wanted.
        self._keeper: asyncio.Task[None] | None = None
        # The status of calls without a connection: the reason why the last attempt failed.
        self._refusal = Status.UNREACHABLE
        # Set when the bookie registers at another address; ends the pause before a retry.
        self._moved = asyncio.Event()
        # Set once, by `close` and by `end`.
        self._closed = False
        self._ended = False

    def link(self) -> Link | Status:
        """Return the connection for a call, or the status that explains why there is none."""
        link = self._link
        if link is not None and not link.adds.over:
            return link
        endpoint = self._endpoint()
        if endpoint is None or self._closed:
            return Status.UNREACHABLE
        if self._keeper is None or self._keeper.done():
            link = self._new_link(endpoint)
            self._keeper = start_once("the connection to a bookie", self._keep(link))
            self._use(link)
            return link
        newest = self._newest
        if newest is not None and newest.endpoint != endpoint:
            self._moved.set()
        return newest.refusal if newest is not None and newest.adds.over else self._refusal

    async def close(self) -> None:
        """Close the connection and answer everything in flight.

        Adds in flight get a short time first. A ledger may be closed already with Qa copies of
        them, and then nobody else would send the other copies. Call `end` after a cancellation.
        """
        self._closed = True
        newest, keeper = self._newest, self._keeper
        if newest is None or keeper is None:
            return
        if newest.is_open:
            await newest.adds.settled(self._config.close_grace_s)
        self.end()
        await asyncio.wait([keeper])

    def end(self) -> None:
        """Close the connection now, once. Everything in flight is answered in the next turns."""
        if self._ended:
            return
        self._closed = self._ended = True
        if self._newest is not None and self._newest.is_open:
            self._newest.close()
        elif self._keeper is not None:
            self._keeper.cancel()

    async def _keep(self, link: Link) -> None:
        """Reconnect as long as the bookie is registered."""
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
            endpoint = self._endpoint()
            if endpoint is None:
                return
            link = self._new_link(endpoint)

    def _new_link(self, endpoint: Endpoint) -> Link:
        self._newest = self._make_link(self._bookie, endpoint)
        return self._newest

    def _use(self, link: Link) -> None:
        self._link = link

    def _longer(self, wait_s: float) -> float:
        config = self._config
        return min(max(2 * wait_s, config.reconnect_s_min), config.reconnect_s_max)

    async def _pause(self, wait_s: float) -> None:
        """Wait for `wait_s` seconds, or until the bookie registers at another address."""
        self._moved.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._moved.wait()
        except TimeoutError:
            pass


class RemoteBookies:
    """All bookies that `registered()` names. An unregistered bookie is UNREACHABLE."""

    def __init__(
        self,
        registered: Registered,
        config: LinkConfig,
        endpoint_of: EndpointOf,
        new_link: NewLink,
    ) -> None:
        self._registered = registered
        self._config = config
        self._endpoint_of = endpoint_of
        self._new_link = new_link
        self._loop = asyncio.get_running_loop()
        # Every bookie that was ever called; each keeps at most one connection.
        self._peers: dict[BookieId, BookiePeer] = {}
        # Set once, by `close`; later calls are answered UNREACHABLE.
        self._closed = False
        self._throttle = Throttle()
        keep_freed_memory()

    async def close(self) -> None:
        """Close every connection and answer everything in flight with UNREACHABLE."""
        self._closed = True
        try:
            await asyncio.gather(*[peer.close() for peer in self._peers.values()])
        finally:
            for peer in self._peers.values():
                peer.end()

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

    async def fence_many(
        self, bookie: BookieId, ledgers: Sequence[tuple[LedgerId, bytes]]
    ) -> Sequence[ReadReply]:
        link = self._link(bookie)
        if isinstance(link, Status) or not link.fences_many:
            return await fence_each(self, bookie, ledgers)
        answer = await link.call("FenceMany", encode_fences(bookie, ledgers))
        if answer is not None:
            with suppress(BadBookieFrame):
                return decode_fence_replies(answer, len(ledgers))
        return [ReadReply(link.refusal)] * len(ledgers)

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
        bound = min(max(max_bytes, 0), _BOUND_MAX)
        key = FROM_DISK if from_disk else b""
        question = ReadRequest(ReadOp.READ_MANY, 0, ledger, first, last, bound, key)
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
        if len(reply.runs) % 2:  # a run is a gap and a count
            return EntriesReply(Status.UNREACHABLE)
        return EntriesReply(_status(reply.status), _runs(reply.runs))

    async def end_limbo(
        self, bookie: BookieId, ledger: LedgerId, master_key: bytes, start: str = ""
    ) -> Status:
        request = pb.LedgerRequest(bookie=bookie, ledger=ledger, master_key=master_key, start=start)
        reply = pb.StatusReply()
        await self._call(bookie, "EndLimbo", request, reply)
        return _status(reply.status)

    async def locate(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> LocateReply:
        if ledger < 0 or entry < 0:
            return LocateReply(Status.BAD_REQUEST)
        link = self._link(bookie)
        if isinstance(link, Status):
            return LocateReply(link)
        answer = await link.call("Locate", encode_locate(bookie, ledger, entry))
        if answer is not None:
            with suppress(BadBookieFrame):
                return decode_locate_reply(answer)
        return LocateReply(Status.BAD_VERSION if link.lacks("Locate") else link.refusal)

    async def stats(self, bookie: BookieId) -> BookieStats:
        reply = pb.StatsReply()
        await self._call(bookie, "Stats", pb.StatsRequest(bookie=bookie), reply)
        return BookieStats(
            _status(reply.status),
            reply.disk_bytes,
            reply.free_bytes,
            reply.ledgers,
            reply.writable,
            reply.time_ms,
            reply.release,
            reply.syncs,
            reply.sync_us,
        )

    def _link(self, bookie: BookieId) -> Link | Status:
        """Return the connection to this bookie, or the status that explains why there is none."""
        peer = self._peers.get(bookie)
        if peer is None:
            if self._closed or bookie not in self._registered():
                return Status.UNREACHABLE
            endpoint = partial(self._endpoint, bookie)
            peer = BookiePeer(bookie, self._config, endpoint, self._new_link)
            self._peers[bookie] = peer
        return peer.link()

    def _endpoint(self, bookie: BookieId) -> Endpoint | None:
        info = self._registered().get(bookie)
        return None if info is None else self._endpoint_of(bookie, info)

    async def _ask(self, bookie: BookieId, question: ReadRequest) -> ReadResponse:
        if question.ledger < 0 or question.first < -1 or question.last < -1:
            return ReadResponse(0, Status.BAD_REQUEST)
        link = self._link(bookie)
        if isinstance(link, Status):
            return ReadResponse(0, link)
        answer = await link.reads.ask(question)
        if answer.status is Status.PERMISSION_DENIED:
            self._log_denied(bookie, question.op.name)
        return answer

    def _log_denied(self, bookie: BookieId, operation: str) -> None:
        """Log that the certificate of this process lacks a role: a line per bookie and minute."""
        if self._throttle.allows(operation, bookie, self._loop.time()):
            logger().warning(
                "a bookie denies an operation to the role of this certificate",
                bookie=bookie,
                operation=operation,
            )

    async def _call(self, bookie: BookieId, method: str, request: Message, reply: _Reply) -> None:
        """Send a control call. `reply` receives the answer; the status explains a
        missing answer.
        """
        link = self._link(bookie)
        if isinstance(link, Status):
            reply.status = link
            return
        answer = await link.call(method, request.SerializeToString())
        try:
            if answer is not None:
                reply.ParseFromString(answer)
                if reply.status == Status.PERMISSION_DENIED:
                    self._log_denied(bookie, method)
                return
        except DecodeError:
            reply.Clear()
        reply.status = link.refusal


def _read_reply(answer: ReadResponse) -> ReadReply:
    body = bytes(answer.bodies[0]) if answer.bodies else b""
    return ReadReply(answer.status, body, answer.lac)


_STATUSES = {int(status): status for status in Status}


def _status(code: int) -> Status:
    """Decode a status. A code that this version does not know becomes UNREACHABLE."""
    return _STATUSES.get(code, Status.UNREACHABLE)


def _runs(gaps_and_counts: Sequence[int]) -> tuple[tuple[EntryId, EntryId], ...]:
    """Decode the runs of entry ids; see bookie.proto, EntriesReply."""
    runs: list[tuple[EntryId, EntryId]] = []
    at = 0
    for gap, count in zip(gaps_and_counts[::2], gaps_and_counts[1::2], strict=True):
        first = at + gap
        at = first + count
        runs.append((EntryId(first), EntryId(at - 1)))
    return tuple(runs)
