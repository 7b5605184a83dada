"""Encodes and decodes WriteTxnMarkers requests, v1-v2, with two tagged fields of this project.

Gateways put into each marker its number, and into each of its topics the topic's id and the leader
epoch of each partition. With them a partition recognises a late copy of a marker that its sender
has given up (docs/decisions/0021). Kafka's clients and brokers skip tags that they do not know, and
a request without these tags is one of Kafka's. v2 carries the transaction version (KIP-1228).
tests/wire/test_marker_request.py compares both versions with kio. Source: Kafka's
WriteTxnMarkersRequest.json.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.wire.bounds_check import OversizedMessage, check_string, read_varint
from gateway.wire.encode import put_count, put_varint
from gateway.wire.messages import MalformedMessage
from ledger.ids import Buffer

VERSIONS_FROM = 2
STRUCTS_MAX = 20_000
"""Markers and their topics in one request. They are decoded in one step."""

PARTITIONS_MAX = 250_000
"""Partitions in one request, counted for each marker that names them."""

TAGS_MAX = 2 * STRUCTS_MAX
"""Tagged fields in one request. Each marker and each topic of a gateway has one."""

NUMBER_TAG = 20_000
"""In a marker: its number, an int64."""

OWNERSHIP_TAG = 20_001
"""In a topic: its id of 16 bytes, then the leader epoch of each named partition as an int32."""

_TAGS_MAX = 64
_ID_BYTES = 16
_HEAD = struct.Struct(">qhb")  # producer id, producer epoch, 1 for a commit
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class MarkedTopic(NamedTuple):
    """The partitions of one topic that get a marker.

    A gateway names the id of the topic, and the leader epoch of each partition.
    """

    name: str
    indexes: Sequence[int]
    topic_id: UUID | None = None
    leader_epochs: Sequence[int] = ()  # as many as `indexes` if there is a `topic_id`

    def leader_epoch(self, place: int) -> int:
        """Return the epoch that the sender expects for `indexes[place]`; -1 if it sent none."""
        return -1 if self.topic_id is None else self.leader_epochs[place]


class RequestedMarker(NamedTuple):
    """One marker of a request, for any number of partitions."""

    producer_id: int
    epoch: int
    commit: bool
    topics: Sequence[MarkedTopic]
    coordinator_epoch: int
    version: int = 0  # the transaction version; requests below v2 have none
    number: int = -1  # -1 unless a gateway sent the marker

    @property
    def partitions(self) -> int:
        return sum(len(topic.indexes) for topic in self.topics)


def encode_markers(version: int, markers: Sequence[RequestedMarker]) -> bytes:
    """Encode the body of a request."""
    out = bytearray()
    put_count(out, len(markers), flexible=True)
    for marker in markers:
        out += _HEAD.pack(marker.producer_id, marker.epoch, marker.commit)
        put_count(out, len(marker.topics), flexible=True)
        for topic in marker.topics:
            _put_topic(out, topic)
        out += _INT32.pack(marker.coordinator_epoch)
        if version >= VERSIONS_FROM:
            out.append(marker.version)
        if marker.number < 0:
            out.append(0)
        else:
            _put_tag(out, NUMBER_TAG, _INT64.pack(marker.number))
    out.append(0)
    return bytes(out)


def _put_topic(out: bytearray, topic: MarkedTopic) -> None:
    name, indexes = topic.name.encode(), topic.indexes
    put_count(out, len(name), flexible=True)
    out += name
    put_count(out, len(indexes), flexible=True)
    out += struct.pack(f">{len(indexes)}i", *indexes)
    if topic.topic_id is None:
        out.append(0)
        return
    epochs = struct.pack(f">{len(indexes)}i", *topic.leader_epochs)
    _put_tag(out, OWNERSHIP_TAG, topic.topic_id.bytes + epochs)


def _put_tag(out: bytearray, tag: int, value: bytes) -> None:
    """Append a section of tagged fields with one field."""
    out.append(1)
    put_varint(out, tag)
    put_varint(out, len(value))
    out += value


def decode_markers(version: int, buffer: Buffer, offset: int) -> Sequence[RequestedMarker]:
    """Decode the request body at `offset`. Bytes after the body are ignored, as in Kafka.

    Counts and lengths are checked before memory is taken. Raises MalformedMessage.
    """
    try:
        return _Body(version, buffer, offset).decode()
    except (IndexError, struct.error):
        raise MalformedMessage("WriteTxnMarkersRequest: cut short") from None
    except (OversizedMessage, UnicodeDecodeError) as error:
        raise MalformedMessage(f"WriteTxnMarkersRequest: {error}") from None


class _Body:
    """The position in one request body, and what is left of its limits."""

    __slots__ = ("_at", "_buffer", "_partitions_left", "_structs_left", "_tags_left", "_version")

    def __init__(self, version: int, buffer: Buffer, at: int) -> None:
        self._version = version
        self._buffer = buffer
        self._at = at
        self._structs_left = STRUCTS_MAX
        self._tags_left = TAGS_MAX
        self._partitions_left = PARTITIONS_MAX

    def decode(self) -> list[RequestedMarker]:
        markers = [self._marker() for _ in range(self._structs())]
        self._tags()
        return markers

    def _marker(self) -> RequestedMarker:
        producer_id, epoch, commit = _HEAD.unpack_from(self._buffer, self._at)
        self._at += _HEAD.size
        topics = [self._topic() for _ in range(self._structs())]
        (coordinator_epoch,) = _INT32.unpack_from(self._buffer, self._at)
        self._at += _INT32.size
        version = 0
        if self._version >= VERSIONS_FROM:
            (version,) = struct.unpack_from(">b", self._buffer, self._at)
            self._at += 1
        number = -1
        for tag, value in self._tags():
            if tag == NUMBER_TAG:
                if len(value) != _INT64.size:
                    raise OversizedMessage("a marker's number of another size")
                (number,) = _INT64.unpack(value)
        return RequestedMarker(
            producer_id, epoch, bool(commit), topics, coordinator_epoch, version, number
        )

    def _topic(self) -> MarkedTopic:
        size = self._count()
        check_string(size)
        name = self._take(size).decode()
        count = self._count()
        self._partitions_left -= count
        if self._partitions_left < 0 or count * _INT32.size > len(self._buffer) - self._at:
            raise OversizedMessage("more partitions than bytes, or than the limit of a request")
        indexes = struct.unpack_from(f">{count}i", self._buffer, self._at)
        self._at += count * _INT32.size
        for tag, value in self._tags():
            if tag == OWNERSHIP_TAG:
                if len(value) != _ID_BYTES + count * _INT32.size:
                    raise OversizedMessage("leader epochs of another number of partitions")
                epochs = struct.unpack(f">{count}i", value[_ID_BYTES:])
                return MarkedTopic(name, indexes, UUID(bytes=value[:_ID_BYTES]), epochs)
        return MarkedTopic(name, indexes)

    def _structs(self) -> int:
        count = self._count()
        self._structs_left -= count
        if self._structs_left < 0 or count > len(self._buffer) - self._at:
            raise OversizedMessage("more elements than bytes, or than the limit of a request")
        return count

    def _count(self) -> int:
        count, self._at = read_varint(self._buffer, self._at)
        if not count:
            raise OversizedMessage("null for a value that must be there")
        return count - 1

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._buffer):
            raise OversizedMessage("cut short")
        return bytes(self._buffer[start : self._at])

    def _tags(self) -> list[tuple[int, bytes]]:
        count, self._at = read_varint(self._buffer, self._at)
        self._tags_left -= count
        if count > _TAGS_MAX or self._tags_left < 0:
            raise OversizedMessage("too many tagged fields")
        found: list[tuple[int, bytes]] = []
        for _ in range(count):
            tag, self._at = read_varint(self._buffer, self._at)
            size, self._at = read_varint(self._buffer, self._at)
            found.append((tag, self._take(size)))
        return found
