"""Lasting connections to the other brokers of a cluster, in Kafka's protocol, pipelined.

    closed ─(first request)▶ connecting ─▶ open: many requests in flight, answered in order
       ▲                                     │
       └──(failed: all requests get None, then a pause)◀──┘

Each member has one link. A request is encoded when its connection is open, in the highest version
that both sides have. A link whose member left the cluster is closed at once: its requests get None,
so their senders look for another member. `Peers` serves operators' queries instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gateway.cluster.peers import PEER_CLIENT_ID, peer_address, peer_security
from gateway.cluster.port import ClusterMember
from gateway.log import logger
from gateway.wire.schema import API_VERSIONS
from ledger.ids import Buffer
from ledger.tasks import reported, start_restarting

if TYPE_CHECKING:
    from gateway.wire.client_link import Link, Security

_SIZE_BYTES = 4

Encode = Callable[[int], Buffer]
"""Encodes the body of a request in this version."""

OnAnswer = Callable[[Any], None]
"""Receives kio's entity of the response, or None if there is none: the outcome is unknown then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """Limits on the connection to another gateway."""

    connect_s_max: float = 5.0
    answer_s_max: float = 30.0  # Kafka: request.timeout.ms; after it the connection is closed
    in_flight_max: int = 50  # a gateway stops reading at 100 unanswered requests
    waiting_max: int = 1_000  # requests that wait for their turn; more are refused at once
    answer_bytes_max: int = 64 * 1024 * 1024
    pause_s_first: float = 0.02  # the pause after a failed connection; doubled up to the maximum
    pause_s_max: float = 1.0

    def __post_init__(self) -> None:
        assert 0 < self.in_flight_max < self.waiting_max
        assert 0 < self.pause_s_first <= self.pause_s_max


class Members(Protocol):
    """The live brokers, as `Cluster` returns them."""

    def members(self) -> Sequence[ClusterMember]: ...


class _Asked(NamedTuple):
    key: int
    encode: Encode
    on_answer: OnAnswer


class _InFlight(NamedTuple):
    asked: _Asked
    version: int
    correlation_id: int


