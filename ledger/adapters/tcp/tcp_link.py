"""One TCP connection to one bookie, from the first attempt until it breaks.

Adds, reads, control calls and pings share it. What is queued in one turn of the loop is sent by one
write. Requests come first; adds follow within the credit that the bookie has granted. The
connection is always read: a client limits the bytes of responses when it asks for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from ssl import SSLContext
from typing import Final

from ledger.adapters.links.client_streams import AddStream, ReadStream
from ledger.adapters.links.link import Endpoint
from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX
from ledger.adapters.links.server_role import log_no_bookie, shows_a_bookie
from ledger.adapters.links.tls_identity import TlsIdentity
from ledger.adapters.system.memory import uninitialized
from ledger.adapters.tcp.tcp_config import TcpClientConfig
from ledger.adapters.tcp.transport import prepare
from ledger.ids import BookieId, Buffer
from ledger.log import logger
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import BadBookieFrame, FrameKind
from ledger.wire.tcp_frames import (
    ANSWERED,
    CALL_METHODS,
    FEATURE_OF,
    FRAME_BYTES_MAX,
    PING_FRAME,
    FrameReader,
    decode_add_credit,
    decode_call,
    decode_tcp_welcome,
    encode_call,
    frame,
    frames,
    hello_frame,
    short_frame,
)

_TURN_FRAMES_MAX: Final = 4  # frames of adds in one turn of the loop: a mebibyte at most
_ADD_STATUSES: Final = int(FrameKind.ADD_STATUSES)
_GOODBYE_S: Final = 0.5  # time for what was written to leave after `close`
_CALLS_MAX: Final = 128  # control calls under way on one connection; a bookie allows twice as many
_BUSY: Final = memoryview(bytearray(4096))  # receives what comes after the end


async def open_connection(
    protocol: asyncio.BufferedProtocol, host: str, port: int, tls: SSLContext | None
) -> asyncio.Transport:
    """Connect `protocol`. Raises OSError; a TLS failure is one too."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=tls)
    return transport


