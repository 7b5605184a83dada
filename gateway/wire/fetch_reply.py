"""Encodes the response to Fetch, v4-v18, as a list of buffers; record bytes are not copied.

tests/wire/test_templates.py compares every version with kio's bytes. Layout: v4 as is, v5 log
start, v7 error and session, v11 preferred replica, v12 flexible with tagged epoch and leader hints,
v13 topic ids instead of names, v16 tagged node endpoints (KIP-951).
Source: Kafka's FetchResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.wire.encode import put_count, put_topic
from gateway.wire.node_endpoints import NodeEndpoint, put_node_endpoints
from ledger.ids import Buffer

FLEXIBLE_FROM = 12
LEADERS_FROM = 16  # Kafka sets the field from this version on, although it exists from v12 on

_INT32 = struct.Struct(">i")
_HEAD_V4 = struct.Struct(">ii")  # correlation id, throttle time
_HEAD_V7 = struct.Struct(">iihi")  # correlation id, throttle time, error, session id
_HEAD_V12 = struct.Struct(">ixihi")  # as v7, with an empty tag section in the header
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">BBiqB")  # tag 0 of 13 bytes: epoch, end offset, no tags
_LEADER = struct.Struct(">BBiiB")  # tag 1 of 9 bytes: leader id, epoch, no tags


class PartitionFetched(NamedTuple):
    """The response for one partition. `records` are whole batches of `records_bytes` in total."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Buffer] = ()
    records_bytes: int = 0
    preferred_read_replica: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    diverging_epoch: tuple[int, int] | None = None  # (epoch, end offset); from v12
    current_leader: tuple[int, int] | None = None  # (node, epoch); from v12


TopicFetched = tuple[str | UUID, Sequence[PartitionFetched]]

_NOTHING: Mapping[str | UUID, Sequence[bytes]] = {}


def encode_fetch(
    version: int,
    correlation_id: int,
    topics: Sequence[TopicFetched],
    *,
    throttle_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
    encoded: Mapping[str | UUID, Sequence[bytes]] = _NOTHING,
) -> list[Buffer]:
    """Encode response header and body, without the frame size. Record buffers are not copied.

    `encoded` has further partitions of these topics, from `encode_partition`.

    From v13 on topics are ids, in earlier versions names. Error and session are dropped below v7.
    `nodes`, the leaders that partitions name, are dropped below v16.
    """
    assert 4 <= version <= 18
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(_head(version, correlation_id, throttle_ms, error_code, session_id))
    buffers: list[Buffer] = []
    put_count(out, len(topics), flexible)
    for topic, partitions in topics:
        put_topic(out, topic, flexible)
        further = encoded.get(topic, ())
        put_count(out, len(partitions) + len(further), flexible)
        for fetched in partitions:
            _put_partition(out, version, fetched)
            if fetched.records:
                buffers.append(out)
                buffers += fetched.records
                out = bytearray()
            if flexible:
                _put_partition_tags(out, fetched)
        if further:
            out += b"".join(further)
        if flexible:
            out.append(0)
    if flexible:
        put_node_endpoints(out, nodes if version >= LEADERS_FROM else ())
    if out:
        buffers.append(out)
    return buffers


def encode_partition(version: int, fetched: PartitionFetched) -> bytes:
    """Encode one partition without records, as `encode_fetch` would."""
    assert not fetched.records
    out = bytearray()
    _put_partition(out, version, fetched)
    if version >= FLEXIBLE_FROM:
        _put_partition_tags(out, fetched)
    return bytes(out)


def _head(
    version: int, correlation_id: int, throttle_ms: int, error_code: int, session_id: int
) -> bytes:
    if version >= FLEXIBLE_FROM:
        return _HEAD_V12.pack(correlation_id, throttle_ms, error_code, session_id)
    if version >= 7:
        return _HEAD_V7.pack(correlation_id, throttle_ms, error_code, session_id)
    return _HEAD_V4.pack(correlation_id, throttle_ms)


def _put_partition(out: bytearray, version: int, fetched: PartitionFetched) -> None:
    """Append the partition up to the length of its records, which are separate buffers."""
    index, error_code, high_watermark, stable, start, _, records_bytes, replica, aborted, _, _ = (
        fetched
    )
    if version >= 5:
        out += _PARTITION_V5.pack(index, error_code, high_watermark, stable, start)
    else:
        out += _PARTITION_V4.pack(index, error_code, high_watermark, stable)
    flexible = version >= FLEXIBLE_FROM
    if aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        put_count(out, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += _INT32.pack(replica)
    put_count(out, records_bytes, flexible)


def _put_partition_tags(out: bytearray, fetched: PartitionFetched) -> None:
    diverging, leader = fetched.diverging_epoch, fetched.current_leader
    if diverging == (-1, -1):
        diverging = None
    if leader == (-1, -1):
        leader = None
    out.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        out += _DIVERGING.pack(0, 13, *diverging, 0)
    if leader is not None:
        out += _LEADER.pack(1, 9, *leader, 0)
