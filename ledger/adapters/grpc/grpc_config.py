"""Settings of the wire between clients and bookies, both ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024 + 2 * 64 * 1024
"""No message is longer: the largest entry, and 64 KiB beside it."""

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Under way on one stream: two full messages. Fixed, so that no probes are sent to find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. With them both ends prove who they are; a peer without a certificate is refused.

    The bookie's certificate names the host under which it registers.
    """

    cert: Path  # of this process, with the chain if there is one
    key: Path  # its private key
    ca: Path  # who signs the peers' certificates


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcClientConfig:
    """Connections of one process to all bookies: one to each, with a stream of adds and one of
    reads."""

    message_bytes: int = 1024 * 1024  # adds that wait travel together up to it; or one entry
    queue_bytes_max: int = 32 * 1024 * 1024  # to one bookie, not sent yet; then OVERLOADED
    add_timeout_s: float = 5.0  # BookKeeper: addEntryTimeoutSec; then UNREACHABLE
    control_timeout_s: float = 5.0  # LACs, lists, statistics
    connect_timeout_s: float = 2.0  # until the bookie has said who it is
    reconnect_s_min: float = 0.02  # wait after the first failed attempt; doubles
    reconnect_s_max: float = 1.0
    keepalive_s: float = 10.0  # a ping after such silence; finds peers that left without a word
    keepalive_timeout_s: float = 5.0  # and the connection is given up without an answer in it

    def __post_init__(self) -> None:
        assert 1 <= self.message_bytes <= MESSAGE_BYTES_MAX
        assert self.queue_bytes_max >= 1
        assert 0 < self.reconnect_s_min <= self.reconnect_s_max
        assert min(self.add_timeout_s, self.control_timeout_s, self.connect_timeout_s) > 0
        assert self.keepalive_s >= 5  # a bookie takes more than two faster pings for a flood


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServerConfig:
    """One bookie's end."""

    streams_per_connection_max: int = 256  # gRPC: max_concurrent_streams
    calls_max: int = 4_096  # of all connections; two streams for each client
    queue_bytes_max: int = 32 * 1024 * 1024  # adds not durable yet; then streams are not read
    answer_bytes_max: int = 16 * 1024 * 1024  # of one stream, under way to a slow reader
    message_bytes: int = 1024 * 1024  # answers that wait travel together up to it; or one
    hello_timeout_s: float = 5.0  # a stream that has not named its bookie by then is ended
    control_timeout_s: float = 30.0  # no control call lasts longer, whatever the client asked
    ping_interval_s_min: float = 4.0  # faster pings are strikes
    ping_strikes_max: int = 2  # then the connection is closed

    def __post_init__(self) -> None:
        assert self.streams_per_connection_max >= 2
        assert self.calls_max >= 2
        assert self.queue_bytes_max >= 1
        assert self.answer_bytes_max >= 1
        assert 1 <= self.message_bytes <= MESSAGE_BYTES_MAX
        assert min(self.hello_timeout_s, self.control_timeout_s) > 0
