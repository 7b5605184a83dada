r"""Avro object container files, which begin with `Obj\x01`, cut into datums as bytes arrive. Pure.

A block has a number of datums, the number of its bytes, these bytes, compressed as the header
names, and a marker. A block is kept whole, so its size is bounded, also decompressed.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

import cramjam
import zstandard

from gateway.admin.avro_schema import InvalidDatum, Schema

MAGIC: Final = b"Obj\x01"
BLOCK_BYTES_MAX: Final = 16 * 2**20
_HEADER_BYTES_MAX: Final = 2 * 2**20
_MARKER_BYTES: Final = 16
_LONG_BYTES_MAX: Final = 10
_ENTRIES_MAX: Final = 1000
_CRC_BYTES: Final = 4


class BrokenContainer(ValueError):
    """A file that cannot be read any further."""


class _Short(Exception):
    """More bytes are needed."""


class Header(NamedTuple):
    """The header of a file: the text of its schema, the codec, the marker, and its size."""

    schema: str
    codec: str
    marker: bytes
    size: int


def read_header(data: bytes) -> Header | None:
    """Return the header, or None if it is not there as a whole. Raises BrokenContainer."""
    try:
        entries, at = _read_entries(data, len(MAGIC))
        marker, at = _take(data, at, _MARKER_BYTES)
    except _Short:
        if len(data) > _HEADER_BYTES_MAX:
            raise BrokenContainer(f"a header of more than {_HEADER_BYTES_MAX} bytes") from None
        return None
    if "avro.schema" not in entries:
        raise BrokenContainer("a header without a schema")
    codec = entries.get("avro.codec", b"null").decode(errors="replace")
    if codec not in _CODECS:
        raise BrokenContainer(f"the codec {codec!r:.40}; known are {', '.join(_CODECS)}")
    return Header(entries["avro.schema"].decode(errors="replace"), codec, marker, at)


class Blocks:
    """Cuts the bytes behind a header into datums."""

    def __init__(self, header: Header, schema: Schema) -> None:
        self._marker = header.marker
        self._decompress = _CODECS[header.codec]
        self._schema = schema
        self._held = bytearray()  # the begin of the next block

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the datums of the blocks that end within these bytes. Raises BrokenContainer."""
        self._held += data
        while (block := self._next()) is not None:
            count, body = block
            try:
                yield from self._schema.split(body, count)
            except InvalidDatum as error:
                raise BrokenContainer(f"a datum {error}") from None

    def end(self) -> None:
        """Raise BrokenContainer if a block has not ended."""
        if self._held:
            raise BrokenContainer("the file ends within a block")

    def _next(self) -> tuple[int, bytes] | None:
        """Return the number of datums of the next block and its bytes; None if it is not there."""
        try:
            count, at = _long(self._held, 0)
            size, at = _long(self._held, at)
            if count < 0 or not 0 <= size <= BLOCK_BYTES_MAX:
                limit = f"at most {BLOCK_BYTES_MAX} bytes"
                raise BrokenContainer(
                    f"a block of {count} datums in {size} bytes; {limit} are read"
                )
            body, at = _take(self._held, at, size)
            marker, at = _take(self._held, at, _MARKER_BYTES)
        except _Short:
            return None
        if marker != self._marker:
            raise BrokenContainer("a block does not end with the marker of the file")
        del self._held[:at]
        try:
            plain = self._decompress(body)
        except BrokenContainer:
            raise
        except Exception as error:  # noqa: BLE001 - each codec has errors of its own
            raise BrokenContainer(f"a block cannot be decompressed: {error!s:.100}") from None
        if len(plain) > BLOCK_BYTES_MAX:
            raise BrokenContainer(f"a block decompresses to more than {BLOCK_BYTES_MAX} bytes")
        return count, plain


def _take(data: bytes | bytearray, at: int, size: int) -> tuple[bytes, int]:
    if len(data) - at < size:
        raise _Short
    return bytes(data[at : at + size]), at + size


def _long(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return a number of Avro, and the place behind it."""
    value = 0
    for place in range(_LONG_BYTES_MAX):
        if at + place >= len(data):
            raise _Short
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise BrokenContainer("a number of more than 64 bits")


def _read_entries(data: bytes, at: int) -> tuple[Mapping[str, bytes], int]:
    found: dict[str, bytes] = {}
    count, at = _long(data, at)
    while count:
        if count < 0:
            _, at = _long(data, at)
        if abs(count) > _ENTRIES_MAX:
            raise BrokenContainer(f"a header with {abs(count)} entries")
        for _ in range(abs(count)):
            name, at = _sized(data, at)
            value, at = _sized(data, at)
            found[name.decode(errors="replace")] = value
        count, at = _long(data, at)
    return found, at


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if not 0 <= size <= _HEADER_BYTES_MAX:
        raise BrokenContainer(f"an entry of {size} bytes in the header")
    return _take(data, at, size)


# codecs; each returns at most one byte more than the limit


def _null(data: bytes) -> bytes:
    return data


def _deflate(data: bytes) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, BLOCK_BYTES_MAX + 1)


def _bzip2(data: bytes) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, BLOCK_BYTES_MAX + 1)


def _xz(data: bytes) -> bytes:
    reader = lzma.LZMADecompressor(memlimit=4 * BLOCK_BYTES_MAX)
    return reader.decompress(data, BLOCK_BYTES_MAX + 1)


def _zstandard(data: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES_MAX)
    return reader.stream_reader(BytesIO(data)).read(BLOCK_BYTES_MAX + 1)


def _snappy(data: bytes) -> bytes:
    body, check = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    size, shift = 0, 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > BLOCK_BYTES_MAX:
        raise BrokenContainer(f"a block decompresses to {size} bytes")
    raw: Any = cramjam.snappy
    plain = bytes(raw.decompress_raw(body))
    if zlib.crc32(plain).to_bytes(_CRC_BYTES, "big") != check:
        raise BrokenContainer("a block has a wrong checksum")
    return plain


_CODECS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": _null,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": _bzip2,
    "xz": _xz,
}
