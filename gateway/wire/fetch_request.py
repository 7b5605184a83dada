"""Decodes Fetch requests, v4-v18. The bytes of each named partition stay as they are.

A client that reads many partitions repeats almost the same bytes in each request. A broker that
keeps these bytes finds the partitions that differ without decoding the others. Layout: v5 log
start, v7 session and forgotten partitions, v9 leader epoch, v11 rack, v12 flexible with last
fetched epoch, v13 topic ids, v15 the replica in a tag. tests/wire/test_fetch_request.py compares
every version with kio. Source: Kafka's FetchRequest.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from gateway.wire.bounds_check import (
    ELEMENTS_MAX,
    OversizedMessage,
    Tally,
    check_string,
    read_varint,
    skip_tags,
)
from gateway.wire.messages import MalformedMessage
from ledger.ids import Buffer

SESSIONS_FROM = 7
RACKS_FROM = 11
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15

TOPICS_MAX = 20_000
"""Topics named, and topics forgotten, in one request. They are decoded in one step."""

TAGGED_MAX = 20_000
"""Tagged fields in one request, together with the partitions beside them.

These partitions are walked one by one. Only replicas send such fields.
"""

_ENTRIES_AT_ONCE = 500  # cut at once while all are walked
_REPLICA_STATE_TAG, _REPLICA_STATE_BYTES_MIN = 1, 13
_INT32 = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_HEAD_V4 = struct.Struct(">iiiib")  # replica, wait, minimum, maximum, isolation level
_HEAD_V7 = struct.Struct(">iiiibii")  # and session id, session epoch
_HEAD_V15 = struct.Struct(">iiibii")  # without the replica
_SHAPES = {4: ">iqi", 5: ">iqqi", 9: ">iiqqi", 12: ">iiqiqiB"}
"""The layout of a partition from a version on. The last byte of v12 is an empty tag section."""


class AskedPartition(NamedTuple):
    """The fields of one named partition."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    fetch_offset: int
    bytes_max: int
    leader_epoch: int  # -1 if the client has none
    last_fetched_epoch: int


class Entries:
    """The bytes of each partition of one topic, cut from the request when they are needed."""

    __slots__ = ("_raw", "_size")

    def __init__(self, raw: bytes, size: int) -> None:
        self._raw = raw
        self._size = size

    def __len__(self) -> int:
        return len(self._raw) // self._size

    def part(self, first: int, count: int) -> list[bytes]:
        """Return up to `count` entries from `first` on."""
        size = self._size
        raw = self._raw[first * size : (first + count) * size]
        return [entry for (entry,) in _ENTRIES[size].iter_unpack(raw)]

    def all(self) -> list[bytes]:
        return self.part(0, len(self))


class FetchTopic(NamedTuple):
    """One topic, by name below v13 and by id from there on, with its partitions."""

    topic: str | UUID
    entries: Entries


class FetchRequest:
    """One decoded request. Fields that a version lacks have their defaults."""

    __slots__ = (
        "bytes_max",
        "committed",
        "forgotten",
        "min_bytes",
        "partitions_named",
        "rack",
        "replica_id",
        "session_epoch",
        "session_id",
        "size_bytes",
        "topics",
        "version",
        "wait_ms",
    )

    def __init__(self, version: int) -> None:
        self.version = version
        self.replica_id = -1
        self.wait_ms = 0
        self.min_bytes = 0
        self.bytes_max = 0
        # True for a reader of committed records only (isolation level 1).
        self.committed = False
        self.session_id = 0
        self.session_epoch = -1
        # The named topics in order. A topic may appear more than once.
        self.topics: list[FetchTopic] = []
        # The number of all entries in `topics`.
        self.partitions_named = 0
        # Topic and partition of each forgotten partition.
        self.forgotten: list[tuple[str | UUID, int]] = []
        self.rack = ""
        # The size of the encoded body. What follows it in the request is not kept.
        self.size_bytes = 0

    @property
    def by_id(self) -> bool:
        return self.version >= TOPIC_IDS_FROM

    @property
    def elements(self) -> int:
        """The number of all topics, partitions and forgotten partitions in the request."""
        return self.partitions_named + len(self.topics) + len(self.forgotten)

    def read(self, entry: bytes) -> AskedPartition:
        """Decode one of the entries of this request."""
        return READERS[self.version](entry)

    def offsets(self) -> Iterator[tuple[str | UUID, int, int]]:
        """Return topic, partition and offset of every named partition."""
        read = READERS[self.version]
        for topic, entries in self.topics:
            for first in range(0, len(entries), _ENTRIES_AT_ONCE):
                for entry in entries.part(first, _ENTRIES_AT_ONCE):
                    asked = read(entry)
                    yield topic, asked.index, asked.fetch_offset


