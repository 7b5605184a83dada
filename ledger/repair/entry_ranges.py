"""Sets of entry ids as ranges: disjoint, rising (first, last) pairs, adjacent ones merged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledger.ids import EntryId

EntryRanges = tuple[tuple[EntryId, EntryId], ...]

EMPTY: EntryRanges = ()


def ranges_of(entries: Iterable[int]) -> EntryRanges:
    """Return the ranges of ids, which may be in any order and repeated."""
    return merged((entry, entry) for entry in sorted(entries))


def merged(pairs: Iterable[tuple[int, int]]) -> EntryRanges:
    """Merge pairs that rise by their first id and may overlap. Empty pairs are dropped."""
    ranges: list[tuple[EntryId, EntryId]] = []
    for first, last in pairs:
        if last < first:
            continue
        if ranges and first <= ranges[-1][1] + 1:
            before = ranges[-1]
            ranges[-1] = (before[0], EntryId(max(before[1], last)))
        else:
            ranges.append((EntryId(first), EntryId(last)))
    return tuple(ranges)


def union(one: EntryRanges, other: EntryRanges) -> EntryRanges:
    """Return the ids in either set."""
    return merged(sorted((*one, *other)))


def difference(one: EntryRanges, other: EntryRanges) -> EntryRanges:
    """Return the ids in `one` that are not in `other`."""
    left: list[tuple[int, int]] = []
    at = 0
    for first, last in one:
        start: int = first
        while at < len(other) and other[at][1] < start:
            at += 1
        next_at = at
        while next_at < len(other) and other[next_at][0] <= last:
            left.append((start, other[next_at][0] - 1))
            start = other[next_at][1] + 1
            next_at += 1
        left.append((start, last))
    return merged(left)


def intersection(one: EntryRanges, other: EntryRanges) -> EntryRanges:
    """Return the ids in both sets."""
    return difference(one, difference(one, other))


def count(ranges: EntryRanges) -> int:
    """Return the number of ids."""
    return sum(last - first + 1 for first, last in ranges)


def contains(ranges: EntryRanges, entry: int) -> bool:
    """True if `entry` is in the set."""
    return any(first <= entry <= last for first, last in ranges)


def each(ranges: EntryRanges) -> Iterator[EntryId]:
    """Yield every id, rising."""
    for first, last in ranges:
        yield from map(EntryId, range(first, last + 1))


def as_text(ranges: EntryRanges, ranges_max: int = 8) -> str:
    """Format as `0-4, 7, 9-12`, with at most `ranges_max` ranges and the number of omitted ones."""
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges[:ranges_max])
    left = len(ranges) - ranges_max
    return f"{shown} and {left} more ranges" if left > 0 else shown


def share(index: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> EntryRanges:
    """Return the entries of first..last that the bookie at `index` of the ensemble should hold.

    Entry e is on index e mod E and on the following Qw - 1, so an index has Qw of every E entries.
    """
    assert 0 <= index < ensemble_size
    if write_quorum == ensemble_size:
        return merged([(first, last)])
    ranges: list[tuple[int, int]] = []
    start = first - (first - (index - write_quorum + 1)) % ensemble_size
    while start <= last:
        ranges.append((max(first, start), min(last, start + write_quorum - 1)))
        start += ensemble_size
    return merged(ranges)
