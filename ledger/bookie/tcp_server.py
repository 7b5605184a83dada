"""A bookie's TCP server: adds, reads and control calls of a client on one connection.

A sweep closes connections that are silent, that leave a frame unfinished, or that take no answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from ledger.adapters.links.link_config import WINDOW_BYTES, TlsFiles
from ledger.adapters.links.tls_identity import TlsIdentity, certificate_of, identity_of
from ledger.adapters.system.memory import keep_freed_memory
from ledger.adapters.tcp.tcp_config import TcpServerConfig
from ledger.bookie.control_calls import ControlCall
from ledger.bookie.served_bookie import ServedBookie
from ledger.bookie.server_peers import ServerPeers
from ledger.bookie.server_rooms import ServerRooms
from ledger.bookie.tcp_connection import ClientConnection
from ledger.core.bookie_roles import Role
from ledger.log import Throttle, logger
from ledger.wire.tcp_frames import CALL_METHODS, STAGING_BYTES

_CREDIT_BYTES_MIN: Final = 64 * 1024
_SWEEP_S_MAX: Final = 1.0
_REFRESH_S: Final = 5.0  # how often the files of certificates are looked at


class PeerServices(NamedTuple):
    """What the connection of one peer uses, as its roles permit."""

    bookie: ServedBookie
    calls: Mapping[int, ControlCall]  # by the number on the wire


class TcpServer:
    """The TCP server of one bookie. The bookie's owner starts and stops it."""

    def __init__(
        self,
        bookie: ServedBookie,
        config: TcpServerConfig,
        tls: TlsFiles | TlsIdentity | None = None,
        rooms: ServerRooms | None = None,
    ) -> None:
        """`rooms` are shared with another server of this bookie, or None for rooms of its own.

        Reads the TLS files, if there are any. Raises TlsFault.
        """
        self.bookie = bookie
        self.config = config
        self._tls = identity_of(tls)
        # When the files of certificates are looked at next.
        self._refresh_at_s = 0.0
        self._peers = ServerPeers(bookie)
        # The services so far, by the roles of a peer; None stands for unchecked ones.
        self._services: dict[frozenset[Role] | None, PeerServices] = {}
        rooms = ServerRooms.of(config) if rooms is None else rooms
        # Bytes of adds that are not durable yet, of all connections together.
        self._window = rooms.adds
        # Bytes of answers to reads that are not written yet, of all connections together.
        self._room = rooms.answers
        self.rooms = rooms
        # Shared by all connections: each receive is handled before the next one.
        self.staging = bytearray(STAGING_BYTES)
        # Connections from their first byte until they are lost.
        self._connections: set[ClientConnection] = set()
        # Done once no connection is left. None unless `stop` waits for it.
        self._emptied: asyncio.Future[None] | None = None
        # Bytes that have arrived of frames that are not complete, of all connections.
        self.unfinished = 0
        self._throttle = Throttle()
        # The listener and the timer of the sweep, from `start` to `stop`.
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        keep_freed_memory()

    async def start(self, host: str, port: int) -> int:
        """Serve, and return the port (0 picks a free one). Raises OSError."""
        loop, tls = asyncio.get_running_loop(), self._tls
        if tls is None:
            self._server = await loop.create_server(self.new_connection, host, port)
        else:
            self._server = await loop.create_server(
                *(self.new_connection, host, port),
                ssl=tls.server,
                ssl_handshake_timeout=self.config.hello_timeout_s,
            )
        self.begin_sweeps()
        return self._server.sockets[0].getsockname()[1]

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, and end those that are left after the grace period."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._connections and grace_s > 0:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=grace_s)
        for connection in tuple(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def begin_sweeps(self) -> None:
        """Look at all connections now and then, until `stop`."""
        config = self.config
        shortest_s = min(config.frame_timeout_s, config.silence_s, config.write_timeout_s)
        wait_s = min(_SWEEP_S_MAX, shortest_s / 4, config.hello_timeout_s / 4)
        self._sweeper = asyncio.get_running_loop().call_later(wait_s, self._sweep)

    def _sweep(self) -> None:
        self.begin_sweeps()
        now_s = asyncio.get_running_loop().time()
        for connection in tuple(self._connections):
            connection.check(now_s)
        if self._tls is not None and now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + _REFRESH_S
            self._tls.refresh()

    # -- what connections call -----------------------------------------------------------------

    def new_connection(self) -> ClientConnection:
        """Return the protocol of a connection that was accepted."""
        return ClientConnection(self)

    def services_for(self, transport: asyncio.BaseTransport, client: str) -> PeerServices:
        """Return what the peer of this new connection may use, by its certificate."""
        roles = None
        if self._tls is not None:
            roles = self._tls.roles_of(certificate_of(transport.get_extra_info("ssl_object")))
        if roles is not None and not roles:
            self._peers.log_without_role(client)
        found = self._services.get(roles)
        if found is None:
            served = self._peers.of(roles)
            calls = {CALL_METHODS[name]: call for name, call in served.over_tcp.items()}
            found = self._services[roles] = PeerServices(served.bookie, calls)
        return found

    def admit(self, connection: ClientConnection) -> bool:
        """Register a connection. Returns False if there are too many."""
        if len(self._connections) >= self.config.connections_max:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ClientConnection) -> None:
        """Unregister a connection that was lost."""
        self._connections.discard(connection)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def credit_bytes(self) -> int:
        """Bytes of adds that one client may send before the bookie has taken them.

        All clients together get about half of the bound on adds that are not durable.
        """
        bound = self.config.queue_bytes_max
        share = max(_CREDIT_BYTES_MIN, bound // (2 * max(1, len(self._connections))))
        return min(WINDOW_BYTES, bound, share)

    def log_end(self, kind: str, client: str, reason: str) -> None:
        """Log why a connection was closed: a line per kind, client and minute."""
        if self._throttle.allows(kind, client, asyncio.get_running_loop().time()):
            logger().warning("closed the connection of a client", client=client, reason=reason)
