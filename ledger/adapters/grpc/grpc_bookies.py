"""The bookies port over gRPC."""

from __future__ import annotations

from ledger.adapters.grpc.grpc_channel import client_credentials
from ledger.adapters.grpc.grpc_config import GrpcClientConfig
from ledger.adapters.grpc.grpc_library import grpc, keep_running
from ledger.adapters.grpc.grpc_link import BookieConnection
from ledger.adapters.links.link import Endpoint, Link
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.remote_bookies import NewLink, Registered, RemoteBookies
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo


class GrpcBookies(RemoteBookies):
    """All bookies, at the gRPC endpoints from `registered()`."""

    def __init__(
        self, registered: Registered, config: GrpcClientConfig, tls: TlsFiles | None = None
    ) -> None:
        super().__init__(registered, config, grpc_endpoint, grpc_links(config, tls))


def grpc_endpoint(_: BookieId, info: BookieInfo) -> Endpoint | None:
    """Return the gRPC endpoint of a bookie, or None if it has registered none."""
    return Endpoint("grpc", info.host, info.port) if info.port else None


def grpc_links(config: GrpcClientConfig, tls: TlsFiles | None) -> NewLink:
    """Return a function that makes connections. Raises OSError if a TLS file cannot be read."""
    credentials: grpc.ChannelCredentials | None = None if tls is None else client_credentials(tls)
    keep_running()

    def new_link(bookie: BookieId, endpoint: Endpoint) -> Link:
        return BookieConnection(bookie, endpoint, config, credentials)

    return new_link
