"""The listeners: accept connections within limits, and drain them before the process ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from gateway.config import PLAINTEXT, ConnectionLimits, Listener
from gateway.server.connection import Connection
from gateway.server.dispatch import Dispatcher
from gateway.server.registry import ConnectionRegistry
from gateway.topics.reply_memory import ReplyMemory

BACKLOG = 1024
DRAIN_S = 5.0


class CannotListen(OSError):
    """The address of a listener cannot be listened on; its `__cause__` has the reason."""

    def __init__(self, listener: Listener, cause: OSError | UnicodeError) -> None:
        super().__init__(getattr(cause, "errno", None), str(cause))
        self.listener = listener


class SecurePorts(Protocol):
    """The TLS and the SASL of listeners that are not PLAINTEXT."""

    def factory(
        self, registry: ConnectionRegistry, listener: Listener
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Return the maker of the protocols of a listener's connections."""
        ...


class Server:
    """The listening ports of this process, which share all limits. `start` once, `stop` once."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        stall_s_max: float | None = None,
        replies: ReplyMemory | None = None,
        secure: SecurePorts | None = None,
    ) -> None:
        """Create the server. `stall_s_max` is the limit of the `StallDetector`.

        It is None if no other broker can take over. `replies` is the memory of replies that the
        handlers take from. `secure` is needed if a listener is not PLAINTEXT.
        """
        self._secure = secure
        self._replies = replies
        self._stall_s_max = stall_s_max
        self._dispatcher = dispatcher
        self._limits = limits
        self._registry: ConnectionRegistry | None = None
        # The open ports, in the order of `listeners`. Empty before `start` and after `stop`.
        self._open: list[asyncio.Server] = []
        # The listeners with the ports that they have. Empty before `start`.
        self.listeners: tuple[Listener, ...] = ()

    @property
    def host(self) -> str:
        """Return the host of the first listener. Valid only after `start`."""
        return self.listeners[0].host

    @property
    def port(self) -> int:
        """Return the port of the first listener. Valid only after `start`."""
        return self.listeners[0].port

    @property
    def registry(self) -> ConnectionRegistry:
        """Return the registry of the connections. Valid only after `start`."""
        assert self._registry is not None
        return self._registry

    async def start(self, host: str, port: int) -> None:
        """Listen at one address. Port 0 selects a free port. Raises CannotListen."""
        await self.start_all([Listener(PLAINTEXT, host, port)])

    async def start_all(self, listeners: Sequence[Listener]) -> None:
        """Listen at all addresses. Port 0 selects a free port, as `self.listeners` then has.

        Raises CannotListen, and listens nowhere then.
        """
        registry = ConnectionRegistry(
            self._dispatcher,
            self._limits,
            self._stall_s_max,
            self._replies,
            has_logins=any(each.has_sasl for each in listeners),
        )
        self._registry = registry
        bound: list[Listener] = []
        for each in listeners:
            accept = self._accepting(registry, each)
            try:
                opened = await registry.loop.create_server(
                    accept, each.host, each.port, backlog=BACKLOG
                )
            except (OSError, UnicodeError) as error:
                self._close_ports()
                raise CannotListen(each, error) from error
            self._open.append(opened)
            bound.append(each._replace(port=opened.sockets[0].getsockname()[1]))
        self.listeners = tuple(bound)
        registry.unreached = {
            each.name: "{}:{}".format(*each.address(each.host, each.port))
            for each in bound
            if each.advertised_host or each.advertised_port
        }
        registry.start()

    def _accepting(
        self, registry: ConnectionRegistry, listener: Listener
    ) -> Callable[[], asyncio.BaseProtocol]:
        if listener.protocol == PLAINTEXT:
            return partial(Connection, registry, listener.name)
        assert self._secure is not None  # never an open port in place of a protected one
        return self._secure.factory(registry, listener)

    def _close_ports(self) -> None:
        for each in self._open:
            each.close()
        self._open.clear()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop accepting and reading, and answer open requests for up to `drain_s` seconds.

        Then abort the connections that remain. Their handlers are not cancelled here: the
        components behind the handlers stop next and end them.
        """
        if not self._open:
            return
        self._close_ports()
        registry = self.registry
        for connection in list(registry.connections):
            connection.close_when_answered()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(registry.empty.wait(), drain_s)
        for connection in list(registry.connections):
            connection.abort("stopping")
        registry.stop()
