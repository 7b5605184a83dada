"""The records of a response to Fetch, batch by batch: checked, decompressed, without aborted ones.

Pure. aiokafka's reader decodes records, a thousand at a time, so a batch of a million small records
never exists as a million objects. A batch that decompresses to more than a few MiB is decompressed
in pieces. Source: Kafka, DefaultRecordBatch, and CompletedFetch for aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple, Protocol

from gateway.wire.batches import (
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    BatchRefused,
    read_header,
)
from ledger.crc32c import crc32c

_CRC_FROM: Final = 21
_AT_ONCE: Final = 1000  # records that are decoded together
_MAGIC: Final = 2
_MAGIC_AT: Final = 16
_PIECE_MIN: Final = 64 * 1024
_WHOLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A batch that decompresses to more is decompressed in pieces."""
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
"""A batch that decompresses to more is refused."""
HEADERS_MAX: Final = 100_000
"""A record with more headers is refused. As objects they need much more memory than as bytes."""
_HEADER_BYTES_MIN: Final = 2
_ABORT: Final = b"\0\0\0\0"  # the key of an abort marker: version, type
_LZ4: Final = 3
_CODEC_MAX: Final = 4
_LONG_BITS: Final = 70
_LONG_BYTES: Final = 10
_READ_AT_ONCE: Final = 512 * 1024  # bytes of a piece that are decoded together


class Record(Protocol):
    """A record as aiokafka's reader and its consumer return it."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def timestamp_type(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class PlainRecord(NamedTuple):
    """A record that aiokafka's reader cannot decode: the name of a header is not UTF-8."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class BadName(str):
    """The name of a header that is not UTF-8, with escapes for the bytes that are none."""

    __slots__ = ()


class DamagedBatch(Exception):
    """A batch that cannot be read. `offset` is its first."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


class Batch(NamedTuple):
    """One batch: its header, and all its bytes."""

    header: BatchHeader
    data: memoryview

    @property
    def last_offset(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta


def split(data: bytes, offset: int) -> Iterator[Batch]:
    """Yield the batches that `data` holds. A part of one at the end is left out.

    `offset` is the one that was requested. Raises DamagedBatch, also if there is no whole batch.
    """
    view = memoryview(data)
    at = 0
    while len(data) - at >= HEADER_BYTES:
        if data[at + _MAGIC_AT] != _MAGIC:
            raise DamagedBatch(offset, f"message format {data[at + _MAGIC_AT]} is not supported")
        header = read_header(view[at:])
        size = header.length + LENGTH_OVERHEAD
        if size < HEADER_BYTES or header.last_offset_delta < 0 or header.records < 0:
            raise DamagedBatch(offset, "the lengths in its header are impossible")
        if size > len(data) - at:
            break
        yield Batch(header, view[at : at + size])
        offset = header.base_offset + header.last_offset_delta + 1
        at += size
    if data and not at:
        raise DamagedBatch(offset, f"{len(data)} bytes hold no whole batch")


class AbortedTransactions:
    """The aborted transactions of one response, which lists producer ids and first offsets."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        # Sorted by offset, the last one first. One leaves when a batch reaches its first offset.
        self._later = sorted(aborted, key=lambda each: each[1], reverse=True)
        # Producers whose transaction was aborted, until the marker of the abort.
        self._producers: set[int] = set()

    def hides(self, batch: Batch) -> bool:
        """Return True if a consumer does not see the batch. Call it for each batch in order."""
        header = batch.header
        while self._later and self._later[-1][1] <= batch.last_offset:
            self._producers.add(self._later.pop()[0])
        if header.attributes & CONTROL:
            if header.producer_id in self._producers and _is_abort(batch):
                self._producers.discard(header.producer_id)
            return True
        return bool(header.attributes & TRANSACTIONAL) and header.producer_id in self._producers


def _is_abort(batch: Batch) -> bool:
    records = list(chain.from_iterable(read_records(batch)))
    return bool(records) and records[0].key == _ABORT


def check(batch: Batch) -> None:
    """Raise DamagedBatch if the checksum of the batch does not match."""
    if crc32c(batch.data[_CRC_FROM:]) != batch.header.crc:
        raise DamagedBatch(batch.header.base_offset, "its CRC-32C does not match")


