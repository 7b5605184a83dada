"""Settings of a connected socket that both ends of a TCP connection need."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final, cast

_UNSENT_BYTES: Final = 256 * 1024  # bytes that the system may hold before it has sent them


def prepare(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Let few bytes wait unsent, so that short frames do not queue behind a long message.

    Without TLS each write goes to the system at once, and the transport pauses its protocol while
    the system takes no more. TLS needs a buffer of its own.
    """
    found = cast(asyncio.Transport, transport)
    if transport.get_extra_info("sslcontext") is None:
        found.set_write_buffer_limits(0)
    connected = transport.get_extra_info("socket")
    if connected is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    return found
