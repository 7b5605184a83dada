"""A response that is made while it is sent: a file of unknown length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

TAKE_S_MAX: Final = 60.0
"""A browser that takes nothing for so long gets no more."""


async def first_piece(pieces: AsyncIterator[bytes]) -> bytes:
    """Return the first piece, empty if there is none. Its errors have a status of their own."""
    return await anext(pieces, b"")


class FileStream(Response):
    """Sends pieces until there are none, or until the guard cancels it: the browser left."""

    def __init__(self, first: bytes, pieces: AsyncIterator[bytes], media_type: str) -> None:
        self.media_type = media_type
        super().__init__(
            headers={"Cache-Control": "no-store", "Content-Disposition": "attachment"},
        )
        del self.headers["content-length"]
        self._first = first
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file. Starlette's interface."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await _send_piece(send, self._first)
                async for piece in self._pieces:
                    await _send_piece(send, piece)
            await send({"type": "http.response.body", "body": b""})
        finally:
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()


async def _send_piece(send: Send, piece: bytes) -> None:
    async with asyncio.timeout(TAKE_S_MAX):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
