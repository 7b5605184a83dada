"""The connections of all listeners, and everything that they share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Protocol

from gateway.config import ConnectionLimits
from gateway.core.address_share import share_of
from gateway.core.shown_text import shown
from gateway.handlers.api import Peer, Request
from gateway.handlers.request_metrics import ConnectionCounts
from gateway.log import ReasonThrottle, logger, traceback_of
from gateway.server.connection_places import ConnectionPlaces
from gateway.server.dispatch import Dispatcher
from gateway.server.request_memory import SMALL_FRAME_BYTES, RequestMemory
from gateway.server.stall_detector import StallDetector
from gateway.server.timeouts import PRESSED_S_MAX, SMALL_PRESSED_S_MAX
from gateway.settings.broker_overrides import AlteredLimits
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.frames import SCRATCH_BYTES
from ledger.ports.clock import Histogram, measured_s

CHECK_INTERVAL_S: Final = 1.0
REACH_S_MAX: Final = 30.0
"""A client that was sent to the advertised address, and has not come in this time, is a warning."""

_ENDED_MIN: Final = 3  # connections after which a client that closes them counts as one that waits
_WAITING_MAX: Final = 1_000  # addresses of clients that are noted
_CLOSING_MAX: Final = 1_000  # refused connections that are not closed yet


class Refused(StrEnum):
    """Why a connection was refused or ended early, as metrics name it."""

    TOO_MANY = "too-many-connections"
    QUOTA = "connection-rate"  # beyond the quota of its address
    NOT_KAFKA = "not-kafka"  # bytes that no Kafka client sends
    REQUEST = "bad-request"  # a malformed request, or an API or version that is not served
    TIMEOUT = "timeout"
    READS_SLOWLY = "reads-slowly"  # while the memory of replies was used up
    SENDS_SLOWLY = "sends-slowly"  # while the memory of requests was used up
    HANDSHAKE = "tls-handshake"  # of TLS that failed
    LOGIN = "authentication"  # by SASL that failed, ended, or was not complete in time


class Throttles(Protocol):
    """Counts what clients use, and lets connections wait: `ClientThrottles`."""

    def accepted(self, connection: Throttled, request: Request, size: int) -> None:
        """Count the bytes of a Produce, whose frame has `size` bytes."""
        ...

    def answered(self, connection: Throttled, request: Request, result: Any) -> Any:
        """Count a request. Returns its result, with the time to wait."""
        ...

    def __len__(self) -> int:
        """Return how many connections wait."""
        ...

    def forget(self, connection: Throttled) -> None:
        """End the wait of a connection that is lost."""
        ...


class Throttled(Protocol):
    """A connection that may have to wait."""

    lost: bool

    def set_throttled(self, *, throttled: bool) -> None:
        """Read nothing more, or read again."""
        ...


class RegisteredConnection(Protocol):
    """The methods of a connection that the registry and the listener call."""

    reply_bytes: int
    received_bytes: int
    written_bytes: int

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the connection."""
        ...

    @property
    def is_used(self) -> bool:
        """True if the peer sent requests other than those that look for a broker's address."""
        ...

    @property
    def was_sent_here(self) -> bool:
        """True if a reply led this peer to this broker, and to no other."""
        ...

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


class _Waiting:
    """A client that was sent to this broker's advertised address, and has not come there."""

    __slots__ = ("ended", "last_s", "since_s")

    def __init__(self, now_s: float) -> None:
        self.since_s = self.last_s = now_s
        self.ended = 0  # the number of its connections that have ended


def _memories(limits: ConnectionLimits, *, has_logins: bool) -> tuple[RequestMemory, RequestMemory]:
    """Return the memory of requests, and that of clients that have not logged in yet.

    The latter stop no others. Both are the same where no client logs in.
    """
    login_bytes = limits.login_bytes_max if has_logins else 0
    memory = RequestMemory(limits.request_bytes_max - login_bytes, limits.frame_bytes_max)
    return memory, RequestMemory(login_bytes, SMALL_FRAME_BYTES) if has_logins else memory


