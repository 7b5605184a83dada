"""Settings of the gRPC connections between clients and bookies, for both ends."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.adapters.links.link_config import LinkConfig, LinkServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcClientConfig(LinkConfig):
    """Settings of a client's gRPC connections: a stream of adds and one of reads on each."""

    def __post_init__(self) -> None:
        LinkConfig.__post_init__(self)
        assert self.keepalive_s >= 5  # a bookie treats more than two faster pings as a flood


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServerConfig(LinkServerConfig):
    """Settings of a bookie's gRPC server."""

    streams_per_connection_max: int = 256  # gRPC's max_concurrent_streams
    calls_max: int = 4_096  # calls of all connections; each client has two
    ping_interval_s_min: float = 4.0  # a faster ping counts as a strike
    ping_strikes_max: int = 2  # strikes before the connection is closed

    def __post_init__(self) -> None:
        LinkServerConfig.__post_init__(self)
        assert self.streams_per_connection_max >= 2
        assert self.calls_max >= 2
