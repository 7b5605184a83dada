"""One record as one line of JSON, and back, byte for byte.

    {"topic": "orders", "partition": 0, "offset": 12, "timestamp": 1767225600000,
     "timestamp_type": "create", "key": "ann", "value": "3 apples", "headers": [["trace", "a1"]],
     "key_encoding": "text", "value_encoding": "text"}

Bytes that are not UTF-8 are base64, and their encoding is "base64"; a header's value is then
{"base64": "..."}. Null is null. So what `topic consume -o jsonl` prints, `topic produce -i jsonl`
writes again. Of the keys only `value` must be there. Pure.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from ledger.escapes import escape_json

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
TIMESTAMP_TYPES: Final = ("create", "append")
_KEYS: Final = (
    *("topic", "partition", "offset", "timestamp", "timestamp_type"),
    *("key", "value", "headers", "key_encoding", "value_encoding"),
)
_ENCODINGS: Final = ("text", "base64")
_NO_NUMBER: Final = -1

Headers = Sequence[tuple[str, bytes | None]]


class BadRecord(ValueError):
    """A line that is no record. `column` counts characters from 1; 0 stands for the whole line."""

    def __init__(self, reason: str, column: int = 0) -> None:
        super().__init__(reason)
        self.column = column


class Record(NamedTuple):
    """A record as commands show and take it. Numbers are None where nobody gave them."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None  # milliseconds since 1970, UTC
    timestamp_type: str | None = None  # one of TIMESTAMP_TYPES


def encode_record(record: Record) -> str:
    """Return the record as one line, without a line end. Control characters are escaped."""
    key, key_encoding = _text_or_base64(record.key)
    value, value_encoding = _text_or_base64(record.value)
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": key,
        "value": value,
        "headers": [[name, _header_value(data)] for name, data in record.headers],
        "key_encoding": key_encoding,
        "value_encoding": value_encoding,
    }
    return escape_json(json.dumps(fields, ensure_ascii=False))


def decode_record(line: str) -> Record:
    """Return the record of a line that `encode_record` made, or that a person wrote.

    Raises BadRecord, which names the key and what it must be.
    """
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error.msg}", error.colno) from None
    except BadRecord:
        raise
    except ValueError:  # Python's bound on the digits of a number
        raise BadRecord("not JSON: a number has too many digits") from None
    except RecursionError:
        raise BadRecord("not JSON: nested too deeply") from None
    if not isinstance(found, dict):
        raise BadRecord('must be a JSON object such as {"value": "3 apples"}', 1)
    return _record_of(cast("dict[str, Any]", found))


def _record_of(found: Mapping[str, Any]) -> Record:
    unknown = [key for key in found if key not in _KEYS]
    if unknown:
        raise BadRecord(f"no key {unknown[0]!r} in a record; known are {', '.join(_KEYS)}")
    if "value" not in found:
        raise BadRecord("`value` is missing; null makes a tombstone")
    topic, kind = found.get("topic"), found.get("timestamp_type")
    if not (topic is None or isinstance(topic, str)):
        raise BadRecord("`topic` must be text or null")
    if not (kind is None or kind in TIMESTAMP_TYPES):
        raise BadRecord(f"`timestamp_type` must be {' or '.join(TIMESTAMP_TYPES)}")
    return Record(
        value=_bytes_of(found, "value"),
        key=_bytes_of(found, "key"),
        headers=_headers_of(found.get("headers")),
        topic=topic,
        partition=_number_of(found, "partition", INT32_MAX),
        offset=_number_of(found, "offset", INT64_MAX),
        timestamp=_number_of(found, "timestamp", INT64_MAX),
        timestamp_type=kind,
    )


def _refuse_constant(word: str) -> Any:
    raise BadRecord(f"not JSON: {word}")


def _text_or_base64(data: bytes | None) -> tuple[str | None, str]:
    if data is None:
        return None, "text"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def _header_value(data: bytes | None) -> str | dict[str, str] | None:
    text, encoding = _text_or_base64(data)
    return text if text is None or encoding == "text" else {"base64": text}


def _bytes_of(found: Mapping[str, Any], name: str) -> bytes | None:
    encoding = found.get(f"{name}_encoding", "text")
    if encoding not in _ENCODINGS:
        raise BadRecord(f"`{name}_encoding` must be {' or '.join(_ENCODINGS)}")
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRecord(f"`{name}` must be text or null; write an object as a text of JSON")
    return _decoded(value, f"`{name}`") if encoding == "base64" else _utf8(value, f"`{name}`")


def _decoded(text: str, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise BadRecord(f"{name} is not base64") from None


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRecord(f"{name} has half of a surrogate pair, which UTF-8 cannot hold") from None


def _number_of(found: Mapping[str, Any], name: str, most: int) -> int | None:
    value = found.get(name)
    if value is None or value == _NO_NUMBER:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadRecord(f"`{name}` must be a whole number between 0 and {most}, or null")
    return value


def _headers_of(value: Any) -> Headers:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRecord('`headers` must be a list of pairs such as [["trace", "a1"]]')
    return [_header_of(each, number) for number, each in enumerate(cast("list[Any]", value), 1)]


def _header_of(pair: Any, number: int) -> tuple[str, bytes | None]:
    name = f"header {number}"
    words = cast("list[Any]", pair) if isinstance(pair, list) else []
    if len(words) != 2 or not isinstance(words[0], str):
        raise BadRecord(f'{name} must be a pair such as ["trace", "a1"]')
    key, value = words
    _utf8(key, f"the name of {name}")
    if value is None:
        return key, None
    if isinstance(value, str):
        return key, _utf8(value, name)
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if list(fields) == ["base64"] and isinstance(fields["base64"], str):
        return key, _decoded(fields["base64"], name)
    raise BadRecord(f'the value of {name} must be text, null or {{"base64": "..."}}')
