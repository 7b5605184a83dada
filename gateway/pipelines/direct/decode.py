"""Kafka record batches as Arrow columns: many batches at a time, no Python object per record.

A batch with too many records or bytes is decoded in pieces, so memory does not depend on the size
of its records: see `WORKING_BYTES`.

`walk` finds the starts of all records. Then numpy decodes each field for all records at once, and
Arrow gathers keys and values. For Arrow, the values and the gaps between them are the elements of
one binary array, of which every other element is taken.

Pure. Source: Kafka, DefaultRecordBatch and DefaultRecord; columns as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gateway.pipelines.direct import walk
from gateway.pipelines.direct.gather import gather_bytes
from gateway.pipelines.direct.headers import HEADER, header_counts, headers_column
from gateway.pipelines.direct.walk import Bytes, Positions, varints
from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused
from ledger.errors import CorruptFormat
from ledger.ids import Buffer

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""The limit for one batch. Kafka has no such limit, but bounded memory needs one."""

RECORDS_AT_ONCE = 128 * 1024
"""The records that are decoded at once. Each takes about 150 bytes meanwhile, besides its data."""

HEADERS_MAX = 128 * 1024
"""The limit for one record.

Up to four times this number is decoded at once. Kafka has no such limit.
"""

WORKING_BYTES = 160 * 1024 * 1024
"""The memory for decoding a batch, besides three times the decompressed size of the batch.

The three are the batch, a piece of the batch, and the columns of the piece. If the batch has only
one record, the piece is the whole batch.
"""

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN = -TIMESTAMP_MS_MAX
"""The timestamps that Spark can represent: it counts microseconds in 64 bits, Kafka milliseconds.

Spark's Kafka source fails for the same timestamps. Source: Spark, DateTimeUtils.millisToMicros.
"""

OnUnrepresentable = Callable[[int, int], None]
"""A function that takes the offset and the timestamp of a record that Spark cannot represent."""

