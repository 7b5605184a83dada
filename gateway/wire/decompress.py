"""Decompresses the records of a batch with Kafka's four codecs, never more than a limit.

This module is imported only when it is needed, because the import of the codecs takes a while.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

import cramjam
import zstandard
from kio.schema.errors import ErrorCode

from gateway.wire.batches import BatchRefused

PIECE_BYTES = 256 * 1024
"""A step of gzip and zstd makes at most this many bytes. Snappy and lz4 are faster."""

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


def decompress(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Decompress `data`. Raises BatchRefused if it is damaged or exceeds `bytes_max`."""
    found = decompress_within(codec, data, bytes_max)
    if found is None:
        raise _too_large(bytes_max)
    return found


def decompress_within(codec: int, data: bytes, bytes_max: int) -> bytes | None:
    """Decompress `data`, or return None if it exceeds `bytes_max`. Raises BatchRefused."""
    try:
        return _joined(_pieces(codec, data, bytes_max, bytes_max + 1), bytes_max)
    except OverflowError:
        return None
    except _DAMAGED as e:
        raise _damaged(e) from e


def decompress_steps(codec: int, data: bytes, bytes_max: int) -> Generator[None, None, bytes]:
    """Decompress `data` in steps of about a millisecond. Raises BatchRefused, as early as it can.

    A snappy block or an lz4 frame is one step.
    """
    found: list[bytes] = []
    room = bytes_max
    try:
        for piece in _pieces(codec, data, bytes_max, PIECE_BYTES):
            found.append(piece)
            room -= len(piece)
            if room < 0:
                raise OverflowError
            yield
    except OverflowError:
        raise _too_large(bytes_max) from None
    except _DAMAGED as e:
        raise _damaged(e) from e
    return b"".join(found)


def decompress_pieces(codec: int, data: bytes, bytes_max: int) -> Iterator[bytes]:
    """Yield the decompressed bytes in pieces. Raises BatchRefused, as early as it can.

    Snappy without blocks and an lz4 frame are one piece.
    """
    room = bytes_max
    try:
        for piece in _pieces(codec, data, bytes_max, PIECE_BYTES):
            room -= len(piece)
            if room < 0:
                raise OverflowError
            yield piece
    except OverflowError:
        raise _too_large(bytes_max) from None
    except _DAMAGED as e:
        raise _damaged(e) from e


def _joined(pieces: Iterator[bytes], bytes_max: int) -> bytes:
    first = next(pieces, b"")
    more: list[bytes] = []
    size = len(first)
    for piece in pieces:
        more.append(piece)
        size += len(piece)
        if size > bytes_max:
            break
    if size > bytes_max:
        raise OverflowError
    return b"".join((first, *more)) if more else first


def _pieces(codec: int, data: bytes, bytes_max: int, piece_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed pieces. Raises OverflowError if a piece exceeds `bytes_max`."""
    if codec == 1:
        return _gzip(data, piece_bytes)
    if codec == 2:
        return _snappy(data, bytes_max)
    if codec == 3:
        return _lz4(data, bytes_max)
    return _zstd(data, piece_bytes)


def _gzip(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Decompress all members, as Java's GZIPInputStream does. Each copies the remaining bytes."""
    for _ in range(_GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = member.decompress(data, piece_bytes)
            yield piece
            data = member.unconsumed_tail
            if not piece and not data and not member.eof:
                raise ValueError("gzip stream is truncated")
        data = member.unused_data
        if not data:
            return
    raise ValueError(f"gzip stream has more than {_GZIP_MEMBERS_MAX} members")


def _snappy(data: bytes, bytes_max: int) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield _snappy_block(data, bytes_max)
        return
    at = 16
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise ValueError("snappy block is truncated")
        yield _snappy_block(data[at : at + size], bytes_max)
        at += size


def _snappy_block(data: bytes, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > bytes_max:
        raise OverflowError
    return bytes(cramjam.snappy.decompress_raw(data))


def _lz4(data: bytes, bytes_max: int) -> Iterator[bytes]:
    room = bytearray(min(bytes_max, max(len(data) * 255, 1024)))
    try:
        size = cramjam.lz4.decompress_into(data, room)
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise OverflowError from error
        raise
    found = bytes(memoryview(room)[:size])
    del room  # a generator would keep it until its next step
    yield found


def _zstd(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Decompress all frames, as Java's ZstdInputStream does."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    reader = decompressor.stream_reader(data, read_across_frames=True)
    while piece := reader.read(piece_bytes):
        yield piece


def _too_large(bytes_max: int) -> BatchRefused:
    return BatchRefused(
        ErrorCode.invalid_record, f"The batch decompresses to more than {bytes_max} bytes."
    )


def _damaged(error: Exception) -> BatchRefused:
    return BatchRefused(ErrorCode.corrupt_message, f"The batch cannot be decompressed: {error}")
