"""The facts of one record in a stored entry: its batch, its place, its transaction. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from gateway.admin.consume_batches import Batch, DamagedBatch, Record, check, read_records
from gateway.wire.batches import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    TRANSACTIONAL,
    read_header,
)
from ledger.core.records import parse_entry
from ledger.errors import CorruptFormat

Row = dict[str, Any]

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_SEQUENCES: Final = 1 << 31
_MARKER_KEY = Struct(">hh")  # version, type
_MARKER_VALUE = Struct(">hi")  # version, coordinator epoch
_MARKERS: Final = {0: "abort", 1: "commit"}


class StoredBatch(NamedTuple):
    """A batch in an entry, with the offsets that its record set covers.

    In a cleaned segment a record set also covers the removed offsets in front of its batch.
    """

    first: int  # the first offset that is covered
    end: int  # the offset that follows the last one
    slot: int  # of `first` in the entry
    batch: Batch

    @property
    def is_marker(self) -> bool:
        """Return whether it holds the marker of a transaction."""
        return bool(self.batch.header.attributes & CONTROL)

    @property
    def in_transaction(self) -> bool:
        """Return whether its records belong to a transaction."""
        return bool(self.batch.header.attributes & TRANSACTIONAL) and not self.is_marker

    @property
    def sound(self) -> bool:
        """Return whether the checksum of the batch matches."""
        try:
            check(self.batch)
        except DamagedBatch:
            return False
        return True


class EntryOffsets(NamedTuple):
    """The offsets of an entry: of its first record, and behind its last one."""

    begin: int
    end: int


def offsets_of(payload: memoryview, start: int) -> EntryOffsets | None:
    """Return the offsets of an entry of the segment that begins at `start`.

    An entry of control records has none of its own: both are then the same. Returns None if the
    entry cannot be parsed.
    """
    try:
        records = list(parse_entry(payload))
    except CorruptFormat:
        return None
    if not records:
        return None
    first, last = records[0], records[-1]
    return EntryOffsets(
        start + first.position - (0 if first.control else 1),
        start + last.position + max(last.records - 1, 0),
    )


def batches_of(payload: memoryview, start: int) -> Iterator[StoredBatch]:
    """Yield the batches of an entry, without control records of the log.

    Raises CorruptFormat, also for records that are no batches.
    """
    for record in parse_entry(payload):
        if record.control:
            continue
        if len(record.data) < HEADER_BYTES:
            raise CorruptFormat(f"a record of {len(record.data)} bytes is no batch")
        header = read_header(record.data)
        if header.length + LENGTH_OVERHEAD != len(record.data):
            raise CorruptFormat(f"a batch of {header.length} bytes in {len(record.data)}")
        first = start + record.position - 1
        batch = Batch(header, record.data)
        yield StoredBatch(first, first + record.records, record.slot, batch)


def batch_row(stored: StoredBatch, offset: int) -> Row:
    """Return the batch as plain data. `offset` is that of the record."""
    header = stored.batch.header
    idempotent = header.producer_id >= 0 and header.base_sequence >= 0
    index = offset - header.base_offset
    return {
        "base_offset": header.base_offset,
        "last_offset": stored.batch.last_offset,
        "records": header.records,
        "bytes": len(stored.batch.data),
        "codec": codec_name(header.attributes),
        "crc": "correct" if stored.sound else "wrong",
        "producer_id": header.producer_id if header.producer_id >= 0 else None,
        "producer_epoch": header.producer_epoch if header.producer_id >= 0 else None,
        "base_sequence": header.base_sequence if idempotent else None,
        "sequence": (header.base_sequence + index) % _SEQUENCES if idempotent else None,
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
    }


def codec_name(attributes: int) -> str:
    """Return the name of a batch's codec, or its number if it is unknown."""
    codec = attributes & CODEC_MASK
    return _CODECS[codec] if codec < len(_CODECS) else str(codec)


def record_row(record: Record | None) -> Row:
    """Return the record as plain data, without key and value. All is None without a record."""
    if record is None:
        keys = ("timestamp", "timestamp_type", "key_bytes", "value_bytes", "headers")
        return dict.fromkeys(keys)
    return {
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type else "CreateTime",
        "key_bytes": None if record.key is None else len(record.key),
        "value_bytes": None if record.value is None else len(record.value),
        "headers": len(record.headers),
    }


def find_record(stored: StoredBatch, offset: int) -> Record | None:
    """Return the record with this offset, None if the batch has none. Raises DamagedBatch."""
    check(stored.batch)
    for records in read_records(stored.batch, offset, offset + 1):
        for record in records:
            return record
    return None


def next_offset(stored: StoredBatch, offset: int) -> int | None:
    """Return the lowest offset of a record from `offset` on, None if there is none in this batch.

    A damaged batch counts as if all its records were there.
    """
    try:
        for records in read_records(stored.batch, offset):
            for record in records:
                return record.offset
    except DamagedBatch:
        return max(offset, stored.batch.header.base_offset)
    return None


def marker_row(stored: StoredBatch) -> Row:
    """Return the marker of a transaction as plain data. Raises DamagedBatch."""
    records = [each for some in read_records(stored.batch) for each in some]
    key, value = (records[0].key, records[0].value) if records else (None, None)
    header = stored.batch.header
    return {
        "state": "marker",
        "marker": _marker_of(key),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "coordinator_epoch": _MARKER_VALUE.unpack_from(value)[1]
        if value is not None and len(value) >= _MARKER_VALUE.size
        else None,
    }


def outcome_at(stored: StoredBatch, producer_id: int) -> str | None:
    """Return how this batch ends a transaction of the producer, None if it does not end it."""
    if not stored.is_marker or stored.batch.header.producer_id != producer_id:
        return None
    marker = marker_row(stored)["marker"]
    return {"commit": "committed", "abort": "aborted"}.get(marker or "")


def _marker_of(key: bytes | None) -> str | None:
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    return _MARKERS.get(_MARKER_KEY.unpack_from(key)[1])


def transaction_row(
    stored: StoredBatch, aborted: Sequence[tuple[int, int]] | None, opened: dict[int, int] | None
) -> Row | None:
    """Return the transaction of the batch, as far as the leader's answers show it.

    `aborted` has the producer ids and first offsets of aborted transactions around the record, if
    the record lies below the last stable offset. `opened` maps producers to the first offsets of
    their open transactions. The state is None if neither shows it. Returns None for a batch outside
    of transactions.
    """
    if stored.is_marker:
        return marker_row(stored)
    if not stored.in_transaction:
        return None
    header = stored.batch.header
    first = (opened or {}).get(header.producer_id, -1)
    state: str | None = None
    if 0 <= first <= header.base_offset:
        state = "open"
    elif aborted is not None:
        hidden = any(
            producer == header.producer_id and begin <= header.base_offset
            for producer, begin in aborted
        )
        state = "aborted" if hidden else "committed"
    return {
        "state": state,
        "marker": None,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "coordinator_epoch": None,
    }
