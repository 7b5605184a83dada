"""Sets of entry ids as runs: disjoint, rising (first, last) pairs, neighbours joined. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledger.ids import EntryId

EntryRanges = tuple[tuple[EntryId, EntryId], ...]

EMPTY: EntryRanges = ()


def ranges_of(entries: Iterable[int]) -> EntryRanges:
    """The runs of some ids, in any order, repeated or not."""
    return merged((entry, entry) for entry in sorted(entries))


def merged(pairs: Iterable[tuple[int, int]]) -> EntryRanges:
    """One set out of pairs that rise by their first id and may overlap; empty ones are dropped."""
    runs: list[tuple[EntryId, EntryId]] = []
    for first, last in pairs:
        if last < first:
            continue
        if runs and first <= runs[-1][1] + 1:
            before = runs[-1]
            runs[-1] = (before[0], EntryId(max(before[1], last)))
        else:
            runs.append((EntryId(first), EntryId(last)))
    return tuple(runs)


def union(one: EntryRanges, other: EntryRanges) -> EntryRanges:
    """Ids in either."""
    return merged(sorted((*one, *other)))


def difference(one: EntryRanges, other: EntryRanges) -> EntryRanges:
    """Ids in `one` and not in `other`."""
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
    """Ids in both."""
    return difference(one, difference(one, other))


def count(runs: EntryRanges) -> int:
    """How many ids there are."""
    return sum(last - first + 1 for first, last in runs)


def contains(runs: EntryRanges, entry: int) -> bool:
    """`entry` is one of them."""
    return any(first <= entry <= last for first, last in runs)


def each(runs: EntryRanges) -> Iterator[EntryId]:
    """Every id, rising."""
    for first, last in runs:
        yield from map(EntryId, range(first, last + 1))


def in_at_least(times: int, sets: Iterable[EntryRanges]) -> EntryRanges:
    """Ids that `times` or more of the sets have."""
    assert times >= 1
    turns = sorted(turn for runs in sets for a, b in runs for turn in ((a, 1), (b + 1, -1)))
    found: list[tuple[int, int]] = []
    depth, began = 0, 0
    for at, step in turns:
        if depth >= times:
            found.append((began, at - 1))
        depth += step
        began = at
    return merged(found)


def as_text(runs: EntryRanges, runs_max: int = 8) -> str:
    """`0-4, 7, 9-12`; beyond `runs_max` runs only how many more there are."""
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:runs_max])
    left = len(runs) - runs_max
    return f"{shown} and {left} more runs" if left > 0 else shown


def share(index: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> EntryRanges:
    """Which of the entries first..last the bookie at `index` of their ensemble should hold.

    Entry e lives on indexes e mod E and the Qw - 1 after it, so an index has Qw of every E.
    """
    assert 0 <= index < ensemble_size
    if write_quorum == ensemble_size:
        return merged([(first, last)])
    runs: list[tuple[int, int]] = []
    start = first - (first - (index - write_quorum + 1)) % ensemble_size
    while start <= last:
        runs.append((max(first, start), min(last, start + write_quorum - 1)))
        start += ensemble_size
    return merged(runs)
