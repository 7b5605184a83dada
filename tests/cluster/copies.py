"""Compare a topic with the copy that transactional jobs made of it: each record exactly once.

The values of the source are 0, 1, 2 and so on. A copy has the name of its transaction in a header.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

KEYS = 24
COMMIT, ABORT = "commit", "abort"
COPIES_SHOWN_MAX = 6  # of one anomaly


class Copy(NamedTuple):
    """A record of a copied topic, as a reader saw it."""

    value: int
    partition: int
    offset: int
    transaction: str
    time_ms: int

    def __str__(self) -> str:
        return f"partition {self.partition} offset {self.offset} by {self.transaction}"


class Anomaly(NamedTuple):
    """A way in which readers of committed records do not see each record exactly once.

    kind: `lost`, `doubled`, `foreign` (not in the source), `reordered` (behind a later record of
    its key), `torn` (only a part of a transaction is visible), `aborted` (of a transaction whose
    abort was acknowledged), `uncommitted` (a commit was acknowledged, but is not visible), or
    `stale` (a compacted topic does not end with the last value of a key).
    """

    kind: str
    value: int
    copies: tuple[Copy, ...]

    def __str__(self) -> str:
        where = "; ".join(map(str, self.copies[:COPIES_SHOWN_MAX]))
        return f"{self.kind}: record {self.value}, {where or 'without any copy'}"


class View(NamedTuple):
    """A topic as both kinds of readers see it, each partition in the order of its log."""

    committed: Sequence[Copy]
    everything: Sequence[Copy]


def key_of(value: int, keys: int) -> int:
    """Return the key of a record; the values of each key rise."""
    return value % keys


def place_of(value: int, keys: int, partitions: int) -> int:
    """Return the partition of a copy: records of one partition go to several."""
    key = key_of(value, keys)
    return (key % partitions + key // partitions) % partitions


def compare(count: int, view: View, outcomes: Mapping[str, str], keys: int) -> list[Anomaly]:
    """Compare a copy of `count` records with its source.

    `outcomes` has the acknowledged outcome of transactions; others may have either.
    """
    return [
        *_of_records(count, view),
        *_of_order(view.committed, keys),
        *_of_transactions(view, outcomes),
    ]


def compare_newest(count: int, view: View, outcomes: Mapping[str, str], keys: int) -> list[Anomaly]:
    """Compare a compacted topic, to which each transaction wrote its last value of each key."""
    last = {key_of(each.value, keys): each for each in view.committed}
    wanted = {key_of(value, keys): value for value in range(max(0, count - keys), count)}
    stale = [
        Anomaly("stale", value, (last[key],) if key in last else ())
        for key, value in wanted.items()
        if key not in last or last[key].value != value
    ]
    shown = [each for each in view.committed if outcomes.get(each.transaction) == ABORT]
    return [
        *stale,
        *_of_order(view.committed, keys),
        *(Anomaly("aborted", each.value, (each,)) for each in shown),
    ]


def _of_records(count: int, view: View) -> Iterable[Anomaly]:
    found = _by_value(view.committed)
    lost = [value for value in range(count) if value not in found]
    hidden = _by_value(view.everything) if lost else {}
    for value in lost:
        yield Anomaly("lost", value, tuple(hidden.get(value, ())))
    for value, copies in found.items():
        if not 0 <= value < count:
            yield Anomaly("foreign", value, tuple(copies))
        elif len(copies) > 1:
            yield Anomaly("doubled", value, tuple(copies))


def _of_order(committed: Sequence[Copy], keys: int) -> Iterable[Anomaly]:
    newest: dict[tuple[int, int], Copy] = {}
    for each in committed:
        place = each.partition, key_of(each.value, keys)
        before = newest.get(place)
        if before is not None and each.value < before.value:
            yield Anomaly("reordered", each.value, (before, each))
        else:
            newest[place] = each


def _of_transactions(view: View, outcomes: Mapping[str, str]) -> Iterable[Anomaly]:
    visible = {(each.partition, each.offset) for each in view.committed}
    by_transaction: defaultdict[str, list[Copy]] = defaultdict(list)
    for each in view.everything:
        by_transaction[each.transaction].append(each)
    for name, copies in by_transaction.items():
        shown = [each for each in copies if (each.partition, each.offset) in visible]
        hidden = [each for each in copies if (each.partition, each.offset) not in visible]
        if shown and hidden:
            yield Anomaly("torn", hidden[0].value, (hidden[0], shown[0]))
        if shown and outcomes.get(name) == ABORT:
            yield Anomaly("aborted", shown[0].value, tuple(shown))
        if hidden and outcomes.get(name) == COMMIT:
            yield Anomaly("uncommitted", hidden[0].value, tuple(hidden))


def _by_value(copies: Iterable[Copy]) -> dict[int, list[Copy]]:
    found: defaultdict[int, list[Copy]] = defaultdict(list)
    for each in copies:
        found[each.value].append(each)
    return found
