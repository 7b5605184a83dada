"""Kafka record batches as Arrow columns, many batches at a time and no Python object per record.

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
from gateway.pipelines.direct.headers import HEADER, headers_column
from gateway.pipelines.direct.pieces import taken
from gateway.pipelines.direct.walk import Bytes, Positions, varints
from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused
from ledger.errors import CorruptFormat
from ledger.ids import Buffer

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""Of one batch. Kafka has no such bound; one is needed where memory is to stay flat."""

_GATHERED_BYTES = 4 * 1024 * 1024
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
    """Of one partition of a topic. What it yields has about 4 MiB, more where one batch has."""

    def __init__(self, topic: str, partition: int, include_headers: bool = False) -> None:
        self.schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
        self._place = f"{topic}-{partition}"
        self._include_headers = include_headers
        self._topic, self._partition = topic, partition
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())

    def decode(self, stored: Iterable[Buffer], first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records of offsets `first` to `end` - 1 among these batches, in order.

        Control batches hold none. Raises CorruptFormat where a batch is damaged.
        """
        gathered = _Gathered([], [])
        size = 0
        for batch in stored:
            header = batches.read_header(batch)
            last = header.base_offset + header.last_offset_delta
            if header.attributes & batches.CONTROL or last < first or header.base_offset >= end:
                continue
            body = self._body(header, batch)
            if gathered.bodies and size + len(body) > _GATHERED_BYTES:
                yield self._columns(gathered, first, end)
                gathered, size = _Gathered([], []), 0
            gathered.headers.append(header)
            gathered.bodies.append(body)
            size += len(body)
        if gathered.bodies:
            yield self._columns(gathered, first, end)

    def _body(self, header: BatchHeader, batch: Buffer) -> Buffer:
        codec = header.attributes & batches.CODEC_MASK
        body = memoryview(batch)[batches.HEADER_BYTES :]
        if header.magic != 2 or header.length + batches.LENGTH_OVERHEAD != len(batch):
            raise self._corrupt(header, "is no whole record batch")
        if codec:
            from gateway.wire.inside import decompress

            try:
                body = decompress(codec, bytes(body), DECOMPRESSED_BYTES_MAX)
            except BatchRefused as error:
                raise self._corrupt(header, str(error)) from error
        if not 0 < header.records * batches.RECORD_BYTES_MIN <= len(body):
            raise self._corrupt(header, f"{header.records} records in {len(body)} bytes")
        return body

    def _columns(self, gathered: _Gathered, first: int, end: int) -> pa.RecordBatch:
        records = self._parse(gathered)
        headers = gathered.headers
        count = len(records.ends)
        base = np.array([h.base_offset for h in headers], np.int64)
        offsets = base[records.batch] + records.offset_deltas
        appended = np.array([bool(h.attributes & batches.LOG_APPEND_TIME) for h in headers])
        self._grow_constants(count)
        columns = [
            taken(records.data, records.keys, records.key_lengths),
            taken(records.data, records.values, records.value_lengths),
            self._topics.slice(0, count),
            self._partitions.slice(0, count),
            pa.array(offsets),
            _timestamps(headers, appended, records),
            pa.array(appended.astype(np.int32)[records.batch]),
        ]
        if self._include_headers:
            columns.append(self._headers(gathered.headers[0], records))
        whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if offsets[0] >= first and offsets[-1] < end:
            return whole
        low, high = np.searchsorted(offsets, (first, end))
        return whole.slice(int(low), int(high - low))

    def _parse(self, gathered: _Gathered) -> _Records:
        """Raises CorruptFormat: every length is checked before anything is made of it."""
        headers, bodies = gathered
        data = b"".join([*bodies, _PADDING])
        array = np.frombuffer(data, np.uint8)
        counts = [header.records for header in headers]
        ends = list(accumulate(map(len, bodies)))
        begins = [0, *ends[:-1]]
        try:
            starts, record_ends = walk.walk(data, array, begins, ends, counts)
            return _fields(data, array, starts, record_ends, counts)
        except (ValueError, IndexError) as error:
            raise self._corrupt(headers[0], str(error)) from error

    def _headers(self, first: BatchHeader, records: _Records) -> pa.Array:
        behind = records.values + np.maximum(records.value_lengths, 0)
        try:
            return headers_column(records.data, records.array, behind, records.ends)
        except (ValueError, IndexError) as error:
            raise self._corrupt(first, str(error)) from error

    def _corrupt(self, header: BatchHeader, what: str) -> CorruptFormat:
        return CorruptFormat(f"{self._place}: the batch at offset {header.base_offset}: {what}")

    def _grow_constants(self, count: int) -> None:
        """`_topics` and `_partitions` have at least so many elements."""
        if count > len(self._partitions):
            self._topics = pa.array(np.full(count, self._topic, object), pa.string())
            self._partitions = pa.array(np.full(count, self._partition, np.int32))


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
