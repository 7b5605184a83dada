"""The transports between clients and bookies, for tests that hold for each of them.

A test file runs over both transports with `pytest.mark.usefixtures("transport")`, a fixture that
sets the one that `server_of` and `bookies_of` use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ledger.adapters.grpc.grpc_bookies import GrpcBookies
from ledger.adapters.grpc.grpc_config import GrpcClientConfig, GrpcServerConfig
from ledger.adapters.links.link_config import LinkConfig, LinkServerConfig, TlsFiles
from ledger.adapters.links.remote_bookies import RemoteBookies
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig, TcpServerConfig
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.tcp_server import TcpServer
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo

CONNECT_S = 20.0  # unless a test gives another: a busy machine takes its time to connect
_current = ["grpc"]  # the last one is in use


@contextmanager
def on_transport(name: str) -> Iterator[str]:
    """Use this transport inside the block."""
    _current.append(name)
    try:
        yield name
    finally:
        _current.pop()


def current() -> str:
    return _current[-1]


def server_of(
    bookie: Any, tls: TlsFiles | None = None, config: LinkServerConfig | None = None, **limits: Any
) -> BookieServer | TcpServer:
    """A server of this bookie, with these limits or those of `config`."""
    if isinstance(config, GrpcServerConfig) and current() == "grpc":
        return BookieServer(bookie, config, tls)
    if config is not None:
        limits = {field.name: getattr(config, field.name) for field in fields(LinkServerConfig)}
    if current() == "tcp":
        return TcpServer(bookie, TcpServerConfig(**limits), tls)
    return BookieServer(bookie, GrpcServerConfig(**limits), tls)


def bookies_of(
    places: Callable[[], Mapping[BookieId, BookieInfo]],
    config: LinkConfig | None = None,
    tls: TlsFiles | None = None,
) -> RemoteBookies:
    """A client of the bookies whose ports `places` gives, whatever their transport."""
    given: dict[str, Any] = {"connect_timeout_s": CONNECT_S}
    if config is not None:
        default = LinkConfig()
        for field in fields(LinkConfig):
            value = getattr(config, field.name)
            if value != getattr(default, field.name):
                given[field.name] = value
    if current() == "grpc":
        return GrpcBookies(places, GrpcClientConfig(**given), tls)

    def tcp() -> dict[BookieId, BookieInfo]:
        found = places().items()
        return {name: info._replace(port=0, tcp_port=info.port) for name, info in found}

    return TcpBookies(tcp, TcpClientConfig(**given), tls)
