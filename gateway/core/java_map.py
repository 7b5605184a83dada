"""The order in which a Java HashMap returns its names, where a Kafka answer depends on it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

CHARACTERS_MAX: Final = 64 * 1024
"""Characters of all names together up to which their order is computed, because it takes time."""
_TABLE_MIN = 16


def in_map_order(names: Collection[str]) -> Sequence[str]:
    """Return the names in the order of a HashMap into which they were put one after the other.

    Names in one bucket keep their order. Long lists of names stay as they are.
    Source: java.util.HashMap (a load of 0.75), java.lang.String.hashCode.
    """
    if sum(map(len, names)) > CHARACTERS_MAX:
        return list(names)
    table = _TABLE_MIN
    while 4 * len(names) > 3 * table:
        table *= 2
    return sorted(names, key=lambda name: _spread(java_hash(name)) & (table - 1))


def java_hash(text: str) -> int:
    """Return String.hashCode as an unsigned number."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return found


def _spread(number: int) -> int:
    return number ^ number >> 16
