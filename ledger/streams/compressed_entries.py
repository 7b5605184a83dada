"""Entries whose records are compressed, as DistributedLog compresses them: one raw block of LZ4.

    payload = envelope (13): codec 1, raw length, stored length · block of LZ4

Only logs of small records have such entries. Those of a stream are never compressed, and the
readers of streams refuse them.

Source: DistributedLog, EnvelopedEntry (seed 000).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import cramjam

from ledger.core.records import CODEC_LZ4, ENVELOPE, ENVELOPE_BYTES, is_compressed
from ledger.errors import CorruptFormat
from ledger.ids import Buffer

RAW_BYTES_MAX: Final = 2 * 1024 * 1024
"""The largest records that are compressed: one or two milliseconds of work."""

_RAW_BYTES_MIN: Final = 128  # smaller ones rarely gain
_RATIO_MAX: Final = 255  # a byte of a block stands for no more bytes
_SIZE = Struct("<I")  # what cramjam expects before a block


def compressed(payload: bytes) -> bytes:
    """Return an entry with compressed records. It is unchanged if that would save nothing."""
    raw = len(payload) - ENVELOPE_BYTES
    if not _RAW_BYTES_MIN <= raw <= RAW_BYTES_MAX:
        return payload
    version, flags, _, _ = ENVELOPE.unpack_from(payload)
    records = memoryview(payload)[ENVELOPE_BYTES:]
    block = bytes(cramjam.lz4.compress_block(records, store_size=False))
    if len(block) >= raw:
        return payload
    return ENVELOPE.pack(version, flags | CODEC_LZ4, raw, len(block)) + block


def decompressed(payload: Buffer) -> Buffer:
    """Return an entry with plain records, as `parse_entry` takes it. Others are unchanged.

    No more memory is taken than RAW_BYTES_MAX and the entry itself. Raises CorruptFormat.
    """
    if not is_compressed(payload):
        return payload
    view = memoryview(payload)
    version, flags, raw, stored = ENVELOPE.unpack_from(view)
    if stored != len(view) - ENVELOPE_BYTES or not 0 < raw <= min(
        RAW_BYTES_MAX, _RATIO_MAX * stored
    ):
        raise CorruptFormat(
            f"compressed entry: {raw}/{stored} bytes of {len(view) - ENVELOPE_BYTES}"
        )
    entry = bytearray(ENVELOPE_BYTES + raw)
    ENVELOPE.pack_into(entry, 0, version, flags - CODEC_LZ4, raw, raw)
    block = b"".join((_SIZE.pack(raw), view[ENVELOPE_BYTES:]))
    try:
        found = cramjam.lz4.decompress_block_into(block, memoryview(entry)[ENVELOPE_BYTES:])
    except cramjam.DecompressionError as error:
        raise CorruptFormat(f"compressed entry: {error}") from error
    if found != raw:
        raise CorruptFormat(f"compressed entry: {found} bytes instead of {raw}")
    return entry
