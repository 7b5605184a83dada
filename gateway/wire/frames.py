"""Bytes in, whole frames out; no socket, no clock, no waiting.

A frame is a 4-byte size and that many bytes. Bytes land in one scratch buffer that all connections
of a process share: a frame that is whole is copied out of it, what is left of a partial one is kept
by its connection. A frame larger than the scratch gets memory of exactly its size, once the caller
admits it, and the rest is received straight into that.

The scratch may be shared because a transport fills a buffer and reports it in one go, with nothing
running in between (asyncio's selector loop, uvloop; not so a proactor).
"""

from __future__ import annotations

import struct

SCRATCH_BYTES = 128 * 1024
FRAME_BYTES_MIN = 8
"""The smallest request header of all: key, version, correlation id."""

_SIZE = struct.Struct(">i")
_size_at = _SIZE.unpack_from


class BadFrame(ValueError):
    """A size that no request has. The peer does not speak Kafka, or wants our memory."""

    def __init__(self, size: int, head: bytes) -> None:
        super().__init__(f"frame of {size} bytes")
        self.size = size
        self.head = head  # the first bytes, to tell what the peer took us for


class FrameReader:
    """The receiving side of one connection.

    Order of calls: `buffer`, `received`, `next` until it is None, `keep`. A frame that needs
    memory of its own stops `next` with `wanted_bytes` set until `admit`.
    """

    __slots__ = (
        "_end",
        "_filled",
        "_large",
        "_large_view",
        "_left",
        "_scratch",
        "_start",
        "_window",
        "frame_bytes_max",
        "wanted_bytes",
    )

    def __init__(self, scratch: memoryview, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.wanted_bytes = 0
        self._scratch = scratch
        self._window: bytes | memoryview = b""  # unread bytes: [start:end] of it
        self._start: int = 0
        self._end: int = 0
        self._left = b""
        self._large: bytearray | None = None
        self._large_view: memoryview | None = None
        self._filled: int = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes of a frame that is not whole yet, its size included. 0: between frames."""
        if self._large is not None:
            return 4 + self._filled
        return len(self._left)

    @property
    def held_bytes(self) -> int:
        """Memory kept between turns for frames that are partial or not taken yet."""
        large = self._large
        return len(self._left) if large is None else len(large)

    def buffer(self) -> memoryview:
        """Where the next bytes go. Never empty."""
        if self._large_view is not None:
            return self._large_view[self._filled :]
        left = self._left
        if not left:
            return self._scratch
        kept = len(left)
        self._scratch[:kept] = left
        return self._scratch[kept:]

    def received(self, count: int) -> None:
        """`count` bytes are in what `buffer` gave."""
        if self._large is not None:
            self._filled += count
            return
        self._window = self._scratch
        self._start = 0
        self._end = len(self._left) + count
        self._left = b""

    def resume(self) -> None:
        """Frames kept whole by an earlier `keep` can be taken by `next` again."""
        self._window, self._left = self._left, b""
        self._start, self._end = 0, len(self._window)

    def next(self) -> bytes | memoryview | None:
        """The next whole frame without its size, read-only and the caller's own; else None.

        Raises BadFrame.
        """
        large = self._large
        if large is not None:
            return self._take_large(large)
        start, end = self._start, self._end
        if end - start < 4:
            return None
        size: int = _size_at(self._window, start)[0]
        if not FRAME_BYTES_MIN <= size <= self.frame_bytes_max:
            raise BadFrame(size, bytes(self._window[start : min(end, start + 16)]))
        stop = start + 4 + size
        if stop <= end:
            self._start = stop
            return bytes(self._window[start + 4 : stop])
        if 4 + size > len(self._scratch):
            self.wanted_bytes = size
        return None

    def keep(self) -> None:
        """The unread rest is safe; the scratch may serve another connection.

        Called whenever `next` is not going to be called again in this turn.
        """
        if self._start < self._end:
            self._left = bytes(self._window[self._start : self._end])
        self._window = b""
        self._start = self._end = 0

    def admit(self) -> None:
        """The frame in `wanted_bytes` has its memory. Call before `keep`, or after `resume`."""
        size = self.wanted_bytes
        assert size > 0
        assert self._large is None
        # Zeroed lazily by the system: it takes real memory only as bytes arrive.
        self._large = bytearray(size)
        self._large_view = memoryview(self._large)
        self._filled = self._end - self._start - 4
        self._large_view[: self._filled] = self._window[self._start + 4 : self._end]
        self._start = self._end
        self.wanted_bytes = 0

    def _take_large(self, large: bytearray) -> memoryview | None:
        if self._filled < len(large):
            return None
        self._large = self._large_view = None
        return memoryview(large).toreadonly()