class PeerLink:
    """The connection to one member. Runs on the event loop; `ask` never waits."""

    def __init__(
        self,
        member: ClusterMember,
        address: tuple[str, int],
        limits: LinkLimits,
        security: Security | None = None,
    ) -> None:
        self.member = member
        self._address = address
        self._limits = limits
        self._security = security  # TLS and login; None: plain text
        # When this connection is to be replaced, on the loop's clock; None: never.
        self._expires_s: float | None = None
        # Requests that were not sent yet, in order; at most `waiting_max`.
        self._waiting: deque[_Asked] = deque()
        # Requests without an answer on this connection, in order; at most `in_flight_max`.
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0  # of the last request of this connection
        # The open connection, from its first request after ApiVersions until it fails.
        self._writer: asyncio.StreamWriter | None = None
        self._versions: Callable[[int], int] | None = None
        # Connects and reads answers. Ends when nothing waits and the connection has failed.
        self._task: asyncio.Task[None] | None = None
        # Closes the connection unless an answer arrives. Set while a request is in flight.
        self._watch: asyncio.TimerHandle | None = None
        self._late = False  # True once `_watch` closed this connection
        self._pause_s = limits.pause_s_first
        self._failing = (
            False  # True from a failure until the next answer, so that it is logged once
        )
        self._closed = False  # True after `close`, for ever

    def ask(self, key: int, encode: Encode, on_answer: OnAnswer) -> None:
        """Send a request, after those before it. `on_answer` runs once, never inside `ask`."""
        asked = _Asked(key, encode, on_answer)
        if self._closed or len(self._waiting) >= self._limits.waiting_max:
            asyncio.get_running_loop().call_soon(_answer, asked, None)
            return
        self._waiting.append(asked)
        if self._writer is not None:
            self._send_waiting()
        elif self._task is None or self._task.done():
            self._task = start_restarting(
                f"the link to gateway {self.member.node_id}", self._run, self._fail
            )

    async def close(self) -> None:
        """Close the connection. Unanswered requests get None."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail()

    def abandon(self) -> None:
        """Close the connection without waiting for it: the member has left the cluster."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        asyncio.get_running_loop().call_soon(self._fail)

    # -- the connection -------------------------------------------------------------------------

    async def _run(self) -> None:
        # Imported on demand, because a gateway starts without it.
        from gateway.wire.client_link import AdminError, Unreachable

        while self._waiting:
            try:
                await self._serve()
            except (Unreachable, AdminError, OSError) as error:
                if not self._failing:
                    self._failing = True
                    host, port = self._address
                    logger().warning(
                        "no answer from another gateway",
                        gateway=self.member.node_id,
                        address=f"{host}:{port}",
                        reason=str(error),
                    )
                self._fail()
                await self._pause()

    async def _pause(self) -> None:
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, self._limits.pause_s_max)
        await asyncio.sleep(pause_s)

    async def _serve(self) -> None:
        """Connect, and read answers until the connection fails. Raises Unreachable or OSError.

        Returns if the member closes the connection while no request is in flight.
        """
        from gateway.wire.client_link import Served, Unreachable

        limits, (host, port) = self._limits, self._address
        link: Link | None = None
        if self._security is not None:
            link = await self._log_in(self._security)
            reader, writer = link.take_streams()
        else:
            try:
                async with asyncio.timeout(limits.connect_s_max):
                    reader, writer = await asyncio.open_connection(host, port)
            except TimeoutError:
                raise Unreachable("no connection in time") from None
        try:
            self._correlation_id, self._late = 0, False
            self._writer = writer
            if link is not None:
                self._expires_s, self._versions = link.expires_s, link.version
                self._send_waiting()
            else:
                served = Served(f"{host}:{port}")
                self._versions = lambda key: served.version(key)
                self._send(_Asked(API_VERSIONS, _no_body, served.learn), 0)
            while True:
                await self._read_answer(reader)
                self._send_waiting()
        except asyncio.IncompleteReadError:
            if not self._in_flight:
                return
            why = "it did not answer in time" if self._late else "it closed the connection"
            raise Unreachable(why) from None
        finally:
            self._writer = self._versions = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _log_in(self, security: Security) -> Link:
        """Return a connection that has authenticated. Raises Unreachable, AdminError."""
        from gateway.wire.client_link import Link, Unreachable

        limits = self._limits
        link = Link(*self._address, limits.answer_s_max, PEER_CLIENT_ID, security)
        try:
            async with asyncio.timeout(limits.answer_s_max):
                await link.open(limits.connect_s_max)
        except TimeoutError:
            raise Unreachable("no login in time") from None
        return link

    def _is_expired(self) -> bool:
        """Return whether the session of this connection ends soon: it sends nothing more."""
        expires_s = self._expires_s
        return expires_s is not None and asyncio.get_running_loop().time() > expires_s

    async def _read_answer(self, reader: asyncio.StreamReader) -> None:
        """Read one answer and pass it on. Raises Unreachable, IncompleteReadError."""
        from gateway.wire.client_link import Unreachable
        from gateway.wire.messages import MalformedMessage, decode_response

        size = int.from_bytes(await reader.readexactly(_SIZE_BYTES), "big")
        if size > self._limits.answer_bytes_max or not self._in_flight:
            raise Unreachable("it does not speak Kafka's protocol")
        frame = await reader.readexactly(size)
        asked, version, correlation_id = self._in_flight[0]
        try:
            answer = decode_response(asked.key, version, frame)
        except MalformedMessage as error:
            raise Unreachable(f"it does not speak Kafka's protocol: {error}") from None
        if answer.correlation_id != correlation_id:
            raise Unreachable("it answered out of order")
        self._in_flight.popleft()
        self._watch_next()
        if asked.key == API_VERSIONS:
            asked.on_answer(answer.body)  # raises AdminError if the versions are unknown
            return
        self._failing, self._pause_s = False, self._limits.pause_s_first
        _answer(asked, answer.body)

    def _send_waiting(self) -> None:
        from gateway.wire.client_link import AdminError

        if self._in_flight and self._in_flight[0].asked.key == API_VERSIONS:
            return  # the versions are not known yet
        if self._is_expired():
            if not self._in_flight and self._writer is not None:
                self._writer.transport.abort()  # another connection is opened for what waits
            return
        waiting, in_flight_max = self._waiting, self._limits.in_flight_max
        versions = self._versions
        while waiting and versions is not None and len(self._in_flight) < in_flight_max:
            asked = waiting.popleft()
            try:
                version = versions(asked.key)
            except AdminError:  # an older release, or a gateway that does not serve transactions
                asyncio.get_running_loop().call_soon(_answer, asked, None)
                continue
            self._send(asked, version)

    def _send(self, asked: _Asked, version: int) -> None:
        from gateway.wire.messages import encode_request_header

        assert self._writer is not None
        self._correlation_id += 1
        head = encode_request_header(asked.key, version, self._correlation_id, PEER_CLIENT_ID)
        body = asked.encode(version)
        self._writer.write((len(head) + len(body)).to_bytes(_SIZE_BYTES, "big"))
        self._writer.write(head)
        self._writer.write(body)
        self._in_flight.append(_InFlight(asked, version, self._correlation_id))
        if self._watch is None:
            self._watch_next()

    def _watch_next(self) -> None:
        """Give the oldest request in flight its time, from now on."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._in_flight:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(self._limits.answer_s_max, self._on_late)

    def _on_late(self) -> None:
        self._watch = None
        self._late = True
        if self._writer is not None:
            self._writer.transport.abort()

    def _fail(self) -> None:
        """Answer every request with None. The outcome of those in flight is unknown."""
        in_flight, self._in_flight = self._in_flight, deque()
        waiting, self._waiting = self._waiting, deque()
        self._watch_next()
        for asked in (*(each.asked for each in in_flight), *waiting):
            if asked.key != API_VERSIONS:
                _answer(asked, None)


def _no_body(version: int) -> Buffer:
    return b""


def _answer(asked: _Asked, answer: Any) -> None:
    with reported("an answer from another gateway"):
        asked.on_answer(answer)


class PeerLinks:
    """The links to the other members of a cluster, each opened when it is first needed."""

    def __init__(self, cluster: Members, limits: LinkLimits | None = None) -> None:
        self._cluster = cluster
        self._limits = limits or LinkLimits()
        # The links by member: a broker that starts again is another member. At most one for each
        # member of the cluster, and those that are closing.
        self._links: dict[ClusterMember, PeerLink] = {}
        self._closed = False

    def ask(self, node_id: int, key: int, encode: Encode, on_answer: OnAnswer) -> None:
        """Send a request to a member. `on_answer` runs once, never inside `ask`.

        It receives None if no member has this id, or if the request was not answered.
        """
        member = next((m for m in self._cluster.members() if m.node_id == node_id), None)
        if member is None or self._closed:
            asked = _Asked(key, encode, on_answer)
            asyncio.get_running_loop().call_soon(_answer, asked, None)
            return
        # A member that hands over its streams keeps its connection.
        identity = member._replace(leaving=False)
        link = self._links.get(identity)
        if link is None:
            self.on_members_changed()
            security = peer_security(self._cluster)
            address = peer_address(self._cluster, member)
            link = self._links[identity] = PeerLink(member, address, self._limits, security)
        link.ask(key, encode, on_answer)

    def on_members_changed(self) -> None:
        """Close the links to brokers that left. The cluster calls this after a change."""
        alive = {member._replace(leaving=False) for member in self._cluster.members()}
        for member in [each for each in self._links if each not in alive]:
            self._links.pop(member).abandon()

    async def close(self) -> None:
        """Close all links. Unanswered requests get None, and so does each later one."""
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
