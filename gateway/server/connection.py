"""One client connection: frames in, replies out in request order, with every wait bounded.

Reading stops, and so the peer's sending, while too many requests are under way, while the peer does
not take its replies, or while the memory for requests is spent; `_Hold` names the reasons. Replies
that become ready in one turn of the loop leave with one write.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from enum import IntFlag
from typing import TYPE_CHECKING, Any, cast

from gateway.handlers.api import Handle, Peer, Request
from gateway.log import logger
from gateway.server.dispatch import PRODUCE, Refused
from gateway.server.timeouts import IDLE, ConnectionTimeouts
from gateway.wire.frames import BadFrame, FrameReader
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.server.registry import Hub

FETCH = 1

HOT_KEYS = frozenset((PRODUCE, FETCH))
"""Produce and Fetch are accepted at once; others wait their turn behind a slow one, as in Kafka."""

WRITE_HIGH_BYTES = 256 * 1024
"""Unsent bytes beyond which no more requests are read."""

FRAMES_PER_TURN_MAX = 64
"""Then other connections have their turn."""

JOIN_BYTES_MAX = 4096
"""Smaller answers go out as one buffer with their size in front."""

_SIZE = struct.Struct(">i")


class _Hold(IntFlag):
    NOTHING = 0
    IN_FLIGHT = 1  # enough requests are under way
    MEMORY = 2  # the process has no memory for more
    WRITING = 4  # the peer does not take its replies
    TURN = 8  # others have their turn first
    CLOSING = 16  # for good: the connection ends when what it asked has been answered


_IN_FLIGHT, _MEMORY = int(_Hold.IN_FLIGHT), int(_Hold.MEMORY)
_WRITING, _TURN, _CLOSING = int(_Hold.WRITING), int(_Hold.TURN), int(_Hold.CLOSING)


class _Slot:
    """The place of one reply in the order; filled when the answer is ready."""

    __slots__ = (
        "connection",
        "frame_bytes",
        "future",
        "ready",
        "reply",
        "request",
        "waiting_bytes",
    )

    def __init__(self, connection: Connection, request: Request, frame_bytes: int) -> None:
        self.connection = connection
        self.request = request
        self.frame_bytes = frame_bytes
        self.future: asyncio.Future[Any] | None = None  # whose result is the reply
        self.ready = False
        self.reply: list[Buffer] | tuple[Buffer, ...] = ()
        self.waiting_bytes = 0  # of a reply that waits for earlier ones

    def follow(self, future: asyncio.Future[Any]) -> None:
        """The reply is this future's result."""
        self.future = future
        future.add_done_callback(self.on_done)

    def on_done(self, future: asyncio.Future[Any]) -> None:
        """The handler's future has its result. Runs on the loop."""
        connection = self.connection
        if future.cancelled():
            connection.fail(self, Refused("cancelled"))
            return
        error = future.exception()
        if error is not None:
            connection.fail(self, error)
            return
        connection.finish(self, future.result())


