"""What a connection says about its peer: addresses of both ends, foreign protocols."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.handlers.api import Peer
from gateway.wire.frames import BadFrame


def peer_of(transport: asyncio.BaseTransport, listener: str) -> Peer:
    """Return the addresses of both ends as text, and the listener that accepted."""
    host, port = _address(transport.get_extra_info("peername"))
    local_host, local_port = _address(transport.get_extra_info("sockname"))
    return Peer(host, port, local_host, local_port, listener)


def _address(name: Any) -> tuple[str, int]:
    if isinstance(name, tuple) and len(name) >= 2:  # pyright: ignore[reportUnknownArgumentType]
        return str(name[0]), int(name[1])  # pyright: ignore[reportUnknownArgumentType]
    return "", 0


_HINTS = {
    b"GET ": "speaks HTTP",
    b"POST": "speaks HTTP",
    b"HEAD": "speaks HTTP",
    b"PUT ": "speaks HTTP",
    b"OPTI": "speaks HTTP",
    b"PRI ": "speaks HTTP/2",
    b"SSH-": "speaks SSH",
}


def protocol_hint(bad: BadFrame) -> str:
    """Describe the protocol that the peer seems to speak."""
    head = bad.head[:4]
    if head[:2] == b"\x16\x03":
        return "speaks TLS; this port is plaintext"
    return _HINTS.get(head, str(bad))
