"""A TCP proxy that misbehaves on demand, each direction for itself; it knows no protocol.

It runs in a thread of its own, so any test, with or without a loop, may use it:

    with Proxy(server.port) as proxy:
        client = connect(proxy.address)
        proxy.cut_at_next(TO_CLIENT)  # the next request is done, its answer is lost

Every command has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Self

from tests.peers.processes import Lifecycle

TO_SERVER = "to server"
TO_CLIENT = "to client"
BOTH = (TO_SERVER, TO_CLIENT)

CHUNK_BYTES = 64 * 1024
HELD_CHUNKS_MAX = 256  # on their slow way; then the sender feels it

_Chunk = tuple[float, bytes, asyncio.Event | None]
"""When bytes are due, the bytes, and what they wait for besides."""


class Held:
    """Bytes that wait in the network, and all that follows them on their connection."""

    def __init__(self, matches: Callable[[bytes], bool]) -> None:
        self.matches = matches
        self.caught = threading.Event()  # bytes that match have come
        self.answered = threading.Event()  # after their release the other end has sent something
        self.gate = asyncio.Event()
        self.over = asyncio.Event()  # the same as `answered`, for the proxy


class _Connection:
    """What both directions of one connection know."""

    held: Held | None = None
    lane: _Lane | None = None  # where it is held


class _Lane:
    """What happens to bytes in one direction, on all connections."""

    def __init__(self) -> None:
        self.flowing = asyncio.Event()
        self.passed_bytes = 0
        self.lost_bytes = 0
        self.hold: Held | None = None  # what the next bytes are compared with
        self.heal()

    def heal(self) -> None:
        self.flowing.set()
        self.dropping = False
        self.cut_at_next = False
        self.latency_s = 0.0
        self.bytes_per_s: float | None = None


class Proxy(Lifecycle):
    """Listens on a loopback address and passes everything on to `127.0.0.1:port`.

    `listen_port` 0 takes a free one; the server's own port needs another `host` (127.0.0.2, ...).
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", listen_port: int = 0) -> None:
        self.server_port = port
        self.host = host
        self.port = listen_port
        self.accepted = 0  # connections so far
        self._refusing = False
        self._deaf = False
        self._thread: threading.Thread | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # What may be done to the traffic.

    def freeze(self, *lanes: str) -> None:
        """Bytes are held, not lost; connections stay open (both directions by default)."""
        self._for_each(lanes, lambda lane: lane.flowing.clear())

    def drop(self, *lanes: str) -> None:
        """Bytes are swallowed from now on; connections stay open."""

        def swallow(lane: _Lane) -> None:
            lane.dropping = True

        self._for_each(lanes, swallow)

    def cut_one_way(self, lane: str) -> None:
        """Bytes in that direction are swallowed, and both ends of a new connection hear nothing.

        In a network that carries one direction only, no handshake of TCP ends.
        """
        self.drop(lane)

        def change() -> None:
            self._deaf = True

        self._do(change)

    def slow(self, *lanes: str, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Bytes arrive that much later, and not faster than that."""

        def change(lane: _Lane) -> None:
            lane.latency_s = latency_s
            lane.bytes_per_s = bytes_per_s

        self._for_each(lanes, change)

    def cut_at_next(self, lane: str) -> None:
        """The next bytes in that direction are lost and every connection is reset; once."""

        def change(lane: _Lane) -> None:
            lane.cut_at_next = True

        self._for_each([lane], change)

    def hold(self, lane: str, matches: Callable[[bytes], bool]) -> Held:
        """The next bytes in that direction that match are held until `release`; others pass.

        They arrive even if their sender has closed its connection meanwhile.
        """
        held = Held(matches)

        def change(lane: _Lane) -> None:
            lane.hold = held

        self._for_each([lane], change)
        return held

    def release(self, held: Held) -> None:
        """What was held flows on."""
        self._do(held.gate.set)

    def cut(self) -> None:
        """Every connection is reset; new ones are welcome."""
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Every connection is reset, and so is each new one, until `heal`."""

        def change() -> None:
            self._refusing = True
            self._reset_all()

        self._do(change)

    def heal(self) -> None:
        """From now on everything passes; what was held flows on."""

        def change() -> None:
            self._refusing = self._deaf = False
            for lane in self._lanes.values():
                lane.heal()

        self._do(change)

    def passed_bytes(self, lane: str) -> int:
        return self._lanes[lane].passed_bytes

    def lost_bytes(self, lane: str) -> int:
        """Swallowed by `drop` or `cut_at_next`."""
        return self._lanes[lane].lost_bytes

    @property
    def open_connections(self) -> int:
        return len(self._open)

    # The thread.

    def start(self) -> Self:
        assert self._thread is None, "already started"
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="proxy", daemon=True
        )
        self._thread.start()
        assert ready.wait(60), "the proxy did not start"
        return self

    def stop(self) -> None:
        assert self._thread is not None, "not started"
        self._do(self._stopping.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the proxy did not end"

    def _do(self, change: Callable[[], Any]) -> None:
        async def run() -> None:
            change()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def _for_each(self, lanes: Any, change: Callable[[_Lane], None]) -> None:
        def run() -> None:
            for lane in lanes or BOTH:
                change(self._lanes[lane])

        self._do(run)

    def _reset_all(self) -> None:
        for connection in list(self._open):
            connection.cancel()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._lanes = {lane: _Lane() for lane in BOTH}
        server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stopping.wait()
        server.close()
        self._reset_all()
        for lane in self._lanes.values():
            lane.heal()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = asyncio.current_task()
        assert connection is not None
        ends = [writer]
        self._open.add(connection)
        try:
            if self._refusing:
                return
            if self._deaf:
                await _swallow(reader)
                return
            server_reader, server_writer = await asyncio.open_connection(
                "127.0.0.1", self.server_port
            )
            ends.append(server_writer)
            both = _Connection()
            async with asyncio.TaskGroup() as lanes:
                lanes.create_task(self._carry(reader, server_writer, TO_SERVER, both))
                lanes.create_task(self._carry(server_reader, writer, TO_CLIENT, both))
            for end in ends:
                end.close()
            ends.clear()
        except* (OSError, asyncio.CancelledError):
            pass  # nobody but `_reset_all` cancels
        finally:
            self._open.discard(connection)
            for end in ends:
                _reset(end)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        connection: _Connection,
    ) -> None:
        """One direction of one connection, until its sender ends it."""
        lane = self._lanes[name]
        held: asyncio.Queue[_Chunk] = asyncio.Queue(HELD_CHUNKS_MAX)
        async with asyncio.TaskGroup() as passing:
            passing.create_task(_pass(held, writer, lane))
            while data := await reader.read(CHUNK_BYTES):
                if lane.cut_at_next:
                    lane.cut_at_next = False
                    lane.lost_bytes += len(data)
                    self._reset_all()
                    return
                gate = _gate(lane, connection, data)
                await held.put((self._loop.time() + lane.latency_s, data, gate))
            # The end of a connection with held bytes comes later than the answer to these.
            late = connection.held if connection.lane is lane else None
            await held.put((0.0, b"", late and late.over))


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(CHUNK_BYTES):
        pass