_PIECE_BYTES = 4 * 1024 * 1024
# Added after the last record, because varints are read before lengths are checked
_PADDING = bytes(16)
_US_PER_MS = 1000

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIMESTAMP),
    ("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, ("headers", pa.list_(HEADER))])


class TimestampOutOfRange(CorruptFormat):
    """A record has a timestamp that Spark cannot represent."""


class _Gathered(NamedTuple):
    """Batches whose records are decoded together. The bodies are uncompressed."""

    headers: list[BatchHeader]
    bodies: list[Buffer]


class _Records(NamedTuple):
    """The positions of all fields, one element per record. A negative length means null."""

    data: bytes
    array: Bytes
    ends: Positions
    batch: Positions  # index of the record's batch
    timestamp_deltas: Positions
    offset_deltas: Positions
    keys: Positions
    key_lengths: Positions
    values: Positions
    value_lengths: Positions


class Decoder:
    """Decoder for one partition of a topic.

    A result has at most RECORDS_AT_ONCE rows and about 4 MiB of keys, values and headers. A single
    larger record makes a larger result. The column of topic names is not included.

    The row of a record whose timestamp Spark cannot represent has no timestamp, if
    `on_unrepresentable` takes the record. Without this function, TimestampOutOfRange is raised.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        include_headers: bool = False,
        on_unrepresentable: OnUnrepresentable | None = None,
    ) -> None:
        self.schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
        self._partition_name = f"{topic}-{partition}"
        self._include_headers = include_headers
        self._on_unrepresentable = on_unrepresentable
        self._topic, self._partition = topic, partition
        # Columns of one repeated value. They grow to the size of the largest result; smaller
        # results use slices of them.
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())

    def decode(self, stored: Iterable[Buffer], first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of offsets `first` to `end` - 1 in these batches, in order.

        Control batches have no records. Raises CorruptFormat for a damaged batch. If a large batch
        is damaged, its first records may already have been yielded.
        """
        gathered = _Gathered([], [])
        size = records = 0
        for batch in stored:
            header = batches.read_header(batch)
            last = header.base_offset + header.last_offset_delta
            if header.attributes & batches.CONTROL or last < first or header.base_offset >= end:
                continue
            body = self._body(header, batch)
            if gathered.bodies and (
                size + len(body) > _PIECE_BYTES or records + header.records > RECORDS_AT_ONCE
            ):
                yield from self._columns(gathered.headers, self._parse(gathered), first, end)
                gathered, size, records = _Gathered([], []), 0, 0
            if len(body) > _PIECE_BYTES or header.records > RECORDS_AT_ONCE:
                yield from self._in_pieces(header, body, first, end)
                del body  # free this body before the next large one is decompressed
                continue
            gathered.headers.append(header)
            gathered.bodies.append(body)
            size += len(body)
            records += header.records
        if gathered.bodies:
            yield from self._columns(gathered.headers, self._parse(gathered), first, end)

    def _body(self, header: BatchHeader, batch: Buffer) -> Buffer:
        codec = header.attributes & batches.CODEC_MASK
        body = memoryview(batch)[batches.HEADER_BYTES :]
        if header.magic != 2 or header.length + batches.LENGTH_OVERHEAD != len(batch):
            raise self._corrupt(header, "is not a complete record batch")
        if codec:
            from gateway.wire.decompress import decompress

            try:
                body = decompress(codec, bytes(body), DECOMPRESSED_BYTES_MAX)
            except BatchRefused as error:
                raise self._corrupt(header, str(error)) from error
        if not 0 < header.records * batches.RECORD_BYTES_MIN <= len(body):
            raise self._corrupt(header, f"{header.records} records in {len(body)} bytes")
        return body

    def _columns(
        self, headers: list[BatchHeader], records: _Records, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows within the range, in parts if headers are included and numerous."""
        if not self._include_headers:
            yield from self._part(headers, records, None, first, end)
            return
        counts, at = self._header_counts(headers[0], records)
        low = 0
        for high in _cuts(counts, 4 * HEADERS_MAX):
            part = _Records(*records[:2], *(each[low:high] for each in records[2:]))
            column = self._headers(headers[0], part, counts[low:high], at[low:high])
            yield from self._part(headers, part, column, first, end)
            low = high

    def _part(
        self,
        headers: list[BatchHeader],
        records: _Records,
        headers_of_records: pa.Array | None,
        first: int,
        end: int,
    ) -> Iterator[pa.RecordBatch]:
        count = len(records.ends)
        base = np.array([h.base_offset for h in headers], np.int64)
        offsets = base[records.batch] + records.offset_deltas
        appended = np.array([bool(h.attributes & batches.LOG_APPEND_TIME) for h in headers])
        self._grow_constants(count)
        columns = [
            gather_bytes(records.data, records.keys, records.key_lengths),
            gather_bytes(records.data, records.values, records.value_lengths),
            self._topics.slice(0, count),
            self._partitions.slice(0, count),
            pa.array(offsets),
            self._timestamps(_times_ms(headers, appended, records), offsets, first, end),
            pa.array(appended.astype(np.int32)[records.batch]),
        ]
        if headers_of_records is not None:
            columns.append(headers_of_records)
        whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if offsets[0] >= first and offsets[-1] < end:
            yield whole
            return
        low, high = map(int, np.searchsorted(offsets, (first, end)))
        if low < high:
            yield whole.slice(low, high - low)

    def _timestamps(self, times_ms: Positions, offsets: Positions, first: int, end: int) -> Any:
        """Make the column of timestamps. Raises TimestampOutOfRange for a record of the range."""
        if times_ms.max() <= TIMESTAMP_MS_MAX and times_ms.min() >= TIMESTAMP_MS_MIN:
            return pa.array(times_ms * _US_PER_MS).cast(_TIMESTAMP)
        beyond = (times_ms > TIMESTAMP_MS_MAX) | (times_ms < TIMESTAMP_MS_MIN)
        for at in np.flatnonzero(beyond & (offsets >= first) & (offsets < end)).tolist():
            if self._on_unrepresentable is None:
                raise TimestampOutOfRange(
                    f"{self._partition_name}: the record at offset {offsets[at]} has the timestamp"
                    f" {times_ms[at]} ms, which Spark cannot represent"
                )
            self._on_unrepresentable(int(offsets[at]), int(times_ms[at]))
        times_us = np.where(beyond, 0, times_ms) * _US_PER_MS
        return pa.array(times_us, mask=beyond).cast(_TIMESTAMP)

    def _in_pieces(
        self, header: BatchHeader, body: Buffer, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces(header, body):
            yield from self._columns([header], piece, first, end)

    def _pieces(self, header: BatchHeader, body: Buffer) -> Iterator[_Records]:
        """Split one large batch into pieces, each with its own copy of its bytes."""
        try:
            array = np.frombuffer(body, np.uint8)
            for found in walk.find_records_in_parts(body, array, header.records, RECORDS_AT_ONCE):
                low = 0
                for high in _cuts(np.diff(found.ends, prepend=found.starts[0]), _PIECE_BYTES):
                    begin, end = int(found.starts[low]), int(found.ends[high - 1])
                    data = b"".join((memoryview(body)[begin:end], _PADDING))
                    here = found.starts[low:high] - begin, found.ends[low:high] - begin
                    yield _fields(data, np.frombuffer(data, np.uint8), *here, [high - low])
                    low = high
        except (ValueError, IndexError) as error:
            raise self._corrupt(header, str(error)) from error

    def _parse(self, gathered: _Gathered) -> _Records:
        """Find all fields of the records. Checks every length first, and raises CorruptFormat."""
        headers, bodies = gathered
        data = b"".join([*bodies, _PADDING])
        array = np.frombuffer(data, np.uint8)
        counts = [header.records for header in headers]
        ends = list(accumulate(map(len, bodies)))
        begins = [0, *ends[:-1]]
        try:
            starts, record_ends = walk.find_records(data, array, begins, ends, counts)
            return _fields(data, array, starts, record_ends, counts)
        except (ValueError, IndexError) as error:
            raise self._corrupt(headers[0], str(error)) from error

    def _header_counts(self, first: BatchHeader, records: _Records) -> tuple[Positions, Positions]:
        behind = records.values + np.maximum(records.value_lengths, 0)
        try:
            counts, at = header_counts(records.array, behind, records.ends)
        except (ValueError, IndexError) as error:
            raise self._corrupt(first, str(error)) from error
        if counts.max() > HEADERS_MAX:
            problem = f"a record has {counts.max()} headers, the limit is {HEADERS_MAX}"
            raise self._corrupt(first, f"{problem}; read it without includeHeaders")
        return counts, at

    def _headers(
        self, first: BatchHeader, records: _Records, counts: Positions, at: Positions
    ) -> pa.Array:
        try:
            return headers_column(records.data, records.array, counts, at, records.ends)
        except (ValueError, IndexError) as error:
            raise self._corrupt(first, str(error)) from error

    def _corrupt(self, header: BatchHeader, problem: str) -> CorruptFormat:
        return CorruptFormat(
            f"{self._partition_name}: the batch at offset {header.base_offset}: {problem}"
        )

    def _grow_constants(self, count: int) -> None:
        """Make `_topics` and `_partitions` at least `count` elements long."""
        if count > len(self._partitions):
            self._topics = pa.array(np.full(count, self._topic, object), pa.string())
            self._partitions = pa.array(np.full(count, self._partition, np.int32))


def _cuts(sizes: Positions, most: int) -> Iterator[int]:
    """Yield the end indexes of parts whose sizes add up to at most `most`.

    An element larger than `most` is a part of its own.
    """
    sums = np.cumsum(sizes)
    at, before = 0, 0
    while at < len(sums):
        at = max(at + 1, int(np.searchsorted(sums, before + most, side="right")))
        before = int(sums[at - 1])
        yield at


def _fields(
    data: bytes, array: Bytes, starts: Positions, ends: Positions, counts: list[int]
) -> _Records:
    # Each record starts with a byte of attributes.
    timestamp_deltas, at = varints(array, starts + 1)
    offset_deltas, at = varints(array, at)
    key_lengths, keys = varints(array, at)
    value_lengths, values = varints(array, keys + np.maximum(key_lengths, 0))
    # Subtract instead of adding a claimed length, because the sum may wrap.
    room = ends - 1 - values
    if (keys > values).any() or (np.maximum(value_lengths, 0) > room).any():
        raise ValueError("a key or value is longer than its record")
    return _Records(
        data,
        array,
        ends,
        np.repeat(np.arange(len(counts)), counts),
        timestamp_deltas,
        offset_deltas,
        keys,
        key_lengths,
        values,
        value_lengths,
    )


def _times_ms(headers: list[BatchHeader], appended: NDArray[Any], records: _Records) -> Positions:
    greatest = np.array([h.max_timestamp for h in headers], np.int64)
    created = np.array([h.base_timestamp for h in headers], np.int64)[records.batch]
    created += records.timestamp_deltas
    if appended.any():
        created = np.where(appended[records.batch], greatest[records.batch], created)
    return created
