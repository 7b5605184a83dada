"""Goal: the tests of test_replica_committed find each planted mistake of a replica.

Method: one rule of the replica is removed, and the named test, or some seeds at random, run.
"""

import pytest

from gateway.core.aborted_lists import SegmentAborted
from gateway.core.followed_transactions import FollowedState, LogTransactions
from gateway.topics import replica_transactions
from gateway.topics.aborted_reader import AbortedReader
from gateway.topics.replica_transactions import ReplicaTransactions
from tests.gateway import test_replica_committed as tests
from tests.gateway.test_replica_committed import play

SEEDS = range(8)


async def at_random():
    for seed in SEEDS:
        await play(seed)


def stable_offset_is_the_high_watermark(patch):
    patch.setattr(
        ReplicaTransactions, "committed_end", property(lambda self: self._stream.end_sequence_id)
    )


def what_was_not_read_counts_as_read(patch):
    patch.setattr(
        ReplicaTransactions,
        "_apply",
        lambda self, state, _: setattr(state, "end", self._stream.end_sequence_id),
    )


def a_snapshot_has_no_open_transactions(patch):
    real = LogTransactions.load

    def load(self, rows):
        yield from real(self, rows)
        self._open.clear()
        self._first_offsets.clear()

    patch.setattr(LogTransactions, "load", load)


def the_list_is_cut_at_the_border_of_a_segment(patch):
    def begin_segment(self, start):
        self.transactions.aborted, self.since = [], start
        self.before = SegmentAborted(0, start, start)

    patch.setattr(FollowedState, "begin_segment", begin_segment)


def only_the_list_in_memory_counts(patch):
    def cached(self, start, end):
        found = self._state.transactions.aborted
        return [one for one in found if one.last_offset >= start and one.first_offset < end]

    patch.setattr(AbortedReader, "cached", cached)


def a_marker_ends_nothing(patch):
    patch.setattr(LogTransactions, "on_marker", lambda *_, commit: None)


def every_marker_commits(patch):
    real = LogTransactions.on_marker
    patch.setattr(
        LogTransactions, "on_marker", lambda self, *at, commit: real(self, *at, commit=True)
    )


def the_stable_offset_falls_while_idle(patch):
    patch.setattr(ReplicaTransactions, "stable_offset", property(lambda self: self.committed_end))


@pytest.mark.parametrize(
    "mistake",
    [
        stable_offset_is_the_high_watermark,
        what_was_not_read_counts_as_read,
        a_snapshot_has_no_open_transactions,
        the_list_is_cut_at_the_border_of_a_segment,
        only_the_list_in_memory_counts,
        a_marker_ends_nothing,
        every_marker_commits,
        the_stable_offset_falls_while_idle,
    ],
)
async def test_a_planted_mistake_is_found_at_random(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        await at_random()


async def test_a_lost_range_that_is_passed_is_found(monkeypatch):
    real = ReplicaTransactions._apply

    def apply(self, state, records):
        for record in records:
            if record.lost is None:
                real(self, state, [record])
            state.end = record.end_sequence_id

    monkeypatch.setattr(ReplicaTransactions, "_apply", apply)
    with pytest.raises(AssertionError):
        await tests.test_behind_a_lost_range_nothing_is_served_before_a_later_snapshot()


async def test_unbounded_reads_are_found(monkeypatch):
    async def oldest(self):
        return replica_transactions.StoredState(0, 0, b"")

    monkeypatch.setattr("ledger.streams.follower.FollowedStream.newest_state", oldest)
    with pytest.raises(AssertionError):
        await tests.test_the_first_reader_costs_a_snapshot_and_what_follows_it()
