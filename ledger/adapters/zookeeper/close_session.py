"""The program that closes a ZooKeeper session when the process that used it has died.

`SessionCloser` runs this file with nothing but the standard library. Standard input carries lines;
the last complete one counts:

    <session id> <password in hex> <session timeout in ms> [tls=<hex>] <host:port> <host:port> ...
    done

The word of TLS is a list in JSON, in hex: CA certificates, own key and certificates, passphrase.

At the end of the input the process has ended, because it alone holds the other end. If the last
line is a session, this program connects to one server after the other until one has closed the
session, at most for the session timeout. After `done` it does nothing.
Source: ZooKeeper, `zookeeper.jute` (ConnectRequest, ConnectResponse, RequestHeader) and
`ZooDefs.OpCode.closeSession`.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from typing import NamedTuple

DONE = b"done"
_LINE_BYTES_MAX = 65_536
_ANSWER_BYTES_MAX = 4096
_TRY_S_MAX = 1.0  # wait for each answer of one server
_PAUSE_S = 0.1  # pause before all servers are tried again
# The session timeout that a connection asks for, by which a connect renews the session. A server
# takes its shortest one instead. So the session ends soon even if the server fails before it has
# closed it. Source: ZooKeeper, `ZooKeeperServer.reopenSession` and `ExpiryQueue.update`.
_TIMEOUT_MS = 1
# protocol version, last zxid seen (0: any server will do), timeout, session id, password, read-only
_CONNECT = ">iqiqi16sb"
_CONNECTED = ">iiq"  # protocol version, timeout, session id
_TLS = "tls="
_CLOSE = (1, -11)  # request number, operation


class Session(NamedTuple):
    """A session, and where its servers listen."""

    session_id: int
    password: bytes
    timeout_ms: int
    servers: tuple[tuple[str, int], ...]
    tls: str = ""  # the files of TLS, as `ZooKeeperTls.encode` writes them; "": plain text

    def line(self) -> bytes:
        """Return the session as a line of the input, with its end."""
        places = (f"{host}:{port}" for host, port in self.servers)
        tls = (f"{_TLS}{self.tls}",) if self.tls else ()
        words = (str(self.session_id), self.password.hex(), str(self.timeout_ms), *tls, *places)
        return " ".join(words).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Session:
        """Return the session of a line. Raises ValueError."""
        session_id, password, timeout_ms, *places = line.decode().split()
        tls = places.pop(0).removeprefix(_TLS) if places and places[0].startswith(_TLS) else ""
        servers = (place.rpartition(":") for place in places)
        return cls(
            int(session_id),
            bytes.fromhex(password),
            int(timeout_ms),
            tuple((host, int(port)) for host, _, port in servers),
            tls,
        )


def last_line(fd: int) -> bytes:
    """Read until the end of the input. Returns the last complete line, or nothing."""
    last = unread = b""
    while chunk := os.read(fd, _LINE_BYTES_MAX):
        *lines, unread = (unread + chunk).split(b"\n")
        last = lines[-1] if lines else last
        if len(unread) > _LINE_BYTES_MAX:
            return b""
    return last


def close_session(session: Session) -> bool:
    """Close the session at any of its servers. Returns False if none did so in time."""
    until_s = time.monotonic() + session.timeout_ms / 1000
    while time.monotonic() < until_s:
        for server in session.servers:
            try:
                _close_at(server, session)
            except (OSError, struct.error, EOFError):
                continue
            return True
        time.sleep(_PAUSE_S)
    return False


def _close_at(server: tuple[str, int], session: Session) -> None:
    """Close the session at one server, or learn that it is over."""
    with _connect(server, session.tls) as connection:
        connection.settimeout(_TRY_S_MAX)
        request = struct.pack(
            _CONNECT, 0, 0, _TIMEOUT_MS, session.session_id, 16, session.password, 0
        )
        _send(connection, request)
        _, _, session_id = struct.unpack_from(_CONNECTED, _receive(connection))
        if session_id != session.session_id:
            return  # the session has expired
        _send(connection, struct.pack(">ii", *_CLOSE))
        _ = _receive(connection)


def _connect(server: tuple[str, int], tls: str) -> socket.socket:
    connection = socket.create_connection(server, timeout=_TRY_S_MAX)
    if not tls:
        return connection
    import json
    import ssl

    try:
        truststore, keystore, password = json.loads(bytes.fromhex(tls))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(truststore)
        if keystore:
            context.load_cert_chain(keystore, password=password)
        return context.wrap_socket(connection, server_hostname=server[0])
    except BaseException:
        connection.close()
        raise


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(struct.pack(">i", len(message)) + message)


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not 0 <= size <= _ANSWER_BYTES_MAX:
        raise EOFError(f"an answer of {size} bytes")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise EOFError("the server closed the connection")
        received += chunk
    return received


def main() -> int:
    """Wait for the end of the process, then close its session. Returns the exit code."""
    # A service manager sends these to all processes of a service. This one ends after the other.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = last_line(sys.stdin.fileno())
    if line in (b"", DONE):
        return 0
    try:
        session = Session.of_line(line)
    except ValueError:
        return 1
    return 0 if close_session(session) else 1


if __name__ == "__main__":
    sys.exit(main())
