"""Decodes Produce requests, v3-v13: the usual form in one step, every other one by kio.

Most producers send one partition of one topic in a request, without tagged fields and outside a
transaction. The fields of this form are read in place; kio would need a walk over the bytes first
(`gateway.wire.bounds_check`). Whatever differs from this form, also damaged bytes, is left to kio,
so no answer depends on which of the two reads it. tests/wire/test_produce_request.py compares every
version with kio. Layout: v3-v8 fixed lengths, v9 flexible, v13 topic ids. Source: Kafka's
ProduceRequest.json.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple
from uuid import UUID

from gateway.wire.messages import decode_with, request_codec
from ledger.ids import Buffer

PRODUCE: Final = 0
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13
ELEMENTS_MAX: Final = 20_000
"""Elements of one request. A producer's request of 1 MiB holds 12,000 batches of one record."""

# Transactional id (null), acks, timeout, one topic; flexible: and the length of its name.
_HEAD = struct.Struct(">hhiih")
_COMPACT_HEAD = struct.Struct(">BhiBB")
_COMPACT_ID_HEAD = struct.Struct(">BhiB16s")
# One partition, its index, and in fixed lengths the size of its records.
_PART = struct.Struct(">iii")
_COMPACT_PART = struct.Struct(">Bi")
_ONE = 2  # a compact count or length is one more than its value
_NO_TAGS = b"\0\0\0"  # of partition, topic and request
_head, _part = _HEAD.unpack_from, _PART.unpack_from
_compact_head, _compact_part = _COMPACT_HEAD.unpack_from, _COMPACT_PART.unpack_from
_compact_id_head = _COMPACT_ID_HEAD.unpack_from


class PartitionData(NamedTuple):
    """One partition and its batch."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    records: bytes


class TopicData(NamedTuple):
    """One topic, by name below v13 and by id from there on, with its only partition."""

    name: str
    topic_id: UUID | None
    partition_data: tuple[PartitionData]


class ProduceBody(NamedTuple):
    """The fields of the usual form, by the names that kio gives them."""

    acks: int
    topic_data: tuple[TopicData]
    transactional_id: None = None


def decode_produce(version: int, buffer: Buffer, offset: int) -> Any:
    """Decode the request body at `offset` into a ProduceBody, or into kio's entity.

    Bytes after the body are ignored, as in Kafka. Raises MalformedMessage.
    """
    if type(buffer) is bytes:
        try:
            if version >= FLEXIBLE_FROM:
                body = _compact(version, buffer, offset)
            else:
                body = _fixed(buffer, offset)
        except (IndexError, struct.error, UnicodeDecodeError):
            body = None  # kio has the words for it
        if body is not None:
            return body
    return decode_with(request_codec(PRODUCE, version), buffer, offset, ELEMENTS_MAX)


def _fixed(buffer: bytes, at: int) -> ProduceBody | None:
    """Read the usual form in a version before 9. Returns None for any other form."""
    transactional, acks, _, topics, name_bytes = _head(buffer, at)
    if transactional != -1 or topics != 1 or name_bytes < 0:
        return None
    at += _HEAD.size
    named = at + name_bytes
    partitions, index, size = _part(buffer, named)
    start = named + _PART.size
    end = start + size
    if partitions != 1 or size < 0 or end > len(buffer):
        return None
    part = PartitionData(index, buffer[start:end])
    return ProduceBody(acks, (TopicData(buffer[at:named].decode(), None, (part,)),))


def _compact(version: int, buffer: bytes, at: int) -> ProduceBody | None:
    """Read the usual form from version 9 on. Returns None for any other form."""
    name, topic_id = "", None
    if version >= TOPIC_IDS_FROM:
        transactional, acks, _, topics, raw = _compact_id_head(buffer, at)
        at += _COMPACT_ID_HEAD.size
        topic_id = UUID(bytes=raw)
    else:
        transactional, acks, _, topics, length = _compact_head(buffer, at)
        start = at + _COMPACT_HEAD.size
        at = start + length - 1
        if not 0 < length < 0x80:
            return None
        name = buffer[start:at].decode()
    partitions, index = _compact_part(buffer, at)
    at += _COMPACT_PART.size
    # The size of the records, a varint of up to three bytes.
    size = buffer[at]
    if size >= 0x80:
        at += 1
        more = buffer[at]
        size = size & 0x7F | more << 7
        if more >= 0x80:
            at += 1
            size = size & 0x3FFF | buffer[at] << 14
    end = at + size
    if (
        transactional
        or topics != _ONE
        or partitions != _ONE
        or not 0 < size < 0x200000
        or buffer[end : end + 3] != _NO_TAGS
    ):
        return None
    part = PartitionData(index, buffer[at + 1 : end])
    return ProduceBody(acks, (TopicData(name, topic_id, (part,)),))
