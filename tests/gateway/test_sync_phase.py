"""Goal: a group waits for the SyncGroups of one generation, and otherwise has no deadline.

Method: the phase alone. A deadline that stays would wake the group's timer without end.
"""

from __future__ import annotations

import pytest

from gateway.core.sync_phase import SyncPhase


@pytest.fixture
def phase():
    made = SyncPhase()
    made.begin(("a", "b"), 100)
    return made


def test_the_deadline_ends_with_the_last_sync(phase):
    phase.on_sync("a")
    assert phase.at_ms == 100
    phase.on_sync("b")
    assert phase.at_ms is None


def test_a_member_that_left_is_awaited_no_longer(phase):
    phase.remove("a")
    assert phase.at_ms == 100
    phase.on_sync("b")
    assert phase.at_ms is None
    assert phase.time_out(("a", "b")) == []


def test_at_the_deadline_it_ends_and_names_those_that_are_absent(phase):
    phase.on_sync("b")
    assert phase.time_out(("a", "b", "joined later")) == ["a"]
    assert phase.at_ms is None


def test_another_rebalance_ends_all_of_it(phase):
    phase.assigning = True
    phase.end()
    assert (phase.at_ms, phase.assigning) == (None, False)
    assert phase.time_out(("a", "b")) == []


def test_only_a_deadline_that_there_is_moves(phase):
    phase.extend(200)
    assert phase.at_ms == 200
    phase.end()
    phase.extend(300)
    assert phase.at_ms is None


def test_a_member_that_has_sent_its_sync_is_not_awaited_under_its_new_id(phase):
    phase.on_sync("a")
    phase.rename("a", "c")
    phase.rename("b", "d")
    assert phase.time_out(("c", "d")) == ["d"]