class Connection(asyncio.BufferedProtocol):
    """Lives from accept until its last request is finished, even when the peer left before."""

    __slots__ = (
        "_chain",
        "_chain_task",
        "_flush_due",
        "_held",
        "_hub",
        "_largest_waiting",
        "_memory_bytes",
        "_out",
        "_out_bytes",
        "_patience",
        "_peer",
        "_reader",
        "_slots",
        "_transport",
        "_waiting_bytes",
        "frames",
        "largest_write",
        "lost",
        "received_bytes",
        "written_bytes",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._reader = FrameReader(hub.scratch, hub.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None
        self._held = 0
        self._slots: deque[_Slot] = deque()
        self._chain: deque[tuple[_Slot, Handle, Any]] = deque()
        self._chain_task: asyncio.Task[None] | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_due = False
        self._waiting_bytes = 0  # of replies that wait for earlier ones
        self._largest_waiting = 0
        self._memory_bytes = 0  # of partial and waiting frames
        self._patience = ConnectionTimeouts()
        self.frames: int = 0
        self.received_bytes = 0
        self.written_bytes = 0
        self.largest_write = 0
        self.lost = False

    # --- what the transport calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports in all but name.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._peer = peer_of(transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._patience.opened_s = self._hub.loop.time()
        if not self._hub.admit(self, self._peer.host):
            self.lost = True
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        self.received_bytes += nbytes
        self._take_frames()

    def eof_received(self) -> bool:
        """The peer sends no more; Kafka's clients then want no more either."""
        return False

    def pause_writing(self) -> None:
        self._hold(_WRITING)

    def resume_writing(self) -> None:
        self._release(_WRITING)

    def connection_lost(self, exc: Exception | None) -> None:
        """What is under way ends by itself and its replies go nowhere; a Fetch stops waiting."""
        if self.lost:
            return
        self.lost = True
        self._held |= _CLOSING
        self._transport = None
        self._out.clear()
        self._keep_memory(0)
        for _, _, begun in self._chain:
            if begun is not None:
                begun.close()
        waiting = {id(slot) for slot, _, _ in self._chain}
        self._chain.clear()
        for slot in self._slots:
            if id(slot) in waiting:
                slot.ready = True
            elif slot.request.key == FETCH and slot.future is not None:
                slot.future.cancel()
        self._drain()

    # --- frames in ------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        """Every whole frame that may be taken now is with its handler."""
        reader = self._reader
        try:
            self._take_turn(reader)
        except BadFrame as bad:
            self._refuse(_hint(bad))
        except Refused as refused:
            self._refuse(str(refused))
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            logger().error("connection failed", exc_info=error)
            self.abort("our fault")
        reader.keep()
        self._keep_memory(reader.held_bytes)
        if self._out:
            self._flush()

    def _take_turn(self, reader: FrameReader) -> None:
        """At most FRAMES_PER_TURN_MAX frames are accepted. Raises BadFrame, Refused."""
        turn_ends = self.frames + FRAMES_PER_TURN_MAX
        while not self._held:
            if self.frames == turn_ends:
                self._hold(_TURN)
                self._release(_TURN)
                return
            frame = reader.next()
            if frame is None:
                if reader.wanted_bytes and self._may_admit(reader.wanted_bytes):
                    reader.admit()
                return
            self.frames += 1
            self._accept(frame)

    def _accept(self, frame: bytes | memoryview) -> None:
        """One request is under way, or answered already. Raises Refused."""
        dispatcher = self._hub.dispatcher
        assert self._peer is not None
        request, handle = dispatcher.open(frame, self._peer)
        if self._chain_task is not None and request.key not in HOT_KEYS:
            self._chain.append((self._slot(request, len(frame)), handle, None))
            return
        try:
            result = dispatcher.start(request, handle)
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            self._add_ready(request, dispatcher.apology(request, error))
            return
        if isinstance(result, asyncio.Future):
            self._slot(request, len(frame)).follow(cast("asyncio.Future[Any]", result))
        elif asyncio.iscoroutine(result):
            self._chain.append((self._slot(request, len(frame)), handle, result))
            if self._chain_task is None:
                self._chain_task = self._hub.loop.create_task(self._run_chain())
        else:
            self._add_result(request, result)

    def _add_result(self, request: Request, result: Any) -> None:
        dispatcher = self._hub.dispatcher
        try:
            reply = dispatcher.encode(request, result)
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            reply = dispatcher.apology(request, error)
        self._add_ready(request, reply)

    def _add_ready(self, request: Request, reply: list[Buffer] | tuple[Buffer, ...]) -> None:
        if not self._slots:
            self._emit(reply)
            return
        slot = self._slot(request, 0)
        slot.reply = reply
        slot.ready = True
        self._let_wait(slot)

    def _slot(self, request: Request, frame_bytes: int) -> _Slot:
        slot = _Slot(self, request, frame_bytes)
        self._slots.append(slot)
        memory = self._hub.memory
        memory.take(frame_bytes)
        if len(self._slots) >= self._hub.limits.requests_in_flight_max:
            self._hold(_IN_FLIGHT)
        if memory.full:
            self._wait_for_memory()
        return slot

    async def _run_chain(self) -> None:
        """Requests of cold handlers, one after another."""
        try:
            while self._chain:
                await self._run_link(*self._chain.popleft())
        finally:
            self._chain_task = None

    async def _run_link(self, slot: _Slot, handle: Handle, begun: Any) -> None:
        """One request of the chain is answered, or followed until it is."""
        try:
            result = begun
            if begun is None:
                result = self._hub.dispatcher.start(slot.request, handle)
            if isinstance(result, asyncio.Future):
                slot.follow(cast("asyncio.Future[Any]", result))
                return
            if asyncio.iscoroutine(result):
                result = await result
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            self.fail(slot, error)
            return
        self.finish(slot, result)

    # --- replies out ----------------------------------------------------------------------------

    def finish(self, slot: _Slot, result: Any) -> None:
        """`slot`'s handler has answered."""
        if not self.lost:
            try:
                slot.reply = self._hub.dispatcher.encode(slot.request, result)
            except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
                self.fail(slot, error)
                return
        slot.ready = True
        if slot is self._slots[0]:
            self._drain()
        else:
            self._let_wait(slot)

    def _let_wait(self, slot: _Slot) -> None:
        """The answer waits for earlier ones. Few may: a client has one large answer coming."""
        slot.waiting_bytes = sum(map(len, slot.reply))
        self._waiting_bytes += slot.waiting_bytes
        self._largest_waiting = max(self._largest_waiting, slot.waiting_bytes)
        if self._waiting_bytes > self._hub.limits.write_buffer_bytes_max:
            self._hold(_IN_FLIGHT)
            if (
                self._waiting_bytes - self._largest_waiting
                > self._hub.limits.write_buffer_bytes_max
            ):
                self.abort("asks for more than it waits for")

    def fail(self, slot: _Slot, error: BaseException) -> None:
        """`slot`'s handler has failed: the peer is told, or the connection ends."""
        slot.ready = True
        try:
            if isinstance(error, Refused):
                raise error
            slot.reply = self._hub.dispatcher.apology(slot.request, error)
        except Refused as refused:
            self.abort(str(refused))
        if self._slots and slot is self._slots[0]:
            self._drain()

    def _drain(self) -> None:
        """Replies that are ready, up to the first that is not, are on their way."""
        slots = self._slots
        memory = self._hub.memory
        while slots and slots[0].ready:
            slot = slots.popleft()
            if slot.frame_bytes:
                memory.give(slot.frame_bytes)
            self._waiting_bytes -= slot.waiting_bytes
            if not self.lost:
                self._emit(slot.reply)
        if self.lost:
            if not slots:
                self._hub.forget(self)
            return
        if self._out and not self._flush_due:
            self._flush_due = True
            self._hub.loop.call_soon(self._flush_now)
        if self._held & _IN_FLIGHT:
            self._release_in_flight()
        if self._held & _CLOSING and not slots:
            self._close()

    def _release_in_flight(self) -> None:
        """More requests may be taken on when enough of the earlier ones are answered."""
        limits = self._hub.limits
        few = 2 * len(self._slots) <= limits.requests_in_flight_max
        if few and self._waiting_bytes <= limits.write_buffer_bytes_max:
            self._largest_waiting = 0
            self._release(_IN_FLIGHT)

    def _emit(self, reply: list[Buffer] | tuple[Buffer, ...]) -> None:
        """Put one answer behind those that leave with the next write."""
        if len(reply) == 1 and len(reply[0]) <= JOIN_BYTES_MAX:
            body = reply[0]
            self._out.append(_SIZE.pack(len(body)) + body)
            self._out_bytes += 4 + len(body)
        elif reply:
            size = sum(map(len, reply))
            self._out.append(_SIZE.pack(size))
            self._out += reply
            self._out_bytes += 4 + size

    def _flush_now(self) -> None:
        self._flush_due = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        """All that is ready is the transport's; a peer that never reads is cut off."""
        transport, out, size = self._transport, self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if transport is None or transport.is_closing():
            return
        pulse = self._hub.pulse
        if pulse is not None and pulse.stood_still():
            self.abort("this process stood still")
            return
        if self._held & _WRITING:
            backlog = transport.get_write_buffer_size() + size - self.largest_write
            if backlog > self._hub.limits.write_buffer_bytes_max:
                self.abort("reads no replies")
                return
        elif size > self.largest_write:
            self.largest_write = size
        self.written_bytes += size
        transport.writelines(out)

    # --- stopping and going on ------------------------------------------------------------------

    def _hold(self, reason: int) -> None:
        transport = self._transport
        if not self._held and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._held |= reason

    def _release(self, reason: int) -> None:
        """Reading goes on in the loop's next turn, unless there are other reasons to stop."""
        self._held &= ~reason
        if not self._held:
            self._hub.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Go on with frames that are here already, then with reading."""
        if self._held or self._transport is None:
            return
        self._reader.resume()
        self._take_frames()
        if not self._held and not self._transport.is_closing():
            self._transport.resume_reading()

    def _may_admit(self, frame_bytes: int) -> bool:
        if self._hub.memory.admits(frame_bytes - self._memory_bytes):
            return True
        self._wait_for_memory()
        return False

    def _wait_for_memory(self) -> None:
        self._hold(_MEMORY)
        self._hub.memory.wait(self.on_memory)

    def on_memory(self) -> None:
        """There is memory for requests again."""
        if self._held & _MEMORY and not self.lost:
            self._release(_MEMORY)

    def _keep_memory(self, held_bytes: int) -> None:
        """Count what the reader keeps between turns."""
        more = held_bytes - self._memory_bytes
        if not more:
            return
        self._memory_bytes = held_bytes
        if more > 0:
            self._hub.memory.take(more)
        else:
            self._hub.memory.give(-more)

    # --- ending ---------------------------------------------------------------------------------

    def close_when_answered(self) -> None:
        """Nothing more is read; the connection ends when all it asked has been answered."""
        self._hold(_CLOSING)
        if not self._slots:
            self._close()

    def cut_if_waiting(self) -> None:
        """The connection ends if anybody waits for an answer: what was decided is old."""
        if self._slots or self._out:
            self._out, self._out_bytes = [], 0
            self.abort("this process stood still")

    def abort(self, why: str) -> None:
        """The connection ends now. Unsent replies are lost."""
        self._held |= _CLOSING
        if self._transport is not None and not self._transport.is_closing():
            self._hub.say("connection closed", self._peer, why)
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        """The peer sent what no client sends. Earlier requests are still answered."""
        self._hub.refused += 1
        self._hub.say("connection refused", self._peer, why)
        self.close_when_answered()

    def _close(self) -> None:
        if self._transport is not None:
            self._flush_now()
        if self._transport is not None:
            self._transport.close()

    def check(self, now_s: float) -> None:
        """Called about once a second: ends connections that wait for what does not come."""
        transport = self._transport
        if transport is None:
            return
        backlog = transport.get_write_buffer_size()
        why = self._patience.verdict(self, now_s, backlog, self._hub.limits)
        if why is None:
            return
        if why == IDLE:
            transport.close()
        else:
            self._hub.refused += 1
            self.abort(why)

    @property
    def waits_for_us(self) -> bool:
        """Reading is stopped on our side, or answers are owed: silence is not the peer's fault."""
        return bool(self._held or self._slots)

    @property
    def partial_bytes(self) -> int:
        return self._reader.partial_bytes


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Both ends of the connection, as text."""
    host, port = _address(transport.get_extra_info("peername"))
    local_host, local_port = _address(transport.get_extra_info("sockname"))
    return Peer(host, port, local_host, local_port)


def _address(name: Any) -> tuple[str, int]:
    if isinstance(name, tuple) and len(name) >= 2:  # pyright: ignore[reportUnknownArgumentType]
        return str(name[0]), int(name[1])  # pyright: ignore[reportUnknownArgumentType]
    return "", 0


_HINTS = {
    b"GET ": "speaks HTTP",
    b"POST": "speaks HTTP",
    b"HEAD": "speaks HTTP",
    b"PUT ": "speaks HTTP",
    b"OPTI": "speaks HTTP",
    b"PRI ": "speaks HTTP/2",
    b"SSH-": "speaks SSH",
}


def _hint(bad: BadFrame) -> str:
    head = bad.head[:4]
    if head[:2] == b"\x16\x03":
        return "speaks TLS; this port is plaintext"
    return _HINTS.get(head, str(bad))
