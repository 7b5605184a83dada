"""The listener: accepts connections within limits, and drains them before the process ends."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.config import ConnectionLimits
from gateway.server.connection import Connection
from gateway.server.dispatch import Dispatcher
from gateway.server.registry import Hub

BACKLOG = 1024
DRAIN_S = 5.0


class Server:
    """One listening port of this process. `start` once, then `stop` once."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        still_s_max: float | None = None,
    ) -> None:
        """`still_s_max`: see `StallDetector`; None: no other process answers for this one."""
        self._still_s_max = still_s_max
        self._dispatcher = dispatcher
        self._limits = limits
        self._hub: Hub | None = None
        self._listener: asyncio.Server | None = None
        self.host = ""
        self.port = 0

    @property
    def hub(self) -> Hub:
        """What the connections share. Only after `start`."""
        assert self._hub is not None
        return self._hub

    async def start(self, host: str, port: int) -> None:
        """Clients can connect; `port` 0 takes any free one, see `self.port`. Raises OSError."""
        hub = self._hub = Hub(self._dispatcher, self._limits, self._still_s_max)
        self._listener = await hub.loop.create_server(
            lambda: Connection(hub), host, port, backlog=BACKLOG
        )
        self.host = host
        self.port = self._listener.sockets[0].getsockname()[1]
        hub.start()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Nothing is accepted or read any more; what was asked is answered within `drain_s`.

        After that the remaining connections are cut. Their handlers' work is not cancelled here:
        it belongs to the parts behind the handlers, which stop next.
        """
        if self._listener is None:
            return
        self._listener.close()
        hub = self.hub
        for connection in list(hub.connections):
            connection.close_when_answered()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(hub.empty.wait(), drain_s)
        for connection in list(hub.connections):
            connection.abort("stopping")
        hub.stop()
        self._listener = None
