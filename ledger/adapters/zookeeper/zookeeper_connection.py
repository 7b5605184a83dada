# kazoo has no types, and what is overridden here is private to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUntypedBaseClass=false
"""kazoo's connection thread, as we run it: the one thread there is, and none for callbacks.

Changed against kazoo: requests that wait go out in one write and replies come in by one read; a
connection on which nothing was heard for two thirds of the session is dropped even while requests
go out on it; a ping may take that long too (kazoo drops it after a sixth of the session, 170 ms
of a session of one second); every wait can be cut short, so that closing takes a bounded time.
Source: ZooKeeper, `ClientCnxn.java` (the timeouts).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import ConnectionClosedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import int_int_struct, int_struct
from kazoo.protocol.states import Callback, EventType

_WRITE_BYTES = 64 * 1024  # requests joined for one write
_READ_BYTES = 64 * 1024

# A server that is starting takes connections and leaves the first words on them unanswered (seen
# with 3.9.3), so that kazoo's patience, a whole session, would often cost the session.
_RENEW_S_MAX = 1.5
_NEW_SESSION_S_MAX = 4.0  # that one is a write, which may wait for a slow disk

log = logging.getLogger("ledger.zookeeper")
log.addHandler(logging.NullHandler())  # silent until the process configures logging


class Connected(NamedTuple):
    """A session serves on a connection."""

    session_id: int
    session_ms: int


class Fired(NamedTuple):
    """A watch on `path` fired and is gone."""

    path: str


class Handler:
    """What kazoo asks of its surroundings: sockets, waiting, threads.

    `cut` makes every wait of the connection thread fail at once, for good.
    """

    name = "ledger_handler"
    timeout_exception = KazooTimeoutError
    running = True

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put
        self._cut_reader, self._cut_writer = os.pipe()
        self._was_cut = threading.Event()
        self.connection: Connection | None = None

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def cut(self) -> None:
        """Only the loop's thread calls this and `close`."""
        if not self._was_cut.is_set():
            self._was_cut.set()
            os.write(self._cut_writer, b"\0")  # never read: readable from now on

    def close(self) -> None:
        """The connection thread has ended and waits no more."""
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
        """Who can be read or written, within the time; raises OSError once `cut`."""
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
        self, address: tuple[str, int], timeout: float, **_: Any
    ) -> socket.socket:
        """A connection to a numeric address; raises OSError after `timeout` seconds."""
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

    def dispatch_callback(self, callback: Callback) -> None:
        """A watch fired. That it was lost with its connection is told by the connection."""
        (event,) = callback.args
        if event.type != EventType.NONE:
            self._put(Fired(event.path))


class Connection(ConnectionHandler):
    """kazoo's connection, which knows when it last heard of the server."""

    _socket: Any
    _read_sock: Any
    _write_sock: Any

    def __init__(self, client: Any, retry: Any, put: Callable[[Any], None]) -> None:
        super().__init__(client, retry, logger=log)
        self._put = put
        self._unread = bytearray()
        self._read_timeout_s = 1.0
        self._heard_s = 0.0
        self._ping_sent_s = 0.0
        self.ping_answered: tuple[int, float] = (0, 0.0)  # of which session, and when it was sent

    def submit(self, request: Any, answer: Any) -> None:
        """Any thread: the request is sent when a connection serves; `answer` is set then."""
        queue = self.client._queue
        queue.append((request, answer))
        if len(queue) > 1:
            return  # whoever appended the first has woken the thread, which takes all
        try:
            self._write_sock.send(b"\0")
        except BlockingIOError:
            pass  # woken already
        except (OSError, AttributeError):  # closed a moment ago
            answer.set_exception(ConnectionClosedError("closed"))

    def wait(self, readers: Sequence[Any], timeout_s: float) -> list[Any]:
        """Which of `readers` (server, requests) can be read; raises when the server is silent."""
        while True:
            wait_s = min(timeout_s, self._read_timeout_s / 2)
            ready = self.handler.ready(readers, (), wait_s)[0]
            pinged = self.ping_outstanding.is_set()
            if self._socket not in ready and (pinged or self.client._pending):
                silent_s = time.monotonic() - self._heard_s
                if silent_s > self._read_timeout_s:
                    raise ConnectionResetError(f"nothing heard for {silent_s:.1f} s")
            if ready or not pinged:
                return ready

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._unread.clear()
        read_timeout_ms, connect_timeout_ms = super()._connect(host, hostip, port)
        self._heard_s = time.monotonic()
        self._read_timeout_s = read_timeout_ms / 1000
        session_ms = round(connect_timeout_ms * len(self.client.hosts))
        self._put(Connected(self.client._session_id, session_ms))
        return read_timeout_ms, connect_timeout_ms

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """The server's answer to a connection's first words."""
        limit_s = _RENEW_S_MAX if self.client._session_id else _NEW_SESSION_S_MAX
        return super()._invoke(min(timeout, limit_s), request, xid)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception as error:  # noqa: BLE001 - bytes that no server sends end a connection
            log.warning("connection to %s:%s ended: %r", host, port, error)
            return None

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """All that wait are sent. The wake-up is taken first: a later request wakes again."""
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

    def _send_ping(self, connect_timeout: float) -> None:
        self._ping_sent_s = time.monotonic()
        super()._send_ping(connect_timeout)

    def _read_socket(self, read_timeout: float) -> Any:
        """What has come is read; the last answer is returned."""
        while True:
            pinged = self.ping_outstanding.is_set()
            answer = super()._read_socket(read_timeout)
            self._heard_s = time.monotonic()
            if pinged and not self.ping_outstanding.is_set():
                self.ping_answered = (self.client._session_id, self._ping_sent_s)
            if answer == CLOSE_RESPONSE or not self._unread:
                return answer

    def _read(self, length: int, timeout: float) -> bytes:
        unread = self._unread
        with self._socket_error_handling():
            while len(unread) < length:
                if not self.handler.ready((self._socket,), (), timeout)[0]:
                    raise KazooTimeoutError("socket time-out during read")
                came = self._socket.recv(_READ_BYTES)
                if not came:
                    raise ConnectionResetError("closed by the server")
                unread += came
        taken = bytes(unread[:length])
        del unread[:length]
        return taken
