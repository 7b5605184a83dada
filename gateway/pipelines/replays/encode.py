"""Arrow rows as Kafka record batches, with unchanged keys, values, headers and timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatchBuilder,
    _DefaultRecordBatchBuilderPy,  # pyright: ignore[reportPrivateUsage]
)

if TYPE_CHECKING:
    import pyarrow

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class HeaderKey(bytes):
    """The key of a header that is not UTF-8. aiokafka's slower builder takes it for a text."""

    def encode(self, _: str) -> bytes:
        """Return the bytes themselves, where a text would be encoded."""
        return bytes(self)


Headers = list[tuple[str | HeaderKey, bytes | None]]
_NO_HEADERS: Headers = []
_NO_TIME_MS = -1


class RecordRows(NamedTuple):
    """Consecutive records of one partition as Python lists.

    `first` is the first record's number.
    """

    first: int
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None

    @property
    def end(self) -> int:
        return self.first + len(self.timestamps_ms)


def record_rows(batch: pyarrow.RecordBatch, first: int) -> RecordRows:
    """Convert a batch with the columns `timestamp`, `key`, `value` and `headers`."""
    import pyarrow

    microseconds = batch.column("timestamp").cast(pyarrow.int64()).to_pylist()
    return RecordRows(
        first,
        [each // 1000 for each in microseconds],
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        _headers(batch.column("headers")),
    )


def _headers(column: Any) -> list[Headers] | None:
    """Convert the headers. Returns None if no record has headers, which is the usual case."""
    import pyarrow

    if not len(column.flatten()):
        return None
    binary = pyarrow.binary()
    rows = column.cast(pyarrow.list_(pyarrow.struct([("key", binary), ("value", binary)])))
    return [
        _NO_HEADERS if each is None else [(_header_key(one["key"]), one["value"]) for one in each]
        for each in rows.to_pylist()
    ]


def _header_key(key: bytes) -> str | HeaderKey:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return HeaderKey(key)


def _has_bytes_as_keys(rows: RecordRows) -> bool:
    return any(isinstance(key, HeaderKey) for own in rows.headers or () for key, _ in own)


class Encoder:
    """Encoder of batches.

    A batch has at most `batch_bytes` before compression, or one larger record.
    """

    __slots__ = ("_batch_bytes", "_codec", "_producer_epoch", "_producer_id", "_transactional")

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        codec: int,
        batch_bytes: int,
        *,
        transactional: bool = False,
    ) -> None:
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._transactional = transactional

    def batches(
        self, rows: RecordRows, start: int, sequence_max: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield batches from record `start` on, each with the number after its last record."""
        at = start - rows.first
        assert at >= 0
        kind: Any = DefaultRecordBatchBuilder
        if _has_bytes_as_keys(rows):
            kind = _DefaultRecordBatchBuilderPy
        while at < len(rows.timestamps_ms):
            first = rows.first + at
            builder = kind(
                2,
                self._codec,
                int(self._transactional),
                self._producer_id,
                self._producer_epoch,
                first & sequence_max,
                self._batch_bytes,
            )
            at = _fill(builder, rows, at)
            yield rows.first + at, bytes(builder.build())


def _fill(builder: Any, rows: RecordRows, at: int) -> int:
    """Append records to the builder. Returns the index of the first record that did not fit."""
    append = builder.append
    timestamps, keys, values, headers = rows.timestamps_ms, rows.keys, rows.values, rows.headers
    end = len(timestamps)
    if timestamps[at] == _NO_TIME_MS:
        # The builder treats -1 as unset, and would use the next record's timestamp instead.
        end = next((i for i in range(at, end) if timestamps[i] != _NO_TIME_MS), end)
    for delta, index in enumerate(range(at, end)):
        own = _NO_HEADERS if headers is None else headers[index]
        if append(delta, timestamps[index], keys[index], values[index], own) is None:
            return index
    return end
