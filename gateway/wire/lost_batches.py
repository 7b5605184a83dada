"""Builds the batches that stand for lost offsets in a response to Fetch. They are never stored.

An empty batch has a header without records, as Kafka's log cleaner leaves behind: the last offset
of the header moves a consumer on. A marker is one record at the last lost offset.
Source: Kafka, DefaultRecordBatch.writeEmptyHeader and writeHeader.
"""

from __future__ import annotations

from struct import Struct

from gateway.wire.batches import HEADER, HEADER_BYTES, LENGTH_OVERHEAD
from gateway.wire.encode import put_varint
from ledger.crc32c import crc32c

OFFSETS_MAX = 2**31
"""Offsets that one batch can cover: `last_offset_delta` has 32 bits, with a sign."""

MARKER_HEADER = "gateway.loss"
"""The header of a marker. Its value describes the loss, in JSON."""

_NO_TIMESTAMP = -1
_MARKER_TIMESTAMP = 0
_MAGIC = 2
_FROM_ATTRIBUTES = Struct(">hiqqqhii")
_NO_PRODUCER = (-1, -1, -1)  # id, epoch, sequence
_ABSENT = 1  # the length -1 as a varint: a key or value that is null


def empty_batches(
    first: int, last: int, position: int, leader_epoch: int, count_max: int
) -> tuple[list[bytes], int]:
    """Return batches without records for the offsets from `first` to `last`, and their end.

    The first batch holds `position`. There are at most `count_max` batches, so they may end before
    `last`. The limits of each batch depend only on `first` and `last`.
    """
    assert first <= position <= last
    batches: list[bytes] = []
    base = position - (position - first) % OFFSETS_MAX
    while base <= last and len(batches) < count_max:
        delta = min(last - base, OFFSETS_MAX - 1)
        batches.append(_batch(base, delta, leader_epoch, _NO_TIMESTAMP, 0, b""))
        base += delta + 1
    return batches, base


def marker_batch(offset: int, leader_epoch: int, description: bytes) -> bytes:
    """Return one record at `offset`, with null key and value and the header `MARKER_HEADER`.

    Its timestamp is the beginning of 1970. A later one could move the event time of a stream
    processor past records that follow, and Kafka Streams refuses a record without a timestamp.
    """
    name = MARKER_HEADER.encode()
    record = bytearray(3)  # attributes, timestamp delta and offset delta are 0
    record += bytes((_ABSENT, _ABSENT))
    for number in (1, len(name)):
        put_varint(record, number << 1)
    record += name
    put_varint(record, len(description) << 1)
    record += description
    records = bytearray()
    put_varint(records, len(record) << 1)
    return _batch(offset, 0, leader_epoch, _MARKER_TIMESTAMP, 1, bytes(records + record))


def _batch(
    base: int, last_delta: int, leader_epoch: int, timestamp: int, count: int, records: bytes
) -> bytes:
    tail = _FROM_ATTRIBUTES.pack(0, last_delta, timestamp, timestamp, *_NO_PRODUCER, count)
    crc = crc32c(records, crc32c(tail))
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(records)
    return (
        HEADER.pack(
            base,
            length,
            leader_epoch,
            _MAGIC,
            crc,
            0,
            last_delta,
            timestamp,
            timestamp,
            *_NO_PRODUCER,
            count,
        )
        + records
    )
