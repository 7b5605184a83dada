"""Goal: a group waits only when waiting brings company, and never longer than its bound.
Method: the pure decision driven by hand, with closed loops of senders simulated in a few lines.
"""

from __future__ import annotations

import pytest

from ledger.core.group_commit import GroupCommit, GroupCommitLimits


def decide(decision: GroupCommit, now_us: float, entries: int, bytes_waiting: int = 100) -> int:
    return decision.wait_us(now_us / 1e6, entries, bytes_waiting)


def test_without_a_wait_every_group_is_written_at_once():
    decision = GroupCommit(GroupCommitLimits(wait_us_max=0))
    for entries in (1, 9, 1):
        assert decide(decision, 0, entries) == 0
        decision.on_written(entries)


def test_the_first_group_and_a_lone_sender_never_wait():
    decision = GroupCommit(GroupCommitLimits(wait_us_max=500))
    for turn in range(5):
        assert decide(decision, turn * 1000, 1) == 0
        decision.on_written(1)


def test_after_a_group_of_five_the_next_waits_for_five():
    decision = GroupCommit(GroupCommitLimits(wait_us_max=500))
    decision.on_written(5)
    assert decide(decision, 1000, 2) == 500
    assert decide(decision, 1100, 4) == pytest.approx(400, abs=1)
    assert decide(decision, 1200, 5) == 0


def test_a_wait_ends_at_its_bound():
    decision = GroupCommit(GroupCommitLimits(wait_us_max=500))
    decision.on_written(5)
    assert decide(decision, 0, 2) > 0
    assert decide(decision, 500, 2) == 0


def test_a_wait_ends_where_time_stands_still():
    decision = GroupCommit(GroupCommitLimits(wait_us_max=500))
    decision.on_written(5)
    questions = 0
    while decide(decision, 0, 2) > 0:
        questions += 1
    assert questions == 100


@pytest.mark.parametrize(("entries", "size"), [(8, 100), (2, 1 << 20)])
def test_a_full_group_does_not_wait(entries, size):
    limits = GroupCommitLimits(wait_us_max=500, group_entries_max=8, group_bytes_max=1 << 20)
    decision = GroupCommit(limits)
    decision.on_written(100)
    assert decide(decision, 0, entries, size) == 0


def waits_in(decision: GroupCommit, groups: int, arrives: bool) -> int:
    """Groups that waited, of so many, when the missing entries do or do not arrive."""
    waited, now_us = 0, 0.0
    for _ in range(groups):
        now_us += 10_000
        decision._expected_entries = 4
        entries = 1
        if decide(decision, now_us, entries) > 0:
            waited += 1
            entries += 3 if arrives else 0
            now_us += 500
            assert decide(decision, now_us, entries) == 0
        decision.on_written(entries)
    return waited


def test_waiting_that_brings_nobody_is_given_up_more_and_more():
    limits = GroupCommitLimits(wait_us_max=500)
    assert waits_in(GroupCommit(limits), 1000, arrives=False) < 20
    assert waits_in(GroupCommit(limits), 1000, arrives=True) == 1000


def test_limits_out_of_bounds_are_our_own_mistake():
    with pytest.raises(AssertionError):
        GroupCommitLimits(group_entries_max=0)
    with pytest.raises(AssertionError):
        GroupCommitLimits(wait_us_max=-1)
