"""Encodes the response to ListOffsets, v1-v11, in buffers of a bounded size.

Packed by hand, because one request may name more partitions than the event loop should encode at
once. tests/wire/test_templates.py compares every version with kio's bytes. Layout: v1 as is, v2
throttle time first, v4 leader epoch, v6 flexible. Source: Kafka's ListOffsetsResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.wire.encode import put_count, put_topic

_PARTITIONS_AT_ONCE = 500
_BUFFER_BYTES = 8 * 1024  # a buffer ends with the partitions that reach this size

_FLEXIBLE_FROM = 6
_EPOCHS_FROM = 4
_THROTTLE_FROM = 2
_INT = struct.Struct(">i")
_V1 = struct.Struct(">ihqq")
_V4 = struct.Struct(">ihqqi")
_V6 = struct.Struct(">ihqqix")


class PartitionOffset(NamedTuple):
    """The answer for one partition. -1 means unknown."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def encode_list_offsets(
    version: int, correlation_id: int, topics: Mapping[str, Sequence[PartitionOffset]]
) -> Iterator[bytes]:
    """Yield the buffers of response header and body, without the frame size."""
    flexible = version >= _FLEXIBLE_FROM
    out = bytearray(_INT.pack(correlation_id))
    if flexible:
        out.append(0)
    if version >= _THROTTLE_FROM:
        out += _INT.pack(0)
    put_count(out, len(topics), flexible)
    for name, partitions in topics.items():
        put_topic(out, name, flexible)
        put_count(out, len(partitions), flexible)
        for at in range(0, len(partitions), _PARTITIONS_AT_ONCE):
            out += _packed(version, partitions[at : at + _PARTITIONS_AT_ONCE])
            if len(out) >= _BUFFER_BYTES:
                yield bytes(out)
                out.clear()
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        yield bytes(out)


def _packed(version: int, partitions: Sequence[PartitionOffset]) -> bytes:
    if version < _EPOCHS_FROM:
        return b"".join([_V1.pack(*each[:4]) for each in partitions])
    layout = _V6 if version >= _FLEXIBLE_FROM else _V4
    return b"".join([layout.pack(*each) for each in partitions])
