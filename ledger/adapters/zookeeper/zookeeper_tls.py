"""TLS to ZooKeeper, on a socket that does not block.

The certificate must name the host as it is configured, although the socket is connected to one of
the host's addresses. Files are read for each connection, so a renewed certificate needs no restart.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from ledger.adapters.system.clock import monotonic_s

HANDSHAKE_S_MAX = 4.0


class ZooKeeperTls(NamedTuple):
    """The files of TLS, as paths of PEM files."""

    truststore: str
    keystore: str = ""  # private key and certificates; "": show none
    password: str = ""  # of the private key

    def __repr__(self) -> str:
        return f"ZooKeeperTls({self.truststore!r}, {self.keystore!r})"

    def encode(self) -> str:
        """Return the files as one word, for the child that closes a session. Has the password."""
        return json.dumps(self).encode().hex()

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies the host name. Raises OSError that names the file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_verify_locations(self.truststore)
        except OSError as error:
            raise OSError(error.errno, f"{self.truststore}: {_reason(error)}") from None
        if self.keystore:
            try:
                context.load_cert_chain(self.keystore, password=self.password)
            except OSError as error:
                raise OSError(error.errno, f"{self.keystore}: {_reason(error)}") from None
        return context


Ready = Callable[[socket.socket, bool, float], bool]
"""Waits until a socket can be read (False) or written (True), for at most that many seconds."""


def wrap(made: socket.socket, host: str, tls: ZooKeeperTls, ready: Ready) -> ssl.SSLSocket:
    """Make a connected socket one of TLS. Raises OSError with the reason.

    The socket does not block; `ready` waits for it. Closes the socket if it raises.
    """
    try:
        wrapped = tls.context().wrap_socket(
            made, server_hostname=host, do_handshake_on_connect=False
        )
    except ssl.SSLError as error:
        made.close()
        raise OSError(error.errno, f"TLS with {host}: {_reason(error)}") from None
    except BaseException:
        made.close()
        raise
    try:
        _handshake(wrapped, ready)
    except ssl.SSLError as error:
        wrapped.close()
        raise OSError(error.errno, f"TLS with {host}: {_reason(error)}") from None
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def _handshake(wrapped: ssl.SSLSocket, ready: Ready) -> None:
    until_s = monotonic_s() + HANDSHAKE_S_MAX
    while True:
        try:
            wrapped.do_handshake()
        except ssl.SSLWantReadError:
            writes = False
        except ssl.SSLWantWriteError:
            writes = True
        else:
            return
        left_s = until_s - monotonic_s()
        if left_s <= 0 or not ready(wrapped, writes, left_s):
            raise TimeoutError(0, f"no TLS handshake within {HANDSHAKE_S_MAX:.0f} s")


def receive(wrapped: ssl.SSLSocket, count: int) -> bytes | None:
    """Return bytes of a socket that does not block, or None if no whole record has come yet."""
    try:
        return wrapped.recv(count)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None


def _reason(error: OSError) -> str:
    """Return the reason of an error of OpenSSL without the place in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the server closed the connection; is it the port of TLS?"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error.strerror or error).lower().replace("_", " ")
    return str(error.strerror or error)
