"""The consumer protocol: what a classic member subscribes to, and what it is assigned. Pure.

A member puts its subscription into JoinGroup, and gets its assignment by SyncGroup; to the broker
both are bytes. Versions 0 to 3; a later version is read as version 3, because it only appends.
Source: Kafka, ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

VERSION_MAX: Final = 3
_OWNED_FROM: Final = 1
_GENERATION_FROM: Final = 2
_RACK_FROM: Final = 3
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_NULL: Final = -1

NamedPartitions = Mapping[str, frozenset[int]]
"""Partitions by the name of their topic."""


class MalformedProtocol(ValueError):
    """The error that bytes are no subscription or no assignment of the consumer protocol."""


class Subscription(NamedTuple):
    """The subscription of a classic member."""

    version: int  # as it was sent
    topics: frozenset[str]
    owned: NamedPartitions  # what the member keeps while it joins
    generation: int  # in which it got `owned`, or -1 if that is unknown
    rack_id: str | None


class Assignment(NamedTuple):
    """The assignment of a classic member."""

    partitions: NamedPartitions
    has_user_data: bool  # bytes of an assignor that only its own clients can read


def decode_subscription(data: bytes) -> Subscription:
    """Decode the metadata of a JoinGroup. Raises MalformedProtocol."""
    reader = _Reader(data)
    version = reader.version()
    topics = frozenset(reader.text() for _ in range(reader.count(2)))
    reader.skip_bytes()
    owned: NamedPartitions = reader.partitions() if version >= _OWNED_FROM else {}
    generation = reader.number(_INT) if version >= _GENERATION_FROM else -1
    rack_id = reader.nullable_text() if version >= _RACK_FROM else None
    return Subscription(version, topics, owned, generation, rack_id or None)


def decode_assignment(data: bytes) -> Assignment:
    """Decode the assignment of a member; no bytes are no partitions. Raises MalformedProtocol."""
    if not data:
        return Assignment({}, has_user_data=False)
    reader = _Reader(data)
    reader.version()
    return Assignment(reader.partitions(), has_user_data=reader.skip_bytes() > 0)


def encode_assignment(partitions: Iterable[tuple[str, Iterable[int]]], version: int) -> bytes:
    """Encode an assignment, in a version that the member can read."""
    pairs = list(partitions)
    parts = [_SHORT.pack(min(version, VERSION_MAX)), _INT.pack(len(pairs))]
    for topic, some in pairs:
        name, numbers = topic.encode(), sorted(some)
        parts += [_SHORT.pack(len(name)), name, _INT.pack(len(numbers))]
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
    parts.append(_INT.pack(_NULL))
    return b"".join(parts)


class _Reader:
    """A place in the bytes of a client. Each call checks before it reads."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def version(self) -> int:
        version = self.number(_SHORT)
        if version < 0:
            raise MalformedProtocol(f"version {version}")
        return version

    def number(self, form: struct.Struct) -> int:
        if self._at + form.size > len(self._data):
            raise MalformedProtocol("cut short")
        found: int = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return found

    def count(self, least_bytes: int) -> int:
        """Return the length of an array whose elements have at least this number of bytes."""
        count = self.number(_INT)
        if not 0 <= count * least_bytes <= len(self._data) - self._at:
            raise MalformedProtocol(f"{count} elements")
        return count

    def text(self) -> str:
        found = self.nullable_text()
        if found is None:
            raise MalformedProtocol("a name is null")
        return found

    def nullable_text(self) -> str | None:
        size = self.number(_SHORT)
        if size == _NULL:
            return None
        return self._taken(size).decode("utf-8", "replace")

    def skip_bytes(self) -> int:
        """Skip nullable bytes, and return their number."""
        size = self.number(_INT)
        return 0 if size == _NULL else len(self._taken(size))

    def partitions(self) -> NamedPartitions:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count(6)):
            topic = self.text()
            numbers = self._taken(4 * self.count(4))
            some = frozenset(struct.unpack(f">{len(numbers) // 4}i", numbers))
            found[topic] = found.get(topic, frozenset()) | some
        return found

    def _taken(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise MalformedProtocol(f"{size} bytes")
        self._at += size
        return self._data[self._at - size : self._at]
