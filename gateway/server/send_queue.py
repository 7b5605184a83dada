"""Feeds a transport with the replies of one connection, a chunk at a time.

A transport keeps all buffers of one write until the last of them is sent. The queue therefore hands
over a chunk, and the next one when the transport asks for more. So the memory of a large reply is
returned as the peer reads it, and the unsent bytes are known exactly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ledger.ids import Buffer

CHUNK_BYTES: Final = 1024 * 1024
"""A chunk ends with the buffer that reaches this size."""

LAST_BYTES_MAX: Final = 128 * 1024
"""The last bytes of a reply leave with the chunk before them if they are not more than this."""

WRITE_HIGH_BYTES: Final = 256 * 1024
"""The connection reads no requests while the transport has more unsent bytes than this."""


class SendQueue:
    """The framed replies that the transport of one connection has not received yet."""

    __slots__ = ("_buffers", "_chunk_bytes", "queued_bytes")

    def __init__(self) -> None:
        # Buffers in the order of sending. While there are any, the transport has unsent bytes. It
        # calls the connection's `resume_writing` once it has sent them. None before the first: an
        # empty deque takes 760 bytes.
        self._buffers: deque[Buffer] | None = None
        self.queued_bytes = 0  # bytes of `_buffers`
        # The size of the chunk handed over last, which the transport keeps until all of it is sent.
        self._chunk_bytes = 0

    def held_bytes(self, transport: asyncio.Transport) -> int:
        """Return the bytes of all buffers that are kept for sending."""
        unsent = transport.get_write_buffer_size()
        if not unsent:
            self._chunk_bytes = 0
            return self.queued_bytes
        return self.queued_bytes + max(unsent, self._chunk_bytes)

    def unsent_bytes(self, transport: asyncio.Transport) -> int:
        """Return the bytes that the operating system has not taken."""
        return self.queued_bytes + transport.get_write_buffer_size()

    def write(self, transport: asyncio.Transport, buffers: list[Buffer], size: int) -> None:
        """Send `buffers` of `size` bytes in total, after those in the queue."""
        if size <= CHUNK_BYTES + LAST_BYTES_MAX and not self.queued_bytes:
            self._chunk_bytes = size
            transport.writelines(buffers)
            return
        if self._buffers is None:
            self._buffers = deque()
        self._buffers += buffers
        self.queued_bytes += size
        self.feed(transport)

    def feed(self, transport: asyncio.Transport) -> None:
        """Hand over chunks as long as the transport sends them at once."""
        buffers = self._buffers
        while buffers and not transport.get_write_buffer_size() and not transport.is_closing():
            chunk: list[Buffer] = []
            size = 0
            while buffers and (size < CHUNK_BYTES or self.queued_bytes - size <= LAST_BYTES_MAX):
                buffer = buffers.popleft()
                chunk.append(buffer)
                size += len(buffer)
            self.queued_bytes -= size
            self._chunk_bytes = size
            transport.writelines(chunk)
        # With a limit of 0 the transport calls `resume_writing` when it has sent everything.
        unsent = transport.get_write_buffer_size()
        transport.set_write_buffer_limits(high=0 if unsent else WRITE_HIGH_BYTES)

    def clear(self) -> None:
        """Drop everything that the transport has not received."""
        if self._buffers is not None:
            self._buffers.clear()
        self.queued_bytes = self._chunk_bytes = 0