def read_records(
    batch: Batch, first: int = 0, end: int | None = None
) -> Iterator[Sequence[Record]]:
    """Yield the records from offset `first` up to, not including, `end`; some at a time.

    Raises DamagedBatch.
    """
    base = batch.header.base_offset
    whole = base >= first and (end is None or batch.last_offset < end)
    try:
        for records in _decoded(batch):
            if whole:
                yield records
                continue
            if end is not None and records[0].offset >= end:
                return
            last = batch.last_offset + 1 if end is None else end
            yield [each for each in records if first <= each.offset < last]
    except BatchRefused as refused:
        raise DamagedBatch(base, str(refused)) from None


def _decoded(batch: Batch) -> Iterator[Sequence[Record]]:
    """Decode all records. Raises BatchRefused and DamagedBatch."""
    header = batch.header
    codec = header.attributes & CODEC_MASK
    body = batch.data[HEADER_BYTES:]
    if not header.records:
        return
    if not codec:
        yield from _in_chunks(header, bytes(body), header.records)
        return
    if codec > _CODEC_MAX:
        raise DamagedBatch(header.base_offset, f"codec {codec} is unknown")
    compressed = bytes(body)
    whole = _small(codec, compressed)
    if whole is not None:
        yield from _in_chunks(header, whole, header.records)
    else:
        yield from _in_pieces(header, codec, compressed)


def _small(codec: int, data: bytes) -> bytes | None:
    """Decompress a batch that is small enough to be held as a whole; None if it is not."""
    from gateway.wire.decompress import decompress_within

    likely = min(8 * len(data) + _PIECE_MIN, _WHOLE_BYTES_MAX)  # lz4 makes room for the bound
    found = decompress_within(codec, data, likely)
    if found is not None or likely == _WHOLE_BYTES_MAX:
        return found
    return decompress_within(codec, data, _WHOLE_BYTES_MAX)


def _in_pieces(header: BatchHeader, codec: int, data: bytes) -> Iterator[Sequence[Record]]:
    held: bytes | bytearray = b""
    left = header.records
    for piece in _pieces(codec, data):
        if held:
            held += piece
        else:
            held = piece
        del piece
        at = 0
        while left:
            count, end = _whole_records(header, held, at, left)
            if not count:
                break
            yield from _in_chunks(header, _part(held, at, end), count)
            left -= count
            at = end
        if at == len(held):
            held = b""
        elif at or isinstance(held, bytes):
            held = bytearray(memoryview(held)[at:])
    if left or held:
        raise DamagedBatch(header.base_offset, "the batch ends inside a record")


def _pieces(codec: int, data: bytes) -> Iterator[bytes]:
    """Decompress a large batch. Raises BatchRefused."""
    from gateway.wire.decompress import decompress_pieces, decompress_within

    if codec != _LZ4:
        yield from decompress_pieces(codec, data, DECOMPRESSED_BYTES_MAX)
        return
    bound = 4 * _WHOLE_BYTES_MAX  # a frame of lz4 is one piece, and gets all of its bound
    while bound < DECOMPRESSED_BYTES_MAX:
        found = decompress_within(codec, data, bound)
        if found is not None:
            yield found
            return
        bound *= 4
    yield from decompress_pieces(codec, data, DECOMPRESSED_BYTES_MAX)


def _part(data: bytes | bytearray, at: int, end: int) -> bytes:
    """Return a part of the data, without a copy if it is all of them and they are bytes."""
    return data[at:end] if isinstance(data, bytes) else bytes(memoryview(data)[at:end])


def _whole_records(
    header: BatchHeader, data: bytes | bytearray, at: int, most: int
) -> tuple[int, int]:
    """Return how many whole records, up to `most`, begin at `at`, and where they end.

    Raises DamagedBatch if a record has a size that no record has.
    """
    count, start = 0, at
    while count < most and at - start < _READ_AT_ONCE:
        size, body = _varint(data, at)
        if size < 0 or size > DECOMPRESSED_BYTES_MAX or (not body and len(data) - at > _LONG_BYTES):
            raise DamagedBatch(header.base_offset, "the size of a record is impossible")
        if body == 0 or body + size > len(data):
            break
        at = body + size
        count += 1
    return count, at


