"""A response that goes on: events for as long as a browser listens (SSE)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

from starlette.responses import Response

from gateway.admin.client import AdminError, Unreachable
from gateway.http.pages import Json, Refused
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BEAT_S: Final = 15.0
"""After this time without an event, a comment shows whether the browser is still there."""


class EventStream(Response):
    """Sends events until there are none, or until the guard cancels it: the browser left."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[tuple[str, Json]]) -> None:
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Starlette's interface."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        beating = asyncio.create_task(_beat(send))
        try:
            if scope["method"] != "HEAD":
                await self._send_events(send)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await _close(self._events)
        await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, send: Send) -> None:
        try:
            async for name, found in self._events:
                await send(_part(f"event: {name}\ndata: {json.dumps(found)}\n\n"))
        except (Refused, AdminError) as error:
            await send(_part(_failure(error.code, str(error))))
        except (Unreachable, LedgerError) as error:
            await send(_part(_failure("UNREACHABLE", str(error))))


def _failure(code: str, message: str) -> str:
    found = {"error": {"code": code, "message": message}}
    return f"event: error\ndata: {json.dumps(found)}\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def _beat(send: Send) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        await send(_part(": still here\n\n"))


async def _close(events: AsyncIterator[tuple[str, Json]]) -> None:
    """Run the end of a generator now, and not when it is collected."""
    if hasattr(events, "aclose"):
        async with aclosing(cast("Any", events)):
            pass
