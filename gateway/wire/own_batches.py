"""Batches of keyed records that the gateway itself writes and reads: the log of transactions.

They have no compression, no headers and no producer, and one time for all records. Kafka's tools
read them as any other batch. Source: Kafka, DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from gateway.wire import batches
from gateway.wire.batches import HEADER, HEADER_BYTES, LENGTH_OVERHEAD
from gateway.wire.encode import put_varint
from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat
from ledger.ids import Buffer

KeyedRecord = tuple[bytes, bytes | None]
"""Key and value of a record. A record without a value deletes its key."""

RECORD_OVERHEAD = 24
"""The most bytes that a record takes beside its key and value."""

_MAGIC = 2
_FROM_ATTRIBUTES = Struct(">hiqqqhii")
_NO_PRODUCER = (-1, -1, -1)  # id, epoch, sequence
_NULL = 1  # the length -1 as a varint
_VARINT_BYTES_MAX = 5


def encode_batch(records: Sequence[KeyedRecord], timestamp: int) -> bytes:
    """Return one batch with these records, at base offset 0 and without a leader epoch."""
    out = bytearray()
    for delta, (key, value) in enumerate(records):
        record = bytearray(2)  # attributes and timestamp delta are 0
        put_varint(record, delta << 1)
        put_varint(record, len(key) << 1)
        record += key
        if value is None:
            record.append(_NULL)
        else:
            put_varint(record, len(value) << 1)
            record += value
        record.append(0)  # no headers
        put_varint(out, len(record) << 1)
        out += record
    count = len(records)
    fields = (0, count - 1, timestamp, timestamp, *_NO_PRODUCER, count)
    crc = crc32c(out, crc32c(_FROM_ATTRIBUTES.pack(*fields)))
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(out)
    return HEADER.pack(0, length, -1, _MAGIC, crc, *fields) + out


def decode_batch(batch: Buffer, name: str) -> Iterator[KeyedRecord]:
    """Yield the records of a batch that `encode_batch` made. Raises CorruptFormat with `name`."""
    header = batches.read_header(batch)
    if header.magic != _MAGIC or header.attributes & batches.CODEC_MASK:
        raise CorruptFormat(f"{name}: the batch at offset {header.base_offset} is compressed")
    reader = _Reader(bytes(batch), f"{name}: the batch at offset {header.base_offset}")
    for _ in range(header.records):
        yield reader.record()
    reader.end()


class _Reader:
    __slots__ = ("_at", "_data", "_name")

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self._at = HEADER_BYTES

    def record(self) -> KeyedRecord:
        size = self._number()
        end = self._at + size
        self._take(1)  # attributes
        self._number()  # timestamp delta
        self._number()  # offset delta
        key = self._take(self._number())
        length = self._number()
        value = None if length < 0 else self._take(length)
        if self._number() != 0 or self._at != end:
            raise self._error()
        return key, value

    def end(self) -> None:
        if self._at != len(self._data):
            raise self._error()

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise self._error()
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            if self._at >= len(self._data):
                raise self._error()
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value >> 1 ^ -(value & 1)
        raise self._error()

    def _error(self) -> CorruptFormat:
        return CorruptFormat(f"{self._name} has a damaged record near byte {self._at}")
