"""Bodies of responses: drawn and compressed in a thread, so that no page holds the loop.

The interpreter changes from a busy thread to the loop after 0.1 ms. A small page is drawn and
compressed on the loop, in slices: a thread that works for less than a millisecond delays the loop
as much as its work would.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from gateway.figures.slices import page_slices
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from starlette.requests import Request

SMALL_BYTES: Final = 1024  # of a body that is not worth compressing
LOOP_BYTES_MAX: Final = 64 * 1024  # of a body that is compressed on the loop
PIECE_BYTES: Final = 8 * 1024  # of it, in one step of 0.1 ms
_GZIP: Final = 31  # the form of zlib that has the header of gzip
_LEVEL: Final = 3  # about 100 MB/s; a higher one makes a page some 10 % smaller


def takes_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` allows gzip."""
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "").rstrip("0") not in ("q=", "q=0.")
    return False


def _is_compressed(request: Request, body: bytes) -> bool:
    accepted = request.headers.get("accept-encoding", "")
    return len(body) >= SMALL_BYTES and takes_gzip(accepted)


def _response(body: bytes, media_type: str, status: int, *, compressed: bool) -> Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type=media_type)


def response_of(request: Request, body: bytes, media_type: str, status: int = 200) -> Response:
    """Return a response with a body, compressed if that is worth it."""
    compressed = _is_compressed(request, body)
    if compressed:
        body = gzip.compress(body, _LEVEL, mtime=0)
    return _response(body, media_type, status, compressed=compressed)


async def response_in_slices(request: Request, body: bytes, media_type: str) -> Response:
    """Return the same on the loop. A step compresses PIECE_BYTES."""
    compressed = _is_compressed(request, body)
    if compressed:
        slices = page_slices()
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        pieces: list[bytes] = []
        for at in range(0, len(body), PIECE_BYTES):
            pieces.append(packer.compress(body[at : at + PIECE_BYTES]))
            await slices.pause()
        pieces.append(packer.flush())
        body = b"".join(pieces)
    return _response(body, media_type, 200, compressed=compressed)


async def encoded(
    request: Request, write: Callable[[], bytes], media_type: str, status: int = 200
) -> Response:
    """Return a response with what `write` returns, which runs in a thread."""
    return await in_thread(lambda: response_of(request, write(), media_type, status))
