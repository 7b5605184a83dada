# kazoo has no types, and this module overrides private parts of it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUntypedBaseClass=false
"""kazoo's connection thread with our timeouts. It is the only thread; no thread runs callbacks.

Ten things differ from kazoo. Waiting requests leave in one write, and replies arrive by one read.
A connection that was silent for two thirds of the session is dropped even while requests leave on
it. A ping may also take two thirds of the session; kazoo drops the connection after a sixth, 170 ms
of a session of one second. Every wait can be interrupted, so that closing takes a bounded time. A
reply that cannot be decoded ends its connection. The thread writes for `SessionProof`, and leaves a
server whose leader confirms nothing. An identity is proved without a secret in any log, and a
refusal ends the connection, not the thread. TLS verifies the host that was configured, on a socket
that is connected to one of its addresses. A server of several that does not accept a connection
is left for the next one soon; kazoo waits for it as long as a session lasts, which is then lost.
The reason why a connection ended is always logged.
Source: ZooKeeper, `ClientCnxn.java` (the timeouts).
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    KazooException,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import AUTH_XID, CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import (
    SASL,
    CheckVersion,
    Transaction,
    Watch,
    int_int_struct,
    int_struct,
)
from kazoo.retry import ForceRetryError

from ledger.adapters.system.clock import monotonic_s
from ledger.adapters.zookeeper.close_session import Session
from ledger.adapters.zookeeper.digest_md5 import DigestFailed, DigestMd5
from ledger.adapters.zookeeper.session_proof import SessionProof
from ledger.adapters.zookeeper.zookeeper_access import Identity, SealedSasl, ZooKeeperAccess
from ledger.adapters.zookeeper.zookeeper_tls import ZooKeeperTls, receive, wrap

_WRITE_BYTES = 64 * 1024  # most bytes of requests that are joined for one write
_READ_BYTES = 64 * 1024
_CNONCE_BYTES = 16

# A server that is starting accepts connections and does not answer the first request on them (seen
# with 3.9.3). kazoo would wait for a whole session, which would often lose the session.
_RENEW_S_MAX = 1.5
_CONNECT_S_MAX = 1.5  # for one of several servers: SYN is sent again after a second
_NEW_SESSION_S_MAX = 4.0  # the request for a new session is a write, which may wait for a slow disk

# The thread proves its session by so many writes in each session timeout. A connection on which one
# takes longer than this share of the timeout is dropped, while the session can still be saved.
_PROOFS_PER_SESSION = 8
_PROOF_SHARE_MAX = 1 / 3

log = logging.getLogger("ledger.zookeeper")
log.addHandler(logging.NullHandler())  # logs nothing until the process configures logging


class Connected(NamedTuple):
    """The event of an established connection on which the server accepted the session."""

    # The session, with the server of this connection before the others.
    session: Session
    # Every change up to this transaction fired the watches that were set before it. 0 for a new
    # session.
    since_zxid: int


class Fired(NamedTuple):
    """The event of a watch on `path` that fired and is no longer set."""

    path: str


class ZooKeeperHandler:
    """kazoo's handler: sockets, waiting and threads.

    After `cut`, every wait of the connection thread fails at once.
    """

    name = "ledger_handler"
    timeout_exception = KazooTimeoutError
    running = True

    def __init__(self, put: Callable[[Any], None], tls: ZooKeeperTls | None = None) -> None:
        self._put = put
        self._tls = tls
        self._cut_reader, self._cut_writer = os.pipe()
        self._was_cut = threading.Event()
        self.connection: ZooKeeperConnection | None = None

    def start(self) -> None:
        """Do nothing: there is nothing to start."""

    def stop(self) -> None:
        """Do nothing: there is nothing to stop."""

    def cut(self) -> None:
        """Make every wait fail from now on. Only the loop's thread calls this and `close`."""
        if not self._was_cut.is_set():
            self._was_cut.set()
            os.write(self._cut_writer, b"\0")  # the byte is never read, so the pipe stays readable

    def close(self) -> None:
        """Release the descriptors. The caller has waited for the end of the connection thread."""
        self._was_cut.set()
        os.close(self._cut_reader)
        os.close(self._cut_writer)

    def sleep_func(self, duration_s: float) -> None:
        self._was_cut.wait(duration_s)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        if len(readers) == 2 and self.connection is not None:
            return self.connection.wait(readers, timeout), [], []
        return self.ready(readers, writers, timeout)

    def ready(
        self, readers: Sequence[Any], writers: Sequence[Any], timeout_s: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets that can be read or written. Raises OSError once `cut` was called."""
        poller = select.poll()
        poller.register(self._cut_reader, select.POLLIN)
        for one in readers:
            poller.register(one, select.POLLIN)
        for one in writers:
            poller.register(one, select.POLLOUT)
        numbers = [number for number, _ in poller.poll(timeout_s * 1000)]
        if self._cut_reader in numbers:
            raise ConnectionAbortedError("the store is closed")
        able = [one for one in readers if one.fileno() in numbers]
        return able, [one for one in writers if one.fileno() in numbers], []

    def create_connection(
        self, address: tuple[str, int], timeout: float, hostname: str, **_: Any
    ) -> socket.socket:
        """Connect to a numeric address of `hostname`, by TLS if it is configured.

        Raises OSError after `timeout` seconds, or sooner if there are other servers. kazoo's own
        settings of TLS are not used.
        """
        if self.connection is not None:
            timeout = self.connection.connect_s_max(timeout)
        made = self._connect(address, timeout)
        if self._tls is None:
            return made

        def ready(one: socket.socket, writes: bool, timeout_s: float) -> bool:
            readers, writers = ((), (one,)) if writes else ((one,), ())
            return any(self.ready(readers, writers, timeout_s))

        return wrap(made, hostname, self._tls, ready)

    def _connect(self, address: tuple[str, int], timeout: float) -> socket.socket:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect_ex(address)
            if not self.ready([], [made], timeout)[1]:
                raise TimeoutError(f"no answer from {address} within {timeout:.1f} s")
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            made.close()
            raise
        return made

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        return reader, writer

    def event_object(self) -> threading.Event:
        return threading.Event()

    def spawn(self, run: Callable[..., None], *words: Any) -> threading.Thread:
        thread = threading.Thread(target=run, args=words, name="zookeeper", daemon=True)
        thread.start()
        return thread


class _ProofAnswer:
    """The answer of a write that proves the session. Used on the connection thread only."""

    __slots__ = ("_on_answered", "sent_s", "undecodable")

    def __init__(self, on_answered: Callable[[_ProofAnswer], None]) -> None:
        self._on_answered = on_answered
        self.sent_s = monotonic_s()
        self.undecodable = False

    def set(self, value: Any = None) -> None:
        self._on_answered(self)

    def set_exception(self, exception: BaseException) -> None:
        """Prove nothing: the wait for this answer ends with the connection, or by its limit."""
        self.undecodable = not isinstance(exception, KazooException)


class ZooKeeperConnection(ConnectionHandler):
    """kazoo's connection, which also records the time of the server's last message.

    With `proof_path`, it writes regularly to prove its session: a transaction that only checks that
    the node exists. Such a write changes nothing and fires no watch.
    """

    _socket: Any
    _read_sock: Any
    _write_sock: Any

    def __init__(
        self,
        client: Any,
        retry: Any,
        put: Callable[[Any], None],
        proof_path: str | None,
        access: ZooKeeperAccess,
    ) -> None:
        super().__init__(client, retry, logger=log)
        self._put = put
        self._access = access
        # Why the last attempt to connect failed. Empty after a success. Other threads read it.
        self.fault = ""
        self._unread = bytearray()
        self._read_timeout_s = 1.0
        self._session_s = 1.0
        self._heard_s = 0.0
        # The server of the last connection, which is tried last for the next one.
        self._server: tuple[str, int] = ("", 0)
        # The number of addresses that this round of attempts tries.
        self._servers = 1
        self._proof_path = proof_path
        # The proof of the present session. Replaced with the session.
        self._proof = SessionProof()
        # The write that has not been answered yet; at most one. It ends with its connection.
        self._proving: _ProofAnswer | None = None
        # The time of the next write.
        self._prove_at_s = 0.0
        # The session id, and its `SessionProof.heard_s`. Other threads read it.
        self.proved: tuple[int, float] = (0, 0.0)

    def submit(self, request: Any, answer: Any) -> None:
        """Queue a request for the connection thread, which sets `answer`. Any thread
        may call this.
        """
        queue = self.client._queue
        queue.append((request, answer))
        if len(queue) > 1:
            return  # the first append woke the thread, which takes all waiting requests
        try:
            self._write_sock.send(b"\0")
        except BlockingIOError:
            pass  # the thread was already woken
        except (OSError, AttributeError):  # the connection was just closed
            answer.set_exception(ConnectionClosedError("closed"))

    def wait(self, readers: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait until the server or a request can be read. Raises if the server stays silent."""
        while True:
            ready = self._ready(readers, self._wait_s(timeout_s))
            if self._prove():
                return list({*ready, self._read_sock})  # the request leaves as if it woke us
            pinged = self.ping_outstanding.is_set()
            if self._socket not in ready and (pinged or self.client._pending):
                silent_s = time.monotonic() - self._heard_s
                if silent_s > self._read_timeout_s:
                    raise ConnectionResetError(f"nothing heard for {silent_s:.1f} s")
            if ready or not pinged:
                return ready

    @contextmanager
    def _socket_error_handling(self) -> Generator[None]:
        """Raise ConnectionDropped for an OSError. kazoo drops the text of one without a number."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise ConnectionDropped(f"socket connection error: {reason}") from error

    def _ready(self, readers: Sequence[Any], wait_s: float) -> list[Any]:
        """Return those that can be read. Of TLS, bytes of a message must have come.

        Bytes may wait inside the TLS layer, where no poll sees them. A record without a message,
        such as a ticket of the session, makes only the poll report something.
        """
        if self._access.tls is None:
            return self.handler.ready(readers, (), wait_s)[0]
        waiting = bool(self._unread) or self._socket.pending() > 0
        ready = self.handler.ready(readers, (), 0 if waiting else wait_s)[0]
        if self._socket in ready and not waiting:
            came = receive(self._socket, _READ_BYTES)
            if came == b"":
                raise ConnectionResetError("closed by the server")
            self._unread += came or b""
        others = [each for each in ready if each is not self._socket]
        return [self._socket, *others] if waiting or self._unread else others

    def _wait_s(self, timeout_s: float) -> float:
        """Return for how long the thread may wait. Raises if the leader confirmed nothing."""
        wait_s = min(timeout_s, self._read_timeout_s / 2)
        if self._proof_path is None:
            return wait_s
        now_s = monotonic_s()
        if self._proving is None:
            return max(0.0, min(wait_s, self._prove_at_s - now_s))
        limit_s = self._session_s * _PROOF_SHARE_MAX
        left_s = self._proving.sent_s + limit_s - now_s
        if left_s <= 0:
            raise ConnectionResetError(f"no write was confirmed for {limit_s:.1f} s")
        return min(wait_s, left_s)

    def _prove(self) -> bool:
        """Queue the next write if it is due. Returns True if one was queued."""
        if self._proof_path is None or self._proving is not None:
            return False
        now_s = monotonic_s()
        if now_s < self._prove_at_s:
            return False
        self._prove_at_s = now_s + self._session_s / _PROOFS_PER_SESSION
        self._proving = _ProofAnswer(self._on_proved)
        request = Transaction([CheckVersion(self._proof_path, -1)])
        self.client._queue.append((request, self._proving))
        return True

    def _on_proved(self, answer: _ProofAnswer) -> None:
        if answer is self._proving:
            self._proving = None
            self._proof.on_written(answer.sent_s, monotonic_s(), self._session_s)
            self.proved = (self.client._session_id, self._proof.heard_s)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Try the server of the last connection last: it may be the one that has a problem."""
        servers = super()._expand_client_hosts()
        self._servers = len(servers)
        return sorted(servers, key=lambda server: server[1:] == self._server)

    def connect_s_max(self, session_s: float) -> float:
        """Return how long one server may take to accept a connection: a share of the session."""
        return min(_CONNECT_S_MAX, session_s / self._servers) if self._servers > 1 else session_s

    def _connect_loop(self, retry: Any) -> Any:
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            raise
        except Exception as error:  # else the thread ends, and with it the store
            log.exception("connecting failed")
            raise ForceRetryError(repr(error)) from error

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._unread.clear()
        self._server = (hostip, port)
        self._proving = None
        sent_s, former = monotonic_s(), self.client._session_id
        try:
            read_timeout_ms, connect_timeout_ms = super()._connect(host, hostip, port)
            self._authenticate(connect_timeout_ms / 1000)
        except Exception as error:
            self.fault = str(error)
            raise
        self.fault = ""
        self._heard_s = time.monotonic()
        self._read_timeout_s = read_timeout_ms / 1000
        session_ms = round(connect_timeout_ms * len(self.client.hosts))
        self._session_s = session_ms / 1000
        self._prove_at_s = sent_s
        if self.client._session_id != former:
            self._proof = SessionProof()
        self._proof.on_connected(sent_s)
        self.proved = (self.client._session_id, self._proof.heard_s)
        self._put(Connected(self._session(host, session_ms), self.client.last_zxid))
        return read_timeout_ms, connect_timeout_ms

    def _authenticate(self, timeout_s: float) -> None:
        """Prove the identities of this process, before any request on a new connection."""
        if self._access.user is not None:
            self._log_in(timeout_s, self._access.user)
        for identity in self._access.proved:
            try:
                self._invoke(timeout_s, identity.request, xid=AUTH_XID)
            except AuthFailedError as error:  # for kazoo, this would be the end of the thread
                text = f"ZooKeeper refused the identity {identity.name}"
                raise ConnectionDropped(text) from error

    def _log_in(self, timeout_s: float, user: Identity) -> None:
        """Authenticate by SASL. ZooKeeper ends the connection if it refuses the user."""
        exchange = DigestMd5(user.name, user.password, secrets.token_hex(_CNONCE_BYTES))
        try:
            challenge = self._ask_sasl(b"", 1, timeout_s)
            exchange.check(self._ask_sasl(exchange.response(challenge), 2, timeout_s))
        except (KazooException, DigestFailed) as error:
            text = f"ZooKeeper refused the user {user.name} of SASL: {error or 'connection ended'}"
            raise ConnectionDropped(text) from error

    def _ask_sasl(self, token: bytes, xid: int, timeout_s: float) -> bytes:
        """Send a step of the login, and return the next one of the server."""
        request = SealedSasl(token)  # kazoo logs it
        limit_s = min(timeout_s, _RENEW_S_MAX)
        self._submit(request, limit_s, xid)
        header, data, offset = self._read_header(limit_s)
        if header.xid != xid:
            raise ConnectionDropped("an answer of another request")
        if header.err:
            raise EXCEPTIONS[header.err]()
        answer, _ = SASL.deserialize(data, offset)
        return answer or b""

    def _session(self, host: str, session_ms: int) -> Session:
        client, tls = self.client, self._access.tls
        # A certificate names a host, and no address of it.
        server = self._server if tls is None else (host, self._server[1])
        return Session(
            client._session_id,
            client._session_passwd,
            session_ms,
            tuple(dict.fromkeys([server, *client.hosts])),
            "" if tls is None else tls.encode(),
        )

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Send the first request of a connection and return its answer."""
        limit_s = _RENEW_S_MAX if self.client._session_id else _NEW_SESSION_S_MAX
        return super()._invoke(min(timeout, limit_s), request, xid)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception as error:  # noqa: BLE001 - bytes that no server sends end a connection
            log.warning("connection to %s:%s ended: %r", host, port, error)
            return None

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send all waiting requests. The wake-up is consumed first, so a later request
        wakes again.
        """
        try:
            self._read_sock.recv(4096)
        except BlockingIOError:
            pass
        client = self.client
        joined = bytearray()
        while client._queue:
            request, answer = client._queue.popleft()
            self._xid = (self._xid % 2147483647) + 1
            body = request.serialize()
            joined += int_struct.pack(len(body) + int_int_struct.size)
            joined += int_int_struct.pack(self._xid, request.type)
            joined += body
            client._pending.append((request, answer, self._xid))
            if len(joined) >= _WRITE_BYTES:
                self._write(joined, connect_timeout)
                joined = bytearray()
        if joined:
            self._write(joined, connect_timeout)

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        """Read one reply. Raises if it could not be decoded: its connection cannot be trusted."""
        pending = self.client._pending
        answer = pending[0][1] if pending else None
        result = super()._read_response(header, buffer, offset)
        if getattr(answer, "undecodable", False):
            raise ConnectionDropped("a reply could not be decoded")
        return result

    def _read_socket(self, read_timeout: float) -> Any:
        """Read the replies that have arrived. Returns the last one."""
        while True:
            answer = super()._read_socket(read_timeout)
            self._heard_s = time.monotonic()
            if answer == CLOSE_RESPONSE or not self._unread:
                return answer

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        """Report the event of a watch. kazoo knows none of our watches."""
        self._put(Fired(Watch.deserialize(buffer, offset)[0].path))

    def _read(self, length: int, timeout: float) -> bytes:
        unread = self._unread
        with self._socket_error_handling():
            while len(unread) < length:
                came = self._receive(timeout)
                if came == b"":
                    raise ConnectionResetError("closed by the server")
                unread += came or b""
        taken = bytes(unread[:length])
        del unread[:length]
        return taken

    def _receive(self, timeout_s: float) -> bytes | None:
        """Return the next bytes; b"" at the end. None: a part of a record of TLS has come."""
        has_tls = self._access.tls is not None
        waiting = has_tls and self._socket.pending() > 0
        if not waiting and not self.handler.ready((self._socket,), (), timeout_s)[0]:
            raise KazooTimeoutError("socket time-out during read")
        if has_tls:
            return receive(self._socket, _READ_BYTES)
        return self._socket.recv(_READ_BYTES)