def _reader_v4(entry: bytes) -> AskedPartition:
    index, offset, bytes_max = _unpack_v4(entry)
    return AskedPartition(index, offset, bytes_max, -1, -1)


def _reader_v5(entry: bytes) -> AskedPartition:
    index, offset, _, bytes_max = _unpack_v5(entry)
    return AskedPartition(index, offset, bytes_max, -1, -1)


def _reader_v9(entry: bytes) -> AskedPartition:
    index, epoch, offset, _, bytes_max = _unpack_v9(entry)
    return AskedPartition(index, offset, bytes_max, epoch, -1)


def _reader_v12(entry: bytes) -> AskedPartition:
    index, epoch, offset, last_epoch, _, bytes_max, _ = _unpack_v12(entry)
    return AskedPartition(index, offset, bytes_max, epoch, last_epoch)


_unpack_v4, _unpack_v5, _unpack_v9, _unpack_v12 = (
    struct.Struct(shape).unpack for shape in _SHAPES.values()
)
_BY_SHAPE = {4: _reader_v4, 5: _reader_v5, 9: _reader_v9, 12: _reader_v12}


def _shape_from(version: int) -> int:
    return max(first for first in _SHAPES if first <= version)


READERS: dict[int, Callable[[bytes], AskedPartition]] = {
    version: _BY_SHAPE[_shape_from(version)] for version in range(4, 19)
}
_ENTRY_BYTES = {version: struct.calcsize(_SHAPES[_shape_from(version)]) for version in range(4, 19)}
_ENTRIES = {size: struct.Struct(f"{size}s") for size in set(_ENTRY_BYTES.values())}


def decode_fetch(version: int, buffer: Buffer, offset: int) -> FetchRequest:
    """Decode the request body at `offset`. Bytes after the body are ignored, as in Kafka.

    Counts and lengths are checked before memory is taken. Raises MalformedMessage.
    """
    try:
        return _Body(version, buffer, offset).decode()
    except (IndexError, struct.error):
        raise MalformedMessage("FetchRequest: cut short") from None
    except (OversizedMessage, UnicodeDecodeError) as error:
        raise MalformedMessage(f"FetchRequest: {error}") from None


