"""TLS between a socket and a `Connection`, which it serves as a transport.

A connection is admitted when it is accepted, before its handshake: a loop's own TLS calls
`connection_made` only after the handshake, so that silent peers would count as none. Bytes are
received into one buffer that all connections share, decrypted into the buffer of the connection,
and encrypted as they are written: small buffers of a reply are joined up to one TLS record.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from gateway.config import TlsConfig
from gateway.core.address_share import share_of
from gateway.server.connection_places import is_loopback
from gateway.server.peer import peer_of
from gateway.server.registry import ConnectionRegistry, Refused
from ledger.ids import Buffer

RECEIVE_BYTES: Final = 64 * 1024
"""Encrypted bytes that are received at once: a connection that stops reading keeps no more."""

RECORD_BYTES: Final = 16 * 1024
"""The largest TLS record."""

_WRITE_BYTES: Final = 16 * RECORD_BYTES  # encrypted before they are handed to the socket
_HANDSHAKE: Final = 0x16
_PLAIN: Final = {
    b"GET ": "speaks HTTP without TLS",
    b"POST": "speaks HTTP without TLS",
    b"SSH-": "speaks SSH",
}


class Secured(Protocol):
    """The connection behind TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def secured(self, certificate: bytes | None) -> None:
        """Go on after the handshake, with the certificate of the client in DER."""
        ...

    def refuse(self, reason: str, kind: Refused) -> None:
        """Log why the connection is refused, and close it."""
        ...


class Handshakes:
    """The handshakes that are under way at all listeners, and what they share."""

    def __init__(self, registry: ConnectionRegistry, config: TlsConfig) -> None:
        self.registry = registry
        self.config = config
        # The buffer that encrypted bytes are received into; used within one callback of the loop.
        self.scratch = memoryview(bytearray(RECEIVE_BYTES))
        # Their number, and by address those that are no loopback address.
        self.count = 0
        self._by_address: Counter[str] = Counter()

    def begin(self, host: str) -> bool:
        """Count one more handshake, until `end`. Returns False if a limit is reached."""
        share = share_of(host)
        crowded = self._by_address[share] >= self.config.handshakes_per_address_max
        if self.count >= self.config.handshakes_max or (crowded and not is_loopback(host)):
            return False
        self.count += 1
        self._by_address[share] += 1
        return True

    def end(self, host: str) -> None:
        """Stop counting a handshake."""
        share = share_of(host)
        self.count -= 1
        self._by_address[share] -= 1
        if not self._by_address[share]:
            del self._by_address[share]


