"""The memory of the requests that one connection is receiving."""

from __future__ import annotations

from collections.abc import Callable

from gateway.server.dispatch import RequestRefused
from gateway.server.request_memory import LargeFrame, RequestMemory, WaitingFrame
from gateway.wire.frames import FrameReader


class ReceivedBytes:
    """What one connection has received and not taken as frames, counted in `RequestMemory`."""

    __slots__ = ("_kept_bytes", "_memory", "_waiting", "host", "large_frame")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.host = ""  # the address of the peer; set once, when the connection is made
        # The bytes of incomplete and waiting small frames, as counted.
        self._kept_bytes = 0
        # The large frame that is being received, from its first request for a buffer on.
        self.large_frame: LargeFrame | None = None
        # Set while the connection waits for memory.
        self._waiting: WaitingFrame | None = None

    def may_admit(self, reader: FrameReader) -> bool:
        """Return whether the frame may have the buffer that it needs, and count it.

        Raises RequestRefused if too many connections wait already.
        """
        frame = self.large_frame
        if frame is None:
            frame = self.large_frame = LargeFrame(self.host, reader.large_bytes)
        if self._memory.admits(frame, reader.wanted_bytes):
            self._memory.grow(frame, reader.wanted_bytes)
            return True
        if self._memory.crowded and not frame.buffer_bytes:
            raise RequestRefused("the memory for requests is used up")
        return False

    def end_large_frame(self) -> None:
        """Return the memory of the large frame, if there is one."""
        frame, self.large_frame = self.large_frame, None
        if frame is not None:
            self._memory.end(frame)

    def count_kept(self, kept_bytes: int) -> None:
        """Count the bytes that the reader keeps between turns."""
        more = kept_bytes - self._kept_bytes
        if more:
            self._kept_bytes = kept_bytes
            self._memory.keep(more)

    def wait(self, on_memory: Callable[[], None], reader: FrameReader, now_s: float) -> None:
        """Call `on_memory` once, when there may be memory for the next bytes of `reader`."""
        if self._waiting is not None:
            return
        frame = self.large_frame if reader.wanted_bytes else None

        def told() -> None:
            self._waiting = None
            on_memory()

        self._waiting = WaitingFrame(told, frame, reader.wanted_bytes, now_s)
        self._memory.wait(self._waiting)

    def lost(self) -> None:
        """Return all memory, and wait no longer."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._memory.leave(waiting)
        self.count_kept(0)
        self.end_large_frame()
