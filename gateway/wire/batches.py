"""The 61-byte header of a Kafka record batch (magic 2); everything behind it stays opaque.

Source: Kafka, DefaultRecordBatch and LogValidator; the checksum covers bytes 21 and on, so base
offset (0-7) and leader epoch (12-15) are ours to write.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from ledger.ids import Buffer

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
PREFIX = Struct(">qii")  # base offset, length, leader epoch: what the broker writes
PREFIX_BYTES = PREFIX.size
LENGTH_OVERHEAD = 12  # bytes before and in the length field
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, two lengths, header count
_CRC_FROM = 21
_FROM_ATTRIBUTES = Struct(">hiqqqhii")
_MAGIC_AND_CRC = Struct(">bI")

CODEC_MASK = 0x07
CODEC_ZSTD = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BatchRefused(Exception):
    """A batch that is not stored; `code` is for its partition alone."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


def read_header(batch: Buffer) -> BatchHeader:
    """The header of a stored batch."""
    return BatchHeader._make(HEADER.unpack_from(batch))


def timestamp_max(batch: Buffer) -> int:
    """Bytes 35..42: the batch's greatest timestamp."""
    return int.from_bytes(batch[35:43], "big", signed=True)


def decompressed_bytes_max(batch_bytes_max: int) -> int:
    """What a batch of a topic may decompress to. Kafka has no such bound by default."""
    return max(8 * batch_bytes_max, 16 * 1024 * 1024)


def check_batch(batch: memoryview, version: int, bytes_max: int) -> BatchHeader:
    """The header of one whole, sound batch from a client. Raises BatchRefused.

    No record is looked at. `version` is the Produce request's.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise BatchRefused(
            ErrorCode.corrupt_message if size else ErrorCode.invalid_record,
            f"{size} bytes are no record batch",
        )
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic != 2:
        raise BatchRefused(ErrorCode.invalid_record, f"magic {header.magic}; send magic 2")
    if header.length + LENGTH_OVERHEAD != size:
        _refuse_length(header.length, size)
    if size > bytes_max:
        raise BatchRefused(
            ErrorCode.message_too_large,
            f"the batch has {size} bytes, the topic's max.message.bytes is {bytes_max}",
        )
    if crc32c(batch[_CRC_FROM:]) != header.crc:
        raise BatchRefused(ErrorCode.corrupt_message, "the batch's CRC-32C does not match")
    records = header.records
    if (
        records != header.last_offset_delta + 1
        or not 0 < records * RECORD_BYTES_MIN <= size - HEADER_BYTES
    ):
        _check_count(header, size, bytes_max)
    if header.attributes & ~0x07 or header.attributes >= CODEC_ZSTD:
        _check_attributes(header, version)
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise BatchRefused(ErrorCode.invalid_record, "a producer id without epoch or sequence")
    return header


def _check_count(header: BatchHeader, size: int, bytes_max: int) -> None:
    """Offsets are given by the count alone, so the bytes must be able to hold as many records.

    Compressed ones may: a few bytes can hold very many.
    """
    if header.records < 1 or header.records != header.last_offset_delta + 1:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"{header.records} records and last offset delta {header.last_offset_delta}",
        )
    room = size - HEADER_BYTES
    if header.attributes & CODEC_MASK:
        room = decompressed_bytes_max(bytes_max)
    if header.records * RECORD_BYTES_MIN > room:
        raise BatchRefused(
            ErrorCode.invalid_record, f"{header.records} records do not fit into {room} bytes"
        )


def _refuse_length(length: int, size: int) -> None:
    if HEADER_BYTES <= length + LENGTH_OVERHEAD < size:
        raise BatchRefused(
            ErrorCode.invalid_record, "a partition's records must be exactly one batch"
        )
    raise BatchRefused(
        ErrorCode.corrupt_message, f"batch length {length} in {size} bytes of records"
    )


def _check_attributes(header: BatchHeader, version: int) -> None:
    attributes = header.attributes
    if attributes & CONTROL:
        raise BatchRefused(ErrorCode.invalid_record, "clients may not write control batches")
    if attributes & LOG_APPEND_TIME:
        raise BatchRefused(
            ErrorCode.invalid_timestamp, "only the server may set the log append time"
        )
    if attributes & TRANSACTIONAL:
        raise BatchRefused(
            ErrorCode.invalid_txn_state, "a transactional batch outside a transaction"
        )
    codec = attributes & CODEC_MASK
    if codec > CODEC_ZSTD:
        raise BatchRefused(ErrorCode.unsupported_compression_type, f"codec {codec} is unknown")
    if codec == CODEC_ZSTD and version < 7:
        raise BatchRefused(
            ErrorCode.unsupported_compression_type, "zstd needs Produce version 7 or newer"
        )


def placed(
    batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
) -> tuple[Buffer, Buffer]:
    """The batch as stored: its first 16 bytes anew, the rest as it came. No checksum changes."""
    return PREFIX.pack(base_offset, header.length, leader_epoch), batch[PREFIX_BYTES:]


def with_append_time(batch: memoryview, header: BatchHeader, now_ms: int) -> memoryview:
    """The batch with log append time `now_ms` (attribute bit 3, max timestamp) and a new CRC."""
    tail = _FROM_ATTRIBUTES.pack(
        header.attributes | LOG_APPEND_TIME,
        header.last_offset_delta,
        header.base_timestamp,
        now_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.records,
    )
    records = batch[HEADER_BYTES:]
    crc = crc32c(records, crc32c(tail))
    return memoryview(b"".join((batch[:PREFIX_BYTES], _MAGIC_AND_CRC.pack(2, crc), tail, records)))