class TcpConnection(asyncio.BufferedProtocol):
    """A connection to one bookie. `Link` describes its use."""

    def __init__(
        self,
        bookie: BookieId,
        endpoint: Endpoint,
        config: TcpClientConfig,
        staging: bytearray,
        tls: TlsIdentity | None,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.bookie = bookie
        self.endpoint = endpoint
        self.adds = AddStream(config)
        self.reads = ReadStream()
        self.refusal = Status.UNREACHABLE
        # Feature bits of the bookie. 0 before its WELCOME.
        self.features = 0
        # Done once the bookie has confirmed its identity (True), or was not reached (False).
        self.opened: asyncio.Future[bool] = loop.create_future()
        self._config = config
        self._tls = tls
        self._reader = FrameReader(
            staging, uninitialized, _admit, self._on_message, MESSAGE_BYTES_MAX
        )
        # The transport. None before the connection is made.
        self._transport: asyncio.Transport | None = None
        # Done once WELCOME has come or the connection is over.
        self._welcomed: asyncio.Future[None] = loop.create_future()
        # Done once the connection is over: broken, silent, closed, or ended by a bad frame.
        self._over: asyncio.Future[None] = loop.create_future()
        # True once `_over` is done, and once WELCOME has come. Read for each message.
        self._ended = self._open = False
        # Done once the transport is closed.
        self._lost: asyncio.Future[None] = loop.create_future()
        # True while `_flush` is due, or while the system takes no more bytes.
        self._flushing = self._paused = False
        # True inside of `buffer_updated`, which ends with a flush if one is due.
        self._receiving = False
        # Frames of long messages that are not written yet. Those of one message are neighbours.
        self._pieces: deque[list[Buffer]] = deque()
        # Bytes of adds sent so far, and the bytes that the bookie has granted so far.
        self._sent = self._credit = 0
        # Frames that go first: pings and control calls.
        self._urgent: list[Buffer] = []
        # Control calls that the bookie has not answered, by number, and the number of the next one.
        self._calls: dict[int, asyncio.Future[bytes | None]] = {}
        self._next_call = 0
        # Bounds the calls under way; others wait within their timeout. A call that was given up
        # keeps its place until the bookie answers it.
        self._calls_room = asyncio.Semaphore(_CALLS_MAX)
        # True if a byte came since the last look of `_on_keepalive`, and its timer while open.
        self._heard = False
        self._keepalive: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self.was_open and not self.adds.over

    @property
    def fences_many(self) -> bool:
        """See `Link`."""
        return self.is_open and not self.lacks("FenceMany")

    def lacks(self, method: str) -> bool:
        """See `Link`."""
        needed = FEATURE_OF.get(method, 0)
        return self.was_open and self.features & needed != needed

    @property
    def was_open(self) -> bool:
        return self.opened.done() and self.opened.result()

    async def run(self, on_opened: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                _, host, port = self.endpoint
                context = None if self._tls is None else self._tls.client
                self._transport = await open_connection(self, host, port, context)
                await self._welcomed
            if self._over.done():
                return
            self.opened.set_result(True)
            on_opened()
            self._begin()
            await self._over
        except (OSError, TimeoutError, ValueError):  # ValueError: the host is no name
            pass
        finally:
            self._fail()
            await self._hang_up()

    def close(self) -> None:
        self._end(None)
        self._fail()

    async def call(self, method: str, request: bytes) -> bytes | None:
        if not await asyncio.shield(self.opened) or self.lacks(method):
            return None
        try:
            async with asyncio.timeout(self._config.control_timeout_s):
                await self._calls_room.acquire()
                return await self._send_call(CALL_METHODS[method], request)
        except TimeoutError:
            return None

    async def _send_call(self, method: int, request: bytes) -> bytes | None:
        if self._ended:
            self._calls_room.release()  # all that wait are answered, one after the other
            return None
        number = self._next_call
        self._next_call = number + 1
        answer: asyncio.Future[bytes | None] = self._loop.create_future()
        self._calls[number] = answer
        self._urgent.append(frame(encode_call(FrameKind.CALL, number, method, request)))
        self._on_queued()
        return await answer

    # -- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send HELLO, unless the server is no bookie: then nothing is sent."""
        self._transport = prepare(transport)
        if self._tls is None or shows_a_bookie(self._tls, transport.get_extra_info("ssl_object")):
            self._transport.write(hello_frame(self.bookie))
        else:
            log_no_bookie(self.bookie, self.endpoint)
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: what is pending has an unknown outcome."""
        if not self._lost.done():
            self._lost.set_result(None)
        self._end(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return _BUSY if self._ended else self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the frames that are complete."""
        self._heard = True
        if self._ended:  # what still comes belongs to a connection that is over
            return
        self._receiving = True
        try:
            self._reader.received(nbytes)
        except BadBookieFrame as error:
            self._end(error)
        finally:
            self._receiving = False
        if self._flushing and not self._ended:
            self._flush()

    def eof_received(self) -> bool:
        """The bookie has closed the connection: close this side too."""
        self._end(None)
        return False

    def pause_writing(self) -> None:
        """The system takes no more bytes."""
        self._paused = True

    def resume_writing(self) -> None:
        """The system takes bytes again."""
        self._paused = False
        self._on_queued()

    # -- what comes in -------------------------------------------------------------------------

    def _on_message(self, message: Buffer) -> None:
        kind = message[1]
        if not self._open:
            self._on_welcome(message)
        elif kind == _ADD_STATUSES:
            self.adds.on_message(message)
        elif kind == FrameKind.READ_RESPONSES:
            self.reads.on_message(message)
        elif kind == FrameKind.ADD_CREDIT:
            self._credit = decode_add_credit(message)
            self._on_queued()
        elif kind == FrameKind.CALL_RESPONSE:
            self._on_call_response(message)
        elif kind != FrameKind.PONG:
            raise BadBookieFrame(f"unexpected message of kind {kind}")

    def _on_welcome(self, message: Buffer) -> None:
        welcome = decode_tcp_welcome(message)
        if welcome.status is not Status.OK:
            self.refusal = welcome.status
            self._end(None)
            return
        self.features = welcome.features
        self._credit = welcome.credit
        self.adds.entry_bytes_max = min(welcome.entry_bytes_max, self.adds.entry_bytes_max)
        self._open = True
        if not self._welcomed.done():  # its wait may have been given up in this turn of the loop
            self._welcomed.set_result(None)

    def _on_call_response(self, message: Buffer) -> None:
        number, outcome, content = decode_call(message)
        if number >= self._next_call:
            raise BadBookieFrame(f"an answer to call {number} of {self._next_call}")
        answer = self._calls.pop(number, None)
        if answer is None:
            raise BadBookieFrame(f"a second answer to call {number}")
        self._calls_room.release()
        if not answer.done():
            answer.set_result(content if outcome == ANSWERED else None)

    # -- what goes out -------------------------------------------------------------------------

    def _begin(self) -> None:
        """Send what has been queued, and what will be."""
        self.adds.on_queued = self.reads.on_queued = self._on_queued
        self.adds.silent.add_done_callback(lambda _: self._end(None))
        self._keepalive = self._loop.call_later(self._config.keepalive_s, self._on_keepalive)
        self._on_queued()

    def _on_queued(self) -> None:
        """Write once, at the end of this turn of the loop."""
        if not self._flushing and not self._paused and self._open:
            self._flushing = True
            if not self._receiving:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if transport is None or self._ended:
            return
        out, self._urgent = self._urgent, []
        requests = self.reads.pop()
        if requests is not None and len(requests) <= FRAME_BYTES_MAX:
            out.append(frame(requests))
        elif requests is not None:
            self._pieces += frames([requests])
        more = self.reads.queued
        for _ in range(_TURN_FRAMES_MAX):
            piece = self._next_piece()
            if piece is None:
                break
            out += piece
        else:
            more = True
        if more:
            self._loop.call_soon(self._on_queued)
        if len(out) == 1:
            transport.write(out[0])
        elif out:
            transport.writelines(out)

    def _next_piece(self) -> list[Buffer] | None:
        """Return the next frame of adds, or None if there is none or no credit."""
        if not self._pieces:
            if self._sent >= self._credit:
                return None
            adds = self.adds.pop()
            if adds is None:
                return None
            size = adds.size
            self._sent += size
            if size <= FRAME_BYTES_MAX:
                return short_frame(adds.parts(), size)
            self._pieces += frames(adds.parts())
        return self._pieces.popleft()

    def _on_keepalive(self) -> None:
        """Ping a bookie from which nothing came for a while."""
        wait_s = self._config.keepalive_s
        if not self._heard:
            self._urgent.append(PING_FRAME)
            self._on_queued()
            wait_s = self._config.keepalive_timeout_s
            self._keepalive = self._loop.call_later(wait_s, self._on_ping_over)
            return
        self._heard = False
        self._keepalive = self._loop.call_later(wait_s, self._on_keepalive)

    def _on_ping_over(self) -> None:
        if self._heard:
            self._on_keepalive()
        else:
            self._end(None)

    # -- the end -------------------------------------------------------------------------------

    def _end(self, error: BadBookieFrame | None) -> None:
        """End the connection once; `run` answers what is pending."""
        if self._over.done():
            return
        self._over.set_result(None)
        self._ended = True
        self._reader.stop()
        if not self._welcomed.done():
            self._welcomed.set_result(None)
        if error is not None:
            logger().warning(
                "a bookie broke the protocol: its connection is closed",
                bookie=self.bookie,
                address=f"{self.endpoint.host}:{self.endpoint.port}",
                reason=str(error),
            )
        self._fail()

    def _fail(self) -> None:
        """Answer everything that is pending, and all that comes later."""
        self.adds.on_queued = self.reads.on_queued = None
        self.adds.fail(self.refusal)
        self.reads.fail(self.refusal)
        if not self.opened.done():
            self.opened.set_result(False)
        if self._keepalive is not None:
            self._keepalive.cancel()
            self._keepalive = None
        for answer in self._calls.values():
            if not answer.done():
                answer.set_result(None)
        self._calls_room.release()

    async def _hang_up(self) -> None:
        """Close the transport, and drop it if what was written does not leave soon."""
        transport = self._transport
        if transport is None:
            return
        self._end(None)
        transport.close()
        try:
            await asyncio.wait([self._lost], timeout=_GOODBYE_S)
        finally:
            transport.abort()


def _admit(kind: int, size: int) -> None:
    """Admit every message: a client bounds the bytes of responses when it asks for them."""
