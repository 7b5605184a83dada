"""Bodies of responses: drawn and compressed in a thread, so that no page holds the loop.

The interpreter changes from a busy thread to the loop after 0.1 ms.
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
_LEVEL: Final = 3  # about 100 MB/s; a higher one makes a page some 10 % smaller


def takes_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` allows gzip."""
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "").rstrip("0") not in ("q=", "q=0.")
    return False


async def encoded(
    request: Request, write: Callable[[], bytes], media_type: str, status: int = 200
) -> Response:
    """Return a response with what `write` returns, which runs in a thread."""
    may_compress = takes_gzip(request.headers.get("accept-encoding", ""))

    def work() -> tuple[bytes, bool]:
        body = write()
        if not may_compress or len(body) < SMALL_BYTES:
            return body, False
        return gzip.compress(body, _LEVEL, mtime=0), True

    body, is_compressed = await in_thread(work)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type=media_type)
