"""Goal: what a follower derives from the log equals what the owner of the log keeps.

Method: random batches, markers, segments and snapshots go through the owner's transactions and
through a follower, which begins at any snapshot.
"""

from random import Random
from struct import error as StructError

import pytest

from gateway.core.aborted_lists import SegmentAborted
from gateway.core.followed_transactions import FollowedState, LogTransactions
from gateway.core.partition_transactions import EndMarker, PartitionTransactions


class Owner:
    """The transactions of an owner, and its segments."""

    def __init__(self):
        self.known = PartitionTransactions()
        self.end = self.since = 0
        self.before = SegmentAborted(0, 0, 0)

    def begin_segment(self):
        stable, aborted = self.known.roll(self.end)
        self.before = SegmentAborted(self.since, self.end, stable, aborted)
        self.since = self.end

    def snapshot(self):
        """Return a follower that begins here."""
        state = FollowedState(self.end, self.since, self.before)
        for _ in state.transactions.load(self.known.encode(self.end)):
            pass
        return state

    def facts(self):
        stable = self.known.stable_offset(self.end)
        return self.end, stable, list(self.known.aborted), self.since, self.before


def facts_of(state):
    return state.end, state.stable_offset, state.transactions.aborted, state.since, state.before


def write(owner, followers, draw):
    """Append a batch or a marker of one producer, which all apply."""
    producer, at = draw.randrange(5), owner.end
    marker = draw.random() < 0.3
    records = 1 if marker else draw.randrange(1, 4)
    if marker:
        commit = draw.random() < 0.5
        owner.known.accept_marker(EndMarker(producer, 0, 0, commit), at, 0)
        for state in followers:
            state.transactions.on_marker(producer, at, commit=commit)
    else:
        owner.known.accept_batch(producer, 0, at, 0, transactional=True)
        for state in followers:
            state.transactions.on_batch(producer, at)
    owner.end += records
    owner.known.on_durable(owner.end)
    for state in followers:
        state.end = owner.end


@pytest.mark.parametrize("seed", range(50))
def test_a_follower_has_the_transactions_of_the_owner(seed):
    draw, owner = Random(seed), Owner()
    followers = [FollowedState(0, 0)]
    for _ in range(300):
        kind = draw.random()
        if kind < 0.05:
            owner.begin_segment()
            for state in followers:
                state.begin_segment(owner.end)
        elif kind < 0.1 and len(followers) < 8:
            followers.append(owner.snapshot())
        else:
            write(owner, followers, draw)
        assert all(facts_of(state) == owner.facts() for state in followers)


def test_a_marker_without_a_transaction_changes_nothing():
    known = LogTransactions()
    known.on_marker(5, 7, commit=False)
    assert (known.aborted, known.stable_offset(8)) == ([], 8)


def test_large_snapshots_are_loaded_in_steps():
    owner = PartitionTransactions()
    for producer in range(10_000):
        owner.accept_batch(producer, 0, producer, 0, transactional=True)
    known = LogTransactions()
    assert sum(1 for _ in known.load(owner.encode(10_000))) >= 5
    assert (len(known), known.stable_offset(10_000)) == (10_000, 0)
    again = PartitionTransactions()
    assert sum(1 for _ in again.load(owner.encode(10_000))) >= 5
    assert (len(again), again.stable_offset(10_000)) == (10_000, 0)


@pytest.mark.parametrize("damage", [b"", b"\1", b"\2" + bytes(20), bytes([1]) + b"\xff" * 20])
def test_damaged_rows_are_refused(damage):
    with pytest.raises((ValueError, StructError)):
        list(LogTransactions().load(damage))