class TlsTransport(asyncio.BufferedProtocol):
    """The TLS of one connection: a protocol of the socket, and the transport of a `Connection`."""

    __slots__ = (
        "_begun",
        "_closing",
        "_connection",
        "_host",
        "_incoming",
        "_outgoing",
        "_paused",
        "_raw",
        "_secured",
        "_shared",
        "_timer",
        "_tls",
    )

    def __init__(
        self, shared: Handshakes, context: ssl.SSLContext, make: Callable[[], Secured]
    ) -> None:
        self._shared = shared
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._connection = make()
        # Set from connection_made on.
        self._raw: asyncio.Transport | None = None
        self._host = ""
        # Ends a handshake that takes too long. Set while it is under way, and counted in `shared`.
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False  # True once the peer has sent a byte
        self._secured = False  # True once the handshake is complete
        self._paused = False  # True while the connection does not read
        self._closing = False  # True once this side has sent its last byte

    # --- what the socket's transport calls ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection as it is accepted, and wait for its handshake."""
        self._raw = cast(asyncio.Transport, transport)
        self._host = peer_of(transport, "").host
        self._connection.connection_made(cast(asyncio.BaseTransport, self))
        if self._raw.is_closing() or self._paused:  # refused: closed now, or after a while
            return
        if not self._shared.begin(self._host):
            self._connection.refuse("too many TLS handshakes at once", Refused.TOO_MANY)
            return
        loop = self._shared.registry.loop
        self._timer = loop.call_later(self._shared.config.handshake_s_max, self._on_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        received = self._shared.scratch[:nbytes]
        if not self._begun:
            self._begun = True
            if received[0] != _HANDSHAKE:
                self._refuse_plain(bytes(received[:4]))
                return
        if self._closing:
            return
        self._incoming.write(received)
        if self._secured or self._shake():
            self._decrypt()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._end_handshake()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # --- the handshake --------------------------------------------------------------------------

    def _shake(self) -> bool:
        """Go on with the handshake. Returns True once it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # the alert that names the reason
            reason = str(error.reason or error.strerror).lower().replace("_", " ")
            self._refuse(f"its TLS handshake failed: {reason}", Refused.HANDSHAKE)
            return False
        self._send()
        self._secured = True
        self._end_handshake()
        self._connection.secured(self._tls.getpeercert(binary_form=True))
        return not self._closing

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._shared.end(self._host)

    def _on_late(self) -> None:
        limit = self._shared.config.handshake_s_max
        self._refuse(f"no TLS handshake within {limit:g} s", Refused.TIMEOUT)
        self.abort()

    def _refuse_plain(self, head: bytes) -> None:
        why = _PLAIN.get(head, "sends bytes without TLS; set its security.protocol to this port's")
        self._refuse(f"{why}; this port has TLS", Refused.NOT_KAFKA)
        self.abort()

    def _refuse(self, reason: str, kind: Refused) -> None:
        self._end_handshake()
        self._connection.refuse(reason, kind)

    # --- bytes in -------------------------------------------------------------------------------

    def _decrypt(self) -> None:
        """Hand decrypted bytes to the connection for as long as it reads."""
        while not (self._paused or self._closing):
            buffer = self._connection.get_buffer(-1)
            filled, more = self._fill(buffer)
            if filled:
                self._connection.buffer_updated(filled)
            if not more:
                break
        if self._outgoing.pending:  # the answer to a change of keys
            self._send()

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt into the buffer. Returns the number of bytes, and whether there may be more."""
        filled, size = 0, len(buffer)
        try:
            while filled < size:
                count = self._tls.read(size - filled, buffer[filled:])
                if not count:
                    self._on_end()
                    return filled, False
                filled += cast(int, count)
                if not (self._incoming.pending or self._tls.pending()):
                    return filled, False  # another read would raise an error, which takes longer
        except ssl.SSLWantReadError:
            return filled, False
        except ssl.SSLZeroReturnError:
            self._on_end()
            return filled, False
        except ssl.SSLError as error:
            reason = str(error.reason or error.strerror).lower().replace("_", " ")
            self._refuse(f"its TLS is broken: {reason}", Refused.HANDSHAKE)
            return 0, False
        return filled, True

    def _on_end(self) -> None:
        """Close once the peer has closed its side, as for a plain connection."""
        self._shared.registry.loop.call_soon(self.close)

    def _resume(self) -> None:
        if not self._paused and self._secured and self._raw is not None:
            self._decrypt()

    # --- what the connection calls --------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._closing or self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Take no more from the socket. What was received stays encrypted."""
        self._paused = True
        if self._raw is not None and not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._raw is not None and not self._raw.is_closing():
            self._raw.resume_reading()
            if self._incoming.pending or self._tls.pending():
                self._shared.registry.loop.call_soon(self._resume)

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        """Encrypt the buffers and send them. Small ones are joined up to one record."""
        if self.is_closing() or not self._secured:
            return
        small: list[Buffer] = []
        size = 0
        for buffer in buffers:
            if size + len(buffer) <= RECORD_BYTES:
                small.append(buffer)
                size += len(buffer)
                continue
            self._encrypt(b"".join(small))
            if len(buffer) < RECORD_BYTES:
                small, size = [buffer], len(buffer)
            else:
                self._encrypt(buffer)
                small, size = [], 0
        self._encrypt(small[0] if len(small) == 1 else b"".join(small))
        self._send()

    def _encrypt(self, data: Buffer) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            try:
                at += self._tls.write(view[at : at + _WRITE_BYTES])
            except ssl.SSLError:  # the peer has ended the session
                self.abort()
                return
            if self._outgoing.pending >= _WRITE_BYTES:
                self._send()

    def _send(self) -> None:
        """Hand what is encrypted to the socket."""
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        """Send what was written and the end of the session, then disconnect."""
        if self._closing or self._raw is None:
            return
        self._closing = True
        if self._secured:
            # It waits for the end of the peer's side, which is not needed.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        self._send()
        self._raw.close()

    def abort(self) -> None:
        """Disconnect now."""
        self._closing = True
        if self._raw is not None:
            self._raw.abort()
