"""What all connections of a process share: limits, memory, the way to the handlers, one timer."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.config import ConnectionLimits
from gateway.handlers.api import Peer
from gateway.log import Throttle, logger
from gateway.server.dispatch import Dispatcher
from gateway.server.stall_detector import StallDetector
from gateway.wire.frames import SCRATCH_BYTES

if TYPE_CHECKING:
    from gateway.server.connection import Connection

TICK_S = 1.0


class RequestMemory:
    """Bytes of all requests that are being received or are under way in this process.

    Large frames may take three quarters: peers that announce much and send little must not keep
    others from their small requests.
    """

    def __init__(self, total_bytes_max: int, frame_bytes_max: int) -> None:
        self.used_bytes = 0
        self._total_bytes_max = total_bytes_max
        self._large_bytes_max = max(frame_bytes_max, total_bytes_max * 3 // 4)
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def full(self) -> bool:
        return self.used_bytes >= self._total_bytes_max

    def admits(self, more_bytes: int) -> bool:
        """Whether a large frame may take this much now."""
        return self.used_bytes + more_bytes <= self._large_bytes_max

    def take(self, count: int) -> None:
        self.used_bytes += count

    def give(self, count: int) -> None:
        self.used_bytes -= count
        assert self.used_bytes >= 0
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, deque()
            for on_memory in waiting:
                on_memory()

    def wait(self, on_memory: Callable[[], None]) -> None:
        """`on_memory` runs once, when some memory came back; it may find it taken again."""
        self._waiting.append(on_memory)


class Hub:
    """Created on a running loop; one per process and listener."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        still_s_max: float | None = None,
    ) -> None:
        """`still_s_max`: after standing still for longer, what was decided before is not said."""
        self.loop = asyncio.get_running_loop()
        self.pulse = (
            None if still_s_max is None else StallDetector(self.loop, still_s_max, self._cut_all)
        )
        self.dispatcher = dispatcher
        self.limits = limits
        self.memory = RequestMemory(limits.request_bytes_total_max, limits.frame_bytes_max)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: dict[Connection, str] = {}
        self.empty = asyncio.Event()  # set while no connection is left
        self.empty.set()
        self.refused = 0  # connections ended for what the peer sent or did not send
        self._by_host: Counter[str] = Counter()
        self._throttle = Throttle()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Connections are checked from now on."""
        self._timer = self.loop.call_later(TICK_S, self._tick)
        if self.pulse is not None:
            self.pulse.start()

    def _cut_all(self) -> None:
        for connection in list(self.connections):
            connection.cut_if_waiting()

    def stop(self) -> None:
        if self.pulse is not None:
            self.pulse.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def admit(self, connection: Connection, host: str) -> bool:
        """Whether there is room for one more connection; it counts until `forget`."""
        limits = self.limits
        crowded = not _loopback(host) and self._by_host[host] >= limits.connections_per_address_max
        if crowded or len(self.connections) >= limits.connections_max:
            self.refused += 1
            self.say("connection refused", Peer(host, 0, "", 0), "too many connections")
            return False
        self.connections[connection] = host
        self.empty.clear()
        self._by_host[host] += 1
        return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone and so is all that it asked for."""
        host = self.connections.pop(connection, None)
        if host is None:
            return
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        if not self.connections:
            self.empty.set()

    def say(self, event: str, peer: Peer | None, why: str) -> None:
        """One line per event, address and minute."""
        host = peer.host if peer is not None else ""
        if self._throttle.allows(event, host, self.loop.time()):
            logger().warning(event, peer=host, why=why)

    def _tick(self) -> None:
        self.start()
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.check(now_s)


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "", "::ffff:127.0.0.1")
