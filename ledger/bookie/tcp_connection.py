"""The bookie's end of one TCP connection.

    frames in  ─▶ adds to the bookie, reads and calls started ─▶ statuses and responses
    frames out ◀─ one write per turn: statuses and credit first, then a piece of a response

The connection is always read, so that a fence or a cancellation is taken whatever else waits. Adds
are bounded by credit instead: the bookie grants none while its room for adds is full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX
from ledger.adapters.system.memory import uninitialized
from ledger.adapters.tcp.transport import prepare
from ledger.bookie.config import ENTRY_BYTES_MAX
from ledger.bookie.server_calls import ServerCallStream
from ledger.bookie.server_streams import ServerAddStream, ServerReadStream, check_hello
from ledger.ids import Buffer
from ledger.ports.bookies import FENCED_MAX, Status
from ledger.tasks import start_once
from ledger.wire.bookie_frames import KEY_BYTES_MAX, BadBookieFrame, FrameKind
from ledger.wire.tcp_frames import (
    FEATURES,
    FRAME_BYTES_MAX,
    PONG_FRAME,
    ForeignProtocol,
    FrameReader,
    Welcome,
    encode_add_credit,
    encode_tcp_welcome,
    frame,
    frames,
)

if TYPE_CHECKING:
    from ledger.bookie.tcp_server import TcpServer

_TURN_BYTES: Final = 64 * 1024  # responses to calls that are written in one turn, about
_ADDS: Final = int(FrameKind.ADDS)
_SIZES_MAX: Final[dict[int, int]] = {
    FrameKind.HELLO: 2 + 255,
    FrameKind.ADDS: MESSAGE_BYTES_MAX,
    FrameKind.READ_REQUESTS: 2 * 1024 * 1024,  # REQUESTS_MAX with the longest keys, and room
    FrameKind.CALL: 1024 + FENCED_MAX * (16 + KEY_BYTES_MAX),  # FenceMany has the longest ones
    FrameKind.PING: 2,
}
"""The kinds that a client may send, and the longest message of each."""

_DROPPED: Final = memoryview(bytearray(4096))  # receives what comes after the end


class ClientConnection(asyncio.BufferedProtocol):
    """One client, from its first byte until the connection is lost."""

    def __init__(self, server: TcpServer) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._reader = FrameReader(
            server.staging, uninitialized, self._admit, self._on_message, MESSAGE_BYTES_MAX
        )
        # The transport. None before the connection is made.
        self._transport: asyncio.Transport | None = None
        self._client = "unknown"
        # True once the client has addressed this bookie instance.
        self._welcomed = False
        # Set once; nothing is read or written afterwards.
        self._over = False
        # True while `_flush` is due, or while the system takes no more bytes.
        self._flushing = self._paused = False
        # True inside of `buffer_updated`, which ends with a flush if one is due.
        self._receiving = False
        # Bytes of adds that came, and the bytes that were granted, since the beginning.
        self._received = self._credit = 0
        # Bytes of adds at which more credit is due.
        self._grant_at = 0
        # The task that waits until the room for adds has space. None while credit is granted.
        self._granting: asyncio.Task[None] | None = None
        # Short frames that go first.
        self._urgent: list[Buffer] = []
        self._pong = False
        # Frames of long messages that are not written yet. Those of one message are neighbours.
        self._pieces: deque[list[Buffer]] = deque()
        # This connection's part of `TcpServer.unfinished`.
        self._unfinished = 0
        # For the sweep: when the connection began, when bytes came last, since when an unfinished
        # frame or a blocked write has made no progress, and the reader's steps then.
        self._began_s = self._heard_s = self._stuck_s = self._loop.time()
        self._paused_s = 0.0
        self._steps_then = 0
        self._heard = False

    # -- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or refuse it if there are too many."""
        self._transport = prepare(transport)
        self._client = _host_of(transport)
        server, config, notify = self._server, self._server.config, self._on_ready
        # The certificate of the peer, which is known now, decides what it may use.
        bookie, calls = server.services_for(transport, self._client)
        self._adds = ServerAddStream(bookie, server.rooms.adds, notify)
        self._reads = ServerReadStream(bookie, config, server.rooms.answers, notify)
        self._calls = ServerCallStream(
            calls, config.control_timeout_s, config.answer_bytes_max, notify, self._on_bad
        )
        if not self._server.admit(self):
            self._end("connections", "too many connections")
            return

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what the client has asked for."""
        self._over = True
        self._reader.stop()
        self._server.forget(self)
        self._count_unfinished(0)
        self._reads.close()
        self._calls.close()
        if self._granting is not None:
            self._granting.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return _DROPPED if self._over else self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the messages that are complete."""
        if self._over:
            return
        self._heard = self._receiving = True
        try:
            self._reader.received(nbytes)
        except ForeignProtocol as error:
            self._end("protocol", f"it speaks {error}")
            return
        except BadBookieFrame as error:
            self._on_bad(error)
            return
        finally:
            self._receiving = False
        if self._over:
            return
        if self._flushing:
            self._flush()
        if self._reader.midway or self._unfinished:
            self._count_unfinished(self._reader.unfinished)

    def eof_received(self) -> bool:
        """The client has closed the connection: close this side too."""
        if not self._over and self._reader.unfinished:
            self._end("frame", "it ended inside of a frame")
        return False

    def pause_writing(self) -> None:
        """The system takes no more bytes."""
        self._paused = True
        self._paused_s = self._loop.time()

    def resume_writing(self) -> None:
        """The system takes bytes again."""
        self._paused = False
        self._on_ready()

    # -- what the server calls -----------------------------------------------------------------

    def abort(self) -> None:
        """Close the connection at once."""
        self._over = True
        self._reader.stop()
        if self._transport is not None:
            self._transport.abort()

    def check(self, now_s: float) -> None:
        """Close a connection that is silent, stuck inside a frame, or takes no answers."""
        config = self._server.config
        if self._over:
            return
        if self._heard:
            self._heard, self._heard_s = False, now_s
        if not self._unfinished or self._reader.steps != self._steps_then:
            self._steps_then, self._stuck_s = self._reader.steps, now_s
        if not self._welcomed and now_s - self._began_s > config.hello_timeout_s:
            self._end("hello", "no HELLO within the time limit")
        elif self._paused and now_s - self._paused_s > config.write_timeout_s:
            self._end("answers", "it takes no answers")
        elif now_s - self._stuck_s > config.frame_timeout_s:
            self._end("slow frame", "a frame did not arrive within the time limit")
        elif now_s - self._heard_s > config.silence_s:
            self._end("silence", "it was silent for too long")

    # -- what comes in -------------------------------------------------------------------------

    def _admit(self, kind: int, size: int) -> None:
        """Check a message before it is received. Raises BadBookieFrame."""
        if kind == _ADDS and size <= MESSAGE_BYTES_MAX and self._received < self._credit:
            self._received += size  # before HELLO there is no credit
            return
        size_max = _SIZES_MAX.get(kind)
        if size_max is None:
            raise BadBookieFrame(f"message of kind {kind}, which no client sends")
        if size > size_max:
            raise BadBookieFrame(f"message of kind {kind} with {size} bytes")
        if self._welcomed == (kind == FrameKind.HELLO):
            raise BadBookieFrame("a second HELLO" if self._welcomed else "no HELLO")
        if kind == _ADDS:
            raise BadBookieFrame(f"adds beyond the credit of {self._credit} bytes")

    def _on_message(self, message: Buffer) -> None:
        kind = message[1]
        if kind == _ADDS:
            self._adds.take(message)
            if self._received >= self._grant_at:
                self._grant()
        elif kind == FrameKind.READ_REQUESTS:
            self._reads.take(message)
        elif kind == FrameKind.CALL:
            self._calls.take(message)
        elif kind == FrameKind.PING:
            self._pong = True
            self._on_ready()
        else:
            self._on_hello(message)

    def _on_hello(self, message: Buffer) -> None:
        status = check_hello(message, self._server.bookie.bookie_id)
        window = self._server.credit_bytes if self._adds.has_space else 0
        self._credit, self._grant_at = window, window // 2
        welcome = Welcome(status, ENTRY_BYTES_MAX, FEATURES, self._credit)
        assert self._transport is not None
        self._transport.write(frame(encode_tcp_welcome(welcome)))
        if status is Status.OK:
            self._welcomed = True
            if not window:
                self._grant()
        else:  # the client finds its bookie elsewhere
            self._over = True
            self._reader.stop()
            self._transport.close()

    def _on_bad(self, error: BadBookieFrame) -> None:
        self._end("frame", f"bad frame: {error}")

    def _count_unfinished(self, count: int) -> None:
        server = self._server
        server.unfinished += count - self._unfinished
        self._unfinished = count
        if count and server.unfinished > server.config.unfinished_bytes_max:
            self._end("frame", "too many bytes of unfinished frames")

    # -- credit --------------------------------------------------------------------------------

    def _grant(self) -> None:
        """Grant credit for more adds, or wait until there is space for them."""
        if self._granting is not None:
            return
        if not self._adds.has_space:
            self._granting = start_once("the credit of a client", self._grant_later())
            return
        window = self._server.credit_bytes
        limit = self._received + window
        if limit - self._credit >= window // 2:
            self._credit = limit
            self._grant_at = limit - window // 2
            self._urgent.append(frame(encode_add_credit(limit)))
            self._on_ready()

    async def _grant_later(self) -> None:
        await self._adds.space()
        self._granting = None
        self._grant()

    # -- what goes out -------------------------------------------------------------------------

    def _on_ready(self) -> None:
        """Write once, at the end of this turn of the loop."""
        if not self._flushing and not self._paused and not self._over:
            self._flushing = True
            if not self._receiving:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write statuses and other short frames, then one piece of a response."""
        self._flushing = False
        transport = self._transport
        if self._over or transport is None:
            return
        if not self._pieces:
            self._reads.written()
        out, self._urgent = self._urgent, []
        statuses = self._adds.pop()
        if statuses is not None:
            out.insert(0, frame(statuses))
        if self._pong:
            out.append(PONG_FRAME)
            self._pong = False
        left = _TURN_BYTES
        while left > 0 and (response := self._calls.pop(FRAME_BYTES_MAX)) is not None:
            out.append(frame(response))
            left -= len(response)
        piece = self._next_piece()
        if piece is not None:
            out += piece
        if len(out) == 1:
            transport.write(out[0])
        elif out:
            transport.writelines(out)
        if piece is not None or left <= 0:
            self._on_ready()

    def _next_piece(self) -> list[Buffer] | None:
        """Return the next frame of responses to reads and of long responses to calls, if any."""
        if not self._pieces:
            response = self._calls.pop(MESSAGE_BYTES_MAX)
            parts = self._reads.pop() if response is None else [response]
            if parts is None:
                return None
            self._pieces += frames(parts)
        return self._pieces.popleft()

    # -- the end -------------------------------------------------------------------------------

    def _end(self, kind: str, reason: str) -> None:
        """Close the connection, and log why."""
        if not self._over:
            self._server.log_end(kind, self._client, reason)
            self.abort()


def _host_of(transport: asyncio.BaseTransport) -> str:
    peer: object = transport.get_extra_info("peername")
    return str(cast(tuple[object, ...], peer)[0]) if isinstance(peer, tuple) and peer else "unknown"
