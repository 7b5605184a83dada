"""Reads the body of one request, with limits for counts and lengths.

For requests that may name more partitions than the event loop should decode at once. The structs of
such an array are taken as one piece of bytes, and each is unpacked when it is needed.
"""

from __future__ import annotations

import struct

from gateway.wire.bounds_check import (
    OversizedMessage,
    Tally,
    check_string,
    read_varint,
    skip_tags,
)
from ledger.ids import Buffer

TOPICS_MAX = 20_000
"""Topics in one array of a request. They are decoded in one step."""

TAGGED_MAX = 20_000
"""Tagged fields in one request, together with the partitions beside them.

These partitions are walked one by one. Clients send no such fields.
"""

_NAME_BYTES_FREE, _BYTES_PER_ELEMENT = 255, 64
"""A text of more than 255 bytes counts as one element for every 64. No topic has such a name.

All texts of a request are decoded in one step, which takes 200 ms for 98 MB.
"""

INT32 = struct.Struct(">i")
_LENGTH = struct.Struct(">h")


class BodyReader:
    """The position in one request body, and what is left of its limits.

    Every method raises OversizedMessage, IndexError or struct.error if the bytes do not suffice.
    """

    __slots__ = ("_at", "_buffer", "_elements_left", "_flexible", "_tagged")

    def __init__(self, buffer: Buffer, at: int, elements_max: int, flexible: bool) -> None:
        self._buffer = buffer
        self._at: int = at
        self._elements_left = elements_max
        self._flexible = flexible
        self._tagged: Tally | None = None  # counts tagged fields, which are rare

    def _unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        values = fields.unpack_from(self._buffer, self._at)
        self._at += fields.size
        return values

    def _count(self, item_bytes: int) -> int:
        """Read the count of an array of which each item takes at least `item_bytes`."""
        if self._flexible:
            count = self._varint() - 1
        else:
            (count,) = self._unpack(INT32)
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

    def _structs(self, size: int) -> bytes:
        """Return the bytes of an array of structs, each of `size` bytes.

        In flexible versions, the last byte of each is an empty section of tagged fields.
        """
        count = self._count(size)
        start = self._at
        self._at = end = start + count * size
        raw = bytes(self._buffer[start:end])
        if self._flexible and any(raw[size - 1 :: size]):
            self._at = start
            return self._without_tags(count, size - 1)
        if len(raw) != count * size:
            raise OversizedMessage("cut short")
        return raw

    def _without_tags(self, count: int, size: int) -> bytes:
        """Return structs of `size` bytes with empty sections in place of their tagged fields."""
        tagged = self._tally()
        tagged.elements_left -= count
        if tagged.elements_left < 0:
            raise OversizedMessage("too many partitions with tagged fields")
        raw = bytearray()
        for _ in range(count):
            end = self._at + size
            raw += self._buffer[self._at : end]
            raw.append(0)
            self._at = skip_tags(self._buffer, end, tagged)
        return bytes(raw)

    def _varint(self) -> int:
        value = self._buffer[self._at]
        if value < 0x80:
            self._at += 1
            return value
        value, self._at = read_varint(self._buffer, self._at)
        return value

    def _text(self) -> str:
        size = self._varint() - 1 if self._flexible else self._unpack(_LENGTH)[0]
        if size < 0:
            raise OversizedMessage("a null string")
        if size > _NAME_BYTES_FREE:
            self._count_long(size)
        start = self._at
        self._at += size
        raw = bytes(self._buffer[start : self._at])
        if len(raw) < size:
            raise OversizedMessage("cut short")
        return raw.decode()

    def _count_long(self, size: int) -> None:
        """Count the bytes of a text that is longer than the name of a topic."""
        check_string(size)
        self._elements_left -= size // _BYTES_PER_ELEMENT
        if self._elements_left < 0:
            raise OversizedMessage("more bytes in long names than the limit of a request")

    def _skip_tags(self) -> None:
        """Skip a section of tagged fields, if this version has one."""
        if not self._flexible:
            return
        if self._buffer[self._at]:
            self._at = skip_tags(self._buffer, self._at, self._tally())
        else:
            self._at += 1

    def _tally(self) -> Tally:
        if self._tagged is None:
            self._tagged = Tally(TAGGED_MAX)
        return self._tagged
