"""Compare a topic with the copies that transactional jobs made of it: each record exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

KEYS = 24


class Verdict(NamedTuple):
    """How a copy differs from its source. All are 0 if each record was copied exactly once."""

    lost: int  # records of the source that the copy lacks
    doubled: int  # copies of a record beyond its first
    foreign: int  # values that the source does not have
    reordered: int  # records behind a later one of the same key

    @property
    def good(self) -> bool:
        return not any(self)


def key_of(value: int, keys: int) -> int:
    """Return the key of a record; the values of each key rise."""
    return value % keys


def place_of(value: int, keys: int, partitions: int) -> int:
    """Return the partition of a copy: records of one partition go to several."""
    key = key_of(value, keys)
    return (key % partitions + key // partitions) % partitions


def compare(source: Iterable[int], copy: Mapping[int, Sequence[int]], keys: int) -> Verdict:
    """Compare the values of the source with those of the copy, by partition in log order."""
    wanted = set(source)
    found = Counter(value for values in copy.values() for value in values)
    reordered = 0
    for values in copy.values():
        newest: dict[int, int] = {}
        for value in values:
            key = key_of(value, keys)
            reordered += value < newest.get(key, value)
            newest[key] = max(value, newest.get(key, value))
    return Verdict(
        lost=len(wanted - found.keys()),
        doubled=found.total() - len(found),
        foreign=len(found.keys() - wanted),
        reordered=reordered,
    )
