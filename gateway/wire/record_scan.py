"""Decodes the records of a batch, to find timestamps and to check keys.

Decompression stops at a limit. aiokafka's reader decodes the records. This module is imported only
when it is needed, because the import takes a tenth of a second.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any

import cramjam
import zstandard
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatch,
)
from kio.schema.errors import ErrorCode

from gateway.wire import batches
from gateway.wire.batches import BatchRefused
from ledger.crc32c import crc32c

_ZSTD_WINDOW_MAX = 8 * 1024 * 1024
_DAMAGED = (
    cramjam.DecompressionError,
    zlib.error,
    zstandard.ZstdError,
    ValueError,
    EOFError,
    OSError,
)
_GZIP_MEMBERS_MAX = 16
_XERIAL = b"\x82SNAPPY\x00"


class _Bounded(io.BytesIO):
    """A buffer that raises OverflowError above `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._room = bytes_max

    def write(self, data: Any) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OverflowError
        return super().write(data)


def decompress(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Decompress `data`. Raises BatchRefused if it is damaged or exceeds `bytes_max`."""
    try:
        if codec == 1:
            return _gzip(data, bytes_max)
        if codec == 2:
            return _snappy(data, bytes_max)
        if codec == 3:
            return _lz4(data, bytes_max)
        return _zstd(data, bytes_max)
    except OverflowError:
        raise BatchRefused(
            ErrorCode.invalid_record, f"The batch decompresses to more than {bytes_max} bytes."
        ) from None
    except _DAMAGED as e:
        raise BatchRefused(
            ErrorCode.corrupt_message, f"The batch cannot be decompressed: {e}"
        ) from e


def _gzip(data: bytes, bytes_max: int) -> bytes:
    """Decompress all members, as Java's GZIPInputStream does. Each copies the remaining bytes."""
    whole = b""
    for _ in range(_GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(wbits=31)
        whole += member.decompress(data, bytes_max - len(whole) + 1)
        if len(whole) > bytes_max:
            raise OverflowError
        if not member.eof:
            raise ValueError("gzip stream is truncated")
        data = member.unused_data
        if not data:
            return whole
    raise ValueError(f"gzip stream has more than {_GZIP_MEMBERS_MAX} members")


def _snappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _snappy_block(data, bytes_max)
    out = _Bounded(bytes_max)
    at = 16
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise ValueError("snappy block is truncated")
        out.write(_snappy_block(data[at : at + size], bytes_max))
        at += size
    return out.getvalue()


def _snappy_block(data: bytes, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > bytes_max:
        raise OverflowError
    return bytes(cramjam.snappy.decompress_raw(data))


def _lz4(data: bytes, bytes_max: int) -> bytes:
    room = bytearray(min(bytes_max, max(len(data) * 255, 1024)))
    try:
        size = cramjam.lz4.decompress_into(data, room)
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise OverflowError from error
        raise
    return bytes(memoryview(room)[:size])


def _zstd(data: bytes, bytes_max: int) -> bytes:
    """Decompress all frames, as Java's ZstdInputStream does."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    reader = decompressor.stream_reader(data, read_across_frames=True)
    whole = reader.read(bytes_max + 1)
    if len(whole) > bytes_max:
        raise OverflowError
    return whole


def first_at_or_after(
    batch: bytes, timestamp: int, from_offset: int, bytes_max: int
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record at or after both arguments, or None.

    If the records cannot be decoded, the header decides. So a damaged batch does not prevent
    searches in the whole partition.
    """
    header = batches.read_header(batch)
    by_header = _by_header(header, from_offset) if header.max_timestamp >= timestamp else None
    if header.attributes & batches.LOG_APPEND_TIME:
        return by_header
    try:
        for record in _records(batch, header, bytes_max):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return record.timestamp, record.offset
    except BatchRefused:
        return by_header
    return None


def record_of_timestamp_max(
    batch: bytes, from_offset: int, bytes_max: int
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record with the greatest timestamp, or None.

    Only records from `from_offset` on count.
    """
    header = batches.read_header(batch)
    if header.attributes & batches.LOG_APPEND_TIME:
        return _by_header(header, from_offset)
    best: tuple[int, int] | None = None
    try:
        for record in _records(batch, header, bytes_max):
            if record.offset >= from_offset and (best is None or record.timestamp > best[0]):
                best = record.timestamp, record.offset
    except BatchRefused:
        return _by_header(header, from_offset)
    return best


def _by_header(header: batches.BatchHeader, from_offset: int) -> tuple[int, int] | None:
    """Return the result as if every record had the batch's greatest timestamp.

    With log append time every record does have it.
    """
    offset = max(header.base_offset, from_offset)
    inside = offset <= header.base_offset + header.last_offset_delta
    return (header.max_timestamp, offset) if inside else None


def _records(batch: bytes, header: batches.BatchHeader, bytes_max: int) -> Iterator[Any]:
    """Decode the records with aiokafka. Raises BatchRefused."""
    reader: Any = DefaultRecordBatch(_uncompressed(batch, header, bytes_max))
    try:
        yield from reader
    except (CorruptRecordException, ValueError, IndexError, OverflowError, MemoryError) as e:
        raise BatchRefused(
            ErrorCode.corrupt_message, f"The records cannot be decoded: {e!r}"
        ) from e


def _uncompressed(batch: bytes, header: batches.BatchHeader, bytes_max: int) -> bytes:
    codec = header.attributes & batches.CODEC_MASK
    if not codec:
        return batch
    records = decompress(codec, batch[batches.HEADER_BYTES :], bytes_max)
    tail = bytearray(batch[21 : batches.HEADER_BYTES])
    tail[0:2] = (header.attributes & ~batches.CODEC_MASK).to_bytes(2, "big")
    crc = crc32c(records, crc32c(bytes(tail)))
    length = batches.HEADER_BYTES + len(records) - batches.LENGTH_OVERHEAD
    return b"".join(
        (
            batches.PREFIX.pack(header.base_offset, length, header.leader_epoch),
            b"\x02",
            crc.to_bytes(4, "big"),
            bytes(tail),
            records,
        )
    )


def all_keyed(batch: bytes, bytes_max: int) -> bool:
    """Return whether every record has a key. Raises BatchRefused if they cannot be decoded."""
    header = batches.read_header(batch)
    return all(record.key is not None for record in _records(batch, header, bytes_max))
