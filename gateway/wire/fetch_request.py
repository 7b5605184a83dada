"""Decodes Fetch requests, v4-v18. The bytes of each named partition stay as they are.

A client that reads many partitions repeats almost the same bytes in each request. A broker that
keeps these bytes finds the partitions that differ without decoding the others. Layout: v5 log
start, v7 session and forgotten partitions, v9 leader epoch, v11 rack, v12 flexible with last
fetched epoch, v13 topic ids, v15 the replica in a tag. tests/wire/test_fetch_request.py compares
every version with kio. Source: Kafka's FetchRequest.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from gateway.wire.body_reader import INT32, BodyReader
from gateway.wire.bounds_check import ELEMENTS_MAX, OversizedMessage, read_varint
from gateway.wire.messages import MalformedMessage
from ledger.ids import Buffer

SESSIONS_FROM = 7
RACKS_FROM = 11
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15

_ENTRIES_AT_ONCE = 500  # cut at once while all are walked
_REPLICA_STATE_TAG, _REPLICA_STATE_BYTES_MIN = 1, 13
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


class _Body(BodyReader):
    """The position in the body of one request."""

    __slots__ = ("_request", "_start", "_version")

    def __init__(self, version: int, buffer: Buffer, at: int) -> None:
        super().__init__(buffer, at, ELEMENTS_MAX, version >= FLEXIBLE_FROM)
        self._version = version
        self._start = at
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
        return Entries(self._structs(size), size)

    def _topic(self) -> str | UUID:
        if self._version < TOPIC_IDS_FROM:
            return self._text()
        start = self._at
        self._at += 16
        raw = bytes(self._buffer[start : self._at])
        if len(raw) < 16:
            raise OversizedMessage("cut short")
        return UUID(bytes=raw)

    def _body_tags(self) -> None:
        """Read the replica id if the section has one, and skip the section."""
        start, buffer = self._at, self._buffer
        self._skip_tags()
        if self._version < REPLICA_STATE_FROM or not buffer[start]:
            return
        count, at = read_varint(buffer, start)
        for _ in range(count):
            tag, at = read_varint(buffer, at)
            size, at = read_varint(buffer, at)
            if tag == _REPLICA_STATE_TAG:
                if size < _REPLICA_STATE_BYTES_MIN:
                    raise OversizedMessage("a replica state that is too short")
                (self._request.replica_id,) = INT32.unpack_from(buffer, at)
            at += size


def fetch_fields(
    offsets: Iterable[tuple[str, int, int]],
    *,
    partition_bytes_max: int,
    bytes_max: int,
    bytes_min: int,
    wait_ms: int,
    committed: bool,
) -> dict[str, Any]:
    """Return the fields of a client's request, without a session, up to v12.

    `offsets` are topics by name, partitions, and the offsets to read from.
    """
    topics: dict[str, list[dict[str, int]]] = {}
    for name, index, offset in offsets:
        topics.setdefault(name, []).append(
            {
                "partition": index,
                "current_leader_epoch": -1,
                "fetch_offset": offset,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": partition_bytes_max,
            }
        )
    return {
        "cluster_id": None,
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": bytes_min,
        "max_bytes": bytes_max,
        "isolation_level": int(committed),
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": name, "partitions": each} for name, each in topics.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
