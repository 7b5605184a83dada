"""What the views of a process share: its own memory, and connections to the rest of the cluster.

The page is a client of the cluster, as the commands are. It looks up what this process knows in
`ctx`, and asks for everything else as they do, so that both show the same figures.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from gateway.admin.client import AdminClient, AdminError, Unreachable, parse_bootstrap
from gateway.admin.client_settings import ClientSettings
from gateway.admin.metadata_address import metadata_address
from gateway.admin.storage import Storage, StorageConnection, storage_over
from gateway.admin.zookeeper_access import gateway_access
from gateway.cluster.peers import peer_address, peer_security
from gateway.http.forms import Token
from ledger.adapters.links.link_config import TlsFiles
from ledger.errors import LedgerError
from ledger.ports.bookies import BookieTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.config import HttpConfig
    from gateway.handlers.api import Context
    from gateway.http.pages import Asked
    from gateway.wire.client_link import Link
    from ledger.ports.bookies import Bookies
    from ledger.ports.metadata import MetadataStore


SEARCHES_MAX: Final = 4
"""Searches of records at a time. Others wait for half a second, and are then refused."""


class Site:
    """The services of the views. `bootstrap` is this gateway, as this machine reaches it."""

    def __init__(self, ctx: Context, settings: HttpConfig, bootstrap: str) -> None:
        self.ctx = ctx
        self.settings = settings
        self.bootstrap = bootstrap
        self._token = Token()
        self.searches = asyncio.Semaphore(SEARCHES_MAX)
        # The live tails of browsers. One leaves when it ends, also if it never began.
        self.tails: WeakSet[object] = WeakSet()
        self._opening = asyncio.Lock()
        # None until a view asks for it, or after it failed.
        self._client: AdminClient | None = None
        self._connection: StorageConnection | None = None
        self._storage: Storage | None = None

    @property
    def token(self) -> str:
        """The field `token` of forms that change something; each use is another text."""
        return self._token.written()

    def is_token(self, written: str) -> bool:
        """Return whether this process wrote the token of a form."""
        return self._token.accepts(written)

    async def client(self) -> AdminClient:
        """Return the Kafka client of this site, connected. Raises Unreachable."""
        async with self._opening:
            if self._client is None:
                client = AdminClient(
                    self.settings_for(None), answer_s_max=self.settings.request_s_max
                )
                self._client = await client.__aenter__()
            return self._client

    async def storage(self) -> Storage:
        """Return the connection to ledgers and bookies. Raises AdminError or Unreachable.

        Those of this process are read without a connection: the messages of one to ourselves
        would cost more than what they ask for, every second.
        """
        if self.ctx.own_ledgers is not None:
            return await self._own_storage(self.ctx.own_ledgers)
        client = await self.client()
        async with self._opening:
            if self._storage is None:
                connection = self._to_storage(await metadata_address(client))
                # One that fails halfway closes what it opened: a session for each attempt.
                self._storage = await connection.__aenter__()
                self._connection = connection
            return self._storage

    async def _own_storage(
        self, own_ledgers: Callable[[], Awaitable[tuple[MetadataStore, Bookies]]]
    ) -> Storage:
        if self._storage is None:
            try:
                self._storage = storage_over(*await own_ledgers())
            except (OSError, LedgerError) as error:
                raise Unreachable(f"no ledger port: {error}") from error
        return self._storage

    def _to_storage(self, address: str) -> StorageConnection:
        """Reach bookies as the gateway itself does."""
        config = self.ctx.config
        tls = None
        if config.bookie_tls is not None:
            cert, key, authority = config.bookie_tls
            tls = TlsFiles(cert=cert, key=key, ca=authority, roles=config.bookie_tls_roles)
        transport = BookieTransport(config.bookie_transport)
        return StorageConnection(address, tls, transport, gateway_access(config))

    def reach(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """Return where this process reaches a gateway to which clients connect at this address.

        Clients may be in another network, where the address means something else than here, or
        nothing. This process reaches itself at its own listener, without a look at any address.
        """
        cluster = self.ctx.cluster
        if node_id == cluster.node_id:
            return parse_bootstrap(self.bootstrap)[0]
        for member in cluster.members():
            if member.node_id == node_id:
                return peer_address(cluster, member)
        return host, port

    def settings_for(self, asked: Asked | None) -> ClientSettings:
        """Return the settings of a Kafka client of this site.

        The changes that it makes for a request are noted with the request, so gateways are asked
        not to note them again.
        """
        opened = None if asked is None else partial(self._introduce, asked.principal)
        own = peer_security(self.ctx.cluster)
        return ClientSettings(self.bootstrap, reach=self.reach, opened=opened, own=own)

    async def _introduce(self, principal: str, link: Link) -> None:
        """Ask the gateway behind a new connection to leave the changes on it to this process.

        A gateway of an earlier release refuses. It then notes the changes too. With an authorizer
        the change ends instead, because it would have the rights of this gateway: all. Raises
        AdminError and Unreachable.
        """
        keys, node_id, key = self.ctx.page_keys, self.ctx.cluster.node_id, secrets.token_hex(16)
        keys[key] = principal
        try:
            await link.ask_privately({"ask": "page", "key": key, "node_id": node_id})
        except (AdminError, Unreachable):
            if self.ctx.authorizer is not None:
                raise
        finally:
            keys.pop(key, None)

    async def close(self) -> None:
        """Close every connection of this site."""
        async with self._opening:
            client, self._client = self._client, None
            connection, self._connection, self._storage = self._connection, None, None
        if connection is not None:
            await connection.close()
        if client is not None:
            await client.__aexit__(None, None, None)
