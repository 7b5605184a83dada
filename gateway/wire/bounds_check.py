"""Checks every count and length in a request before it is decoded.

kio's native reader allocates an array by its declared count before it looks for the elements. A
request of forty bytes that declares 2^31 topics would end the process: "memory allocation failed"
is an abort that cannot be caught. So the bytes of every body are walked first, without creating
objects. Each count is compared with the remaining bytes, and the total of all elements and tagged
fields with a limit. The limit is necessary because an empty struct takes 3 bytes on the wire and
more than a hundred in memory, and an unknown tagged field of 2 bytes is a step of this walk.

The walk must agree with kio on the end of each field, otherwise it could miss a count. It is strict
where kio may be lenient, and tests/hostile compares the two. Tagged fields unknown to kio are cut
out, because kio refuses them and KIP-482 requires that they are ignored. Source: KAFKA-14063
(arrays allocated by a declared count), CVE-2022-34917.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from gateway.wire.schema import FIXED, FieldShape, shape_of
from ledger.ids import Buffer

ELEMENTS_MAX = 250_000
"""The maximum number of array elements and tagged fields in one request.

Most APIs have a lower one (`Api`). The largest valid request is a Fetch of all 200,000 partitions.
"""

STRING_BYTES_MAX = 32_767
"""The maximum length of a string, also in flexible versions. Bytes and records may be longer.

