"""The metrics page: `GET /metrics` over HTTP/1.1, bounded, one answer for each connection."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from gateway.handlers.api import Context
from gateway.log import logger
from ledger.tasks import start_once

if TYPE_CHECKING:
    from gateway.metrics.page import Page

CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8192
HEAD_S_MAX = 5.0
ANSWER_S_MAX = 30.0

_TEXT = "text/plain; charset=utf-8"


class MetricsUnavailable(OSError):
    """The gateway cannot listen on the port of the metrics page."""


class MetricsServer:
    """The metrics page of this gateway. `start` once, `stop` once."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._page: Page | None = None
        self._listener: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen, on any free port if `port` is 0. Raises MetricsUnavailable."""
        try:
            self._listener = await asyncio.start_server(
                self._accepted, host, port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise MetricsUnavailable(
                f"metrics-port {port}: cannot listen there on {host}: {error.strerror}"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop accepting connections, and drop those that wait for a page."""
        if self._listener is not None:
            self._listener.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._page is not None:
            await self._page.stop()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = start_once("an answer of the metrics page", self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(ANSWER_S_MAX):
                writer.write(await self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client left, is too slow, or did not send HTTP
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            logger().error("the metrics page failed", exc_info=error)
        finally:
            writer.close()
            try:
                async with asyncio.timeout(HEAD_S_MAX):
                    await writer.wait_closed()
            except OSError:  # the client left, or is too slow and loses unread bytes
                writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _reply(HTTPStatus.METHOD_NOT_ALLOWED, b"GET only\n", more="Allow: GET, HEAD\r\n")
        if path != b"/metrics":
            return _reply(HTTPStatus.NOT_FOUND, b"see /metrics\n")
        if self._page is None:
            # Imported at the first request, because many gateways are never asked for this page.
            from gateway.metrics.page import Page

            self._page = Page(self._ctx)
        from gateway.metrics.page import CONTENT_TYPE

        text = await self._page.text()
        return _reply(HTTPStatus.OK, text, kind=CONTENT_TYPE, head_only=method == b"HEAD")


def _reply(
    status: HTTPStatus, body: bytes, *, kind: str = _TEXT, more: str = "", head_only: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + (b"" if head_only else body)
