"""Settings of the gRPC connections between clients and bookies, for both ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024 + 2 * 64 * 1024
"""The largest message: the largest entry and 64 KiB."""

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Bytes in flight on one stream: two full messages. Fixed, so gRPC sends no probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for mutual TLS: a peer without a certificate is refused.

    The bookie's certificate names the host under which the bookie registers.
    """

    cert: Path  # of this process, with its chain if there is one
    key: Path  # the private key of this process
    ca: Path  # the CA certificates that sign the peers' certificates


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcClientConfig:
    """Connections of one process: one to each bookie, with a stream of adds and one of reads."""

    message_bytes: int = 1024 * 1024  # adds share a message of up to this size
    queue_bytes_max: int = 32 * 1024 * 1024  # unsent, to one bookie; above it adds are OVERLOADED
    add_timeout_s: float = 5.0  # BookKeeper's addEntryTimeoutSec; then UNREACHABLE
    control_timeout_s: float = 5.0  # LAC, list and statistics calls
    connect_timeout_s: float = 2.0  # until the bookie has sent its identity
    reconnect_s_min: float = 0.02  # wait after the first failed attempt; doubles
    reconnect_s_max: float = 1.0
    keepalive_s: float = 10.0  # silence before a ping, which detects a peer that vanished
    keepalive_timeout_s: float = 5.0  # without an answer the connection is closed

    def __post_init__(self) -> None:
        assert 1 <= self.message_bytes <= MESSAGE_BYTES_MAX
        assert self.queue_bytes_max >= 1
        assert 0 < self.reconnect_s_min <= self.reconnect_s_max
        assert min(self.add_timeout_s, self.control_timeout_s, self.connect_timeout_s) > 0
        assert self.keepalive_s >= 5  # a bookie treats more than two faster pings as a flood


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServerConfig:
    """The bookie's end."""

    streams_per_connection_max: int = 256  # gRPC: max_concurrent_streams
    calls_max: int = 4_096  # of all connections; each client has two streams
    queue_bytes_max: int = 32 * 1024 * 1024  # not durable yet; above it no adds are read
    answer_bytes_max: int = 16 * 1024 * 1024  # unsent answers of one stream with a slow reader
    message_bytes: int = 1024 * 1024  # answers share a message of up to this size
    hello_timeout_s: float = 5.0  # a stream that has not named its bookie by then is closed
    control_timeout_s: float = 30.0  # no control call takes longer, whatever the client requested
    ping_interval_s_min: float = 4.0  # faster pings are strikes
    ping_strikes_max: int = 2  # then the connection is closed

    def __post_init__(self) -> None:
        assert self.streams_per_connection_max >= 2
        assert self.calls_max >= 2
        assert self.queue_bytes_max >= 1
        assert self.answer_bytes_max >= 1
        assert 1 <= self.message_bytes <= MESSAGE_BYTES_MAX
        assert min(self.hello_timeout_s, self.control_timeout_s) > 0
