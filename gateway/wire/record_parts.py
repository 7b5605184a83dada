"""Finds the records of a stored batch: where each lies, its key, and whether it has a value.

The log cleaner decides by keys and copies whole records, so values and headers are not decoded. A
batch passed all checks when it was produced; what is damaged since raises BadRecord.
Source: Kafka, DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gateway.wire.encode import put_varint
from gateway.wire.record_walk import BadRecord

_LONG_MASK = (1 << 64) - 1


class RecordPart(NamedTuple):
    """One record: its bytes are those from `start` up to `end`."""

    start: int
    end: int
    timestamp: int  # delta to the base timestamp of the batch
    offset: int  # delta to the base offset of the batch
    key: bytes | None
    tombstone: bool  # True if it has no value


def record_parts(data: bytes, at: int, count: int, first: int = 0) -> Iterator[RecordPart]:
    """Yield the `count` records that begin at `at` and fill the rest of `data`.

    `first` is the index of the first of them in its batch. Raises BadRecord.
    """
    for index in range(first, first + count):
        try:
            part = _part(data, at, index)
        except IndexError:
            raise BadRecord(index, "the batch ends inside it.") from None
        yield part
        at = part.end
    if at != len(data):
        index = first + count - 1
        raise BadRecord(index, f"{len(data) - at} bytes follow it, the last one.")


def _part(data: bytes, start: int, index: int) -> RecordPart:
    """Read one record. Most varints have one byte and are read in place."""
    size = data[start]
    at = start + 1
    if size > 127:
        size, at = _longer(data, at, size)
    end = at + (size >> 1)
    timestamp = data[at + 1]  # behind the attributes, which are unused
    at += 2
    if timestamp > 127:
        timestamp, at = _longer(data, at, timestamp)
    offset = data[at]
    at += 1
    if offset > 127:
        offset, at = _longer(data, at, offset)
    length = data[at]
    at += 1
    if length > 127:
        length, at = _longer(data, at, length)
    key = None
    if not length & 1:
        key = data[at : at + (length >> 1)]
        at += length >> 1
    value = data[at]
    at += 1
    if value > 127:
        value, at = _longer(data, at, value)
    if not value & 1:
        at += value >> 1
    if size & 1 or not at < end <= len(data):
        raise BadRecord(index, "its sizes do not fit.")
    return RecordPart(
        start, end, timestamp >> 1 ^ -(timestamp & 1), offset >> 1, key, value & 1 == 1
    )


def _longer(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Return a varint whose `first` byte is before `at`, and where it ends."""
    second = data[at]
    if second < 128:
        return first & 127 | second << 7, at + 1
    return _varint(data, at - 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def size_at(data: bytes, at: int) -> int:
    """Return where a record ends that begins at `at`, by its size. Raises IndexError."""
    size, at = _varint(data, at)
    return at + (size >> 1)


def wrapped(number: int) -> int:
    """Return the number in 64 bits with a sign, as the arithmetic of Java wraps it."""
    return (number + 2**63 & _LONG_MASK) - 2**63


def with_timestamp_delta(data: bytes, part: RecordPart, delta: int) -> bytes:
    """Return the record with another delta of its timestamp. The rest stays byte for byte.

    The delta wraps around at 64 bits, and so does its sum with the base timestamp in each reader.
    """
    delta = wrapped(delta)
    _, at = _varint(data, part.start)
    body = bytearray(data[at : at + 1])
    _, rest = _varint(data, at + 1)
    put_varint(body, (delta << 1 ^ delta >> 63) & _LONG_MASK)
    body += data[rest : part.end]
    record = bytearray()
    put_varint(record, len(body) << 1)
    return bytes(record + body)
