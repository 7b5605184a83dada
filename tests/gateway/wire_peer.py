"""The other end of a `Connection` in memory: a transport that the test drives byte by byte."""

from __future__ import annotations

import asyncio

from gateway.config import ConnectionLimits
from gateway.server.connection import Connection
from gateway.server.dispatch import Dispatcher
from gateway.server.registry import ConnectionRegistry
from gateway.wire.messages import decode_response, encode_request


class Wire(asyncio.Transport):
    """A network in memory. With `takes_replies=False` the peer never reads."""

    def __init__(self, protocol, host="10.0.0.1", takes_replies=True):
        super().__init__()
        self.protocol = protocol
        self.takes_replies = takes_replies
        self.waiting = bytearray()  # sent by the peer, not read by the gateway
        self.sent = bytearray()  # what the peer has received
        self.unsent = bytearray()
        self.writes = 0
        self.closed = self.closing = False
        self.reading = True
        self._names = {"peername": (host, 50_000), "sockname": ("10.0.0.9", 9092)}
        self._high = 64 * 1024
        self._write_paused = False
        protocol.connection_made(self)

    # the peer's side

    def send(self, data):
        """Send bytes as the peer. They arrive as far as the broker reads."""
        self.waiting += data
        self._deliver()

    def _deliver(self):
        while self.waiting and self.reading and not self.closed:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self.waiting))
            buffer[:count] = self.waiting[:count]
            del self.waiting[:count]
            self.protocol.buffer_updated(count)

    def frames(self):
        """Take the whole frames received so far."""
        taken = []
        while len(self.sent) >= 4:
            size = int.from_bytes(self.sent[:4], "big")
            if len(self.sent) < 4 + size:
                break
            taken.append(bytes(self.sent[4 : 4 + size]))
            del self.sent[: 4 + size]
        return taken

    def take_all(self):
        """Let a peer that did not read read everything."""
        self.takes_replies = True
        self.take_some()

    def take_some(self, count=1 << 40):
        """Read up to `count` bytes of what was written, as a slow peer. Later writes wait again."""
        self.sent += self.unsent[:count]
        del self.unsent[:count]
        if self.unsent:
            return
        if self._write_paused:
            self._write_paused = False
            self.protocol.resume_writing()
        if self.closing and not self.unsent:
            self.abort()

    def lose(self, error=None):
        """Disconnect the peer."""
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(error)

    # the transport's side

    def get_extra_info(self, name, default=None):
        return self._names.get(name, default)

    def set_write_buffer_limits(self, high=None, low=None):
        self._high = high
        self._pause_if_high()

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True
        asyncio.get_running_loop().call_soon(self._deliver)

    def write(self, data):
        self.writelines([data])

    def writelines(self, buffers):
        if self.closing:
            return
        self.writes += 1
        for buffer in buffers:
            if self.takes_replies:
                self.sent += buffer
            else:
                self.unsent += buffer
        self._pause_if_high()

    def _pause_if_high(self):
        if len(self.unsent) > self._high and not self._write_paused:
            self._write_paused = True
            self.protocol.pause_writing()

    def get_write_buffer_size(self):
        return len(self.unsent)

    def is_closing(self):
        return self.closed or self.closing

    def close(self):
        """Send what was written, then disconnect. Later writes are dropped."""
        self.closing = True
        if not self.unsent:
            self.abort()

    def abort(self):
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


def hub_for(*apis, ctx=None, **limits):
    """Return a registry that serves these rows. Call it on a running loop."""
    dispatcher = Dispatcher({api.key: api for api in apis}, ctx)
    return ConnectionRegistry(dispatcher, ConnectionLimits(**limits))


def connect(registry, **options):
    """Return a new connection and the peer's end of it."""
    return Wire(Connection(registry), **options)


def request(key, version, correlation_id, body=None, client_id="test"):
    """Return one framed request."""
    frame = encode_request(key, version, correlation_id, client_id, body or {})
    return len(frame).to_bytes(4, "big") + frame


def answers(key, version, wire):
    """Take the responses received so far, decoded."""
    return [decode_response(key, version, frame) for frame in wire.frames()]


async def turns(count=5):
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)
