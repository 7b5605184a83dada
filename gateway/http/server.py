"""The connections of one HTTP port, with their limits, and the import of what answers them.

Importing the application takes 0.1 s and runs in a thread; the connections that arrive meanwhile
wait, each with at most one read in memory. This module is imported at the first connection.

    arrived ─▶ (TLS) ─▶ waits for the application ─▶ its protocol answers requests
       └─▶ refused: the port has as many connections as it may have
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gateway.http.raw_answers import raw_answer
from gateway.log import logger
from ledger.tasks import in_thread, start_once

if TYPE_CHECKING:
    from gateway.config import HttpConfig
    from gateway.handlers.api import Context
    from gateway.http.application import Application
    from gateway.http.password_file import Hashed

_SWEEP_S: Final = 0.2  # between two looks at the deadlines of all connections
_LINGER_S: Final = 1.0  # in which a refused peer can read why
_REFUSED_MAX: Final = 32  # connections that are being refused; any more are cut off


class Answering(Protocol):
    """The protocol of a connection, once the application is imported."""

    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Answers(Protocol):
    """The application as its connections see it."""

    def protocol(self, connection: Connection) -> Answering: ...
    async def close(self) -> None: ...


Load = Callable[[], Awaitable[Answers]]


class HttpServer:
    """The connections of one port. `connection` makes one; `stop` runs once."""

    def __init__(self, settings: HttpConfig, load: Load, tls: ssl.SSLContext | None = None) -> None:
        self.settings = settings
        self.tls = tls
        self._load = load
        # Imports the application. None before the first connection; a failed one is run again.
        self._loading: asyncio.Task[Answers] | None = None
        # All connections of this port, from their arrival to their end.
        self._open: set[Connection] = set()
        # Those of them that are refused, because there were too many.
        self._refused: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._stopped = False

    def connection(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self)

    async def stop(self) -> None:
        """End all connections and requests, and close the application."""
        self._stopped = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in list(self._open | self._refused):
            each.abort()
        if self._loading is None:
            return
        if not self._loading.done():
            self._loading.cancel()
        (found,) = await asyncio.gather(self._loading, return_exceptions=True)
        if not isinstance(found, BaseException):
            await found.close()

    def arrived(self, connection: Connection) -> bool:
        """Count a new connection. Returns False if it is one too many."""
        if self._stopped or len(self._refused) >= _REFUSED_MAX:
            connection.abort()
            return False
        if self._sweeping is None:
            self._sweep_later()
        if len(self._open) >= self.settings.connections_max:
            self._refused.add(connection)
            return False
        self._open.add(connection)
        return True

    def left(self, connection: Connection) -> None:
        """Discard a connection that ended."""
        self._open.discard(connection)
        self._refused.discard(connection)

    def ready(self, connection: Connection) -> None:
        """Hand a connection to the application, as soon as that is imported."""
        if self._loading is None or (self._loading.done() and self._failed(self._loading)):
            self._loading = start_once("the import of the web page", self._application())
        self._loading.add_done_callback(lambda task: self._hand_over(connection, task))

    async def _application(self) -> Answers:
        return await self._load()

    def _hand_over(self, connection: Connection, loading: asyncio.Task[Answers]) -> None:
        if connection not in self._open:
            return
        if self._failed(loading):
            message = "the web page could not be loaded; the log of the gateway has the reason"
            connection.refuse(raw_answer(503, "UNAVAILABLE", message))
            return
        connection.become(loading.result().protocol(connection))

    def _failed(self, loading: asyncio.Task[Answers]) -> bool:
        return loading.cancelled() or loading.exception() is not None

    def _sweep_later(self) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """End the connections whose deadlines have passed. Stops when there are none left."""
        self._sweeping = None
        now_s = asyncio.get_running_loop().time()
        for each in list(self._open | self._refused):
            each.check(now_s)
        if self._open or self._refused:
            self._sweep_later()


class Connection(asyncio.Protocol):
    """One connection. It forwards to the protocol of the application and keeps the deadlines."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inner: Answering | None = None
        # Bytes that arrived before the application was imported: at most one read.
        self._held = b""
        # Whether `_transport` is the one that stays: until then it is the one below TLS.
        self._is_open = False
        self._is_refused = False
        self._is_lost = False
        # When this connection ends unless a request is complete by then; None during a request.
        self._due_s: float | None = None
        # When it ends unless its peer has read by then; None while the send buffer has room.
        self._unread_due_s: float | None = None
        # When it ends although unsent bytes are left, after it was closed; None before that.
        self._closed_due_s: float | None = None

    # -- what the application calls -------------------------------------------------------------

    def busy(self) -> None:
        """Note that the head of a request is complete: the application bounds the request."""
        self._due_s = None

    def idle(self) -> None:
        """Note that a response is complete: the next request must be complete in time."""
        self._due_s = self._loop.time() + self._server.settings.head_s_max

    def refuse(self, answer: bytes) -> None:
        """Send a last answer, and discard what else arrives. The peer has 1 s to read it.

        A connection that is closed with unread bytes is reset, and the answer may be lost.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._is_refused = True
        self._due_s = self._loop.time() + _LINGER_S
        transport.write(answer)
        if transport.is_closing():  # the peer had reset the connection, as the write found
            return
        if transport.can_write_eof():  # not with TLS
            transport.write_eof()
        transport.resume_reading()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what the server calls ------------------------------------------------------------------

    def become(self, inner: Answering) -> None:
        """Let the application answer, from the first byte on."""
        transport, data = self._transport, self._held
        if transport is None or transport.is_closing() or self._is_refused:
            return
        self._inner, self._held = inner, b""
        inner.connection_made(transport)
        transport.resume_reading()
        if data:
            inner.data_received(data)

    def check(self, now_s: float) -> None:
        """End the connection if one of its deadlines has passed."""
        if self._transport is None:
            return
        if self._transport.is_closing() and self._closed_due_s is None:
            self._closed_due_s = now_s + self._server.settings.head_s_max
        dues = (self._due_s, self._unread_due_s, self._closed_due_s)
        if any(due_s is not None and now_s >= due_s for due_s in dues):
            self._transport.abort()

    # -- what the transport calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        is_welcome = self._server.arrived(self)
        self.idle()
        if self._transport.is_closing():
            return
        if self._server.tls is None:
            self._begin(is_welcome)
        else:
            shaking = self._shake_hands(self._server.tls, is_welcome)
            start_once("a TLS handshake", shaking, expected=(OSError, ssl.SSLError))

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._inner is not None:
            self._inner.data_received(data)
            return
        self._held += data
        if self._is_open:
            assert self._transport is not None
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """Let the transport close: a browser that leaves ends its tail or search by this."""

    def pause_writing(self) -> None:
        self._unread_due_s = self._loop.time() + self._server.settings.unread_s_max
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._unread_due_s = None
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:  # by a handshake that failed
            return
        self._is_lost = True
        self._server.left(self)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    async def _shake_hands(self, tls: ssl.SSLContext, is_welcome: bool) -> None:
        assert self._transport is not None
        seconds = self._server.settings.head_s_max
        try:
            starting = self._loop.start_tls(
                self._transport, self, tls, server_side=True, ssl_handshake_timeout=seconds
            )
            wrapped, _ = await asyncio.gather(starting, self._hand_over_later())
        except (OSError, ssl.SSLError) as error:
            self.connection_lost(error)
            return
        if wrapped is None or self._is_lost:
            self.connection_lost(None)
            return
        self._transport = wrapped
        self._begin(is_welcome)

    async def _hand_over_later(self) -> None:
        """Give what came too early to TLS, in the turn of the loop in which TLS begins.

        uvloop reads before the protocol of TLS is there: the first bytes of the handshake may have
        arrived here. This step runs behind the first one of `start_tls`, and so does the callback.
        """
        self._loop.call_soon(self._hand_over_held)

    def _hand_over_held(self) -> None:
        data, self._held = self._held, b""
        if not data or self._is_lost:
            return
        assert self._transport is not None
        below = cast("asyncio.BufferedProtocol", self._transport.get_protocol())
        while data:
            room: Any = below.get_buffer(len(data))  # a writable view
            size = min(len(room), len(data))
            room[:size] = data[:size]
            below.buffer_updated(size)
            data = data[size:]

    def _begin(self, is_welcome: bool) -> None:
        self._is_open = True
        if is_welcome:
            self._server.ready(self)
            return
        most = self._server.settings.connections_max
        message = f"this port has {most} connections, which is as many as it may have; try again"
        self.refuse(raw_answer(503, "TOO_MANY_CONNECTIONS", message))


def load_application(
    ctx: Context,
    settings: HttpConfig,
    bootstrap: str,
    passwords: Mapping[str, Hashed] | None,
    *,
    metrics_only: bool,
) -> Load:
    """Return a function that imports and makes the application in a thread."""

    def make() -> Application:
        module: Any = import_module("gateway.http.application")
        return module.Application(ctx, settings, bootstrap, passwords, metrics_only=metrics_only)

    async def load() -> Application:
        application = await in_thread(make)
        logger().debug("the web page is loaded")
        return application

    return load
