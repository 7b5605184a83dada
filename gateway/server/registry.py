"""The connections of one listener, and everything that they share."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Final, Protocol

from gateway.config import ConnectionLimits
from gateway.core.address_share import share_of
from gateway.core.shown_text import shown
from gateway.handlers.api import Peer
from gateway.log import ReasonThrottle, logger, traceback_of
from gateway.server.dispatch import Dispatcher
from gateway.server.request_memory import RequestMemory
from gateway.server.stall_detector import StallDetector
from gateway.server.timeouts import PRESSED_S_MAX, SMALL_PRESSED_S_MAX
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.frames import SCRATCH_BYTES

CHECK_INTERVAL_S: Final = 1.0


class RegisteredConnection(Protocol):
    """The methods of a connection that the registry and the listener call."""

    reply_bytes: int

    def sends_slowly(self, *, small: bool) -> bool:
        """True if the peer has taken long for a frame with a buffer of its own."""
        ...

    @property
    def reads_slowly(self) -> bool: ...

    def check(self, now_s: float) -> None:
        """End the connection if it exceeded a timeout."""
        ...

    def abort_if_unanswered(self) -> None:
        """End the connection if a request is unanswered or a reply unsent."""
        ...

    def close_when_answered(self) -> None:
        """Read nothing more, and close once every request is answered."""
        ...

    def abort(self, reason: str) -> None:
        """End the connection now."""
        ...


class ConnectionRegistry:
    """The connections of one listener, which the registry admits, counts and checks.

    Created on a running loop. Source: Kafka, `ConnectionQuotas`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        stall_s_max: float | None = None,
        replies: ReplyMemory | None = None,
    ) -> None:
        """Create a registry without connections.

        After a stall of the process longer than `stall_s_max`, no earlier reply is sent.
        `replies` is the memory of replies of the process, by default one of its own.
        """
        self.loop = asyncio.get_running_loop()
        # None if no other broker can replace this process. An old reply is then still valid.
        self.stall_detector = (
            None if stall_s_max is None else StallDetector(self.loop, stall_s_max, self._abort_all)
        )
        self.dispatcher = dispatcher
        # The present limits of connections; the others are as configured.
        self.limits = self._configured = limits
        self.memory = RequestMemory(limits.request_bytes_max, limits.frame_bytes_max)
        self.replies = replies or ReplyMemory(limits.reply_bytes_max)
        # The buffer that all connections receive into; used only within one callback of the loop.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        # Every admitted connection with its address, from `admit` until `remove`. IPv6 addresses
        # of one /64 count as one address here.
        self.connections: dict[RegisteredConnection, str] = {}
        # Set while `connections` is empty. The stopping listener waits for this event.
        self.empty = asyncio.Event()
        self.empty.set()
        # Number of connections that were ended for invalid requests or timeouts. Only grows.
        self.refused = 0
        # Number of connections by address. An address without connections has no key.
        self._by_host: Counter[str] = Counter()
        self._throttle = ReasonThrottle()
        # The next check of all connections. None before `start` and after `stop`.
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check all connections about once a second from now on."""
        self._timer = self.loop.call_later(CHECK_INTERVAL_S, self._check_all)
        if self.stall_detector is not None:
            self.stall_detector.start()

    def stop(self) -> None:
        """Stop checking connections."""
        if self.stall_detector is not None:
            self.stall_detector.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def limit_connections(self, per_address: int | None, in_all: int | None) -> None:
        """Use these limits from the next connection on, where they are below the configured ones.

        None stands for the configured limit.
        """
        known = self._configured

        def lower(wanted: int | None, configured: int) -> int:
            return configured if wanted is None else min(wanted, configured)

        self.limits = replace(
            known,
            connections_per_address_max=lower(per_address, known.connections_per_address_max),
            connections_max=lower(in_all, known.connections_max),
        )

    def admit(self, connection: RegisteredConnection, host: str) -> bool:
        """Count one more connection, until `remove`. Returns False if a limit is reached."""
        limits, share = self.limits, share_of(host)
        crowded = not _loopback(host) and self._by_host[share] >= limits.connections_per_address_max
        # From this machine an operator can always take back a limit that was set too low.
        in_all = self._configured.connections_max if _loopback(host) else limits.connections_max
        if crowded or len(self.connections) >= in_all:
            self.refused += 1
            self.warn("connection refused", Peer(host, 0, "", 0), "too many connections")
            return False
        self.connections[connection] = share
        self.empty.clear()
        self._by_host[share] += 1
        return True

    def remove(self, connection: RegisteredConnection) -> None:
        """Stop counting a connection that is closed and has no unanswered request."""
        share = self.connections.pop(connection, None)
        if share is None:
            return
        self._by_host[share] -= 1
        if not self._by_host[share]:
            del self._by_host[share]
        if not self.connections:
            self.empty.set()

    def warn(self, event: str, peer: Peer | None, reason: str) -> None:
        """Log `event`, at most once per reason, address and minute."""
        host = peer.host if peer is not None else ""
        reason = shown(reason)
        if self._throttle.allows(event, share_of(host), reason, self.loop.time()):
            logger().warning(event, peer=host, why=reason)

    def report(self, event: str, peer: Peer | None, error: BaseException) -> None:
        """Log a failure of ours, at most once per type of error, address and minute."""
        host = peer.host if peer is not None else ""
        kind = type(error).__name__
        if self._throttle.allows(event, share_of(host), kind, self.loop.time()):
            logger().error(event, peer=host, exception=traceback_of(error))

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort_if_unanswered()

    def _check_all(self) -> None:
        self._timer = self.loop.call_later(CHECK_INTERVAL_S, self._check_all)
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.check(now_s)
        self.memory.notify()
        self.memory.relieve()
        self._relieve_reads(now_s)
        self._relieve_frames(now_s)

    def _relieve_reads(self, now_s: float) -> None:
        """Close connections whose peers do not read, if a read waits too long for memory.

        If all peers read, the connection with the largest replies is closed.
        """
        first = self.replies.first
        if first is None or now_s - first.since_s < PRESSED_S_MAX:
            return
        holders = [each for each in self.connections if each.reply_bytes]
        victims = [each for each in holders if each.reads_slowly]
        if not victims and holders:
            victims = [max(holders, key=lambda each: each.reply_bytes)]
        for each in victims:
            self.refused += 1
            each.abort("reads its replies slowly while their memory is used up")

    def _relieve_frames(self, now_s: float) -> None:
        """Close connections whose peers send slowly, if a frame waits too long for memory.

        Only those of its own address if it waits for the share of the address.
        """
        memory = self.memory
        since_s = memory.waits_since_s
        if since_s is None or now_s - since_s < SMALL_PRESSED_S_MAX:
            return
        everywhere = memory.waits_for_all(now_s - PRESSED_S_MAX)
        large_at = memory.hosts_that_wait(now_s - PRESSED_S_MAX)
        small_at = memory.hosts_that_wait(now_s - SMALL_PRESSED_S_MAX)
        slow = [
            each
            for each, host in self.connections.items()
            if ((everywhere or host in large_at) and each.sends_slowly(small=False))
            or ((everywhere or host in small_at) and each.sends_slowly(small=True))
        ]
        for each in slow:
            self.refused += 1
            each.abort("sends its request slowly while the memory is used up")


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "", "::ffff:127.0.0.1")
