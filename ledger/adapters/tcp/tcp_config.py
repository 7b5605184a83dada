"""Settings of the TCP connections between clients and bookies, for both ends."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.adapters.links.link_config import LinkConfig, LinkServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpClientConfig(LinkConfig):
    """Settings of a client's TCP connections."""

    message_bytes: int = 256 * 1024  # adds share a message of up to this size: one frame


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpServerConfig(LinkServerConfig):
    """Settings of a bookie's TCP server."""

    connections_max: int = 2_048  # as many clients as gRPC's limit on calls allows
    frame_timeout_s: float = 30.0  # time for a frame that has begun to arrive completely
    silence_s: float = 60.0  # a client that sends nothing, not even a ping, is disconnected
    unfinished_bytes_max: int = 256 * 1024 * 1024  # arrived bytes of frames that are incomplete

    def __post_init__(self) -> None:
        LinkServerConfig.__post_init__(self)
        assert self.connections_max >= 1
        assert min(self.frame_timeout_s, self.silence_s) > 0
        assert self.unfinished_bytes_max >= 1