def _gate(lane: _Lane, connection: _Connection, data: bytes) -> asyncio.Event | None:
    """What these bytes wait for; that the connection's held bytes are answered, is noted."""
    if lane.hold is not None and lane.hold.matches(data):
        held, lane.hold = lane.hold, None
        connection.held, connection.lane = held, lane
        held.caught.set()
        return held.gate
    held = connection.held
    if held is not None and connection.lane is not lane and held.gate.is_set():
        held.answered.set()
        held.over.set()
    return None


async def _pass(held: asyncio.Queue[_Chunk], writer: asyncio.StreamWriter, lane: _Lane) -> None:
    """What is held goes on when it is due, in order; the sender's end too."""
    loop = asyncio.get_running_loop()
    while True:
        due_s, data, gate = await held.get()
        if due_s > loop.time():
            await asyncio.sleep(due_s - loop.time())
        if lane.bytes_per_s is not None:
            await asyncio.sleep(len(data) / lane.bytes_per_s)
        await lane.flowing.wait()
        if gate is not None:
            await gate.wait()
        if not data:
            break
        if lane.dropping:
            lane.lost_bytes += len(data)
            continue
        # Counted first: a reader that has the bytes may ask for the count from another thread.
        lane.passed_bytes += len(data)
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _reset(end: asyncio.StreamWriter) -> None:
    """The peer sees a reset, not a polite end."""
    made = end.get_extra_info("socket")
    if made is not None and made.fileno() >= 0:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()
