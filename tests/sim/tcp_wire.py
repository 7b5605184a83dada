"""TCP connections on virtual time: transports between the two protocols, as an event loop has them.

Bytes of one direction arrive in order, cut anywhere. A sender is paused while `WINDOW_BYTES` are
not taken. A wire that breaks mostly loses what is on its way; its ends hear at different times.
What was on its way to an end that has closed still comes, which no system does: a protocol must
not rely on that.
"""

import asyncio
from collections import deque

from tests.sim.wire_delays import WireDelays

WINDOW_BYTES = 20_000
ARRIVES = 0.3  # so often, what one end of a broken wire has sent still comes
LEFT_S_MAX = 5.0  # what comes to an end that has closed, comes until then


class TcpWires(WireDelays):
    """All connections of one client to one server. `server` is None while its process is down."""

    def __init__(self, draw):
        super().__init__(draw)
        self.server = None
        self.receiving = None  # the protocol that receives just now
        self._pairs = []

    def break_all(self):
        pairs, self._pairs = self._pairs, []
        for ends in pairs:
            for end in ends:
                end.break_off(arrives=self.draw.random() < ARRIVES)

    async def open_connection(self, protocol, host, port, tls):
        await asyncio.sleep(self.delay_s())
        if self.server is None:
            raise ConnectionRefusedError("nothing listens")
        there, here = Transport(self, self.server.new_connection()), Transport(self, protocol)
        there.peer, here.peer = here, there
        self._pairs.append((here, there))
        there.begin()
        here.begin()
        return here


class Transport(asyncio.Transport):
    """One end of a connection. `write` puts bytes on the way to the other end."""

    def __init__(self, wires, protocol):
        super().__init__()
        self._wires = wires
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._last_s = 0.0
        self._on_way = 0
        self._paused = False
        self._closed_s = None
        self._broken = False
        self._arrived = deque()
        self.peer = None

    def begin(self):
        self._protocol.connection_made(self)

    # -- the interface of asyncio --------------------------------------------------------------

    def get_extra_info(self, name, default=None):
        return ("client", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        """Pauses depend on the wire alone."""

    def is_closing(self):
        return self._closed_s is not None

    def writelines(self, list_of_data):
        self.write(b"".join(list_of_data))

    def write(self, data):
        if self._closed_s is not None or self._broken:
            return
        data = bytes(data)
        while data:
            size = self._wires.draw.choice([1, 7, 100, 1000, 100_000])
            self._send(data[:size])
            data = data[size:]
        if self._on_way > WINDOW_BYTES and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def close(self):
        """The other end hears of it after what was written."""
        if self._closed_s is None:
            self._closed_s = self._loop.time()
            self._at_next(self.peer.end)
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self):
        self.close()

    # -- the wire ------------------------------------------------------------------------------

    def _at_next(self, call, *arguments):
        self._last_s = max(self._loop.time() + self._wires.delay_s(), self._last_s + 1e-9)
        self._loop.call_at(self._last_s, call, *arguments)

    def _send(self, piece):
        self._on_way += len(piece)
        self._at_next(self._arrive, piece)

    def _arrive(self, piece):
        self._on_way -= len(piece)
        if not self._broken:
            self.peer.receive(piece)
        if self._paused and self._on_way <= WINDOW_BYTES and self._closed_s is None:
            self._paused = False
            self._protocol.resume_writing()

    def receive(self, piece):
        if self._closed_s is not None and self._loop.time() > self._closed_s + LEFT_S_MAX:
            return
        self._wires.receiving = self._protocol
        while piece:
            buffer = self._protocol.get_buffer(-1)
            size = min(len(buffer), len(piece))
            buffer[:size] = piece[:size]
            self._protocol.buffer_updated(size)
            piece = piece[size:]
        self._wires.receiving = None

    def end(self):
        """The other end has closed."""
        if self._closed_s is None and not self._broken:
            self._protocol.eof_received()
            self.close()

    def break_off(self, arrives):
        """What this end sent is lost unless it `arrives`; this end hears of the break later."""
        self._broken = not arrives
        self._loop.call_later(self._wires.delay_s(), self._hear)

    def _hear(self):
        if self._closed_s is None:
            self._closed_s = self._loop.time()
            self._protocol.connection_lost(ConnectionResetError("the wire is broken"))
