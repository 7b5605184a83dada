"""Log records as bytes: records, record sets and the envelope around the records of an entry.

    entry payload = envelope (13) · record · record …
    record        = i64 metadata · i64 txid · i32 length · payload
    record set    = a record with flag 4; payload = i32 0x1000|codec · i32 count · i32 raw · i32
                    stored · data. It takes `count` slots and positions. Its data stay opaque.

The low two bits of the envelope's flags are DistributedLog's codec, 0 here
(`ledger.streams.compressed_entries` has the other one). The other thirty hold the distance, in
entries, back to the start of the last complete state snapshot, or 0. A new owner therefore finds
the snapshot from the last entry alone.

Pure. Source: DistributedLog, LogRecord, LogRecordSet, EnvelopedEntry (seed 000).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from ledger.errors import CorruptFormat
from ledger.ids import Buffer

FLAG_CONTROL = 1
FLAG_END_OF_STREAM = 2
FLAG_RECORD_SET = 4

ENVELOPE = Struct(">BIII")  # version 1, flags, raw length, stored length
RECORD = Struct(">qqi")  # metadata, txid, length
RECORD_SET = Struct(">iiii")  # 0x1000 | codec, count, raw length, stored length
SET_HEAD = Struct(">qqiiiii")  # header of a record and of its set together
ENVELOPE_BYTES = ENVELOPE.size
RECORD_BYTES = RECORD.size
SET_BYTES = RECORD_SET.size
SET_HEAD_BYTES = SET_HEAD.size
SNAPSHOT_DISTANCE_MAX = (1 << 30) - 1
POSITION_MAX = (1 << 32) - 1
CODEC_LZ4 = 1
_CODEC_MASK = 3
_SET_TAG = 0x1000


class LogRecord(NamedTuple):
    """One stored record. `position` counts from 1 in its segment.

    A control record repeats the last position. `slot` counts within the entry, and a set takes
    one slot for each inner record. `data` excludes headers.
    """

    slot: int
    position: int
    txid: int
    records: int  # count of user records in `data`; 0 for control records
    control: bool
    data: memoryview


def set_head(position: int, txid: int, count: int, size: int) -> bytes:
    """Return the 36 bytes before `size` bytes of opaque data that hold `count` user records."""
    return SET_HEAD.pack(
        FLAG_RECORD_SET | position << 16, txid, SET_BYTES + size, _SET_TAG, count, size, size
    )


def control_record(position: int, txid: int, payload: bytes) -> bytes:
    """Return a control record, which takes no position and which readers never receive."""
    return RECORD.pack(FLAG_CONTROL | position << 16, txid, len(payload)) + payload


def envelope(size: int, snapshot_distance: int) -> bytes:
    """Return the 13 bytes before `size` bytes of records."""
    assert snapshot_distance >= 0
    if snapshot_distance > SNAPSHOT_DISTANCE_MAX:
        snapshot_distance = 0
    return ENVELOPE.pack(1, snapshot_distance << 2, size, size)


def snapshot_distance(payload: Buffer) -> int:
    """Return the distance, in entries, back to the start of the last complete snapshot, or 0."""
    version, flags, _, _ = _open_envelope(memoryview(payload))
    assert version == 1
    return flags >> 2


def is_compressed(payload: Buffer) -> bool:
    """Return whether the records of an entry are a block of LZ4. See `compressed_entries`."""
    if len(payload) < ENVELOPE_BYTES:
        return False  # the parser refuses it
    _, flags, _, _ = ENVELOPE.unpack_from(payload)
    return flags & _CODEC_MASK == CODEC_LZ4


def _open_envelope(view: memoryview) -> tuple[int, int, int, int]:
    if len(view) < ENVELOPE_BYTES:
        raise CorruptFormat(f"entry of {len(view)} bytes is shorter than its envelope")
    version, flags, raw, stored = ENVELOPE.unpack_from(view)
    if version != 1 or flags & _CODEC_MASK or raw != stored or stored != len(view) - ENVELOPE_BYTES:
        raise CorruptFormat(
            f"entry envelope: version {version}, codec {flags & _CODEC_MASK}, {raw}/{stored} bytes "
            f"of {len(view) - ENVELOPE_BYTES}"
        )
    return version, flags, raw, stored


def parse_entry(payload: Buffer) -> Iterator[LogRecord]:
    """Yield every record of one entry, in order; `data` are views of `payload`.

    Raises CorruptFormat.
    """
    view = memoryview(payload)
    _open_envelope(view)
    yield from _parse(view, ENVELOPE_BYTES)


def _parse(view: memoryview, at: int) -> Iterator[LogRecord]:
    """Yield the records from byte `at` on; `slot` counts from there. Raises CorruptFormat."""
    slot, end = 0, len(view)
    unpack_head, unpack_record = SET_HEAD.unpack_from, RECORD.unpack_from
    while at < end:
        if end - at < RECORD_BYTES:
            raise CorruptFormat(f"record header at byte {at} of {end} is truncated")
        metadata, txid, length = unpack_record(view, at)
        body = at + RECORD_BYTES
        if length < 0 or length > end - body:
            raise CorruptFormat(
                f"record of {length} bytes at byte {at} exceeds the {end} bytes of its entry"
            )
        position = metadata >> 16 & POSITION_MAX
        if metadata & FLAG_RECORD_SET:
            if length < SET_BYTES:
                raise CorruptFormat(
                    f"record set of {length} bytes at byte {at} is shorter than its header"
                )
            _, _, _, tag, count, raw, stored = unpack_head(view, at)
            if tag != _SET_TAG or raw != stored or stored != length - SET_BYTES or count < 1:
                raise CorruptFormat(f"record set header at byte {at}: {tag:#x}, {count} records")
            yield LogRecord(
                slot, position, txid, count, False, view[body + SET_BYTES : body + length]
            )
            slot += count
        else:
            control = bool(metadata & FLAG_CONTROL)
            count = 0 if control else 1
            yield LogRecord(slot, position, txid, count, control, view[body : body + length])
            slot += 1
        at = body + length


def user_records(
    view: memoryview, at: int, most: int
) -> tuple[list[tuple[int, int, memoryview]], int]:
    """Return up to `most` records of an entry from byte `at` on, and the byte behind them.

    Each has its position, the count of its user records, and its data. Control records are left
    out. It takes fewer steps for each record than `parse_entry`, for readers of many entries; `at`
    is 0 at first, and the end of the entry is its length. Raises CorruptFormat.
    """
    if not at:
        _open_envelope(view)
        at = ENVELOPE_BYTES
    found: list[tuple[int, int, memoryview]] = []
    last, unpack = len(view) - SET_HEAD_BYTES, SET_HEAD.unpack_from
    for _ in range(most):
        if at > last:
            break
        metadata, _, length, tag, count, raw, stored = unpack(view, at)
        begin = at + SET_HEAD_BYTES
        whole = 0 <= stored == raw == length - SET_BYTES <= len(view) - begin
        if not metadata & FLAG_RECORD_SET or tag != _SET_TAG or count < 1 or not whole:
            break
        at = begin + stored
        found.append((metadata >> 16 & POSITION_MAX, count, view[begin:at]))
    if found or at == len(view):
        return found, at
    record = next(_parse(view, at))  # it is no set, or corrupt
    if not record.control:
        found.append((record.position, record.records, record.data))
    return found, at + RECORD_BYTES + len(record.data)