class _Body:
    """The position in one request body, and what is left of its limits."""

    __slots__ = (
        "_at",
        "_buffer",
        "_elements_left",
        "_flexible",
        "_request",
        "_start",
        "_tagged",
        "_version",
    )

    def __init__(self, version: int, buffer: Buffer, at: int) -> None:
        self._version = version
        self._flexible = version >= FLEXIBLE_FROM
        self._buffer = buffer
        self._start = self._at = at
        self._elements_left = ELEMENTS_MAX
        self._tagged = Tally(TAGGED_MAX)
        self._request = FetchRequest(version)

    def decode(self) -> FetchRequest:
        request, version = self._request, self._version
        self._head()
        for _ in range(self._topics()):
            topic = self._topic()
            entries = self._entries()
            self._skip_tags()
            request.topics.append(FetchTopic(topic, entries))
            request.partitions_named += len(entries)
        if version >= SESSIONS_FROM:
            self._forgotten()
        if version >= RACKS_FROM:
            request.rack = self._text()
        if self._flexible:
            self._body_tags()
        if self._at > len(self._buffer):
            raise OversizedMessage("cut short")
        request.size_bytes = self._at - self._start
        return request

    def _head(self) -> None:
        request, version = self._request, self._version
        if version >= REPLICA_STATE_FROM:
            fields = self._unpack(_HEAD_V15)
        else:
            fields = self._unpack(_HEAD_V7 if version >= SESSIONS_FROM else _HEAD_V4)
            request.replica_id, *fields = fields
        request.wait_ms, request.min_bytes, request.bytes_max = fields[:3]
        request.committed = fields[3] == 1
        if version >= SESSIONS_FROM:
            request.session_id, request.session_epoch = fields[4:]

    def _forgotten(self) -> None:
        forgotten = self._request.forgotten
        for _ in range(self._topics()):
            topic = self._topic()
            count = self._count(4)
            indexes = struct.unpack_from(f">{count}i", self._buffer, self._at)
            self._at += 4 * count
            self._skip_tags()
            forgotten += [(topic, index) for index in indexes]

    def _entries(self) -> Entries:
        size = _ENTRY_BYTES[self._version]
        count = self._count(size)
        start = self._at
        self._at = end = start + count * size
        raw = bytes(self._buffer[start:end])
        if self._flexible and any(raw[size - 1 :: size]):
            self._at = start
            raw = self._without_tags(count, size - 1)
        elif len(raw) != count * size:
            raise OversizedMessage("cut short")
        return Entries(raw, size)

    def _without_tags(self, count: int, size: int) -> bytes:
        """Return entries of `size` bytes with empty sections in place of their tagged fields."""
        self._tagged.elements_left -= count
        if self._tagged.elements_left < 0:
            raise OversizedMessage("too many partitions with tagged fields")
        raw = bytearray()
        for _ in range(count):
            end = self._at + size
            raw += self._buffer[self._at : end]
            raw.append(0)
            self._at = skip_tags(self._buffer, end, self._tagged)
        return bytes(raw)

    # -- fields -------------------------------------------------------------------------------

    def _unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        values = fields.unpack_from(self._buffer, self._at)
        self._at += fields.size
        return values

    def _count(self, item_bytes: int) -> int:
        """Read the count of an array of which each item takes at least `item_bytes`."""
        if self._flexible:
            count = self._varint() - 1
        else:
            (count,) = self._unpack(_INT32)
        if count < 0:
            raise OversizedMessage("a null array")
        self._elements_left -= count
        if self._elements_left < 0 or count * item_bytes > len(self._buffer) - self._at:
            raise OversizedMessage("more elements than bytes, or than the limit of a request")
        return count

    def _topics(self) -> int:
        """Read the number of topics that follow."""
        topics = self._count(2)
        if topics > TOPICS_MAX:
            raise OversizedMessage("more topics than the limit of a request")
        return topics

    def _varint(self) -> int:
        value = self._buffer[self._at]
        if value < 0x80:
            self._at += 1
            return value
        value, self._at = read_varint(self._buffer, self._at)
        return value

    def _topic(self) -> str | UUID:
        if self._version < TOPIC_IDS_FROM:
            return self._text()
        start = self._at
        self._at += 16
        raw = bytes(self._buffer[start : self._at])
        if len(raw) < 16:
            raise OversizedMessage("cut short")
        return UUID(bytes=raw)

    def _text(self) -> str:
        size = self._varint() - 1 if self._flexible else self._unpack(_LENGTH)[0]
        if size < 0:
            raise OversizedMessage("a null string")
        check_string(size)
        start = self._at
        self._at += size
        raw = bytes(self._buffer[start : self._at])
        if len(raw) < size:
            raise OversizedMessage("cut short")
        return raw.decode()

    def _skip_tags(self) -> None:
        if self._flexible:
            self._at = skip_tags(self._buffer, self._at, self._tagged)

    def _body_tags(self) -> None:
        """Read the replica id if the section has one, and skip the section."""
        start, buffer = self._at, self._buffer
        self._at = skip_tags(buffer, start, self._tagged)
        if self._version < REPLICA_STATE_FROM or not buffer[start]:
            return
        count, at = read_varint(buffer, start)
        for _ in range(count):
            tag, at = read_varint(buffer, at)
            size, at = read_varint(buffer, at)
            if tag == _REPLICA_STATE_TAG:
                if size < _REPLICA_STATE_BYTES_MIN:
                    raise OversizedMessage("a replica state that is too short")
                (self._request.replica_id,) = _INT32.unpack_from(buffer, at)
            at += size