Source: Kafka, MessageDataGenerator ("string field X had invalid length").
"""

_TAGS_MAX = 64
_NULL, _PRESENT = 0xFF, 1  # the byte before a nullable struct (KIP-893)
_int16_at = struct.Struct(">h").unpack_from
_int32_at = struct.Struct(">i").unpack_from


class Tally:
    """The counts of one walk, and the tagged fields to cut out."""

    __slots__ = ("cuts", "elements_left")

    def __init__(self, elements_max: int = ELEMENTS_MAX) -> None:
        # The number of array elements and tagged fields that the rest of the request may have.
        self.elements_left = elements_max
        # The tagged fields to cut out: (start, end, replacement), by rising start.
        self.cuts: list[tuple[int, int, bytes]] = []


Skip = Callable[[Buffer, int, Tally], int]
"""Returns the end of a value, which may be past the buffer, from (buffer, start, tally)."""


class OversizedMessage(ValueError):
    """The error that a request has too many elements, or a count or length exceeds its bytes."""


def check_bounds(
    skip: Skip, buffer: Buffer, offset: int, elements_max: int = ELEMENTS_MAX
) -> tuple[Buffer, int]:
    """Return a buffer whose body is safe to decode, and the offset of the body.

    The body has at most `elements_max` array elements and tagged fields. The result is `buffer`, or
    a copy without unknown tagged fields. `skip` is the `walker` of the body's class. Raises
    OversizedMessage.
    """
    tally = Tally(elements_max)
    try:
        end = skip(buffer, offset, tally)
    except (IndexError, struct.error):
        raise OversizedMessage("cut short") from None
    if end > len(buffer):
        raise OversizedMessage("cut short")
    if not tally.cuts:
        return buffer, offset
    return _without(tally.cuts, buffer, offset, end), 0


def _without(cuts: list[tuple[int, int, bytes]], buffer: Buffer, start: int, end: int) -> bytes:
    kept: list[Buffer] = []
    for cut_start, cut_end, instead in cuts:
        kept += (buffer[start:cut_start], instead)
        start = cut_end
    kept.append(buffer[start:end])
    return b"".join(kept)


@cache
def walker(entity: type[Any]) -> Skip:
    """Return the walk over one kio class."""
    shape = shape_of(entity)
    skips = _merged([_field(field, shape.flexible) for field in shape.fields])
    if not shape.flexible:
        return _sequence(skips)
    tagged = {field.tag or 0: _field(field, flexible=True) for field in shape.tagged}
    return _flexible(skips, {tag: _sequence(_merged([step])) for tag, step in tagged.items()})


def _merged(steps: list[int | Skip]) -> list[Skip]:
    """Merge neighbours of fixed width into one step."""
    merged: list[Skip] = []
    width = 0
    for step in steps:
        if isinstance(step, int):
            width += step
            continue
        if width:
            merged.append(_fixed(width))
            width = 0
        merged.append(step)
    if width:
        merged.append(_fixed(width))
    return merged


def _fixed(width: int) -> Skip:
    return lambda buffer, position, tally: position + width


def _sequence(skips: list[Skip]) -> Skip:
    if len(skips) == 1:
        return skips[0]

    def skip_all(buffer: Buffer, position: int, tally: Tally) -> int:
        for skip in skips:
            position = skip(buffer, position, tally)
        return position

    return skip_all


def _flexible(skips: list[Skip], tagged: dict[int, Skip]) -> Skip:
    """Return a walk over fields, then over tagged fields, which are rare."""

    def skip_all(buffer: Buffer, position: int, tally: Tally) -> int:
        for skip in skips:
            position = skip(buffer, position, tally)
        if buffer[position]:
            return _skip_tags(buffer, position, tally, tagged)
        return position + 1

    return skip_all


def _skip_tags(buffer: Buffer, start: int, tally: Tally, tagged: dict[int, Skip]) -> int:
    """Skip a section of tagged fields. Each field counts as an element."""
    count, position = read_varint(buffer, start)
    tally.elements_left -= count
    if count > _TAGS_MAX or tally.elements_left < 0:
        raise OversizedMessage("too many tagged fields")
    unknown: list[tuple[int, int, bytes]] = []
    known_cuts = len(tally.cuts)
    fields_start = position
    for _ in range(count):
        tag_start = position
        tag, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        end = position + size
        known = tagged.get(tag)
        if known is None:
            unknown.append((tag_start, end, b""))
        # kio decodes a known tag by its type and ignores the declared size, so the two must agree.
        elif known(buffer, position, tally) != end or len(tally.cuts) != known_cuts:
            raise OversizedMessage("a tagged field whose size is not that of its type")
        position = end
    if unknown:
        # At most 64 tagged fields remain, so their count takes one byte.
        tally.cuts.append((start, fields_start, bytes((count - len(unknown),))))
        tally.cuts += unknown
    return position


def skip_tags(buffer: Buffer, position: int, tally: Tally | None = None) -> int:
    """Return the end of a section of tagged fields, all unknown. Raises OversizedMessage.

    They are counted in `tally` if there is one, as in a body with many sections.
    """
    try:
        if not buffer[position]:
            return position + 1
        end = _skip_tags(buffer, position, tally or Tally(), {})
    except IndexError:
        raise OversizedMessage("tagged fields cut short") from None
    if end > len(buffer):
        raise OversizedMessage("tagged fields cut short")
    return end


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned varint and its end. Raises OversizedMessage, IndexError."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise OversizedMessage("a varint of more than five bytes")


def _field(shape: FieldShape, flexible: bool) -> int | Skip:
    """Return the width of a field, or a walk over a field without fixed width."""
    value = _value(shape, flexible)
    if not shape.array:
        return value
    item = _fixed(value) if isinstance(value, int) else value
    width = value if isinstance(value, int) else 0
    least = -1 if shape.nullable else 0
    return _compact_array(item, width, least) if flexible else _array(item, width, least)


def _array(item: Skip, width: int, least: int) -> Skip:
    """Return a walk over an array. A `least` count of -1 admits null, which kio always admits."""

    def skip_array(buffer: Buffer, position: int, tally: Tally) -> int:
        count = _int32_at(buffer, position)[0]
        if count < least:
            raise OversizedMessage("a negative count, or null for an array that must be there")
        return _skip_items(buffer, position + 4, tally, count, item, width)

    return skip_array


def _compact_array(item: Skip, width: int, least: int) -> Skip:
    def skip_array(buffer: Buffer, position: int, tally: Tally) -> int:
        count = buffer[position]
        if count < 0x80:
            position += 1
        else:
            count, position = read_varint(buffer, position)
        if count <= least:
            raise OversizedMessage("null for an array that must be there")
        return _skip_items(buffer, position, tally, count - 1, item, width)

    return skip_array


def _skip_items(
    buffer: Buffer, position: int, tally: Tally, count: int, item: Skip, width: int
) -> int:
    """Skip `count` elements of `width` bytes. If `width` is 0, each takes at least one byte."""
    if count <= 0:
        return position
    tally.elements_left -= count
    if tally.elements_left < 0 or count > len(buffer) - position:
        raise OversizedMessage("more elements than bytes, or than the limit of a request")
    if width:
        return position + count * width
    for _ in range(count):
        position = item(buffer, position, tally)
    return position


def _value(shape: FieldShape, flexible: bool) -> int | Skip:
    if shape.struct is not None:
        inner = walker(shape.struct)
        return _nullable(inner) if shape.nullable and not shape.array else inner
    if shape.kind == "uuid":
        return 16
    if shape.kind in FIXED:
        return struct.calcsize(">" + FIXED[shape.kind])
    if flexible:
        return _compact_string if shape.kind == "string" else _compact_bytes
    return _string if shape.kind == "string" else _bytes


def _compact_string(buffer: Buffer, position: int, tally: Tally) -> int:
    size = buffer[position]
    if size < 0x80:
        return position + (size or 1)
    size, position = read_varint(buffer, position)
    check_string(size - 1)
    return position + max(size - 1, 0)


def check_string(size: int) -> None:
    """Check the length of a string. Raises OversizedMessage."""
    if size > STRING_BYTES_MAX:
        raise OversizedMessage(f"a string of more than {STRING_BYTES_MAX} bytes")


def _compact_bytes(buffer: Buffer, position: int, tally: Tally) -> int:
    size = buffer[position]
    if size < 0x80:
        return position + (size or 1)
    size, position = read_varint(buffer, position)
    return position + max(size - 1, 0)


def _string(buffer: Buffer, position: int, tally: Tally) -> int:
    size = _int16_at(buffer, position)[0]
    if size < -1:
        raise OversizedMessage("a negative length")
    return position + 2 + max(size, 0)


def _bytes(buffer: Buffer, position: int, tally: Tally) -> int:
    size = _int32_at(buffer, position)[0]
    if size < -1:
        raise OversizedMessage("a negative length")
    return position + 4 + max(size, 0)


def _nullable(inner: Skip) -> Skip:
    def skip(buffer: Buffer, position: int, tally: Tally) -> int:
        marker = buffer[position]
        if marker == _NULL:
            return position + 1
        if marker != _PRESENT:
            raise OversizedMessage("neither a struct nor null")
        return inner(buffer, position + 1, tally)

    return skip
