"""The order of names and ids in a Java HashMap, where an answer of Kafka depends on it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import mul
from typing import Final
from uuid import UUID

CHARACTERS_MAX: Final = 64 * 1024
"""Characters of all names together up to which their order is computed, because it takes time."""
_TABLE_MIN = 16
_LOW: Final = (1 << 64) - 1
_WORD: Final = 0xFFFF_FFFF
_SHORT: Final = 64  # characters; a member id has 36 or 22, and often the client id before it
_SHORT_KEPT: Final = 8_192  # hashes of short names that are kept, in two megabytes at most
_POWERS: Final = tuple(pow(31, each, 1 << 32) for each in reversed(range(2 * _SHORT)))
"""The weights of the units of a short string, the last one's at the end."""


def in_map_order(names: Collection[str], size: int = 0) -> Sequence[str]:
    """Return the names in the order of a HashMap into which they were put one after the other.

    `size` is that of a map that holds further names, of which the order does not matter. Names in
    one bucket keep their order. Long lists of names stay as they are.
    Source: java.util.HashMap (a load of 0.75), java.lang.String.hashCode.
    """
    lengths = [*map(len, names)]
    if sum(lengths) > CHARACTERS_MAX:
        return list(names)
    table = _TABLE_MIN
    while 4 * max(size, len(names)) > 3 * table:
        table *= 2
    last = table - 1
    short = max(lengths, default=0) <= _SHORT
    buckets = {
        name: spread & last
        for name, spread in zip(
            names, map(_short_spread if short else _spread_hash, names), strict=True
        )
    }
    return sorted(names, key=buckets.__getitem__)


def java_hash(text: str) -> int:
    """Return String.hashCode as an unsigned number."""
    units = _units(text)
    if len(units) <= len(_POWERS):
        return sum(map(mul, units, _POWERS[-len(units) :])) & _WORD
    found = 0
    for unit in units:
        found = (31 * found + unit) & _WORD
    return found


def _spread_hash(text: str) -> int:
    return _spread(java_hash(text))


@lru_cache(_SHORT_KEPT)
def _short_spread(text: str) -> int:
    """Return the spread hash of a short name, of which a group asks again at each assignment."""
    return _spread_hash(text)


def _units(text: str) -> Sequence[int]:
    """Return the UTF-16 units of a text."""
    if text.isascii():
        return text.encode()
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


def _spread(number: int) -> int:
    return number ^ number >> 16


def in_id_order(ids: Collection[UUID], *, copied: bool = False) -> list[UUID]:
    """Return ids in the order of a HashMap into which they were put one after the other.

    `copied` means that the map was made from all of them at once, which makes its table larger.
    Source: org.apache.kafka.common.Uuid.hashCode.
    """
    table = _TABLE_MIN
    while table < (4 * len(ids) // 3 + 1) if copied else 4 * len(ids) > 3 * table:
        table *= 2
    return sorted(ids, key=lambda each: _spread(_id_hash(each)) & (table - 1))


def in_number_order(numbers: Collection[int]) -> list[int]:
    """Return small numbers in the order of a HashSet that was made from all of them at once."""
    table = _TABLE_MIN
    while table < 4 * len(numbers) // 3 + 1:
        table *= 2
    return sorted(numbers, key=lambda each: (each & (table - 1), each))


def _id_hash(each: UUID) -> int:
    mixed = each.int >> 64 ^ each.int & _LOW
    return mixed >> 32 ^ mixed & 0xFFFF_FFFF


def java_id_key(each: UUID) -> tuple[int, int]:
    """Return a key by which ids sort as by Uuid.compareTo, which compares signed numbers."""
    return _signed(each.int >> 64), _signed(each.int & _LOW)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
