"""How `topic consume` shows the bytes of a key or a value. Pure."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, NoReturn, cast

from ledger.escapes import escape_json, escape_line

Show = Callable[[bytes | None], bytes]
"""Returns the bytes to print for a value; null is empty, or `null` as JSON."""


_OUTSIDE_TEXT: Final = re.compile(
    r'("[^"\\]*(?:\\.[^"\\]*)*")|[ \t\r\n]*([,:])[ \t\r\n]*|[ \t\r\n]+'
)
"""The texts of JSON, its commas and colons, and the blanks between tokens."""


class ValueForm(StrEnum):
    """The form in which a value is shown."""

    text = "text"
    json = "json"
    hex = "hex"
    base64 = "base64"
    avro = "avro"  # decoded to JSON before
    auto = "auto"


def value_show(form: ValueForm, *, escaped: bool) -> Show:
    """Return the function for a form; `escaped` escapes control characters, for terminals."""
    if form in (ValueForm.text, ValueForm.avro):
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


def text_or_base64(value: bytes, form: ValueForm) -> tuple[str, str]:
    """Return the value as text, and the name of its encoding: text, hex or base64."""
    if form is ValueForm.hex:
        return value.hex(), "hex"
    if form is ValueForm.json:
        return _json(value).decode(), "text"
    if form is not ValueForm.base64:
        with suppress(UnicodeDecodeError):
            return value.decode(), "text"
    return _base64(value).decode(), "base64"


class JsonNumber:
    """A number of JSON as it is written: 1.10, 1e400, or with more digits than a float has."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def one_line_json(value: Any) -> bytes:
    """Return what `parse_json` returned as JSON in one line."""
    return escape_json(_written(value)).encode(errors="replace")


def _written(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value).items()
        return "{" + ", ".join([f"{_written(key)}: {_written(each)}" for key, each in fields]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, cast("list[Any]", value))) + "]"
    return json.dumps(value, ensure_ascii=False)


def parse_json(value: bytes) -> Any:
    """Return the value of JSON in UTF-8; numbers are JsonNumber. Raises ValueError."""
    try:
        return json.loads(
            value.decode(),
            parse_float=JsonNumber,
            parse_int=JsonNumber,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _json(value: bytes | None) -> bytes:
    """Show JSON in one line, its numbers and texts as they are; other text as a string of JSON."""
    if value is None:
        return b"null"
    try:
        parse_json(value)
    except ValueError:
        return one_line_json(value.decode(errors="backslashreplace"))
    return escape_json(_OUTSIDE_TEXT.sub(_one_line, value.decode())).encode()


def _one_line(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1]
    return "" if match[2] is None else match[2] + " "


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
