"""Splits the records of a Fetch answer into batches, without the code under test."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
from crc32c import crc32c

from tests.compat.differential.symbols import Symbols, epoch_symbol, time_symbol

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_CONTROL = 0x20
_CODEC = 0x07
_SNAPPY = 2
_MARKER_BYTES = 17
"""The record of a marker: its value ends with the coordinator's epoch, before the headers."""
_NAMES = (
    "base_offset",
    "length",
    "partition_leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
)


def batches_in(records: bytes, symbols: Symbols) -> list[Any]:
    """Return each batch as a dictionary; a batch that is cut short is a hexadecimal text.

    The checksum covers the producer id, so it is compared as right or wrong.
    """
    found: list[Any] = []
    at = 0
    while at + _HEADER.size <= len(records):
        fields = dict(zip(_NAMES, _HEADER.unpack_from(records, at), strict=True))
        end = at + 12 + fields["length"]
        if end > len(records):
            break
        found.append(_normal(fields, records[at:end], symbols))
        at = end
    if at < len(records):
        found.append(records[at:].hex())
    return found


def _normal(fields: dict[str, Any], batch: bytes, symbols: Symbols) -> dict[str, Any]:
    fields["crc"] = "right" if crc32c(batch[_CRC_FROM:]) == fields["crc"] else "wrong"
    epoch = fields["partition_leader_epoch"]
    fields["partition_leader_epoch"] = epoch_symbol(symbols, epoch)
    if fields["producer_id"] >= 0:
        fields["producer_id"] = symbols.of("producer", fields["producer_id"])
    for name in ("base_timestamp", "max_timestamp"):
        fields[name] = time_symbol(symbols, fields[name])
    records = batch[_HEADER.size :]
    if fields["attributes"] & _CONTROL and fields["count"] == 1 and len(records) == _MARKER_BYTES:
        coordinator_epoch = int.from_bytes(records[-5:-1], "big")
        fields["coordinator_epoch"] = epoch_symbol(symbols, coordinator_epoch)
        records = records[:-5] + records[-1:]
    codec = fields["attributes"] & _CODEC
    if codec:  # two implementations of a codec write other bytes
        fields["length"], records = "<compressed>", _decompressed(codec, records)
    return {**fields, "records": records.hex()}


def _decompressed(codec: int, data: bytes) -> bytes:
    """Decompress records that are valid. Blocks of snappy are in the framing of Java."""
    if codec == _SNAPPY:
        assert data.startswith(b"\x82SNAPPY\x00")
        blocks: list[bytes] = []
        at = 16
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            blocks.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
            at += 4 + size
        return b"".join(blocks)
    codecs: dict[int, Any] = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}
    return bytes(codecs[codec].decompress(data))
