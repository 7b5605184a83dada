"""Kafka record batches as Arrow columns, many batches at a time and no Python object per record.

A batch with more records or bytes than are decoded at once is decoded in pieces, so that what it
takes does not depend on how small its records are: see `WORKING_BYTES`.

Where each record begins is found by walking lengths: all batches in step where there are many of
them, by runs of records of one size where they are few and large. All fields are then decoded by
numpy for all records at once, and keys and values are gathered by Arrow: what lies between them
counts as further elements of one binary array, of which every other one is taken.

Pure. Source: Kafka, DefaultRecordBatch and DefaultRecord; columns as of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
"""Of one batch. Kafka has no such bound; one is needed where memory is to stay flat."""

RECORDS_AT_ONCE = 128 * 1024
"""Each takes some 150 bytes while it is decoded, however small it is."""

HEADERS_MAX = 128 * 1024
"""Of one record; four times that are decoded at once. Kafka has no such bound either."""

WORKING_BYTES = 160 * 1024 * 1024
"""Decoding a batch takes at most this, and three times what it decompresses to: the batch, a piece
of it and its columns, which are that much where one record is all of it."""

_PIECE_BYTES = 4 * 1024 * 1024
_PADDING = bytes(16)  # what is read behind the last record before its lengths are checked
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


class _Gathered(NamedTuple):
    """Batches whose records are decoded together; bodies are uncompressed."""

    headers: list[BatchHeader]
    bodies: list[Buffer]


class _Records(NamedTuple):
    """Where everything is: one element per record. A length below 0 is a null."""

    data: bytes
    array: Bytes
    ends: Positions
    batch: Positions  # index of the batch that it is in
    timestamp_deltas: Positions
    offset_deltas: Positions
    keys: Positions
    key_lengths: Positions
    values: Positions
    value_lengths: Positions


class Decoder:
    """Of one partition of a topic. What it yields has at most RECORDS_AT_ONCE rows, and about 4 MiB
    of keys, values and headers, more where one record has; each row names its topic besides."""

    def __init__(self, topic: str, partition: int, include_headers: bool = False) -> None:
        self.schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
        self._place = f"{topic}-{partition}"
        self._include_headers = include_headers
        self._topic, self._partition = topic, partition
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())

    def decode(self, stored: Iterable[Buffer], first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records of offsets `first` to `end` - 1 among these batches, in order.

        Control batches hold none. Raises CorruptFormat where a batch is damaged; when that is a
        large one, its first records may have been given before.
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
                del body  # two large ones are never there at once
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
            raise self._corrupt(header, "is no whole record batch")
        if codec:
            from gateway.wire.record_scan import decompress

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
        """Those of the range, in parts where their headers are wanted and are many."""
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
            _timestamps(headers, appended, records),
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

    def _in_pieces(
        self, header: BatchHeader, body: Buffer, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces(header, body):
            yield from self._columns([header], piece, first, end)

    def _pieces(self, header: BatchHeader, body: Buffer) -> Iterator[_Records]:
        """Of one large batch; each has its own copy of its bytes."""
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
        """Raises CorruptFormat: every length is checked before anything is made of it."""
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
            said = f"a record has {counts.max()} headers, more than {HEADERS_MAX} are not decoded"
            raise self._corrupt(first, f"{said}; without includeHeaders it can be read")
        return counts, at

    def _headers(
        self, first: BatchHeader, records: _Records, counts: Positions, at: Positions
    ) -> pa.Array:
        try:
            return headers_column(records.data, records.array, counts, at, records.ends)
        except (ValueError, IndexError) as error:
            raise self._corrupt(first, str(error)) from error

    def _corrupt(self, header: BatchHeader, what: str) -> CorruptFormat:
        return CorruptFormat(f"{self._place}: the batch at offset {header.base_offset}: {what}")

    def _grow_constants(self, count: int) -> None:
        """`_topics` and `_partitions` have at least so many elements."""
        if count > len(self._partitions):
            self._topics = pa.array(np.full(count, self._topic, object), pa.string())
            self._partitions = pa.array(np.full(count, self._partition, np.int32))


def _cuts(sizes: Positions, most: int) -> Iterator[int]:
    """Indexes behind the parts of these sizes that have `most` together, or are one alone."""
    sums = np.cumsum(sizes)
    at, before = 0, 0
    while at < len(sums):
        at = max(at + 1, int(np.searchsorted(sums, before + most, side="right")))
        before = int(sums[at - 1])
        yield at


def _fields(
    data: bytes, array: Bytes, starts: Positions, ends: Positions, counts: list[int]
) -> _Records:
    timestamp_deltas, at = varints(array, starts + 1)  # behind the attributes
    offset_deltas, at = varints(array, at)
    key_lengths, keys = varints(array, at)
    value_lengths, values = varints(array, keys + np.maximum(key_lengths, 0))
    room = ends - 1 - values  # no sum of what a record claims: it may wrap
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


def _timestamps(headers: list[BatchHeader], appended: NDArray[Any], records: _Records) -> pa.Array:
    greatest = np.array([h.max_timestamp for h in headers], np.int64)
    created = np.array([h.base_timestamp for h in headers], np.int64)[records.batch]
    created += records.timestamp_deltas
    if appended.any():
        created = np.where(appended[records.batch], greatest[records.batch], created)
    return pa.array(created * _US_PER_MS).cast(_TIMESTAMP)
