"""The bookies port over gRPC."""

from __future__ import annotations

from ledger.adapters.grpc.grpc_config import GrpcClientConfig
from ledger.adapters.grpc.grpc_library import keep_running
from ledger.adapters.grpc.grpc_link import BookieConnection
from ledger.adapters.links.link import Endpoint, Link
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.remote_bookies import NewLink, Registered, RemoteBookies
from ledger.adapters.links.tls_identity import TlsIdentity, identity_of
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo


class GrpcBookies(RemoteBookies):
    """All bookies, at the gRPC endpoints from `registered()`."""

    def __init__(
        self,
        registered: Registered,
        config: GrpcClientConfig,
        tls: TlsFiles | TlsIdentity | None = None,
    ) -> None:
        """Read the TLS files, if there are any. Raises TlsFault."""
        super().__init__(registered, config, grpc_endpoint, grpc_links(config, identity_of(tls)))


def grpc_endpoint(_: BookieId, info: BookieInfo) -> Endpoint | None:
    """Return the gRPC endpoint of a bookie, or None if it has registered none."""
    return Endpoint("grpc", info.host, info.port) if info.port else None


def grpc_links(config: GrpcClientConfig, tls: TlsIdentity | None) -> NewLink:
    """Return a function that makes connections, each with the newest certificates."""
    keep_running()

    def new_link(bookie: BookieId, endpoint: Endpoint) -> Link:
        if tls is not None:
            tls.refresh()
        return BookieConnection(bookie, endpoint, config, tls)

    return new_link
