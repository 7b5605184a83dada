r"""The format strings of `topic consume -f`: those of kcat, and fields in braces. Pure.

`%t %p %o` are topic, partition and offset, `%k %s %h` key, value and headers, `%K %S` the bytes of
key and value (-1 for null), `%T` the timestamp, `%%` a percent sign. `\n \r \t \\ \xHH` are
escapes. `{key}`, `{value}`, `{value.order.id}`, `{headers.NAME}` and `{headers[NAME]}` are parts of
a record; brackets also hold keys with dots, as in `{value[order.id]}`. Other braces stand for
themselves. Source: kcat, format.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from gateway.admin.consume_batches import Record
from gateway.admin.consume_values import Show, one_line_json, parse_json, plain_bytes

_Field = Callable[[str, int, Record], bytes]
Formatter = Callable[[str, int, Sequence[Record]], bytes]
"""Returns the text of records of a topic and partition."""

_TOKEN: Final = re.compile(
    r"%(?P<percent>.?)"
    r"|\\(?P<escape>x[0-9A-Fa-f]{2}|.)"
    r"|\{(?P<field>key|value|headers)(?P<path>(?:\.[^{}\[\]]+|\[[^{}\[\]]+\])*)\}",
    re.DOTALL,
)
_STEP: Final = re.compile(r"\[([^\]]+)\]|\.?([^.\[]+)")
_ESCAPES: Final[Mapping[str, bytes]] = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_SIZES: Final[Mapping[str, _Field]] = {
    "K": lambda _topic, _index, record: _size(record.key),
    "S": lambda _topic, _index, record: _size(record.value),
}
_PLAIN: Final[Mapping[str, _Field]] = {
    "t": lambda topic, _index, _record: topic.encode(),
    "p": lambda _topic, index, _record: b"%d" % index,
    "o": lambda _topic, _index, record: b"%d" % record.offset,
    "T": lambda _topic, _index, record: b"%d" % time_of(record),
    "%": lambda _topic, _index, _record: b"%",
    **_SIZES,
}
KNOWN: Final = "%t %p %o %k %s %T %h %S %K %%"
_NO_TIME: Final = -1


def time_of(record: Record) -> int:
    """Return the timestamp in milliseconds, -1 if the record has none."""
    return _NO_TIME if record.timestamp is None else record.timestamp


def compile_format(text: str, show: Show, show_key: Show = plain_bytes) -> Formatter:
    """Return the formatter of a format string. Raises ValueError, which names the fault.

    `show` shows values, `show_key` keys, headers and parts of values.
    """
    fields: list[_Field] = []
    at = 0
    for token in _TOKEN.finditer(text):
        if token.start() > at:
            fields.append(_constant(text[at : token.start()].encode()))
        fields.append(_field(token, show, show_key))
        at = token.end()
    if at < len(text):
        fields.append(_constant(text[at:].encode()))

    def format_records(topic: str, index: int, records: Sequence[Record]) -> bytes:
        return b"".join([field(topic, index, record) for record in records for field in fields])

    return format_records


def _constant(data: bytes) -> _Field:
    return lambda _topic, _index, _record: data


def _field(token: re.Match[str], show: Show, show_key: Show) -> _Field:
    if token["field"] is not None:
        return _part(token["field"], token["path"], show, show_key)
    if token["escape"] is not None:
        return _constant(_escaped(token["escape"]))
    letter = token["percent"]
    if letter == "k":
        return lambda _topic, _index, record: show_key(record.key)
    if letter == "s":
        return lambda _topic, _index, record: show(record.value)
    if letter == "h":
        return lambda _topic, _index, record: _headers(record, show_key)
    if letter not in _PLAIN:
        raise ValueError(f"%{letter} is unknown; known are {KNOWN}")
    return _PLAIN[letter]


def _escaped(word: str) -> bytes:
    if word[0] == "x" and len(word) > 1:
        return bytes((int(word[1:], 16),))
    return _ESCAPES.get(word, word.encode())


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(record: Record, show: Show) -> bytes:
    return b",".join(
        show(name.encode()) + b"=" + (b"NULL" if value is None else show(value))
        for name, value in record.headers
    )


# fields in braces


def _part(name: str, path: str, show: Show, show_key: Show) -> _Field:
    if name == "headers":
        header = _header_name(path)
        return lambda _topic, _index, record: show_key(_header(record, header))
    if not path:
        if name == "key":
            return lambda _topic, _index, record: show_key(record.key)
        return lambda _topic, _index, record: show(record.value)
    steps = [bracketed or plain for bracketed, plain in _STEP.findall(path)]
    if name == "key":
        return lambda _topic, _index, record: show_key(_inside(record.key, steps))
    return lambda _topic, _index, record: show_key(_inside(record.value, steps))


def _header_name(path: str) -> str:
    if path.startswith("[") and path.endswith("]") and path.count("[") == 1:
        return path[1:-1]
    if len(path) > 1 and "[" not in path:
        return path[1:]
    raise ValueError("{headers} needs a name, such as {headers.trace} or {headers[trace]}")


def _header(record: Record, name: str) -> bytes | None:
    """Return the value of the last header of this name."""
    return next((value for key, value in reversed(record.headers) if key == name), None)


def _inside(data: bytes | None, steps: Sequence[str]) -> bytes | None:
    """Return what lies at these keys of JSON: text as it is, other values as JSON.

    Returns None if the data are no JSON, or have no such key.
    """
    try:
        found: Any = parse_json(data or b"null")
        for step in steps:
            if isinstance(found, list):
                found = cast("list[Any]", found)[int(step)]
            else:
                found = found[step]
        if isinstance(found, str):
            return found.encode(errors="replace")
        return None if found is None else one_line_json(found)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        return None
