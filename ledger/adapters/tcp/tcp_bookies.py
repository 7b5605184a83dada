"""The bookies port over TCP."""

from __future__ import annotations

from ledger.adapters.links.link import Endpoint, Link
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.remote_bookies import NewLink, Registered, RemoteBookies
from ledger.adapters.links.tls_identity import TlsIdentity, identity_of
from ledger.adapters.tcp.tcp_config import TcpClientConfig
from ledger.adapters.tcp.tcp_link import TcpConnection
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo
from ledger.wire.tcp_frames import STAGING_BYTES


class TcpBookies(RemoteBookies):
    """All bookies, at the TCP endpoints from `registered()`."""

    def __init__(
        self,
        registered: Registered,
        config: TcpClientConfig,
        tls: TlsFiles | TlsIdentity | None = None,
    ) -> None:
        """Read the TLS files, if there are any. Raises TlsFault."""
        super().__init__(registered, config, tcp_endpoint, tcp_links(config, identity_of(tls)))


def tcp_endpoint(_: BookieId, info: BookieInfo) -> Endpoint | None:
    """Return the TCP endpoint of a bookie, or None if it has registered none."""
    return Endpoint("tcp", info.host, info.tcp_port) if info.tcp_port else None


def tcp_links(config: TcpClientConfig, tls: TlsIdentity | None) -> NewLink:
    """Return a function that makes connections, each with the newest certificates."""
    staging = bytearray(STAGING_BYTES)  # shared: each receive is handled before the next one

    def new_link(bookie: BookieId, endpoint: Endpoint) -> Link:
        if tls is not None:
            tls.refresh()
        return TcpConnection(bookie, endpoint, config, staging, tls)

    return new_link
