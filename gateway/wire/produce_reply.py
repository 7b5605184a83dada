"""Encodes the response to Produce, v3-v13. Packed by hand, because each batch costs one response.

tests/wire/test_templates.py compares every version with kio's bytes. Layout: v3 as is, v5 log
start, v8 record errors and message, v9 flexible, v10 tagged leader hints (KIP-951), v13 topic ids
instead of names. Source: Kafka's ProduceResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.wire.encode import put_count, put_topic, put_varint
from gateway.wire.node_endpoints import NodeEndpoint, put_node_endpoints

FLEXIBLE_FROM = 9
LEADERS_FROM = 10
PER_PART = 500
_NAMES_MAX, _PREFIX_BYTES_MAX = 4096, 300  # topic prefixes that are cached, and the longest

_CORRELATION = struct.Struct(">i")
_CORRELATION_FLEXIBLE = struct.Struct(">ix")
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_V3 = struct.Struct(">ihqq")
_V5 = struct.Struct(">ihqqq")
_TAIL_V3 = struct.Struct(">i")
_TAIL_V8 = struct.Struct(">ihi")  # no record errors, null message, throttle time
_NOTHING_MORE = b"\1\0\0"  # no record errors, no message, no tagged field (v9)
_TAIL_V9 = struct.Struct(">BBBBiB")  # as v8, with three empty tag sections
_LEADER = struct.Struct(">BBBiiB")  # one tag, number 0 of 9 bytes: leader id, epoch, no tags


class PartitionProduced(NamedTuple):
    """The result of one partition. `log_append_time_ms` is -1 if records keep their timestamps."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None  # (node, epoch); from v10
    record_errors: Sequence[tuple[int, str]] = ()  # index in the batch, and the reason; from v8


TopicProduced = tuple[str | UUID, Sequence[PartitionProduced]]

# The bytes before the only partition of a response, by (flexible, topic). Cleared when it has
# _NAMES_MAX entries.
_one_partition: dict[tuple[bool, str | UUID], bytes] = {}


def encode_produce(
    version: int,
    correlation_id: int,
    topics: Sequence[TopicProduced],
    throttle_ms: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
) -> bytes:
    """Encode response header and body, without the frame size. v13 has topic ids, others names.

    `nodes` are the leaders that partitions name. Leaders and `nodes` are dropped below v10.
    """
    assert 3 <= version <= 13
    if len(topics) == 1 and not nodes:
        topic, partitions = topics[0]
        one = partitions[0] if len(partitions) == 1 else None
        if one is not None and one[5] is one[6] is None and not one[7]:
            return _encode_one(version, correlation_id, topic, one, throttle_ms)
    return b"".join(encode_in_parts(version, correlation_id, topics, throttle_ms, nodes))


def _encode_one(
    version: int,
    correlation_id: int,
    topic: str | UUID,
    produced: PartitionProduced,
    throttle_ms: int,
) -> bytes:
    """Encode the common response: one partition, without message and leader."""
    index, error_code, base_offset, time_ms, start, _, _, _ = produced
    flexible = version >= FLEXIBLE_FROM
    prefix = _one_partition.get((flexible, topic)) or _remember(flexible, topic)
    if flexible:
        return (
            _CORRELATION_FLEXIBLE.pack(correlation_id)
            + prefix
            + _V5.pack(index, error_code, base_offset, time_ms, start)
            + _TAIL_V9.pack(1, 0, 0, 0, throttle_ms, 0)
        )
    head = _CORRELATION.pack(correlation_id) + prefix
    if version >= 8:
        body = _V5.pack(index, error_code, base_offset, time_ms, start)
        return head + body + _TAIL_V8.pack(0, -1, throttle_ms)
    if version >= 5:
        body = _V5.pack(index, error_code, base_offset, time_ms, start)
        return head + body + _TAIL_V3.pack(throttle_ms)
    body = _V3.pack(index, error_code, base_offset, time_ms)
    return head + body + _TAIL_V3.pack(throttle_ms)


def _remember(flexible: bool, topic: str | UUID) -> bytes:
    """Return and cache the bytes before the partition of a response with one topic.

    They are an array of one topic, its name, and the start of an array of one partition.
    """
    out = bytearray()
    put_count(out, 1, flexible)
    put_topic(out, topic, flexible)
    put_count(out, 1, flexible)
    prefix = bytes(out)
    if len(prefix) <= _PREFIX_BYTES_MAX:  # no topic has a longer name
        if len(_one_partition) >= _NAMES_MAX:
            _one_partition.clear()
        _one_partition[flexible, topic] = prefix
    return prefix


def encode_in_parts(
    version: int,
    correlation_id: int,
    topics: Sequence[TopicProduced],
    throttle_ms: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
) -> Iterator[bytes]:
    """Encode as `encode_produce` does. Yields after each `PER_PART` topics and partitions."""
    flexible = version >= FLEXIBLE_FROM
    out = bytearray((_CORRELATION_FLEXIBLE if flexible else _CORRELATION).pack(correlation_id))
    put_count(out, len(topics), flexible)
    count = 0
    for topic, partitions in topics:
        put_topic(out, topic, flexible)
        put_count(out, len(partitions), flexible)
        for produced in partitions:
            _put_partition(out, version, produced)
            count += 1
            if count % PER_PART == 0:
                yield bytes(out)
                out.clear()
        if flexible:
            out.append(0)
        count += 1
        if count % PER_PART == 0:
            yield bytes(out)
            out.clear()
    out += _COUNT.pack(throttle_ms)
    if flexible:
        put_node_endpoints(out, nodes if version >= LEADERS_FROM else ())
    yield bytes(out)


def _put_partition(out: bytearray, version: int, produced: PartitionProduced) -> None:
    index, error_code, base_offset, time_ms, start, message, leader, records = produced
    if version < 5:
        out += _V3.pack(index, error_code, base_offset, time_ms)
        return
    out += _V5.pack(index, error_code, base_offset, time_ms, start)
    if version < 8:
        return
    flexible = version >= FLEXIBLE_FROM
    if flexible and not records and message is leader is None:
        out += _NOTHING_MORE
        return
    put_count(out, len(records), flexible)
    for at, reason in records:
        out += _COUNT.pack(at)
        _put_text(out, reason, flexible)
        if flexible:
            out.append(0)
    _put_text(out, message, flexible)
    if not flexible:
        return
    if leader is None or leader == (-1, -1) or version < LEADERS_FROM:
        out.append(0)
    else:
        out += _LEADER.pack(1, 0, 9, *leader, 0)


def _put_text(out: bytearray, text: str | None, flexible: bool) -> None:
    raw = None if text is None else text.encode()
    if flexible:
        put_varint(out, 0 if raw is None else len(raw) + 1)
    else:
        out += _LENGTH.pack(-1 if raw is None else len(raw))
    out += raw or b""
