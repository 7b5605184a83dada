"""Rewrites one stored batch without the records that compaction removes. Pure.

Offsets, timestamps, headers, the codec, and the producer's id, epoch and sequence stay. A batch
whose tombstones, or whose marker, must go later gets a delete horizon: attribute bit 6, and the
time in place of the base timestamp. Source: Kafka, MemoryRecords.filterTo, DefaultRecordBatch;
KIP-534.

A batch of a megabyte can have millions of records. So only few records are held in memory; those
of a larger batch are decoded each time that they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused, Compression, with_records
from gateway.wire.decompress import decompress
from gateway.wire.lost_batches import empty_batches
from gateway.wire.recompress import GZIP, LZ4, ZSTD, compress
from gateway.wire.record_parts import RecordPart, record_parts, with_timestamp_delta, wrapped
from ledger.crc32c import crc32c
from ledger.ids import Buffer

DELETE_HORIZON = 0x40
_CRC_FROM = 21
_PLAIN_BYTES_MAX = 128 * 1024 * 1024
"""The largest batch, decompressed: eight times the largest `max.message.bytes`."""
_BATCH_BYTES_MAX = 16 * 1024 * 1024
"""The largest batch that bookies store: the largest `max.message.bytes`."""
_HELD_MAX = 5_000  # records of a batch that are held in memory, of about 200 bytes each
_LEVELS = {GZIP: -1, LZ4: 1, ZSTD: 3}
_LEVELS_MAX = {GZIP: 9, LZ4: 12, ZSTD: 19}  # only for a batch that is too large otherwise
_WINDOW_BYTES = 8 * 1024 * 1024  # the largest window of zstd that the gateway decompresses
_MARKER_KEY = Struct(">hh")
_ABORT, _COMMIT = 0, 1


class Parts:
    """Records of a batch, which can be read more than once."""

    __slots__ = ("_held", "_source")

    def __init__(self, source: Callable[[], Iterator[RecordPart]], count: int) -> None:
        """`count` is not less than the number of records that `source` yields."""
        self._source = source
        self._held = list(source()) if count <= _HELD_MAX else None

    def __iter__(self) -> Iterator[RecordPart]:
        return self._source() if self._held is None else iter(self._held)


class Decision(NamedTuple):
    """The records of a batch that stay."""

    kept: Parts
    size: int  # how many they are
    tombstones: bool  # True if one of them is a tombstone


def checked_header(batch: memoryview) -> BatchHeader:
    """Return the header of a stored batch whose checksum is right. Raises BatchRefused."""
    header = batches.read_header(batch)
    if header.magic != 2 or header.length + batches.LENGTH_OVERHEAD != len(batch):
        raise _damaged("its header is damaged")
    if crc32c(batch[_CRC_FROM:]) != header.crc:
        raise _damaged("its CRC-32C does not match")
    return header


def plain_records(batch: memoryview, header: BatchHeader) -> tuple[bytes, Parts]:
    """Return the records of a batch as bytes, and where each of them lies.

    Raises BatchRefused, and BadRecord, perhaps while the records are read.
    """
    codec = header.attributes & batches.CODEC_MASK
    data = bytes(batch[batches.HEADER_BYTES :])
    if codec:
        data = decompress(codec, data, _PLAIN_BYTES_MAX)
    return data, Parts(lambda: record_parts(data, 0, header.records), header.records)


def horizon_of(header: BatchHeader) -> int | None:
    """Return the time from which tombstones and the marker of a batch may go, or None."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def is_commit(marker: RecordPart) -> bool:
    """Return True if a control record commits its transaction, False if it aborts it.

    Raises BatchRefused for any other control record.
    """
    kind = -1
    if marker.key is not None and len(marker.key) == _MARKER_KEY.size:
        kind = _MARKER_KEY.unpack(marker.key)[1]
    if kind not in (_ABORT, _COMMIT):
        raise _damaged(f"its control record of type {kind} ends no transaction")
    return kind == _COMMIT


def decide(
    parts: Parts,
    header: BatchHeader,
    is_newest: Callable[[bytes, int], bool],
    *,
    deletes: bool,
) -> Decision:
    """Choose the records that stay: the newest of each key, without tombstones if `deletes`.

    A record without a key never stays, as in Kafka: nothing could ever replace it.
    """

    def chosen() -> Iterator[RecordPart]:
        base_offset = header.base_offset
        for part in parts:
            if part.key is None or not is_newest(part.key, base_offset + part.offset):
                continue
            if not (deletes and part.tombstone):
                yield part

    kept = Parts(chosen, header.records)
    count, tombstones = 0, False
    for part in kept:
        count += 1
        tombstones |= part.tombstone
    return Decision(kept, count, tombstones)


def rewritten(
    header: BatchHeader, data: bytes, kept: Iterable[RecordPart], horizon_ms: int | None
) -> bytes:
    """Return the batch with only the `kept` of its records, and perhaps a new delete horizon.

    Its base offset and last offset stay, so that it covers the same offsets and sequences. Raises
    BatchRefused if it is too large to be stored: other codecs and levels compress less.
    """
    moved = None if horizon_ms is None else header.base_timestamp - horizon_ms
    records = bytearray()
    count, greatest = 0, -(2**63)
    for part in kept:
        if moved is None:
            records += data[part.start : part.end]
        else:
            records += with_timestamp_delta(data, part, part.timestamp + moved)
        count += 1
        greatest = max(greatest, wrapped(header.base_timestamp + part.timestamp))
    timestamp_max = header.max_timestamp
    if not header.attributes & batches.LOG_APPEND_TIME:
        timestamp_max = greatest
    changed = header._replace(max_timestamp=timestamp_max, records=count)
    if horizon_ms is not None:
        changed = changed._replace(
            attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms
        )
    return _compressed(changed, bytes(records))


def _compressed(header: BatchHeader, records: bytes) -> bytes:
    codec = header.attributes & batches.CODEC_MASK
    for levels in (_LEVELS, _LEVELS_MAX):
        packed = compress(Compression(codec, levels.get(codec, 0)), records, _WINDOW_BYTES)
        size = batches.HEADER_BYTES + len(packed)
        if size <= _BATCH_BYTES_MAX:
            return with_records(header, codec, packed)
    raise BatchRefused(
        ErrorCode.record_list_too_large,
        f"it has {size} bytes without the records that go, at most {_BATCH_BYTES_MAX} are stored",
    )


def empty_batch(first_offset: int, count: int, leader_epoch: int) -> bytes:
    """Return a batch without records that covers `count` offsets."""
    last = first_offset + count - 1
    return empty_batches(first_offset, last, first_offset, leader_epoch, 1)[0][0]


def split(data: Buffer) -> list[memoryview]:
    """Return the batches that lie one behind another in `data`. Raises BatchRefused."""
    view = memoryview(data)
    found: list[memoryview] = []
    at = 0
    while at < len(view):
        if len(view) - at < batches.HEADER_BYTES:
            raise _damaged("it ends inside its header")
        size = batches.PREFIX.unpack_from(view, at)[1] + batches.LENGTH_OVERHEAD
        if not batches.HEADER_BYTES <= size <= len(view) - at:
            raise _damaged("its length is wrong")
        found.append(view[at : at + size])
        at += size
    return found


def _damaged(reason: str) -> BatchRefused:
    return BatchRefused(ErrorCode.corrupt_message, reason)
