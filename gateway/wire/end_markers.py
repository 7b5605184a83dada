"""The control batch that ends a transaction in one partition: Kafka's EndTransactionMarker.

    batch header (transactional, control, one record, no sequence)
    key = version i16 · type i16: 0 abort, 1 commit      value = version i16 · coordinator epoch i32

Source: Kafka, ControlRecordType and EndTransactionMarker.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from gateway.wire.batches import (
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    PREFIX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
)
from ledger.crc32c import crc32c
from ledger.ids import Buffer

_ABORT, _COMMIT = 0, 1
_VERSION = 0
_KEPT = 64  # encoded markers that the next partitions of their transactions may use
# Length, attributes, two deltas, key length, key, value length, value, number of headers. All
# numbers of this one record fit into a byte, and varints are zigzag.
_RECORD = Struct(">bbbbbhhbhib")
_RECORD_LENGTH, _KEY_LENGTH, _VALUE_LENGTH = 16, 4, 6
_FROM_ATTRIBUTES = Struct(">hiqqqhii")
_ATTRIBUTES = TRANSACTIONAL | CONTROL
BATCH_BYTES = HEADER_BYTES + _RECORD.size


class StoredMarker(NamedTuple):
    """What a stored marker says, besides the producer id and epoch of its header."""

    commit: bool
    coordinator_epoch: int


def encode_marker(
    producer_id: int, epoch: int, coordinator_epoch: int, timestamp_ms: int, *, commit: bool
) -> bytes:
    """Return the whole batch, with base offset 0 and leader epoch -1."""
    record = _RECORD.pack(
        2 * _RECORD_LENGTH,
        0,
        0,
        0,
        2 * _KEY_LENGTH,
        _VERSION,
        _COMMIT if commit else _ABORT,
        2 * _VALUE_LENGTH,
        _VERSION,
        coordinator_epoch,
        0,
    )
    fields = (_ATTRIBUTES, 0, timestamp_ms, timestamp_ms, producer_id, epoch, -1, 1)
    crc = crc32c(_FROM_ATTRIBUTES.pack(*fields) + record)
    return HEADER.pack(0, BATCH_BYTES - LENGTH_OVERHEAD, -1, 2, crc, *fields) + record


def stored_marker(
    fields: tuple[int, int, int], timestamp_ms: int, offset: int, leader_epoch: int, *, commit: bool
) -> tuple[Buffer, Buffer]:
    """Return the batch as stored, in two parts.

    `fields` are producer id, epoch and coordinator epoch. The partitions of one transaction share
    the second part.
    """
    return (
        PREFIX.pack(offset, BATCH_BYTES - LENGTH_OVERHEAD, leader_epoch),
        _behind_prefix(fields, timestamp_ms, commit),
    )


@lru_cache(maxsize=_KEPT)
def _behind_prefix(fields: tuple[int, int, int], timestamp_ms: int, commit: bool) -> bytes:
    return encode_marker(*fields, timestamp_ms, commit=commit)[PREFIX_BYTES:]


def read_marker(batch: Buffer, header: BatchHeader) -> StoredMarker | None:
    """Return the marker of a stored batch, or None if it is none. Raises ValueError."""
    if not header.attributes & CONTROL:
        return None
    if len(batch) != BATCH_BYTES:
        raise ValueError(f"a control batch of {len(batch)} bytes is no end of a transaction")
    fields = _RECORD.unpack_from(batch, HEADER_BYTES)
    key_length, key_version, kind, value_length, version, coordinator_epoch = fields[4:10]
    if (key_length, value_length) != (2 * _KEY_LENGTH, 2 * _VALUE_LENGTH):
        raise ValueError("a control record has another key or value than a marker")
    if key_version < 0 or version < 0 or kind not in (_ABORT, _COMMIT):
        raise ValueError(f"a control record has type {kind}, which is no end of a transaction")
    return StoredMarker(kind == _COMMIT, coordinator_epoch)
