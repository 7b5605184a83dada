"""A blocking connection to one server, for frames."""

from __future__ import annotations

import contextlib
import socket
import struct

ANSWER_S_MAX = 30.0
CLOSED = None
"""The answer of a server that closed the connection instead."""

Frame = bytes | None
Address = tuple[str, int]


class NoAnswer(AssertionError):
    """A server neither answered nor closed the connection in time."""


class Connection:
    """A blocking connection to one server."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, frame: bytes) -> None:
        """Send one frame. A connection that the server closed shows when its answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> Frame:
        """Return the next answer, or CLOSED. Raises NoAnswer."""
        size = self._exactly(4)
        if size is None:
            return CLOSED
        return self._exactly(int.from_bytes(size, "big"))

    def _exactly(self, count: int) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            try:
                chunk = self._socket.recv(count - len(found))
            except TimeoutError:
                raise NoAnswer(f"no answer within {ANSWER_S_MAX:g} s") from None
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            found += chunk
        return bytes(found)

    def close(self) -> None:
        self._socket.close()
