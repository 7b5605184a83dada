"""A record as a row of a page: the JSON of `topic consume -o jsonl`, cut, and as people read it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.admin.consume_batches import Record
from gateway.admin.consume_output import as_json
from gateway.admin.consume_values import parse_json
from gateway.http.hrefs import record_href
from gateway.http.pages import Json
from ledger.escapes import escape_json, escape_lines

CUT_BYTES: Final = 4 * 1024
"""What a list shows of a key, of a value, and of all headers."""
WHOLE_BYTES: Final = 256 * 1024
"""What the page of a record shows of each."""
HEADERS_SHOWN: Final = 100

_HEX_BYTES_MAX: Final = 1_024
_HEX_COLUMNS: Final = 16
_DEPTH_MAX: Final = 20  # deeper JSON is not indented further
_TAIL_BYTES: Final = 3  # of a character that was cut
_TOKENS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class CutRecord(NamedTuple):
    """A record with the beginnings of its key, value and headers, and with their sizes."""

    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    key_bytes: int | None
    value_bytes: int | None
    headers_count: int
    headers_cut: bool


def cut(record: Record, most: int = CUT_BYTES) -> CutRecord:
    """Return the record with at most `most` bytes of key, of value, and of all headers."""
    key, value = record.key, record.value
    headers = _cut_headers(record.headers, most) if record.headers else ()
    return CutRecord(
        record.offset,
        record.timestamp,
        record.timestamp_type,
        _part(key, most),
        _part(value, most),
        headers,
        None if key is None else len(key),
        None if value is None else len(value),
        len(record.headers),
        _bytes_of(headers) < _bytes_of(record.headers) or len(headers) < len(record.headers),
    )


def _part(data: bytes | None, most: int) -> bytes | None:
    """Return the first bytes, without a part of a character at their end."""
    if data is None or len(data) <= most:
        return data
    part = data[:most]
    try:
        part.decode()
    except UnicodeDecodeError as error:
        return part[: error.start] if error.start >= most - _TAIL_BYTES else part
    return part


def _cut_headers(
    headers: Sequence[tuple[str, bytes | None]], most: int
) -> Sequence[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for name, data in headers[:HEADERS_SHOWN]:
        short = name if len(name) <= most else name[:most]
        part = _part(data, most - len(short))
        found.append((short, part))
        most -= len(short) + len(part or b"")
        if most <= 0:
            break
    return found


def _bytes_of(headers: Sequence[tuple[str, bytes | None]]) -> int:
    return sum(len(name) + len(data or b"") for name, data in headers)


def row_of(topic: str, index: int, record: CutRecord, show: str, *, hidden: bool) -> Json:
    """Return a record as plain data. `hidden` leaves out what clients wrote into it.

    `key_shown` and `value_shown` are what people see, in the form `show`: text, json or hex.
    """
    shown = record._replace(key=None, value=None, headers=()) if hidden else record
    row: Json = json.loads(as_json(topic, index, shown))
    return {
        **row,
        "hidden": hidden,
        "key_bytes": record.key_bytes,
        "value_bytes": record.value_bytes,
        "headers_count": record.headers_count,
        "key_cut": not hidden and len(record.key or b"") < (record.key_bytes or 0),
        "value_cut": not hidden and len(record.value or b"") < (record.value_bytes or 0),
        "headers_cut": not hidden and record.headers_cut,
        "key_shown": None if shown.key is None else as_shown(shown.key, "text"),
        "value_shown": None if shown.value is None else as_shown(shown.value, show),
        "offset_href": record_href(topic, index, record.offset),
    }


def as_shown(data: bytes, show: str) -> str:
    """Return the bytes as people read them. What is no JSON, or no text, has the next form."""
    if show == "json":
        found = indented(data)
        if found is not None:
            return found
    if show != "hex":
        try:
            return escape_lines(data.decode())
        except UnicodeDecodeError:
            pass
    return hex_dump(data)


def hex_dump(data: bytes) -> str:
    """Return lines of 16 bytes each, in hexadecimal and as ASCII, of the first KiB."""
    lines: list[str] = []
    for at in range(0, min(len(data), _HEX_BYTES_MAX), _HEX_COLUMNS):
        some = data[at : at + _HEX_COLUMNS]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{at:06x}  {some.hex(' '):<47}  {letters}")
    if len(data) > _HEX_BYTES_MAX:
        lines.append(f"and {len(data) - _HEX_BYTES_MAX} more bytes")
    return "\n".join(lines)


def indented(data: bytes) -> str | None:
    """Return JSON on several lines, its numbers and texts as they are. None if it is no JSON."""
    try:
        parse_json(data)
    except ValueError:
        return None
    parts: list[str] = []
    depth = 0
    before = ""
    # One match at a time: `findall` would hold the interpreter for all of them.
    for match in _TOKENS.finditer(data.decode()):
        token = match[0]
        if token in "}]":
            depth -= 1
        if before and _breaks(before, token):
            parts.append("\n" + "  " * min(depth, _DEPTH_MAX))
        parts.append(": " if token == ":" else token)
        if token in "{[":
            depth += 1
        before = token
    return escape_json("".join(parts))


def _breaks(before: str, token: str) -> bool:
    """Return whether a line ends between two tokens of JSON."""
    if token in "}]":
        return before not in "{["
    return before in "{[,"
