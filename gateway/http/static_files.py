"""The static files of the page: read and compressed once, and served from memory."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.http.compressed import SMALL_BYTES, takes_gzip

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

STATIC: Final = Path(__file__).parent / "static"
BYTES_MAX: Final = 300 * 1024
"""Of all files together, as they are served compressed and plain."""

_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class _File(NamedTuple):
    kind: str
    tag: str  # its ETag
    plain: bytes
    compressed: bytes | None  # None if that would not be smaller


def static_routes(directory: Path = STATIC) -> list[BaseRoute]:
    """Return a route for each file of the directory. Raises ValueError beyond BYTES_MAX."""
    files = {
        each.name: _read(each) for each in sorted(directory.iterdir()) if each.suffix in _KINDS
    }
    size = sum(len(each.plain) + len(each.compressed or b"") for each in files.values())
    if size > BYTES_MAX:
        raise ValueError(f"the static files have {size:,} bytes, and at most {BYTES_MAX:,} may be")
    return [Route(f"/static/{name}", _answer(file)) for name, file in files.items()]


def _read(path: Path) -> _File:
    plain = path.read_bytes()
    compressed = gzip.compress(plain, 9, mtime=0)
    return _File(
        _KINDS[path.suffix],
        f'"{hashlib.sha256(plain).hexdigest()[:16]}"',
        plain,
        compressed if SMALL_BYTES <= len(plain) > len(compressed) else None,
    )


def _answer(file: _File) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        # Revalidated each time, which costs no more than a head: a new release is seen at once.
        headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        known = request.headers.get("if-none-match", "")
        if file.tag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(status_code=304, headers=headers)
        body = file.plain
        if file.compressed and takes_gzip(request.headers.get("accept-encoding", "")):
            body = file.compressed
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers, media_type=file.kind)

    return answer
