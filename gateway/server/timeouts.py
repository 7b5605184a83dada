"""The timeouts of one connection, checked about once a second instead of by timers.

The hot path only counts bytes and frames. A check compares the counters with their values at the
last check.
"""

from __future__ import annotations

from typing import Protocol

from gateway.config import ConnectionLimits

FRAME_BYTES_PER_S_MIN = 16 * 1024
"""A frame may take `frame_s_max` seconds, plus the time that its bytes take at this rate."""

PRESSED_S_MAX = 5.0
"""How long a read or a frame may wait for memory before connections that hold some are closed.

Connections without progress for this long are closed then.
"""

SMALL_PRESSED_S_MAX = 1.5
"""The same for frames of up to 1 MiB, if the one that waits has the address of the slow sender.

Such a frame has its whole buffer from the start, so an address must not hold many for long.
"""

PRESSED_BYTES_PER_S_MIN = 1024 * 1024
"""The rate at which a frame has to arrive while others wait for memory."""

CHECKED_S_MAX = 1.5
"""A check counts at most this many seconds: while this process stood still, bytes may have come."""

IDLE = "idle"


class ConnectionCounters(Protocol):
    """The counters of a connection that a check reads."""

    frames: int
    received_bytes: int
    written_bytes: int

    @property
    def held(self) -> bool: ...

    @property
    def waits_for_us(self) -> bool: ...

    @property
    def partial_bytes(self) -> int: ...


class ConnectionTimeouts:
    """The counters of a connection at the last check, and the seconds without progress."""

    __slots__ = (
        "checked_s",
        "frames",
        "opened_s",
        "partial_s",
        "received_bytes",
        "sent_bytes",
        "silent_s",
        "slow_s",
        "stalled_s",
    )

    def __init__(self) -> None:
        self.opened_s = 0.0  # when the connection was accepted; set once, by the connection
        self.checked_s = 0.0  # when the last check ran; 0 before the first
        # The counters at the last check.
        self.frames: int = 0
        self.received_bytes: int = 0
        self.sent_bytes: int = 0  # bytes that the operating system has taken for sending
        # Seconds up to the last check without a received byte, with the same incomplete frame, and
        # with unsent bytes that did not move. Each is reset to 0 by progress.
        self.silent_s = self.partial_s = self.stalled_s = 0.0
        # Seconds up to the last check in which a frame arrived below PRESSED_BYTES_PER_S_MIN.
        self.slow_s = 0.0

    def slow(self, *, small: bool) -> bool:
        """True if a frame has arrived slowly for long, up to the last check."""
        return self.slow_s > (SMALL_PRESSED_S_MAX if small else PRESSED_S_MAX)

    def exceeded(
        self, connection: ConnectionCounters, now_s: float, backlog: int, limits: ConnectionLimits
    ) -> str | None:
        """Return the reason why this connection has to end, or None."""
        self._update(connection, now_s, backlog)
        if self.stalled_s > limits.frame_s_max:
            return "reads no replies"
        partial = connection.partial_bytes
        if connection.held if partial else connection.waits_for_us:
            return None
        if not connection.frames and now_s - self.opened_s > limits.first_request_s_max:
            return "no request"
        if partial:
            slow_s = limits.frame_s_max + partial / FRAME_BYTES_PER_S_MIN
            if self.silent_s > limits.frame_s_max or self.partial_s > slow_s:
                return "half a frame"
        elif self.silent_s > limits.idle_s_max and not backlog:
            return IDLE
        return None

    def _update(self, connection: ConnectionCounters, now_s: float, backlog: int) -> None:
        elapsed_s = min(CHECKED_S_MAX, now_s - (self.checked_s or self.opened_s))
        self.checked_s = now_s
        partial = connection.partial_bytes > 0
        waits = connection.held if partial else connection.waits_for_us
        received_bytes = connection.received_bytes - self.received_bytes
        same_bytes = not received_bytes
        same_frame = connection.frames == self.frames and partial
        slow = same_frame and not waits and received_bytes < PRESSED_BYTES_PER_S_MIN * elapsed_s
        self.slow_s = self.slow_s + elapsed_s if slow else 0.0
        sent_bytes = connection.written_bytes - backlog
        stuck = backlog > 0 and sent_bytes == self.sent_bytes
        self.silent_s = self.silent_s + elapsed_s if same_bytes and not waits else 0.0
        self.partial_s = self.partial_s + elapsed_s if same_frame and not waits else 0.0
        self.stalled_s = self.stalled_s + elapsed_s if stuck else 0.0
        self.received_bytes = connection.received_bytes
        self.frames = connection.frames
        self.sent_bytes = sent_bytes
