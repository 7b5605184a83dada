"""Rewrites one stored batch without the records that compaction removes. Pure.

Offsets, timestamps, headers, the codec, and the producer's id, epoch and sequence stay. A batch
whose tombstones, or whose marker, must go later gets a delete horizon: attribute bit 6, and the
time in place of the base timestamp. Source: Kafka, MemoryRecords.filterTo, DefaultRecordBatch;
KIP-534.
"""

from __future__ import annotations

from struct import Struct

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
_LEVELS = {GZIP: -1, LZ4: 1, ZSTD: 3}
_LEVELS_MAX = {GZIP: 9, LZ4: 12, ZSTD: 19}  # only for a batch that is too large otherwise
_WINDOW_BYTES = 8 * 1024 * 1024  # the largest window of zstd that the gateway decompresses
_MARKER_KEY = Struct(">hh")
_ABORT, _COMMIT = 0, 1


def checked_header(batch: memoryview) -> BatchHeader:
    """Return the header of a stored batch whose checksum is right. Raises BatchRefused."""
    header = batches.read_header(batch)
    if header.magic != 2 or header.length + batches.LENGTH_OVERHEAD != len(batch):
        raise _damaged("its header is damaged")
    if crc32c(batch[_CRC_FROM:]) != header.crc:
        raise _damaged("its CRC-32C does not match")
    return header


def plain_records(batch: memoryview, header: BatchHeader) -> Buffer:
    """Return the records of a batch, decompressed. Raises BatchRefused."""
    codec = header.attributes & batches.CODEC_MASK
    data = batch[batches.HEADER_BYTES :]
    return decompress(codec, bytes(data), _PLAIN_BYTES_MAX) if codec else data


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


def with_kept(header: BatchHeader, records: bytes, count: int, greatest: int) -> bytes:
    """Return the batch with only these records, of which `greatest` is the greatest timestamp.

    Its base offset and last offset stay, so that it covers the same offsets and sequences. Raises
    BatchRefused if it is too large to be stored: other codecs and levels compress less.
    """
    timestamp_max = greatest
    if header.attributes & batches.LOG_APPEND_TIME:
        timestamp_max = header.max_timestamp
    return _compressed(header._replace(max_timestamp=timestamp_max, records=count), records)


def with_horizon(header: BatchHeader, records: bytes, count: int, horizon_ms: int) -> bytes:
    """Return the batch with only these records, as `with_kept`, and a new delete horizon."""
    moved = header.base_timestamp - horizon_ms
    found = bytearray()
    greatest = -(2**63)
    for part in record_parts(records, 0, count):
        found += with_timestamp_delta(records, part, part.timestamp + moved)
        greatest = max(greatest, wrapped(header.base_timestamp + part.timestamp))
    attributes = header.attributes | DELETE_HORIZON
    changed = header._replace(attributes=attributes, base_timestamp=horizon_ms)
    return with_kept(changed, bytes(found), count, greatest)


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
