"""The cursor of a search: what is left of each partition, and of how many offsets. Pure."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gateway.http.pages import Refused
from gateway.http.record_search import Span
from ledger.command_line.units import INT32_MAX, INT64_MAX

PARTITIONS_MAX: Final = 128
"""Partitions of one search: a cursor with as many fits into an address."""

_VERSION: Final = 1
_BITS: Final = 7
_VARINT_BYTES_MAX: Final = 9


class Cursor(NamedTuple):
    """Where a search goes on. `total` counts the offsets that it had at its begin."""

    backward: bool
    total: int
    spans: Sequence[Span]


def encode_cursor(cursor: Cursor) -> str:
    """Return the cursor as characters of an address."""
    data = bytearray((_VERSION, cursor.backward))
    _put(data, cursor.total)
    _put(data, len(cursor.spans))
    for span in cursor.spans:
        for number in (span.index, span.first, span.length):
            _put(data, number)
    return urlsafe_b64encode(data).decode().rstrip("=")


def decode_cursor(text: str) -> Cursor:
    """Return the cursor. Raises Refused for one that `encode_cursor` never made."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        numbers = _numbers(data[2:])
        if data[0] != _VERSION or data[1] > 1:
            raise ValueError
        total, count = next(numbers), next(numbers)
        if not 0 < count <= PARTITIONS_MAX:
            raise ValueError
        spans = [_span(next(numbers), next(numbers), next(numbers)) for _ in range(count)]
        if next(numbers, None) is not None or len({each.index for each in spans}) < count:
            raise ValueError
    except (ValueError, IndexError, StopIteration, RuntimeError):
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page") from None
    return Cursor(bool(data[1]), total, spans)


def _span(index: int, first: int, length: int) -> Span:
    if index > INT32_MAX or first + length > INT64_MAX or not length:
        raise ValueError
    return Span(index, first, first + length)


def _put(data: bytearray, number: int) -> None:
    while number >= 1 << _BITS:
        data.append(number & 127 | 128)
        number >>= _BITS
    data.append(number)


def _numbers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += _BITS
        if shift > _BITS * _VARINT_BYTES_MAX:
            raise ValueError
        if byte < 128:
            yield value
            value = shift = 0
    if shift:
        raise ValueError
