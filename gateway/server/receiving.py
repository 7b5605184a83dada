"""The memory of the requests that one connection is receiving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.address_share import share_of
from gateway.handlers.api import Request
from gateway.server.request_memory import (
    GONE,
    KeptBytes,
    LargeFrame,
    RequestMemory,
    Sender,
    WaitingFrame,
)
from gateway.wire.fetch_request import FetchRequest
from gateway.wire.frames import FrameReader
from gateway.wire.list_offsets_request import ListOffsetsRequest

FREE_BYTES_MAX: Final = 4 * 1024
"""A connection may take requests of this size in one turn, even if the memory is used up.

It also reads no more at a time then.
"""

_SHARE: Final = "its address uses its share of the memory for requests"
_ALL: Final = "the memory for requests is used up"


class ReceivedBytes:
    """What one connection has received and not taken as frames, counted in `RequestMemory`."""

    __slots__ = ("_frames", "_kept", "_memory", "_waiting", "host", "large_frame")

    def __init__(self, memory: RequestMemory, host: str, sender: Sender) -> None:
        self._memory = memory
        self.host = host = share_of(host)  # whose share of the memory the bytes count in
        # The bytes of incomplete and waiting frames outside of large buffers, as counted.
        self._kept = KeptBytes(host, sender)
        # The number of frames that were taken when they were counted last.
        self._frames = 0
        # The large frame that is being received, from its first request for a buffer on.
        self.large_frame: LargeFrame | None = None
        # Set while the connection waits for memory.
        self._waiting: WaitingFrame | None = None

    def window(self, reader: FrameReader) -> memoryview:
        """Return the buffer for the next bytes, a small one while memory is short."""
        buffer = reader.buffer()
        if not reader.buffer_bytes and self._memory.narrow(self.host):
            return buffer[:FREE_BYTES_MAX]
        return buffer

    def may_admit(self, reader: FrameReader) -> bool:
        """Return whether the frame may have the buffer that it needs, and count it."""
        frame = self.large_frame
        if frame is None:
            frame = self.large_frame = LargeFrame(self.host, reader.large_bytes, self._kept.sender)
        if self._memory.admits(frame, reader.wanted_bytes):
            self._memory.grow(frame, reader.wanted_bytes)
            return True
        return False

    def end_large_frame(self) -> None:
        """Return the memory of the large frame, if there is one, and `notify` nobody yet."""
        frame, self.large_frame = self.large_frame, None
        if frame is not None:
            self._memory.end(frame)

    def count_kept(self, kept_bytes: int, frames: int) -> None:
        """Count the bytes that the reader keeps between turns, after `frames` frames were taken."""
        kept = self._kept
        if not kept_bytes and not kept.count:
            return
        begins, self._frames = frames != self._frames, frames
        self._memory.keep(kept, kept_bytes, begins=begins)

    def wait(self, on_memory: Callable[[], None], reader: FrameReader, now_s: float) -> str | None:
        """Call `on_memory` once, when there may be memory for the next bytes of `reader`.

        Returns why the connection waits, or None if it waits already.
        """
        if self._waiting is not None:
            return None
        frame = self.large_frame if reader.wanted_bytes else None

        def told() -> None:
            self._waiting = None
            on_memory()

        self._waiting = WaitingFrame(told, self.host, frame, reader.wanted_bytes, now_s)
        why = _SHARE if self._memory.waits_for_share(self._waiting) else _ALL
        self._memory.wait(self._waiting)
        return why

    def move(self, memory: RequestMemory) -> None:
        """Count in another memory from now on, and wait no longer for that of the present one."""
        frame, sender = self.large_frame, self._kept.sender
        self._return()
        self._memory, self._kept = memory, KeptBytes(self.host, sender)
        if frame is not None:
            self.large_frame = moved = LargeFrame(self.host, frame.size_bytes, sender)
            if frame.buffer_bytes:
                memory.grow(moved, frame.buffer_bytes)

    def end(self) -> None:
        """Return all memory of a connection that is gone, and forget it.

        The received bytes would otherwise be in a cycle with it, which only the collector frees.
        """
        self._return()
        self._kept = KeptBytes(self.host, GONE)

    def _return(self) -> None:
        """Return all memory, and wait no longer."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._memory.leave(waiting)
        self._memory.keep(self._kept, 0, begins=False)
        self.end_large_frame()
        self._memory.notify()


def held_bytes(request: Request, frame: bytes | memoryview) -> int:
    """Return the memory that a request takes until it is answered."""
    body = request.body
    if isinstance(body, FetchRequest):
        return body.size_bytes  # it keeps a copy, and the frame is dropped
    if isinstance(body, ListOffsetsRequest):
        return len(frame) + body.held_bytes
    return len(frame)
