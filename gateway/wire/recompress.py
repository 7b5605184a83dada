"""Compresses the records of a batch with another codec, as Kafka's LogValidator does.

The records stay as they are: deltas of offsets and timestamps, keys, values and headers. Each codec
writes what Java's clients read. This module is imported only when it is needed, because the import
of the codecs takes a while.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

import cramjam
import zstandard

from gateway.wire.batches import CODEC_MASK, HEADER_BYTES, BatchHeader, Compression, with_records
from gateway.wire.decompress import decompress_steps, decompress_within

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

_BLOCK_BYTES = 32 * 1024
_XERIAL_HEADER = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2  # version, oldest reader
_ZSTD_SOURCE_MAX = 1024 * 1024
"""By default, zstd sizes its tables for at most this many bytes, so that they take a few MB
at any level."""


def at_once_bytes(target: Compression) -> int:
    """Return how many bytes compress in less than a millisecond, measured on text in JSON."""
    codec, level = target
    if codec == GZIP:
        return 16 * 1024 if level <= 6 else 4 * 1024
    if codec == LZ4:
        return 32 * 1024 if level < 3 else 4 * 1024
    if codec == ZSTD and level > 3:
        return 32 * 1024 if level <= 6 else 1024
    return 64 * 1024


def recompressed_now(batch: bytes, header: BatchHeader, target: Compression) -> bytes | None:
    """Return the batch with the codec of `target`, or None if that takes over a millisecond.

    Raises BatchRefused.
    """
    room = at_once_bytes(target)
    codec = header.attributes & CODEC_MASK
    if len(batch) - HEADER_BYTES > room:
        return None
    records: bytes | None = batch[HEADER_BYTES:]
    if codec:
        records = decompress_within(codec, batch[HEADER_BYTES:], room)
        if records is None:
            return None
    return with_records(header, target.codec, compress(target, records))


def records_steps(
    batch: bytes, header: BatchHeader, bytes_max: int
) -> Generator[None, None, bytes]:
    """Return the decompressed records of a batch, in steps. Raises BatchRefused."""
    codec = header.attributes & CODEC_MASK
    if not codec:
        return batch[HEADER_BYTES:]
    return (yield from decompress_steps(codec, batch[HEADER_BYTES:], bytes_max))


def compress(target: Compression, records: bytes, window_bytes: int = _ZSTD_SOURCE_MAX) -> bytes:
    """Compress all records of a batch. Takes long for many bytes; a thread may call it.

    zstd finds repetitions within `window_bytes`, a power of 2, and takes more memory for more.
    """
    codec, level = target
    if codec == GZIP:
        deflater = zlib.compressobj(level, wbits=31)
        return deflater.compress(records) + deflater.flush()
    if codec == SNAPPY:
        return _snappy(records)
    if codec == LZ4:
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(records)
        return bytes(frame.finish())
    if codec == ZSTD:
        sized: Any = zstandard.ZstdCompressionParameters
        size = min(len(records), window_bytes)
        wide: dict[str, Any] = {}
        if size > _ZSTD_SOURCE_MAX:
            wide = {"window_log": window_bytes.bit_length() - 1, "enable_ldm": True}
        parameters = sized.from_level(level, source_size=size, write_content_size=False, **wide)
        return zstandard.ZstdCompressor(compression_params=parameters).compress(records)
    assert not codec
    return records


def _snappy(records: bytes) -> bytes:
    """Compress blocks of 32 KiB in the framing of Java's SnappyOutputStream."""
    found = [_XERIAL_HEADER]
    for at in range(0, len(records), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(records[at : at + _BLOCK_BYTES]))
        found += [len(block).to_bytes(4, "big"), block]
    return b"".join(found)
