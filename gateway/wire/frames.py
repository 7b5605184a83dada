"""Cuts received bytes into frames. Sans-io: no socket, no clock, no waiting.

A frame is a 4-byte size, followed by a body of this size. Bytes are received into one
scratch buffer that all connections of a process share. A whole frame is copied out of the scratch
buffer; a connection keeps the bytes of an incomplete frame. A frame larger than the scratch buffer
gets a buffer of its own once it has filled the scratch buffer. The rest of the frame is received
into it. This buffer doubles whenever it is full, up to the size of the frame, and each time the
caller has to admit it. So a frame has at most eight times the memory that its peer has sent.

The scratch buffer can be shared because a transport fills a buffer and reports it in one step, with
no other code running in between. This holds for asyncio's selector loop and uvloop, but not for a
proactor.
"""

from __future__ import annotations

import struct

SCRATCH_BYTES = 128 * 1024
FIRST_BUFFER_SCRATCHES = 8
"""A frame's own buffer has at first the size of this many scratch buffers, or of the frame."""

FIRST_BUFFER_BYTES = FIRST_BUFFER_SCRATCHES * SCRATCH_BYTES

FRAME_BYTES_MIN = 8
"""The size of the smallest request header: key, version and correlation id."""

_SIZE = struct.Struct(">i")
_size_at = _SIZE.unpack_from


class BadFrame(ValueError):
    """The error that a frame's size is invalid: the peer does not speak Kafka's protocol."""

    def __init__(self, size: int, head: bytes) -> None:
        super().__init__(f"frame of {size} bytes")
        self.size = size
        self.head = head  # the first bytes, from which a caller may recognize the peer's protocol


class FrameReader:
    """The receiving side of one connection.

    Order of calls: `buffer`, `received`, `next` until it returns None, `keep`. If a frame needs
    more memory of its own, `next` returns None and sets `wanted_bytes`. Call `admit` to go on, and
    do not call `buffer` before.
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
        "large_bytes",
        "wanted_bytes",
    )

    def __init__(self, scratch: memoryview, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        # The size that the frame's own buffer needs to go on, from `next` until `admit`. Otherwise
        # 0.
        self.wanted_bytes = 0
        self._scratch = scratch
        # The pending bytes are _window[_start:_end]. The window is the scratch, or the kept bytes
        # of earlier calls. It is empty between `keep` and `received` or `resume`.
        self._window: bytes | memoryview = b""
        self._start: int = 0
        self._end: int = 0
        # The pending bytes, from `keep` until `received` or `resume`. Otherwise empty.
        self._left = b""
        # The buffer of an admitted large frame, and the number of bytes filled. None before `admit`
        # and after the frame was taken. While the buffer is set, bytes are received into it.
        self._large: bytearray | None = None
        self._large_view: memoryview | None = None
        self._filled: int = 0
        # The size of the whole large frame, from the first `wanted_bytes` until it was taken.
        self.large_bytes: int = 0

    @property
    def partial_bytes(self) -> int:
        """The received bytes of an incomplete frame, including its size. 0 between frames."""
        if self._large is not None:
            return 4 + self._filled
        return len(self._left)

    @property
    def pending_bytes(self) -> int:
        """The received bytes that `next` may take now, without the buffer of a large frame."""
        return self._end - self._start

    @property
    def kept_bytes(self) -> int:
        """The received bytes that are kept outside the buffer of a large frame."""
        return len(self._left)

    @property
    def buffer_bytes(self) -> int:
        """The size of the buffer of a large frame, 0 if there is none."""
        return 0 if self._large is None else len(self._large)

    @property
    def large_is_whole(self) -> bool:
        """True if `next` will take a large frame."""
        return self._large is not None and self._filled == self.large_bytes

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes. It is never empty."""
        if self._large_view is not None:
            assert not self.wanted_bytes
            return self._large_view[self._filled :]
        left = self._left
        if not left:
            return self._scratch
        kept = len(left)
        self._scratch[:kept] = left
        return self._scratch[kept:]

    def received(self, count: int) -> None:
        """Accept `count` bytes that were received into the result of `buffer`."""
        if self._large is not None:
            self._filled += count
            return
        self._window = self._scratch
        self._start = 0
        self._end = len(self._left) + count
        self._left = b""

    def resume(self) -> None:
        """Let `next` take the frames that an earlier `keep` stored."""
        self._window, self._left = self._left, b""
        self._start, self._end = 0, len(self._window)

    def next(self) -> bytes | memoryview | None:
        """Return the next whole frame without its size, or None. Raises BadFrame.

        The frame is read-only and belongs to the caller.
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
        if end - start == len(self._scratch):
            self.large_bytes = size
            self.wanted_bytes = min(size, FIRST_BUFFER_SCRATCHES * len(self._scratch))
        return None

    def keep(self) -> None:
        """Copy the pending bytes out of the scratch, so that other connections can use it.

        Call this method whenever `next` will not be called again in this turn of the event loop.
        """
        if self._start < self._end:
            self._left = bytes(self._window[self._start : self._end])
        self._window = b""
        self._start = self._end = 0

    def admit(self) -> None:
        """Give the frame a buffer of `wanted_bytes`. Call it before `keep`, or after `resume`."""
        wanted, self.wanted_bytes = self.wanted_bytes, 0
        assert wanted > 0
        grown = bytearray(wanted)
        view = memoryview(grown)
        if self._large is None:
            self._filled = self._end - self._start - 4
            view[: self._filled] = self._window[self._start + 4 : self._end]
            self._start = self._end
        else:
            view[: self._filled] = self._large
        self._large, self._large_view = grown, view

    def _take_large(self, large: bytearray) -> memoryview | None:
        if self._filled < len(large):
            return None
        if len(large) < self.large_bytes:
            self.wanted_bytes = min(self.large_bytes, 2 * len(large))
            return None
        self._large = self._large_view = None
        self.large_bytes = 0
        return memoryview(large).toreadonly()
