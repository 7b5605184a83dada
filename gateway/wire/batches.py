"""Checks and changes the 61-byte header of a Kafka record batch (magic 2).

The records are checked by gateway.wire.record_check.

The checksum covers the bytes from 21 on, so the broker may write base offset (0-7) and leader epoch
(12-15). Source: Kafka, DefaultRecordBatch and LogValidator.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ledger.crc32c import crc32c
from ledger.ids import Buffer

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
PREFIX = Struct(">qii")  # the fields that the broker writes: base offset, length, leader epoch
PREFIX_BYTES = PREFIX.size
LENGTH_OVERHEAD = 12  # the bytes before and in the length field
# The smallest record: length, attributes, two deltas, two lengths, header count.
RECORD_BYTES_MIN = 7
_CRC_FROM = 21
_FROM_ATTRIBUTES = Struct(">hiqqqhii")
_MAGIC_AND_CRC = Struct(">bI")
_MAX_TIMESTAMP = Struct(">q").unpack_from

CODEC_MASK = 0x07
CODEC_ZSTD = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BatchRefused(Exception):
    """The refusal of a batch. `code` concerns the batch's partition only.

    `record_errors` has the index of each offending record and the reason, if records are to blame.
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.record_errors = record_errors


class BatchHeader(NamedTuple):
    """The fields of the header, in order."""

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


class Compression(NamedTuple):
    """A codec by its number in the attributes of a batch, and its level."""

    codec: int
    level: int = 0


def read_header(batch: Buffer) -> BatchHeader:
    """Return the header of a stored batch."""
    return BatchHeader._make(HEADER.unpack_from(batch))


def timestamp_max(data: Buffer) -> int:
    """Return the greatest timestamp of a batch, bytes 35 to 42."""
    return _MAX_TIMESTAMP(data, 35)[0]


def decompressed_bytes_max(batch_bytes_max: int) -> int:
    """Return the limit of decompressed bytes for a topic's batch. Kafka has no such limit."""
    return max(8 * batch_bytes_max, 16 * 1024 * 1024)


def check_batch(batch: memoryview, version: int, bytes_max: int, allowed: int = 0) -> BatchHeader:
    """Check the header of one batch from a client, and return it. The records are not decoded.

    `version` is the version of the Produce request. `allowed` is TRANSACTIONAL for a batch of a
    transaction. Raises BatchRefused.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise BatchRefused(
            ErrorCode.corrupt_message if size else ErrorCode.invalid_record,
            f"{size} bytes are not a record batch.",
        )
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic != 2:
        raise BatchRefused(
            ErrorCode.invalid_record, f"Magic {header.magic} is not supported; send magic 2."
        )
    if header.length + LENGTH_OVERHEAD != size:
        _refuse_length(header.length, size)
    if size > bytes_max:
        raise BatchRefused(
            ErrorCode.message_too_large,
            f"The batch has {size} bytes; max.message.bytes of the topic is {bytes_max}.",
        )
    if crc32c(batch[_CRC_FROM:]) != header.crc:
        raise BatchRefused(ErrorCode.corrupt_message, "The CRC-32C of the batch does not match.")
    if header.base_offset:
        raise BatchRefused(
            ErrorCode.invalid_record, f"The base offset must be 0, not {header.base_offset}."
        )
    records = header.records
    if (
        records != header.last_offset_delta + 1
        or not 0 < records * RECORD_BYTES_MIN <= size - HEADER_BYTES
    ):
        _check_count(header, size, bytes_max)
    if header.attributes & ~0x07 or header.attributes >= CODEC_ZSTD:
        _check_attributes(header, version, allowed)
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise BatchRefused(
            ErrorCode.invalid_record, "The batch has a producer id without epoch or sequence."
        )
    return header


def _check_count(header: BatchHeader, size: int, bytes_max: int) -> None:
    """Refuse a batch whose bytes cannot hold its number of records.

    Offsets are assigned by this number, and a few compressed bytes can hold very many records.
    """
    if header.records < 1 or header.records != header.last_offset_delta + 1:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"The batch has {header.records} records and last offset delta "
            f"{header.last_offset_delta}.",
        )
    room = size - HEADER_BYTES
    if header.attributes & CODEC_MASK:
        room = decompressed_bytes_max(bytes_max)
    if header.records * RECORD_BYTES_MIN > room:
        raise BatchRefused(
            ErrorCode.invalid_record, f"{header.records} records do not fit into {room} bytes."
        )


def _refuse_length(length: int, size: int) -> None:
    if HEADER_BYTES <= length + LENGTH_OVERHEAD < size:
        raise BatchRefused(
            ErrorCode.invalid_record, "The records of a partition must be exactly one batch."
        )
    raise BatchRefused(
        ErrorCode.corrupt_message,
        f"A batch of length {length} does not fit {size} bytes of records.",
    )


def _check_attributes(header: BatchHeader, version: int, allowed: int) -> None:
    attributes = header.attributes & ~allowed
    if attributes & CONTROL:
        raise BatchRefused(ErrorCode.invalid_record, "Clients may not write control batches.")
    if attributes & LOG_APPEND_TIME:
        raise BatchRefused(
            ErrorCode.invalid_timestamp, "Only the broker may set the log append time."
        )
    if attributes & TRANSACTIONAL:
        raise BatchRefused(
            ErrorCode.invalid_txn_state,
            "The batch is transactional, but its producer has no transaction.",
        )
    codec = attributes & CODEC_MASK
    if codec > CODEC_ZSTD:
        raise BatchRefused(ErrorCode.unsupported_compression_type, f"Codec {codec} is unknown.")
    if codec == CODEC_ZSTD and version < 7:
        raise BatchRefused(
            ErrorCode.unsupported_compression_type, "zstd requires Produce version 7 or later."
        )


def with_records(header: BatchHeader, codec: int, records: bytes) -> bytes:
    """Return a batch with these records, compressed with `codec` already, and a new CRC."""
    attributes = header.attributes & ~CODEC_MASK | codec
    rest = _FROM_ATTRIBUTES.pack(attributes, *header[6:]) + records
    length = len(rest) + _CRC_FROM - LENGTH_OVERHEAD
    prefix = PREFIX.pack(header.base_offset, length, header.leader_epoch)
    return prefix + _MAGIC_AND_CRC.pack(header.magic, crc32c(rest)) + rest


def with_offset(
    batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
) -> tuple[Buffer, Buffer]:
    """Return the batch as stored. Its first 16 bytes are new, and the checksum still holds."""
    return PREFIX.pack(base_offset, header.length, leader_epoch), batch[PREFIX_BYTES:]


def with_append_time(batch: memoryview, header: BatchHeader, now_ms: int) -> memoryview:
    """Return the batch with log append time `now_ms` and a new CRC.

    Sets attribute bit 3 and the max timestamp.
    """
    return _with(batch, header, header.attributes | LOG_APPEND_TIME, now_ms)


def with_timestamp_max(batch: memoryview, header: BatchHeader, timestamp: int) -> memoryview:
    """Return the batch with another max timestamp and a new CRC, as Kafka corrects a wrong one."""
    return _with(batch, header, header.attributes, timestamp)


def _with(batch: memoryview, header: BatchHeader, attributes: int, timestamp: int) -> memoryview:
    tail = _FROM_ATTRIBUTES.pack(
        attributes,
        header.last_offset_delta,
        header.base_timestamp,
        timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.records,
    )
    records = batch[HEADER_BYTES:]
    crc = crc32c(records, crc32c(tail))
    return memoryview(b"".join((batch[:PREFIX_BYTES], _MAGIC_AND_CRC.pack(2, crc), tail, records)))
