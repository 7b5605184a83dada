"""The HTTP port of a bookie or an auditor: `/metrics` and `/health`, one answer per connection.

HTTP/1.1, bounded. There is no password: the answers have no records and no secrets, and the port is
on loopback unless `--http-host` says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, Protocol

from ledger.errors import LedgerError
from ledger.exposition import CONTENT_TYPE, Family, family_text
from ledger.log import logger
from ledger.tasks import start_once

CONNECTIONS_MAX: Final = 16
HEAD_BYTES_MAX: Final = 8192
HEAD_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 30.0

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"

Source = Callable[[], Awaitable[list[Family]]]
"""Returns families with their samples. May raise LedgerError."""


class HttpUnavailable(OSError):
    """The process cannot listen on its HTTP port."""


class HttpPort:
    """The port. `start` once, `stop` once.

    `reasons` returns why the process is not ready, a sentence for each reason.
    """

    def __init__(self, reasons: Callable[[], list[str]]) -> None:
        self._reasons = reasons
        # What is asked for samples, by name. The owner adds and removes them while it runs.
        self.sources: dict[str, Source] = {}
        self._listener: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.host, self.port = "", 0

    async def start(self, host: str, port: int) -> None:
        """Listen, on any free port if `port` is 0. Raises HttpUnavailable."""
        try:
            self._listener = await asyncio.start_server(
                self._accepted, host, port, limit=HEAD_BYTES_MAX
            )
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise HttpUnavailable(f"cannot listen on {host} port {port}: {reason}") from error
        self.host, self.port = host, self._listener.sockets[0].getsockname()[1]

    @property
    def shown(self) -> str:
        """Return the address as URLs have it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def stop(self) -> None:
        """Stop accepting connections, and drop those that wait for an answer."""
        if self._listener is not None:
            self._listener.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = start_once("an answer over HTTP", self._serve(reader, writer))
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
            logger().error("an answer over HTTP failed", exc_info=error)
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
            more = "Allow: GET, HEAD\r\n"
            return _reply(HTTPStatus.METHOD_NOT_ALLOWED, b"GET only\n", more=more)
        head_only = method == b"HEAD"
        if path == b"/metrics":
            return _reply(HTTPStatus.OK, await self._text(), kind=CONTENT_TYPE, head_only=head_only)
        if path in (b"/health", b"/health/ready"):
            return _judged(self._reasons(), head_only=head_only)
        if path == b"/health/live":
            return _judged([], head_only=head_only)
        return _reply(HTTPStatus.NOT_FOUND, b"see /metrics and /health\n", head_only=head_only)

    async def _text(self) -> bytes:
        """Return the samples of all sources. One that fails is left out."""
        parts: list[bytes] = []
        for name, source in list(self.sources.items()):
            try:
                families = await source()
            except (LedgerError, OSError) as error:
                logger().warning("samples are left out", of=name, reason=str(error))
                continue
            for family in families:
                for part in family_text(family):
                    parts.append(part)
                    await asyncio.sleep(0)
        return b"".join(parts)


def _judged(reasons: list[str], *, head_only: bool) -> bytes:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    found = {"status": "unavailable" if reasons else "ok", "reasons": reasons}
    return _reply(status, json.dumps(found).encode(), kind=_JSON, head_only=head_only)


def _reply(
    status: HTTPStatus, body: bytes, *, kind: str = _TEXT, more: str = "", head_only: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + (b"" if head_only else body)


class Watched(Protocol):
    """A node of this process: what it counts, and why it is not ready."""

    def not_ready(self) -> list[str]:
        """Return why it is not ready, a sentence for each reason."""
        ...

    async def families(self) -> list[Family]:
        """Return its samples."""
        ...


async def start_http(host: str, port: int | None, name: str, node: Watched) -> HttpPort | None:
    """Serve the samples and the health of a node; None without a port. Raises HttpUnavailable."""
    if port is None:
        return None
    http = HttpPort(node.not_ready)
    http.sources[name] = node.families
    http.sources["process"] = _process_families
    await http.start(host, port)
    return http


async def _process_families() -> list[Family]:
    from ledger.node.node_metrics import process_families  # most processes are never asked

    return process_families()
