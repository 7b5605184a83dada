"""Decodes ListOffsets requests, v1-v11. The partitions of a topic stay bytes until they are read.

kio would decode 100,000 partitions of a few topics in one step, for 50 to 110 ms; this takes 1 ms.
Topics and their names are decoded at once: as many as are admitted, 20,000, take 35 to 60 ms.
Layout: v2 isolation level, v4 leader epoch, v6 flexible, v10 timeout. Source: Kafka's
ListOffsetsRequest.json. tests/wire/test_list_offsets_request.py compares every version with kio.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from gateway.wire.body_reader import BodyReader
from gateway.wire.bounds_check import OversizedMessage
from gateway.wire.messages import MalformedMessage
from ledger.ids import Buffer

ELEMENTS_MAX = 110_000
"""Topics and partitions in one request, which may name all partitions of a cluster."""

_HELD_BYTES = 500
"""Memory for one partition until the reply is sent: its fields, its answer and the reply's bytes.

350 for a start or an end, 490 for a timestamp.
"""

_ISOLATION_FROM = 2
_EPOCHS_FROM = 4
_FLEXIBLE_FROM = 6
_TIMEOUT_FROM = 10
_HEAD = struct.Struct(">i")  # replica id
_HEAD_V2 = struct.Struct(">ib")  # and isolation level
_COMMITTED_CLIENT = -1, 1  # other replica ids are not those of clients, and ignore the level
_TIMEOUT = struct.Struct(">i")
_V1 = struct.Struct(">iq")  # index, timestamp
_V4 = struct.Struct(">iiq")  # index, leader epoch, timestamp
_V6 = struct.Struct(">iiqx")  # and an empty section of tagged fields


class OffsetsOfTopic:
    """The named partitions of one topic, unpacked while they are iterated."""

    __slots__ = ("_layout", "_raw", "name")

    def __init__(self, name: str, layout: struct.Struct, raw: bytes) -> None:
        self.name = name
        self._layout = layout
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw) // self._layout.size

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Return index, leader epoch (-1 if the client has none) and timestamp of each."""
        fields = self._layout.iter_unpack(self._raw)
        if self._layout is _V1:
            return ((index, -1, timestamp) for index, timestamp in fields)
        return cast("Iterator[tuple[int, int, int]]", fields)


class ListOffsetsRequest(NamedTuple):
    """One decoded request."""

    committed: bool  # True for a client that reads committed records only (isolation level 1)
    topics: list[OffsetsOfTopic]  # in order; a topic may appear more than once
    held_bytes: int  # memory that the request takes while it runs, beside that of its own bytes


def decode_list_offsets(version: int, buffer: Buffer, offset: int) -> ListOffsetsRequest:
    """Decode the request body at `offset`. Bytes after the body are ignored, as in Kafka.

    Counts and lengths are checked before memory is taken. Raises MalformedMessage.
    """
    try:
        return _Body(buffer, offset, ELEMENTS_MAX, version >= _FLEXIBLE_FROM).decode(version)
    except (IndexError, struct.error):
        raise MalformedMessage("ListOffsetsRequest: cut short") from None
    except (OversizedMessage, UnicodeDecodeError) as error:
        raise MalformedMessage(f"ListOffsetsRequest: {error}") from None


def _layout(version: int) -> struct.Struct:
    if version < _EPOCHS_FROM:
        return _V1
    return _V6 if version >= _FLEXIBLE_FROM else _V4


class _Body(BodyReader):
    """The position in the body of one request."""

    __slots__ = ()

    def decode(self, version: int) -> ListOffsetsRequest:
        committed = False
        if version >= _ISOLATION_FROM:
            committed = self._unpack(_HEAD_V2) == _COMMITTED_CLIENT
        else:
            self._unpack(_HEAD)
        layout = _layout(version)
        topics: list[OffsetsOfTopic] = []
        for _ in range(self._topics()):
            topics.append(OffsetsOfTopic(self._text(), layout, self._structs(layout.size)))
            self._skip_tags()
        elements = ELEMENTS_MAX - self._elements_left
        if version >= _TIMEOUT_FROM:
            self._unpack(_TIMEOUT)
        self._skip_tags()
        if self._at > len(self._buffer):
            raise OversizedMessage("cut short")
        return ListOffsetsRequest(committed, topics, _HELD_BYTES * elements)


def list_offsets_fields(
    topics: Mapping[str, Sequence[int]],
    timestamp: int | Mapping[tuple[str, int], int],
    *,
    committed: bool,
) -> dict[str, Any]:
    """Return the fields of a client's request for these partitions, by name.

    All are asked at one timestamp, or each at its own, by topic and partition.
    """

    def of_partition(name: str, index: int) -> dict[str, int]:
        time_ms = timestamp if isinstance(timestamp, int) else timestamp[name, index]
        return {"partition_index": index, "current_leader_epoch": -1, "timestamp": time_ms}

    asked = [
        {"name": name, "partitions": [of_partition(name, index) for index in indexes]}
        for name, indexes in topics.items()
    ]
    return {"replica_id": -1, "isolation_level": int(committed), "topics": asked}
