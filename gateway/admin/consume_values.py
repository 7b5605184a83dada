"""How `topic consume` shows the bytes of a key or a value. Pure."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ledger.escapes import escape_json, escape_line

Show = Callable[[bytes | None], bytes]
"""Returns the bytes to print for a value; null is empty, or `null` as JSON."""


class ValueForm(StrEnum):
    """The form in which a value is shown."""

    text = "text"
    json = "json"
    hex = "hex"
    base64 = "base64"
    auto = "auto"


def value_show(form: ValueForm, *, escaped: bool) -> Show:
    """Return the function for a form; `escaped` escapes control characters, for terminals."""
    if form is ValueForm.text:
        return escaped_text if escaped else plain_bytes
    if form is ValueForm.json:
        return _json
    if form is ValueForm.hex:
        return _hex
    if form is ValueForm.base64:
        return _base64
    return _auto_escaped if escaped else _auto


def plain_bytes(value: bytes | None) -> bytes:
    return value or b""


def escaped_text(value: bytes | None) -> bytes:
    return escape_line((value or b"").decode(errors="backslashreplace")).encode()


def text_of(value: bytes) -> str:
    """Return the bytes as text, from which `encoded` returns the same bytes."""
    return value.decode(errors="surrogateescape")


def encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def one_line_json(value: Any) -> bytes:
    """Return the value as JSON in one line, or as it is if it is text that is no JSON."""
    return escape_json(json.dumps(value, ensure_ascii=False)).encode(errors="replace")


def parse_json(value: bytes) -> Any:
    """Return the value of JSON. Raises ValueError."""
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json(value: bytes | None) -> bytes:
    """Show JSON in one line; other text as a string of JSON."""
    if value is None:
        return b"null"
    try:
        return one_line_json(parse_json(value))
    except (ValueError, OverflowError):
        return one_line_json(value.decode(errors="backslashreplace"))


def _hex(value: bytes | None) -> bytes:
    return (value or b"").hex().encode()


def _base64(value: bytes | None) -> bytes:
    return b64encode(value or b"")


def _auto(value: bytes | None) -> bytes:
    return value or b"" if _is_text(value) else _base64(value)


def _auto_escaped(value: bytes | None) -> bytes:
    return escaped_text(value) if _is_text(value) else _base64(value)


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
