"""Record batches for tests, made without the code under test: by hand or by aiokafka's builder."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

HEADER_BYTES = 61


def raw_batch(
    records: bytes,
    count: int = 1,
    *,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    base_timestamp: int = 1000,
    max_timestamp: int | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    last_offset_delta: int | None = None,
) -> bytes:
    """A batch with a right checksum around any bytes. Source: Kafka, DefaultRecordBatch."""
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        base_timestamp if max_timestamp is None else max_timestamp,
        producer,
        epoch,
        sequence,
        count,
    )
    crc = crc32c(records, crc32c(tail))
    length = 4 + 1 + 4 + len(tail) + len(records)
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc) + tail + records


def varint(value: int) -> bytes:
    """Zigzag, as inside records."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(offset: int, timestamp_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    """One record without headers."""
    body = b"\0" + varint(timestamp_delta) + varint(offset)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += b"\0"
    return varint(len(body)) + body


def plain_batch(timestamps: Sequence[int], *, key: bytes | None = None, **header: int) -> bytes:
    """An uncompressed batch with one record for each timestamp."""
    base = timestamps[0]
    records = b"".join(
        record(at, timestamp - base, key, b"value-%d" % at)
        for at, timestamp in enumerate(timestamps)
    )
    return raw_batch(
        records, len(timestamps), base_timestamp=base, max_timestamp=max(timestamps), **header
    )


def blank_batch(records: int = 1, size: int = 0, **header: int) -> bytes:
    """A batch of small records, of which the first has a value of `size` zeros."""
    inside = (record(at, 0, None, None if at else bytes(size)) for at in range(records))
    return raw_batch(b"".join(inside), records, **header)


def built_batch(
    timestamps: Sequence[int], *, codec: int = 0, key: bytes | None = b"key", size: int = 10
) -> bytes:
    """The same as aiokafka builds it, compressed with Kafka's codec of that number."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for offset, timestamp in enumerate(timestamps):
        builder.append(offset, timestamp, key, b"v" * size, [])
    return bytes(builder.build())
