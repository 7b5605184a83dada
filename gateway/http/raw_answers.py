"""Answers that need no application: it is not imported yet, or what arrived is no HTTP request."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every response, also of those that the application writes."""


def raw_answer(status: int, code: str, message: str) -> bytes:
    """Return a whole response, behind which the connection ends. It is one line of plain text."""
    body = f"{code}: {message}\n".encode()
    head = {
        **HEADERS,
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in head.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
