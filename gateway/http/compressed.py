"""Bodies of responses: drawn and compressed in a thread, so that no page holds the loop.

The interpreter changes from a busy thread to the loop after 0.1 ms. A small page is drawn on the
loop: a thread that works for less than a millisecond delays the loop as much as its work would.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from ledger.tasks import in_thread

if TYPE_CHECKING:
    from starlette.requests import Request

SMALL_BYTES: Final = 1024  # of a body that is not worth compressing
LOOP_BYTES_MAX: Final = 64 * 1024  # of a body that is compressed on the loop, in 0.5 ms
_LEVEL: Final = 3  # about 100 MB/s; a higher one makes a page some 10 % smaller


def takes_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` allows gzip."""
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "").rstrip("0") not in ("q=", "q=0.")
    return False


def response_of(request: Request, body: bytes, media_type: str, status: int = 200) -> Response:
    """Return a response with a body, compressed if that is worth it."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    accepted = request.headers.get("accept-encoding", "")
    if len(body) >= SMALL_BYTES and takes_gzip(accepted):
        body = gzip.compress(body, _LEVEL, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type=media_type)


async def encoded(
    request: Request, write: Callable[[], bytes], media_type: str, status: int = 200
) -> Response:
    """Return a response with what `write` returns, which runs in a thread."""
    return await in_thread(lambda: response_of(request, write(), media_type, status))
