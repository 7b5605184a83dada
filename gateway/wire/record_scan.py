"""Decodes the records of a stored batch, to find timestamps.

The functions are generators, which yield after each part of about a millisecond and return their
result. Decompression stops at a limit. aiokafka's reader decodes the records, in parts that
`part` bounds. So batches that older versions stored cost no more. This module is imported only when
it is needed, because the import takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatch,
)
from kio.schema.errors import ErrorCode

from gateway.wire import batches
from gateway.wire.batches import BatchRefused
from gateway.wire.decompress import decompress_steps
from gateway.wire.record_walk import BadRecord, part, work_of

_WORK_PER_STEP = 1000  # records, headers and blocks of 4 KiB

Found = tuple[int, int]
"""A timestamp and an offset."""


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
        data, at = yield from _plain(batch, header, bytes_max)
        for records in _parts(data, at, header):
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
        data, at = yield from _plain(batch, header, bytes_max)
        for records in _parts(data, at, header):
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


def _plain(
    batch: bytes, header: batches.BatchHeader, bytes_max: int
) -> Generator[None, None, tuple[bytes, int]]:
    """Return bytes, and where in them the records begin. Raises BatchRefused."""
    codec = header.attributes & batches.CODEC_MASK
    if not codec:
        return batch, batches.HEADER_BYTES
    return (yield from decompress_steps(codec, batch[batches.HEADER_BYTES :], bytes_max)), 0


def _parts(data: bytes, at: int, header: batches.BatchHeader) -> Iterator[list[Any]]:
    """Decode the records, as many at a time as one step may. Raises BatchRefused."""
    some: list[Any] = []
    index = work = 0
    try:
        while index < header.records:
            count, end = part(data, at, index, header.records - index)
            records = _decoded(data[at:end], count, header)
            some += records
            work += work_of(records, end - at)
            index, at = index + count, end
            if work >= _WORK_PER_STEP:
                yield some
                some, work = [], 0
    except BadRecord as bad:
        raise BatchRefused(ErrorCode.corrupt_message, str(bad)) from None
    if at != len(data):
        raise BatchRefused(ErrorCode.corrupt_message, "Bytes follow the last record.")
    yield some


def _decoded(records: bytes, count: int, header: batches.BatchHeader) -> list[Any]:
    """Return the decoded records. Raises BatchRefused."""
    length = batches.HEADER_BYTES + len(records) - batches.LENGTH_OVERHEAD
    attributes = header.attributes & ~batches.CODEC_MASK
    plain = header._replace(length=length, attributes=attributes, records=count)
    reader: Any = DefaultRecordBatch(batches.HEADER.pack(*plain) + records)
    try:
        return list(chain(reader))
    except (CorruptRecordException, ValueError, IndexError, OverflowError, MemoryError) as e:
        raise BatchRefused(
            ErrorCode.corrupt_message, f"The records cannot be decoded: {e!r}"
        ) from e
