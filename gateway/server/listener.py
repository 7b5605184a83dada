"""The listener: accepts connections within limits, and drains them before the process ends."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.config import ConnectionLimits
from gateway.server.connection import Connection
from gateway.server.dispatch import Dispatcher
from gateway.server.registry import ConnectionRegistry
from gateway.topics.reply_memory import ReplyMemory

BACKLOG = 1024
DRAIN_S = 5.0


class Server:
    """One listening port of this process. `start` once, then `stop` once."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        stall_s_max: float | None = None,
        replies: ReplyMemory | None = None,
    ) -> None:
        """Create the listener. `stall_s_max` is the limit of the `StallDetector`.

        It is None if no other broker can take over. `replies` is the memory of replies that the
        handlers take from.
        """
        self._replies = replies
        self._stall_s_max = stall_s_max
        self._dispatcher = dispatcher
        self._limits = limits
        self._registry: ConnectionRegistry | None = None
        self._listener: asyncio.Server | None = None
        self.host = ""
        self.port = 0

    @property
    def registry(self) -> ConnectionRegistry:
        """Return the registry of the connections. Valid only after `start`."""
        assert self._registry is not None
        return self._registry

    async def start(self, host: str, port: int) -> None:
        """Listen. Port 0 selects a free port, which `self.port` then holds. Raises OSError."""
        registry = ConnectionRegistry(
            self._dispatcher, self._limits, self._stall_s_max, self._replies
        )
        self._registry = registry
        self._listener = await registry.loop.create_server(
            lambda: Connection(registry), host, port, backlog=BACKLOG
        )
        self.host = host
        self.port = self._listener.sockets[0].getsockname()[1]
        registry.start()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop accepting and reading, and answer open requests for up to `drain_s` seconds.

        Then abort the connections that remain. Their handlers are not cancelled here: the
        components behind the handlers stop next and end them.
        """
        if self._listener is None:
            return
        self._listener.close()
        registry = self.registry
        for connection in list(registry.connections):
            connection.close_when_answered()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(registry.empty.wait(), drain_s)
        for connection in list(registry.connections):
            connection.abort("stopping")
        registry.stop()
        self._listener = None
