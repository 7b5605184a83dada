"""Decodes the records of a stored batch, to find timestamps.

The functions are generators, which yield after each part of about a millisecond and return their
result. Decompression stops at a limit. aiokafka's reader decodes the records. This module is
imported only when it is needed, because the import takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain, islice
from typing import Any, TypeVar

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatch,
)
from kio.schema.errors import ErrorCode

from gateway.wire import batches
from gateway.wire.batches import BatchRefused
from gateway.wire.decompress import decompress_steps

_RECORDS_PER_STEP = 1000

Found = tuple[int, int]
"""A timestamp and an offset."""

T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    """Return the result of all steps, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def first_at_or_after(
    batch: bytes, timestamp: int, from_offset: int, bytes_max: int
) -> Generator[None, None, Found | None]:
    """Return (timestamp, offset) of the first record at or after both arguments, or None.

    If the records cannot be decoded, the header decides. So a damaged batch does not prevent
    searches in the whole partition.
    """
    header = batches.read_header(batch)
    if header.attributes & batches.LOG_APPEND_TIME:
        return at_or_after_by_header(header, timestamp, from_offset)
    try:
        reader = yield from _reader(batch, header, bytes_max)
        while records := _some(reader):
            found = _first_of(records, timestamp, from_offset)
            if found is not None:
                return found
            yield
    except BatchRefused:
        return at_or_after_by_header(header, timestamp, from_offset)
    return None


def _first_of(records: list[Any], timestamp: int, from_offset: int) -> Found | None:
    for record in records:
        if record.timestamp >= timestamp and record.offset >= from_offset:
            return record.timestamp, record.offset
    return None


def record_of_timestamp_max(
    batch: bytes, from_offset: int, bytes_max: int
) -> Generator[None, None, Found | None]:
    """Return (timestamp, offset) of the first record with the greatest timestamp, or None.

    Only records from `from_offset` on count.
    """
    header = batches.read_header(batch)
    if header.attributes & batches.LOG_APPEND_TIME:
        return by_header(header, from_offset)
    best: Found | None = None
    try:
        reader = yield from _reader(batch, header, bytes_max)
        while records := _some(reader):
            best = _newest_of(records, from_offset, best)
            yield
    except BatchRefused:
        return by_header(header, from_offset)
    return best


def _newest_of(records: list[Any], from_offset: int, best: Found | None) -> Found | None:
    for record in records:
        if record.offset >= from_offset and (best is None or record.timestamp > best[0]):
            best = record.timestamp, record.offset
    return best


def at_or_after_by_header(
    header: batches.BatchHeader, timestamp: int, from_offset: int
) -> Found | None:
    """Return the result of `first_at_or_after` as far as the header knows it."""
    return by_header(header, from_offset) if header.max_timestamp >= timestamp else None


def by_header(header: batches.BatchHeader, from_offset: int) -> Found | None:
    """Return the result as if every record had the batch's greatest timestamp.

    With log append time every record does have it.
    """
    offset = max(header.base_offset, from_offset)
    inside = offset <= header.base_offset + header.last_offset_delta
    return (header.max_timestamp, offset) if inside else None


def _some(reader: Any) -> list[Any]:
    """Decode the next records. Raises BatchRefused."""
    try:
        return list(islice(reader, _RECORDS_PER_STEP))
    except (CorruptRecordException, ValueError, IndexError, OverflowError, MemoryError) as e:
        raise BatchRefused(
            ErrorCode.corrupt_message, f"The records cannot be decoded: {e!r}"
        ) from e


def _reader(
    batch: bytes, header: batches.BatchHeader, bytes_max: int
) -> Generator[None, None, Any]:
    """Return an iterator of the records. Raises BatchRefused."""
    codec = header.attributes & batches.CODEC_MASK
    if codec:
        records = yield from decompress_steps(codec, batch[batches.HEADER_BYTES :], bytes_max)
        length = batches.HEADER_BYTES + len(records) - batches.LENGTH_OVERHEAD
        plain = header._replace(length=length, attributes=header.attributes & ~batches.CODEC_MASK)
        batch = batches.HEADER.pack(*plain) + records
    reader: Any = DefaultRecordBatch(batch)
    return chain(reader)  # `islice` calls iter() again, which the reader refuses
