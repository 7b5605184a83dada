"""Counts what a large request claims to hold before any of it becomes objects.

An empty struct takes 3 bytes on the wire and more than a hundred in memory, so a 100 MiB frame of
them would cost gigabytes and seconds. Only frames above a threshold are walked: below it the worst
case is harmless. A walk makes no objects and stops at the first claim that cannot be true.
Source: KAFKA-14063 (arrays allocated by a declared count), CVE-2022-34917.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from gateway.wire.schema import FIXED, FieldShape, shape_of
from ledger.ids import Buffer

ELEMENTS_MAX = 500_000
"""Array elements in one request; the largest honest one is a Fetch of all of 200 000 partitions."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class BombFound(ValueError):
    """More elements than a request may hold, or more than its bytes can hold."""


class _Walk:
    """Where the walk is and how much it may still count."""

    __slots__ = ("buffer", "elements_left", "end", "position")

    def __init__(self, buffer: Buffer, position: int) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.elements_left = ELEMENTS_MAX

    def skip(self, size: int) -> None:
        if size < 0 or size > self.end - self.position:
            raise BombFound("a length beyond the end")
        self.position += size

    def varint(self) -> int:
        value = shift = 0
        for _ in range(5):
            start = self.position
            self.skip(1)
            byte = self.buffer[start]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise BombFound("a varint of more than five bytes")

    def number(self, width: struct.Struct) -> int:
        start = self.position
        self.skip(width.size)
        return width.unpack_from(self.buffer, start)[0]

    def count(self, claimed: int) -> int:
        """Elements of an array; each takes a byte at least."""
        if claimed > self.end - self.position or claimed > self.elements_left:
            raise BombFound("more elements than bytes, or than a request may hold")
        self.elements_left -= max(claimed, 0)
        return claimed


Skip = Callable[[_Walk], None]


def refuse_bombs(entity: type[Any], buffer: Buffer, offset: int) -> None:
    """Returns when the body at `offset` is modest in structure. Raises BombFound."""
    _struct(entity)(_Walk(buffer, offset))


@cache
def _struct(entity: type[Any]) -> Skip:
    shape = shape_of(entity)
    skips = [_field(field, shape.flexible) for field in shape.fields]
    tagged = {field.tag or 0: _field(field, flexible=True) for field in shape.tagged}
    flexible = shape.flexible

    def skip(walk: _Walk) -> None:
        for each in skips:
            each(walk)
        if flexible:
            _tags(walk, tagged)

    return skip


def _tags(walk: _Walk, tagged: dict[int, Skip]) -> None:
    for _ in range(walk.count(walk.varint())):
        tag = walk.varint()
        size = walk.varint()
        known = tagged.get(tag)
        if known is None:
            walk.skip(size)
        else:
            known(walk)


def _field(shape: FieldShape, flexible: bool) -> Skip:
    value = _value(shape, flexible)
    if not shape.array:
        return value

    def skip_array(walk: _Walk) -> None:
        claimed = walk.varint() - 1 if flexible else walk.number(_INT32)
        for _ in range(walk.count(claimed)):
            value(walk)

    return skip_array


def _value(shape: FieldShape, flexible: bool) -> Skip:
    if shape.struct is not None:
        inner = _struct(shape.struct)
        return _nullable(inner) if shape.nullable and not shape.array else inner
    if shape.kind in FIXED:
        size = struct.calcsize(">" + FIXED[shape.kind])
        return lambda walk: walk.skip(size)
    if shape.kind == "uuid":
        return lambda walk: walk.skip(16)
    if flexible:
        return lambda walk: walk.skip(max(walk.varint() - 1, 0))
    width = _INT16 if shape.kind == "string" else _INT32
    return lambda walk: walk.skip(max(walk.number(width), 0))


def _nullable(inner: Skip) -> Skip:
    def skip(walk: _Walk) -> None:
        start = walk.position
        walk.skip(1)
        if walk.buffer[start] < 0x80:
            inner(walk)

    return skip
