"""The memory that requests of all connections of one process share. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

SMALL_FRAME_BYTES: Final = 1024 * 1024
"""Frames up to this size get their whole buffer at once, and may use more of the memory."""

_PASSED_OVER_MAX: Final = 4


class LargeFrame:
    """A frame with a buffer of its own, from the first request for a buffer until it is taken."""

    __slots__ = ("buffer_bytes", "host", "size_bytes")

    def __init__(self, host: str, size_bytes: int) -> None:
        self.host = host
        self.size_bytes = size_bytes  # the size that the peer has announced
        # The size of the buffer, which grows up to `size_bytes`. 0 until it is admitted.
        self.buffer_bytes = 0


class WaitingFrame(NamedTuple):
    """A connection that stopped reading for lack of memory."""

    on_memory: Callable[[], None]
    frame: LargeFrame | None  # the frame that needs a larger buffer, None for any request
    buffer_bytes: int
    since_s: float  # time of the loop when the connection stopped


class RequestMemory:
    """Bytes of all requests that are being received or processed in this process.

    A large frame is charged for its buffer, which grows as bytes arrive. So a peer pays for what it
    has sent, not for what it announced. Frames above `SMALL_FRAME_BYTES` may use three quarters of
    the memory, smaller frames seven eighths, and one address half of that, or one frame of the
    largest size. So slow peers with large frames stop neither small requests nor other addresses.

    A frame that has begun can be completed: a buffer grows only if all frames that have begun could
    still be received to their ends, one after another (the banker's algorithm).
    """

    def __init__(self, total_bytes_max: int, frame_bytes_max: int) -> None:
        # Bytes taken and not given back. May exceed the total by the frames of one turn of the
        # loop.
        self.used_bytes = 0
        # The part of `used_bytes` in beginnings of frames, which connections keep outside of large
        # buffers. They do not keep large frames from growing, which may have to end before them.
        self._kept_bytes = 0
        self._total_bytes_max = total_bytes_max
        self._frame_bytes_max = frame_bytes_max
        # The frames with buffers, in the order of their first ones.
        self._frames: dict[LargeFrame, None] = {}
        # The bytes of these buffers by the address of their connections. No value is 0.
        self._by_host: dict[str, int] = {}
        # Connections that stopped reading for lack of memory. `notify` passes over some of them and
        # puts them to the end.
        self._waiting: deque[WaitingFrame] = deque()

    @property
    def full(self) -> bool:
        return self.used_bytes >= self._total_bytes_max

    @property
    def crowded(self) -> bool:
        """True if the beginnings of waiting frames use all memory that large frames leave."""
        return self._kept_bytes >= self._total_bytes_max // 4

    @property
    def waits_since_s(self) -> float | None:
        """When the connection stopped that has waited longest, or None if none waits."""
        return min((each.since_s for each in self._waiting), default=None)

    def take(self, count: int) -> None:
        """Count `count` bytes of a request."""
        self.used_bytes += count

    def give(self, count: int) -> None:
        """Return `count` bytes of a request."""
        self.used_bytes -= count
        assert self.used_bytes >= 0
        if self._waiting:
            self.notify()

    def keep(self, more: int) -> None:
        """Count `more` bytes that a connection keeps; fewer if `more` is negative."""
        self._kept_bytes += more
        if more > 0:
            self.used_bytes += more
        else:
            self.give(-more)

    def admits(self, frame: LargeFrame, buffer_bytes: int) -> bool:
        """Return whether the buffer of `frame` may grow to `buffer_bytes` now."""
        more = buffer_bytes - frame.buffer_bytes
        limit = self._limit(frame.size_bytes)
        return (
            self.used_bytes - self._kept_bytes + more <= limit
            and self._by_host.get(frame.host, 0) + more <= self._host_limit(limit)
            and (frame.size_bytes <= SMALL_FRAME_BYTES or self._can_complete(frame, more))
        )

    def grow(self, frame: LargeFrame, buffer_bytes: int) -> None:
        """Count the buffer of `frame`, which grows to `buffer_bytes`."""
        more = buffer_bytes - frame.buffer_bytes
        frame.buffer_bytes = buffer_bytes
        self._frames[frame] = None
        self._by_host[frame.host] = self._by_host.get(frame.host, 0) + more
        self.used_bytes += more

    def end(self, frame: LargeFrame) -> None:
        """Forget the buffer of a frame that was taken or dropped."""
        if frame not in self._frames:
            return
        del self._frames[frame]
        left = self._by_host[frame.host] - frame.buffer_bytes
        if left:
            self._by_host[frame.host] = left
        else:
            del self._by_host[frame.host]
        self.give(frame.buffer_bytes)

    def wait(self, waiting: WaitingFrame) -> None:
        """Run `on_memory` once, when there is memory.

        Other connections may have taken it before the connection does.
        """
        self._waiting.append(waiting)

    def leave(self, waiting: WaitingFrame) -> None:
        """Wait no longer, because the connection is lost."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def notify(self) -> None:
        """Tell waiting connections that there is memory, as many as it suffices for."""
        told: list[WaitingFrame] = []
        passed_over = promised = 0
        for _ in range(len(self._waiting)):
            if self.full or passed_over == _PASSED_OVER_MAX:
                break
            waiting = self._waiting.popleft()
            frame = waiting.frame
            more = 0 if frame is None else waiting.buffer_bytes - frame.buffer_bytes
            self.used_bytes += promised
            fits = frame is None or self.admits(frame, waiting.buffer_bytes)
            self.used_bytes -= promised
            if fits:
                promised += more
                told.append(waiting)
            else:
                passed_over += 1
                self._waiting.append(waiting)
        for waiting in told:
            waiting.on_memory()

    def _limit(self, frame_bytes: int) -> int:
        """Return how much memory may be used when the buffer of a frame of this size grows."""
        left_for_others = self._total_bytes_max // (8 if frame_bytes <= SMALL_FRAME_BYTES else 4)
        return max(self._frame_bytes_max, self._total_bytes_max - left_for_others)

    def _host_limit(self, limit: int) -> int:
        return max(self._frame_bytes_max, limit // 2)

    def _can_complete(self, grown: LargeFrame, more: int) -> bool:
        """Return whether all frames can be completed in some order after `grown` took `more` bytes.

        Requests that are being processed are not counted, because they return their memory by
        themselves.
        """
        limit = self._limit(self._frame_bytes_max)
        host_limit = self._host_limit(limit)
        missing: list[tuple[int, int, str]] = []
        for each in self._frames:
            held = each.buffer_bytes + (more if each is grown else 0)
            missing.append((each.size_bytes - held, held, each.host))
        if grown not in self._frames:
            missing.append((grown.size_bytes - more, more, grown.host))
        missing.sort()
        free = limit - sum(held for _, held, _ in missing)
        host_free = {host: host_limit for _, _, host in missing}
        for _, held, host in missing:
            host_free[host] -= held
        while missing:
            stuck: list[tuple[int, int, str]] = []
            for needs, held, host in missing:
                if needs <= free and needs <= host_free[host]:
                    free += held
                    host_free[host] += held
                else:
                    stuck.append((needs, held, host))
            if len(stuck) == len(missing):
                return False
            missing = stuck
        return True
