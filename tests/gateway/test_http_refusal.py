"""Goal: a refusal to a peer that is gone already leaves no exception.

Method: the real connection on a transport that finds at its write that the peer reset it, as
uvloop's does.
"""

from __future__ import annotations

import asyncio

from gateway.config import HttpConfig
from gateway.http.server import HttpServer


class ResetTransport(asyncio.Transport):
    """A transport whose write finds the reset. Once closed, it raises as uvloop's does."""

    closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: object) -> None:
        self._use()
        self.closed = True

    def write_eof(self) -> None:
        self._use()

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._use()

    def resume_reading(self) -> None:
        self._use()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._use()

    def _use(self) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")


async def never() -> None:
    raise AssertionError("the application is not needed")


def test_a_refusal_that_finds_the_connection_reset_raises_nothing() -> None:
    async def refused() -> bool:
        server = HttpServer(HttpConfig(), never)  # type: ignore[arg-type]
        connection, transport = server.connection(), ResetTransport()
        connection._transport = transport
        connection.refuse(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await server.stop()
        return transport.closed

    assert asyncio.run(refused())
