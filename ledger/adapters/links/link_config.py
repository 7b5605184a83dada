"""Settings of the connections between clients and bookies, of any transport, for both ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024 + 2 * 64 * 1024
"""The size limit of a message: the largest entry and 64 KiB."""

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Bytes of adds that a client may have under way on one connection before the bookie has taken
them.
"""

ANSWERS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of answers that a bookie holds for all its clients, unless its settings say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for mutual TLS: a peer without a certificate is refused.

    The bookie's certificate names the host under which the bookie registers.
    """

    cert: Path  # certificate of this process, with its chain
    key: Path  # the private key of this process, which only its owner may read
    ca: Path  # the CA certificates that sign the peers' certificates
    roles: bool = True  # False accepts every certificate, while a cluster gets its roles


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """Settings of a client's connections: one to each bookie, for adds, reads and control calls."""

    message_bytes: int = 1024 * 1024  # adds share a message of up to this size
    queue_bytes_max: int = 32 * 1024 * 1024  # unsent adds to one bookie; more are OVERLOADED
    add_timeout_s: float = 5.0  # as BookKeeper's addEntryTimeoutSec; then UNREACHABLE
    control_timeout_s: float = 5.0  # timeout of LAC, list and statistics calls
    connect_timeout_s: float = 2.0  # time until the bookie has sent its identity
    reconnect_s_min: float = 0.02  # wait after the first failed attempt; then doubled
    reconnect_s_max: float = 1.0
    close_grace_s: float = 0.5  # wait at the end for adds in flight: third copies of closed ledgers
    keepalive_s: float = 10.0  # silence before a ping, which detects a vanished peer
    keepalive_timeout_s: float = 5.0  # wait for the ping's answer before closing

    def __post_init__(self) -> None:
        assert 1 <= self.message_bytes <= MESSAGE_BYTES_MAX
        assert self.queue_bytes_max >= 1
        assert 0 < self.reconnect_s_min <= self.reconnect_s_max
        assert min(self.add_timeout_s, self.control_timeout_s, self.connect_timeout_s) > 0
        assert self.close_grace_s >= 0
        assert min(self.keepalive_s, self.keepalive_timeout_s) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkServerConfig:
    """Settings of a bookie's server, of any transport."""

    queue_bytes_max: int = 32 * 1024 * 1024  # adds not durable; each counts 512 bytes more
    answer_bytes_max: int = 16 * 1024 * 1024  # unsent answers on one slow connection
    answers_bytes_max: int = ANSWERS_BYTES_MAX  # unsent answers of all connections together
    answers_wait_s: float = 1.0  # wait of a read for these bytes; then it is OVERLOADED
    write_timeout_s: float = 30.0  # a client that takes no answer for so long is disconnected
    message_bytes: int = 1024 * 1024  # answers share a message of up to this size
    hello_timeout_s: float = 5.0  # time for a new connection to name its bookie
    control_timeout_s: float = 30.0  # limit of control calls, whatever the client requests

    def __post_init__(self) -> None:
        assert self.queue_bytes_max >= 1
        assert self.answer_bytes_max >= 1
        assert self.answers_bytes_max >= 1
        assert min(self.answers_wait_s, self.write_timeout_s) > 0
        assert 1 <= self.message_bytes <= MESSAGE_BYTES_MAX
        assert min(self.hello_timeout_s, self.control_timeout_s) > 0
