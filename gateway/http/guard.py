"""What every request passes before a route is looked up, and every response before it leaves.

    head ─▶ Host ─▶ body ─▶ method ─▶ password ─▶ route ─▶ `allowed` ─▶ view

A request has 5 s for all of it. A stream of events may go on; it ends when its browser leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from gateway.access import ANONYMOUS
from gateway.http.asking import SLASH
from gateway.http.pages import Refused
from gateway.http.raw_answers import HEADERS
from gateway.log import logger
from ledger.log import Throttle

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.config import HttpConfig
    from gateway.http.passwords import Passwords

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
READS: Final = ("GET", "HEAD")
STREAMED: Final = (b"text/event-stream", b"application/x-ndjson")
"""The media types of responses that may take longer than a request."""
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_REALM: Final = 'Basic realm="ledger gateway", charset="UTF-8"'

DrawError = Callable[["Scope", Refused], Awaitable["Response"]]
"""Draws the answer to a request that is refused."""


class _Left(Exception):
    """The browser left before its request was complete."""


class Guard:
    """Checks requests, bounds their time, and adds the headers of every response."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpConfig,
        passwords: Passwords | None,
        draw_error: DrawError,
        *,
        any_host: bool,
    ) -> None:
        self._app = app
        self._settings = settings
        self._passwords = passwords
        self._draw_error = draw_error
        self._any_host = any_host
        # The names that a Host header may have.
        self._names = LOOPBACK.union(settings.names, _own_name(settings.host))
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Starlette's and uvicorn's interface."""
        exchange = _Exchange(scope, receive, send)
        due_s = asyncio.get_running_loop().time() + self._settings.request_s_max
        try:
            await self._answer(exchange, due_s)
        except _Left:
            return
        except Refused as error:
            await self._refuse(exchange, error)
        except HTTPException as error:  # no such route, or not with this method
            await self._refuse(exchange, _of_starlette(error), error.headers)
        except Exception as error:  # noqa: BLE001 - a bug of a view is answered, and logged once
            self._log(scope, error)
            message = "the gateway could not answer this; its log has the reason"
            await self._refuse(exchange, Refused(500, "UNKNOWN_SERVER_ERROR", message))

    async def _answer(self, exchange: _Exchange, due_s: float) -> None:
        scope = exchange.scope
        self._check_host(scope)
        try:
            async with asyncio.timeout_at(due_s):
                await exchange.read_body()
        except TimeoutError:
            message = f"the request was not complete after {self._settings.request_s_max:g} s"
            raise Refused(408, "REQUEST_TIMED_OUT", message) from None
        scope["path"] = _path(scope["raw_path"])
        scope["app"] = self  # Starlette raises what it refuses, instead of answering it
        if scope["method"] not in READS and not self._settings.write:
            message = "this page only reads: start the gateway with --http-write to change things"
            raise Refused(405, "READ_ONLY", message)
        working = asyncio.create_task(self._pass_on(exchange))
        leaving = asyncio.create_task(exchange.wait_left())
        try:
            while not working.done():
                left_s = None if exchange.streams else due_s - asyncio.get_running_loop().time()
                waited = {working} if leaving.done() else {working, leaving}
                done, _ = await asyncio.wait(
                    waited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and not exchange.streams:
                    message = f"no answer after {self._settings.request_s_max:g} s; try again"
                    raise Refused(503, "REQUEST_TIMED_OUT", message)
                if leaving.done() and not exchange.is_complete:
                    raise _Left
            working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _pass_on(self, exchange: _Exchange) -> None:
        scope = exchange.scope
        scope["state"]["principal"] = await self._principal(scope)
        scope["state"]["body"] = exchange.body
        await self._app(scope, exchange.receive, exchange.send)

    def _check_host(self, scope: Scope) -> None:
        """Refuse a host that is not ours: its name may have been bound to this address to read us.

        A browser sends the name that the page has, so a page of another site cannot pass.
        """
        if self._any_host:
            return
        name = host_name(_header(scope, b"host"))
        if name not in self._names:
            message = f"this gateway is not known as {name[:100]!r}: pass it to --http-name"
            raise Refused(421, "MISDIRECTED_REQUEST", message)

    async def _principal(self, scope: Scope) -> str:
        path = scope["path"]
        is_open = path == "/health" or path.startswith("/health/")
        is_open = is_open or (path == "/metrics" and self._settings.open_metrics)
        if self._passwords is None or is_open:
            return ANONYMOUS
        name = await self._passwords.check(_header(scope, b"authorization"))
        if name is None:
            raise Refused(401, "AUTHENTICATION_FAILED", "this page needs a name and its password")
        return f"User:{name}"

    async def _refuse(self, exchange: _Exchange, error: Refused, headers: Any = None) -> None:
        if exchange.started:
            return  # uvicorn closes the connection, since the response is not complete
        if exchange.scope["method"] not in (*READS, "POST"):
            response: Response = PlainTextResponse(f"{error.code}: {error.message}\n", error.status)
        else:
            response = await self._draw(exchange.scope, error)
        response.headers.update(headers or {})
        if error.status == 401:
            response.headers["WWW-Authenticate"] = _REALM
        if error.code == "READ_ONLY":
            response.headers["Allow"] = ", ".join(READS)
        if not exchange.is_read:
            response.headers["Connection"] = "close"
        response.headers["Cache-Control"] = "no-store"
        await response(exchange.scope, exchange.receive, exchange.send)

    async def _draw(self, scope: Scope, error: Refused) -> Response:
        try:
            return await self._draw_error(scope, error)
        except Exception as bug:  # noqa: BLE001 - a bug of the error page must not hide the error
            self._log(scope, bug)
            return PlainTextResponse(f"{error.code}: {error.message}\n", error.status)

    def _log(self, scope: Scope, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        path = str(getattr(scope.get("route"), "path", "(none)"))
        if self._throttle.allows(path, type(error).__name__, now_s):
            logger().error("a page failed", path=path, exc_info=error)


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.body = b""
        self.is_read = False  # the body has arrived
        self.started = False  # the response has begun
        self.streams = False  # it is a stream of events, which may go on
        self.is_complete = False  # the response has ended
        self._receive = receive
        self._send = send
        self._left = asyncio.Event()

    async def read_body(self) -> None:
        """Read the body, which the protocol bounds. Raises _Left if the browser leaves."""
        body = bytearray()
        while not self.is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Left
            body += message["body"]
            self.is_read = not message["more_body"]
        self.body = bytes(body)

    async def wait_left(self) -> None:
        """Return when the browser left, or has its response."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left.set()

    async def receive(self) -> Message:
        """Return that the browser left, once it did: the body is in the state of the scope."""
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a part of the response, its first with the headers that every response has."""
        if message["type"] == "http.response.start":
            self.started = True
            headers = [*message.get("headers", ()), *_RAW_HEADERS]
            message = {**message, "headers": headers}
            kinds = [value for name, value in headers if name == b"content-type"]
            self.streams = kinds[0].startswith(STREAMED) if kinds else False
        elif not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)


def host_name(host: str) -> str:
    """Return the name of a Host header in lower case, without its port."""
    name, colon, port = host.rpartition(":")
    is_port = bool(colon) and port.isascii() and (port.isdecimal() or not port)
    return (name if is_port else host).lower()


def _own_name(host: str) -> tuple[str, ...]:
    """Return the address that the gateway prints, unless it stands for all addresses."""
    if host in ("", "0.0.0.0", "::"):
        return ()
    return (f"[{host.lower()}]" if ":" in host else host.lower(),)


def _header(scope: Scope, wanted: bytes) -> str:
    for name, value in scope["headers"]:
        if name == wanted:
            return value.decode("latin-1")
    return ""


def _path(raw: bytes) -> str:
    """Decode a path, in which an encoded slash is a part of a name and not one of the path."""
    parts = raw.decode("ascii").split("/")
    return "/".join(unquote(part).replace("/", SLASH) for part in parts)


def _of_starlette(error: HTTPException) -> Refused:
    if error.status_code == 405:
        return Refused(405, "METHOD_NOT_ALLOWED", "this path does not take this method")
    if error.status_code == 404:
        return Refused(404, "NOT_FOUND", "there is no such page")
    return Refused(error.status_code, "INVALID_REQUEST", "this request cannot be answered")
