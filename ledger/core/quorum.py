"""Which bookies hold an entry, and when enough of them have spoken.

An ensemble has E bookies. Entry e lives on Qw of them, from index e mod E on; any Qa of those
acknowledge it. A set of bookies *covers* a write set when it holds (Qw - Qa) + 1 of it: then no
Qa bookies outside the set are left, so nothing can have been acknowledged behind its back.

Striping disappears when Qw = E (the original text says Qw = Qa, which is wrong).
Source: BookKeeper replication protocol, "Write Quorums", "Fencing" (seed 001).
"""

from __future__ import annotations

from functools import cache

from ledger.ids import EntryId

WriteSet = tuple[int, ...]
"""Indexes into an ensemble, in the order of the write quorum."""


@cache
def write_sets(ensemble_size: int, write_quorum: int) -> tuple[WriteSet, ...]:
    """The E distinct write sets; entry e uses number e mod E."""
    assert ensemble_size >= write_quorum >= 1
    return tuple(
        tuple((start + i) % ensemble_size for i in range(write_quorum))
        for start in range(ensemble_size)
    )


def write_set(entry: EntryId, ensemble_size: int, write_quorum: int) -> WriteSet:
    """The indexes of the bookies that `entry` is written to."""
    assert entry >= 0
    return write_sets(ensemble_size, write_quorum)[entry % ensemble_size]


def coverage_size(write_quorum: int, ack_quorum: int) -> int:
    """How many of a write set make sure that no Qa of it are left unheard."""
    assert write_quorum >= ack_quorum >= 1
    return write_quorum - ack_quorum + 1


class Coverage:
    """Who answered, counted against some write sets: until all are covered, or one is lost."""

    __slots__ = ("_known", "_needed", "_sets", "_unknown")

    def __init__(self, sets: tuple[WriteSet, ...], ack_quorum: int) -> None:
        assert sets
        self._sets = sets
        self._needed = coverage_size(len(sets[0]), ack_quorum)
        self._known: set[int] = set()
        self._unknown: set[int] = set()

    def on_known(self, index: int) -> None:
        """The bookie at `index` gave an answer that counts."""
        self._known.add(index)
        self._unknown.discard(index)

    def on_unknown(self, index: int) -> None:
        """The bookie at `index` will not give an answer that counts."""
        if index not in self._known:
            self._unknown.add(index)

    @property
    def reached(self) -> bool:
        """Every write set has (Qw - Qa) + 1 answers that count."""
        return all(len(self._known.intersection(one)) >= self._needed for one in self._sets)

    @property
    def lost(self) -> bool:
        """Some write set can no longer be covered."""
        return any(
            len(one) - len(self._unknown.intersection(one)) < self._needed for one in self._sets
        )
