"""The bookies port of a process that is told which transport to use.

Over TCP, a bookie of a release that serves only gRPC is reached by gRPC, so that a cluster can be
upgraded bookie by bookie. Only then is the gRPC library loaded.
"""

from __future__ import annotations

from ledger.adapters.links.link import Endpoint, Link
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.remote_bookies import NewLink, Registered, RemoteBookies
from ledger.adapters.links.tls_identity import TlsIdentity, identity_of
from ledger.adapters.tcp.tcp_bookies import tcp_endpoint, tcp_links
from ledger.adapters.tcp.tcp_config import TcpClientConfig
from ledger.ids import BookieId
from ledger.log import logger
from ledger.ports.bookies import BookieInfo, BookieTransport


def open_bookies(
    registered: Registered, transport: BookieTransport, tls: TlsFiles | TlsIdentity | None
) -> RemoteBookies:
    """Return the bookies that `registered()` names. Raises TlsFault for an unusable TLS file."""
    tls = identity_of(tls)
    if transport is BookieTransport.GRPC:
        from ledger.adapters.grpc.grpc_bookies import GrpcBookies
        from ledger.adapters.grpc.grpc_config import GrpcClientConfig

        return GrpcBookies(registered, GrpcClientConfig(), tls)
    config = TcpClientConfig()
    links = _Links(tcp_links(config, tls), tls)
    return RemoteBookies(registered, config, _endpoint, links.new_link)


def _endpoint(bookie: BookieId, info: BookieInfo) -> Endpoint | None:
    tcp = tcp_endpoint(bookie, info)
    if tcp is not None or not info.port:
        return tcp
    return Endpoint("grpc", info.host, info.port)


class _Links:
    """Makes connections of the transport that each bookie serves."""

    def __init__(self, tcp: NewLink, tls: TlsIdentity | None) -> None:
        self._tcp = tcp
        self._tls = tls
        # Makes connections over gRPC. None until the first one.
        self._grpc: NewLink | None = None
        # Bookies whose use of gRPC was logged since they last served TCP.
        self._logged: set[BookieId] = set()

    def new_link(self, bookie: BookieId, endpoint: Endpoint) -> Link:
        if endpoint.transport == BookieTransport.TCP:
            self._logged.discard(bookie)
            return self._tcp(bookie, endpoint)
        if bookie not in self._logged:
            self._logged.add(bookie)
            address = f"{endpoint.host}:{endpoint.port}"
            logger().info(
                "a bookie registers no endpoint bookie-tcp: it is reached by gRPC",
                bookie=bookie,
                address=address,
            )
        if self._grpc is None:
            from ledger.adapters.grpc.grpc_bookies import grpc_links
            from ledger.adapters.grpc.grpc_config import GrpcClientConfig

            self._grpc = grpc_links(GrpcClientConfig(), self._tls)
        return self._grpc(bookie, endpoint)
