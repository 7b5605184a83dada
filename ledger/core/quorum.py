"""Which bookies hold an entry, and how many answers are enough.

An ensemble has E bookies. Entry e is written to Qw of them, from index e mod E on; it is
acknowledged once any Qa of those have it. A set of bookies *covers* a write set if it contains
(Qw - Qa) + 1 of its members: fewer than Qa remain, so no entry can be acknowledged without it.

There is no striping if Qw = E (the original text says Qw = Qa, which is wrong).
Source: BookKeeper replication protocol, "Write Quorums", "Fencing" (seed 001).
"""

from __future__ import annotations

from functools import cache

from ledger.ids import EntryId

WriteSet = tuple[int, ...]
"""Indexes into an ensemble, in the order of the write quorum."""


@cache
def write_sets(ensemble_size: int, write_quorum: int) -> tuple[WriteSet, ...]:
    """Return the E distinct write sets. Entry e uses the set with number e mod E."""
    assert ensemble_size >= write_quorum >= 1
    return tuple(
        tuple((start + i) % ensemble_size for i in range(write_quorum))
        for start in range(ensemble_size)
    )


def write_set(entry: EntryId, ensemble_size: int, write_quorum: int) -> WriteSet:
    """Return the ensemble indexes that `entry` is written to."""
    assert entry >= 0
    return write_sets(ensemble_size, write_quorum)[entry % ensemble_size]


def coverage_size(write_quorum: int, ack_quorum: int) -> int:
    """Return how many members cover a write set, so that fewer than Qa members remain."""
    assert write_quorum >= ack_quorum >= 1
    return write_quorum - ack_quorum + 1


class Coverage:
    """The count of bookies' answers, until they cover all write sets or cannot cover one."""

    __slots__ = ("_known", "_needed", "_sets", "_unknown")

    def __init__(self, sets: tuple[WriteSet, ...], ack_quorum: int) -> None:
        assert sets
        self._sets = sets
        # (Qw - Qa) + 1 answers cover a write set.
        self._needed = coverage_size(len(sets[0]), ack_quorum)
        # Ensemble indexes with an answer that counts. The set only grows.
        self._known: set[int] = set()
        # Indexes whose bookie failed to answer, disjoint from `_known`. A late answer moves an
        # index.
        self._unknown: set[int] = set()

    def on_known(self, index: int) -> None:
        """Count the answer of the bookie at `index`."""
        self._known.add(index)
        self._unknown.discard(index)

    def on_unknown(self, index: int) -> None:
        """Expect no answer that counts from the bookie at `index`."""
        if index not in self._known:
            self._unknown.add(index)

    @property
    def reached(self) -> bool:
        """True if every write set is covered."""
        return all(len(self._known.intersection(one)) >= self._needed for one in self._sets)

    @property
    def lost(self) -> bool:
        """True if some write set can no longer be covered."""
        return any(
            len(one) - len(self._unknown.intersection(one)) < self._needed for one in self._sets
        )