def _refuse_many_headers(header: BatchHeader, data: bytes, count: int) -> None:
    """Raise DamagedBatch if a record has more than HEADERS_MAX headers.

    Only a large record can have them, so of the others just the sizes are read.
    """
    large = _HEADER_BYTES_MIN * HEADERS_MAX
    if len(data) - RECORD_BYTES_MIN * (count - 1) <= large:
        return
    at, last = 0, len(data) - large
    while at < last:
        byte, more = data[at], data[at + 1]
        if byte < 128:
            at += 1 + (byte >> 1)
        elif more < 128:
            at += 2 + ((byte & 127 | more << 7) >> 1)
        else:
            size, body = _varint(data, at)
            if body == 0 or size < 0:
                return  # the decoder refuses it
            if size > large:
                _Fields(header, data, body).refuse_many_headers()
            at = body + size


def _in_chunks(header: BatchHeader, records: bytes, count: int) -> Iterator[Sequence[Record]]:
    """Decode `count` records that fill `records`. Raises DamagedBatch."""
    _refuse_many_headers(header, records, count)
    reader = chain(_reader(header, records, count))
    seen = 0
    while seen < count:
        try:
            some = list(islice(reader, _AT_ONCE))
        except UnicodeDecodeError:
            rest = islice(_plainly(header, records, count), seen, None)
            while some := list(islice(rest, _AT_ONCE)):
                yield some
            return
        except _unreadable() as error:
            raise DamagedBatch(header.base_offset, f"its records cannot be decoded: {error}") from (
                None
            )
        if not some:
            break
        seen += len(some)
        yield some
    if seen != count or next(reader, None) is not None:
        raise DamagedBatch(header.base_offset, f"it has {seen} records in place of {count}")


def _reader(header: BatchHeader, records: bytes, count: int) -> Any:
    from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
        DefaultRecordBatch,
    )

    length = HEADER_BYTES + len(records) - LENGTH_OVERHEAD
    attributes = header.attributes & ~CODEC_MASK
    plain = header._replace(length=length, attributes=attributes, records=count)
    return DefaultRecordBatch(HEADER.pack(*plain) + records)


def _unreadable() -> tuple[type[Exception], ...]:
    from aiokafka.errors import CorruptRecordException

    return (CorruptRecordException, ValueError, IndexError, OverflowError, TypeError, MemoryError)


# without aiokafka


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number at `at` and where it ends; 0 as the end if `data` ends inside it."""
    value = shift = 0
    while at < len(data) and shift < _LONG_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value >> 1 ^ -(value & 1), at
    return 0, 0


def _plainly(header: BatchHeader, data: bytes, count: int) -> Iterator[PlainRecord]:
    """Decode records whose headers have names that are not UTF-8. Raises DamagedBatch."""
    at = 0
    for _ in range(count):
        record, at = _plain_record(header, data, at)
        yield record


def _plain_record(header: BatchHeader, data: bytes, at: int) -> tuple[PlainRecord, int]:
    fields = _Fields(header, data, at)
    end = fields.number() + fields.at
    fields.at += 1  # attributes, which are unused
    timestamp, delta = fields.number(), fields.number()
    key, value = fields.data(), fields.data()
    headers = [(_name(fields.data() or b""), fields.data()) for _ in range(fields.number())]
    if fields.at != end:
        fields.refuse()
    appended = header.attributes & LOG_APPEND_TIME
    time = header.max_timestamp if appended else header.base_timestamp + timestamp
    offset = header.base_offset + delta
    return PlainRecord(offset, time, int(bool(appended)), key, value, headers), end


def _name(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return BadName(data.decode(errors="backslashreplace"))


class _Fields:
    """Reads the fields of one record. Raises DamagedBatch."""

    def __init__(self, header: BatchHeader, data: bytes, at: int) -> None:
        self._header, self._data, self.at = header, data, at

    def number(self) -> int:
        value, self.at = _varint(self._data, self.at)
        if not self.at:
            self.refuse()
        return value

    def data(self) -> bytes | None:
        size = self.number()
        if size < 0:
            return None
        self.at += size
        if self.at > len(self._data):
            self.refuse()
        return self._data[self.at - size : self.at]

    def refuse_many_headers(self) -> None:
        """Raise DamagedBatch if the record whose fields begin here has too many headers."""
        self.at += 1  # attributes
        self.number()
        offset = self._header.base_offset + self.number()
        for _ in ("key", "value"):
            size = self.number()  # which moves `at`
            self.at += max(size, 0)
        count = self.number()
        if count > HEADERS_MAX:
            raise DamagedBatch(offset, f"a record has {count} headers, more than {HEADERS_MAX}")

    def refuse(self) -> None:
        raise DamagedBatch(self._header.base_offset, "the sizes of a record do not fit")
