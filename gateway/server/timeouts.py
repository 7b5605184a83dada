"""For how long a connection may keep us waiting: counters looked at about once a second, no timers.

The hot path only counts; whether something moved since the last look is all that matters here.
"""

from __future__ import annotations

from typing import Protocol

from gateway.config import ConnectionLimits

FRAME_BYTES_PER_S_MIN = 16 * 1024
"""A frame may take `frame_s_max`, and longer only at this pace."""

IDLE = "idle"


class Watched(Protocol):
    """What is looked at."""

    frames: int
    received_bytes: int
    written_bytes: int

    @property
    def waits_for_us(self) -> bool: ...

    @property
    def partial_bytes(self) -> int: ...


class ConnectionTimeouts:
    """What the coarse timer saw last, and for how long nothing moved."""

    __slots__ = (
        "frames",
        "opened_s",
        "partial_s",
        "received_bytes",
        "seen_s",
        "sent_bytes",
        "silent_s",
        "stalled_s",
    )

    def __init__(self) -> None:
        self.opened_s = self.seen_s = 0.0
        self.frames: int = 0
        self.received_bytes: int = 0
        self.sent_bytes: int = 0
        self.silent_s = self.partial_s = self.stalled_s = 0.0

    def verdict(
        self, connection: Watched, now_s: float, backlog: int, limits: ConnectionLimits
    ) -> str | None:
        """Why this connection has to end, or None."""
        self._look(connection, now_s, backlog)
        if self.stalled_s > limits.frame_s_max:
            return "reads no replies"
        if connection.waits_for_us:
            return None
        if not connection.frames and now_s - self.opened_s > limits.first_request_s_max:
            return "no request"
        partial = connection.partial_bytes
        if partial:
            slow_s = limits.frame_s_max + partial / FRAME_BYTES_PER_S_MIN
            if self.silent_s > limits.frame_s_max or self.partial_s > slow_s:
                return "half a frame"
        elif self.silent_s > limits.idle_s_max and not backlog:
            return IDLE
        return None

    def _look(self, connection: Watched, now_s: float, backlog: int) -> None:
        elapsed_s = now_s - (self.seen_s or self.opened_s)
        self.seen_s = now_s
        waits = connection.waits_for_us
        same_bytes = connection.received_bytes == self.received_bytes
        same_frame = connection.frames == self.frames and connection.partial_bytes > 0
        sent_bytes = connection.written_bytes - backlog
        stuck = backlog > 0 and sent_bytes == self.sent_bytes
        self.silent_s = self.silent_s + elapsed_s if same_bytes and not waits else 0.0
        self.partial_s = self.partial_s + elapsed_s if same_frame and not waits else 0.0
        self.stalled_s = self.stalled_s + elapsed_s if stuck else 0.0
        self.received_bytes = connection.received_bytes
        self.frames = connection.frames
        self.sent_bytes = sent_bytes
