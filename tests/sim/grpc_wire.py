"""The edge of the gRPC library on virtual time: channels, calls and contexts over simulated wires.

Messages of one stream arrive in order. A sender waits while `WINDOW_MESSAGES` are not taken. A wire
that breaks loses what is on its way; its two ends hear of it at different times.
"""

import asyncio
from collections import deque

from ledger.adapters.grpc.grpc_library import aio, grpc
from tests.sim.wire_delays import WireDelays

WINDOW_MESSAGES = 3


def broken():
    return aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), "the wire is broken"
    )


class Wires(WireDelays):
    """All wires of one client to one server. `server` is None while its process is down."""

    def __init__(self, draw):
        super().__init__(draw)
        self.server = None
        self.receiving = None  # each stream has a task of its own
        self.streams = []

    def break_all(self):
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.break_off()

    def open_channel(self, host, port, config, credentials):
        return Channel(self)


class Pipe:
    """One direction of a stream."""

    def __init__(self, wires):
        self._wires = wires
        self._loop = asyncio.get_running_loop()
        self._arrived = deque()
        self._last_s = 0.0
        self._on_way = 0
        self._waiting = []
        self.over = None  # EOF, or the exception of its reader and writer

    def _wake(self):
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def _wait(self):
        one = self._loop.create_future()
        self._waiting.append(one)
        await one

    async def put(self, message):
        while self._on_way >= WINDOW_MESSAGES and self.over is None:
            await self._wait()
        if self.over is not None:
            raise broken()
        self._on_way += 1
        self._last_s = max(self._loop.time() + self._wires.delay_s(), self._last_s + 1e-9)
        self._loop.call_at(self._last_s, self._arrive, message)

    def _arrive(self, message):
        self._arrived.append(message)
        self._wake()

    def end(self):
        """Nothing more is put; what is on its way still arrives."""
        self._last_s = max(self._loop.time(), self._last_s + 1e-9)
        self._loop.call_at(self._last_s, self._finish, aio.EOF)

    def _finish(self, over):
        if self.over is None:
            self.over = over
            self._wake()

    def break_off(self):
        self._arrived.clear()
        self.over = broken()
        self._wake()

    async def get(self):
        while not self._arrived:
            if isinstance(self.over, Exception):
                raise self.over
            if self.over is not None:
                return self.over
            await self._wait()
        self._on_way -= 1
        self._wake()
        return self._arrived.popleft()


class Stream:
    """One call of the client (`write`, `read`, `done_writing`), and its handler at the server."""

    def __init__(self, wires, handler):
        self._wires = wires
        self._loop = asyncio.get_running_loop()
        self.there, self.back = Pipe(wires), Pipe(wires)
        self._handler = None
        self._loop.call_later(wires.delay_s(), self._begin, handler)

    def _begin(self, handler):
        if isinstance(self.there.over, Exception):
            return
        self._handler = self._loop.create_task(handler(None, Context(self)))
        self._handler.add_done_callback(self._on_handled)

    def _on_handled(self, task):
        if task.cancelled() or task.exception() is not None:
            self.back.break_off()
            self.there.break_off()
        else:
            self.back.end()

    def break_off(self):
        """Each end hears of it when it does."""
        self._loop.call_later(self._wires.delay_s(), self._break_client)
        self._loop.call_later(self._wires.delay_s(), self._break_server)

    def _break_client(self):
        self.back.break_off()

    def _break_server(self):
        self.there.break_off()
        if self._handler is not None:
            self._handler.cancel()

    async def write(self, message):
        if isinstance(self.back.over, Exception):
            raise broken()
        await self.there.put(bytes(message))

    async def read(self):
        return await self.back.get()

    async def done_writing(self):
        self.there.end()


class Context:
    """What the server's handler sees of the stream."""

    def __init__(self, stream):
        self._stream = stream

    async def read(self):
        try:
            return await self._stream.there.get()
        except aio.AioRpcError:
            return aio.EOF

    async def write(self, message):
        """On a broken wire it waits until the handler is cancelled."""
        try:
            await self._stream.back.put(bytes(message))
        except aio.AioRpcError:
            await asyncio.get_running_loop().create_future()

    async def abort(self, code, details):
        raise RuntimeError(f"{code}: {details}")


class Channel:
    """A channel to the server of the moment."""

    def __init__(self, wires):
        self._wires = wires
        self._streams = []

    def stream_stream(self, path):
        name = path.rpartition("/")[2]

        def call():
            server = self._wires.server
            if server is None:
                raise broken()
            stream = Stream(self._wires, {"Adds": server._adds, "Reads": server._reads}[name])
            self._streams.append(stream)
            self._wires.streams.append(stream)
            return stream

        return call

    async def close(self):
        for stream in self._streams:
            stream.break_off()