class ConnectionRegistry:
    """The connections of all listeners, which the registry admits, counts and checks.

    Created on a running loop. Source: Kafka, `ConnectionQuotas`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        stall_s_max: float | None = None,
        replies: ReplyMemory | None = None,
        *,
        has_logins: bool = False,
    ) -> None:
        """Create a registry without connections.

        With `has_logins`, a part of the memory of requests is for clients that have not logged in.

        After a stall of the process longer than `stall_s_max`, no earlier reply is sent.
        `replies` is the memory of replies of the process, by default one of its own.
        """
        self.loop = asyncio.get_running_loop()
        # None if no other broker can replace this process. An old reply is then still valid.
        self.stall_detector = (
            None if stall_s_max is None else StallDetector(self.loop, stall_s_max, self._abort_all)
        )
        self.dispatcher = dispatcher
        self._places = ConnectionPlaces(limits)
        self.limits = limits  # the present ones
        self.memory, self.login_memory = _memories(limits, has_logins=has_logins)
        self.replies = replies or ReplyMemory(limits.reply_bytes_max)
        # The buffer that all connections receive into; used only within one callback of the loop.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        # Every admitted connection with its address, from `admit` until `remove`. IPv6 addresses
        # of one /64 count as one address here.
        self.connections: dict[RegisteredConnection, str] = {}
        # The advertised address of each listener by which no client has sent more than look-ups
        # yet, by name. A listener leaves it for good once one has, or after a warning.
        self.unreached: dict[str, str] = {}
        # The clients of these listeners that were sent here, by listener and address; at most
        # `_WAITING_MAX`.
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        # Set while `connections` is empty. The stopping listener waits for this event.
        self.empty = asyncio.Event()
        self.empty.set()
        # Connections that were refused, or ended for invalid requests or timeouts. Only grows.
        self.refusals: Counter[Refused] = Counter()
        # Logins by mechanism and outcome, "succeeded" or "failed". Only grows.
        self.logins: Counter[tuple[str, str]] = Counter()
        # Bytes from and to clients whose connections are closed. Only grow.
        self._closed_in = self._closed_out = 0
        # How late the check of each second was, and when it was due on the monotonic clock.
        self._loop_lag, self._due_s = Histogram(), 0.0
        # The second of the loop's clock in which connections were admitted last, and their number.
        self._second, self._in_second = 0, 0
        # What clients may use; None while no quota limits requests.
        self.throttles: Throttles | None = None
        # Counts a connection of an address. Returns the milliseconds until it is closed, 0 to keep
        # it. None while no quota limits addresses.
        self.count_connection: Callable[[str], int] | None = None
        # Seconds until the connection is closed that was refused last, and those that wait for it.
        self._refused_for_s, self._closing = 0.0, 0
        self._throttle = ReasonThrottle()
        # The next check of all connections. None before `start` and after `stop`.
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check all connections about once a second from now on."""
        self._set_timer()
        if self.stall_detector is not None:
            self.stall_detector.start()

    def stop(self) -> None:
        """Stop checking connections."""
        if self.stall_detector is not None:
            self.stall_detector.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def counts(self) -> ConnectionCounts:
        """Return the counts of connections and of their bytes, as of now."""
        live = list(self.connections)
        return ConnectionCounts(
            len(live),
            {reason.value: self.refusals[reason] for reason in Refused},
            self._closed_in + sum(each.received_bytes for each in live),
            self._closed_out + sum(each.written_bytes for each in live),
            self._loop_lag,
            dict(self._places.by_listener),
            0 if self.throttles is None else len(self.throttles),
            dict(self.logins),
        )

    def limit_connections(self, altered: AlteredLimits) -> None:
        """Use these limits from the next connection on, where they lower the configured ones."""
        self._places.alter(altered)
        self.limits = self._places.limits

    def admit(self, connection: RegisteredConnection, host: str) -> bool:
        """Count one more connection, until `remove`. Returns False if a limit is reached."""
        share, listener = share_of(host), connection.listener
        self._refused_for_s = 0.0
        count = len(self.connections)
        if not self._places.has_place(host, listener, count) or self._too_fast():
            self.refusals[Refused.TOO_MANY] += 1
            self.warn("connection refused", Peer(host, 0, "", 0), "too many connections")
            return False
        if self.count_connection is not None and (wait_ms := self.count_connection(host)):
            self._refused_for_s = wait_ms / 1000
            self.refusals[Refused.QUOTA] += 1
            self.warn("connection refused", Peer(host, 0, "", 0), "its address opens too many")
            return False
        self.connections[connection] = share
        self.empty.clear()
        self._places.take(share, listener)
        return True

    def close_refused(self, transport: asyncio.Transport) -> None:
        """Close a connection that `admit` has just refused.

        As in Kafka, one beyond the quota of its address is closed after the time to wait. At most
        `_CLOSING_MAX` wait for that.
        """
        if not self._refused_for_s or self._closing >= _CLOSING_MAX:
            transport.abort()
            return
        self._closing += 1
        transport.pause_reading()

        def pause() -> None:
            if not transport.is_closing():
                transport.pause_reading()

        def close() -> None:
            self._closing -= 1
            transport.abort()

        self.loop.call_soon(pause)  # uvloop begins to read after `connection_made`, even so
        self.loop.call_later(self._refused_for_s, close)

    def _too_fast(self) -> bool:
        """Count a new connection. Returns True if this second has had the most that it may have."""
        limits = self.limits
        if not limits.connections_per_s_max:
            return False
        second = int(self.loop.time())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second > limits.connections_per_s_max

    def remove(self, connection: RegisteredConnection) -> None:
        """Stop counting a connection that is closed and has no unanswered request."""
        share = self.connections.pop(connection, None)
        if share is None:
            return
        self._closed_in += connection.received_bytes
        self._closed_out += connection.written_bytes
        if self.unreached:
            self._check_reached(connection, share, self.loop.time(), is_open=False)
        self._places.give(share, connection.listener)
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

    def _set_timer(self) -> None:
        self._due_s = measured_s() + CHECK_INTERVAL_S
        self._timer = self.loop.call_later(CHECK_INTERVAL_S, self._check_all)

    def _check_all(self) -> None:
        self._loop_lag.add(max(0.0, measured_s() - self._due_s))
        self._set_timer()
        self.dispatcher.metrics.age()
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.check(now_s)
        for connection, share in self.connections.items() if self.unreached else ():
            self._check_reached(connection, share, now_s, is_open=True)
        for memory in {self.memory, self.login_memory}:
            memory.notify()
            memory.relieve()
        self._relieve_reads(now_s)
        self._relieve_frames(now_s)

    def _check_reached(
        self, connection: RegisteredConnection, share: str, now_s: float, *, is_open: bool
    ) -> None:
        """Log once for a listener if a client stays away from the address that it was given.

        Until a client reaches that address, it sends nothing but look-ups. It keeps the connection
        by which it asked, as Java does, or asks again by another one, as librdkafka does. One use
        by any client clears the listener.
        """
        listener = connection.listener
        if listener not in self.unreached:
            return
        if connection.is_used:
            del self.unreached[listener]
        elif connection.was_sent_here and self._waits(listener, share, now_s, is_open=is_open):
            logger().warning(
                "a client was sent to the advertised address, and has not come there: can it "
                "connect to it?",
                listener=listener,
                advertised=self.unreached.pop(listener),
                peer=share,
            )

    def _waits(self, listener: str, share: str, now_s: float, *, is_open: bool) -> bool:
        """Note a client that was sent here. Returns True if it was so for `REACH_S_MAX`."""
        waiting = self._waiting.get((listener, share))
        if waiting is None or now_s - waiting.last_s > REACH_S_MAX:
            if len(self._waiting) >= _WAITING_MAX:
                self._forget_waiting(now_s)
                return False
            waiting = self._waiting[listener, share] = _Waiting(now_s)
        waiting.last_s = now_s
        waiting.ended += not is_open
        late = now_s - waiting.since_s >= REACH_S_MAX
        return late and (is_open or waiting.ended >= _ENDED_MIN)

    def _forget_waiting(self, now_s: float) -> None:
        """Make room for other clients: leave out those that have not been here for long."""
        gone = [key for key, at in self._waiting.items() if now_s - at.last_s > REACH_S_MAX]
        for key in gone:
            del self._waiting[key]

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
            self.refusals[Refused.READS_SLOWLY] += 1
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
            self.refusals[Refused.SENDS_SLOWLY] += 1
            each.abort("sends its request slowly while the memory is used up")
