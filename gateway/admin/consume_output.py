"""The forms in which `topic consume` prints records: raw, table, JSON, JSON lines, CSV. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from gateway.admin import record_json
from gateway.admin.consume_batches import Record
from gateway.admin.consume_format import Formatter, time_of
from gateway.admin.consume_values import Show, ValueForm, escaped_text, text_or_base64
from gateway.admin.notation import write_time
from ledger.escapes import escape_json, escape_line

_VALUE: Final = attrgetter("value")
_NO_TIME: Final = -1
_CSV_COLUMNS: Final = (
    *("key", "value", "partition", "timestamp", "offset", "topic", "timestamp_type", "headers"),
    *("key_encoding", "value_encoding"),
)
_CSV_QUOTED: Final = frozenset('",\r\n')
_OFFSET_WIDTH, _KEY_WIDTH = 10, 16
_TIME_WIDTH: Final = len("2026-05-01T12:00:00.000Z")
_CUT: Final = "…"


class Printed(NamedTuple):
    """How records are printed: the bytes before the first, of each, and behind the last."""

    render: Formatter
    head: bytes = b""
    foot: bytes = b""


def raw(show: Show, *, exact: bool) -> Printed:
    """Print values, each with a line end; `exact` if `show` returns the bytes themselves."""

    def lines(_topic: str, _index: int, records: Sequence[Record]) -> bytes:
        if exact:
            try:
                return b"\n".join([*map(_VALUE, records), b""])
            except TypeError:  # one of them is null
                pass
        return b"".join([show(record.value) + b"\n" for record in records])

    return Printed(lines)


def json_lines() -> Printed:
    """Print each record as one line of JSON."""

    def lines(topic: str, index: int, records: Sequence[Record]) -> bytes:
        return "".join([as_json(topic, index, each) + "\n" for each in records]).encode()

    return Printed(lines)


def json_array() -> Printed:
    """Print an array of JSON, a record on each line."""
    first = True

    def lines(topic: str, index: int, records: Sequence[Record]) -> bytes:
        nonlocal first
        text = ",\n".join([as_json(topic, index, each) for each in records])
        start, first = "" if first else ",\n", False
        return (start + text).encode()

    return Printed(lines, b"[\n", b"\n]\n")


def as_json(topic: str, index: int, record: Record) -> str:
    """Return a record as one line of JSON, without a line end."""
    return record_json.encode_record(
        record_json.Record(
            value=record.value,
            key=record.key,
            headers=record.headers,
            topic=topic,
            partition=index,
            offset=record.offset,
            timestamp=None if time_of(record) < 0 else record.timestamp,
            timestamp_type=record_json.TIMESTAMP_TYPES[record.timestamp_type or 0],
        )
    )


def csv(form: ValueForm, *, header: bool, escaped: bool) -> Printed:
    """Print comma-separated values in UTF-8, quoted where RFC 4180 asks for it; a null is empty.

    `escaped` escapes control characters, for terminals.
    """

    def line(topic: str, index: int, record: Record) -> str:
        key, key_encoding = text_or_base64(record.key or b"", ValueForm.text)
        value, value_encoding = "", "text"
        if record.value is not None:
            value, value_encoding = text_or_base64(record.value, form)
        cells = (
            key,
            value,
            str(index),
            "" if time_of(record) < 0 else str(record.timestamp),
            str(record.offset),
            topic,
            record_json.TIMESTAMP_TYPES[record.timestamp_type or 0],
            _csv_headers(record),
            key_encoding,
            value_encoding,
        )
        return ",".join(map(_csv_cell, map(escape_line, cells) if escaped else cells)) + "\n"

    def lines(topic: str, index: int, records: Sequence[Record]) -> bytes:
        return "".join([line(topic, index, each) for each in records]).encode()

    return Printed(lines, (",".join(_CSV_COLUMNS) + "\n").encode() if header else b"")


def _csv_headers(record: Record) -> str:
    """Return the headers in the form that JSON lines have; empty if there are none."""
    if not record.headers:
        return ""
    whole = record_json.encode_record(record_json.Record(b"", headers=record.headers))
    return escape_json(json.dumps(json.loads(whole)["headers"], ensure_ascii=False))


def _csv_cell(text: str) -> str:
    if _CSV_QUOTED.isdisjoint(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def table(show: Show, topics: Sequence[str], columns: int | None) -> Printed:
    """Print aligned columns. Lines are cut to `columns` characters, unless that is None."""
    topic_width = max((len("TOPIC"), *map(len, topics)))
    widths = (topic_width, len("PARTITION"), _OFFSET_WIDTH, _TIME_WIDTH, _KEY_WIDTH)

    def line(*cells: str) -> str:
        shown = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        text = " ".join([*shown, cells[-1]])
        if columns is None or len(text) <= columns:
            return text + "\n"
        return text[: max(columns - 1, 0)] + _CUT + "\n"

    def row(topic: str, index: int, record: Record) -> str:
        key = "-" if record.key is None else escaped_text(record.key).decode()
        value = "-" if record.value is None else escaped_text(show(record.value)).decode()
        if columns is not None and len(key) > _KEY_WIDTH:
            key = key[: _KEY_WIDTH - 1] + _CUT
        return line(topic, str(index), str(record.offset), _time(record), key, value)

    def lines(topic: str, index: int, records: Sequence[Record]) -> bytes:
        return "".join([row(topic, index, each) for each in records]).encode()

    head = line("TOPIC", "PARTITION", "OFFSET", "TIME", "KEY", "VALUE")
    return Printed(lines, head.encode())


def _time(record: Record) -> str:
    at_ms = time_of(record)
    if at_ms == _NO_TIME:
        return "-"
    try:
        return write_time(at_ms)
    except (ValueError, OverflowError, OSError):  # behind the year 9999
        return str(at_ms)
