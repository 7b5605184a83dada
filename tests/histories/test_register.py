"""Goal: committed offsets are judged as a register: what no order of the calls explains is said.

Method: hand-made histories, good and bad; and, on small random ones, the dumb twin: all orders.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.histories.checker import check
from tests.histories.history import FAIL, INFO, OK, Op
from tests.histories.register import NOTHING, Access, stale_accesses


def commit(value, start_s, end_s, **options):
    return Access(True, value, start_s, end_s, **options)


def fetch(value, start_s, end_s):
    return Access(False, value, start_s, end_s)


def names(*history):
    return {anomaly for anomaly, _ in stale_accesses(history)}


def test_a_register_may_be_read_before_between_and_after_its_writes():
    history = (fetch(NOTHING, 0, 1), commit(5, 2, 3), fetch(5, 4, 5), commit(3, 6, 7))
    assert names(*history, fetch(3, 8, 9)) == set()


def test_while_a_commit_is_under_way_either_value_may_be_seen():
    assert names(commit(5, 0, 1), commit(6, 2, 9), fetch(5, 3, 4), fetch(6, 5, 6)) == set()


def test_an_older_value_after_a_newer_one_fell():
    assert names(commit(5, 0, 1), commit(6, 2, 3), fetch(5, 4, 5)) == {"committed-fell"}


def test_nothing_after_a_commit_fell():
    assert names(commit(5, 0, 1), fetch(NOTHING, 2, 3)) == {"committed-fell"}


def test_two_values_cannot_be_seen_in_turns():
    seen = (fetch(6, 3, 4), fetch(5, 5, 6))
    assert names(commit(5, 0, 9), commit(6, 0, 9), *seen) == set()
    assert names(commit(5, 0, 9), commit(6, 0, 9), *seen, fetch(6, 7, 8)) == {"committed-fell"}


def test_a_value_that_nobody_committed_is_a_phantom():
    assert names(fetch(7, 0, 1)) == {"committed-phantom"}
    assert names(fetch(7, 0, 1), commit(7, 2, 3)) == {"committed-phantom"}


def test_a_commit_that_was_refused_is_never_seen():
    assert names(commit(5, 0, 1, sure=False, failed=True), fetch(5, 2, 3)) == {"committed-aborted"}


def test_a_commit_without_an_answer_may_come_late_or_never():
    lost = commit(6, 2, float("inf"), sure=False)
    assert names(commit(5, 0, 1), lost, fetch(5, 4, 5)) == set()
    assert names(commit(5, 0, 1), lost, fetch(5, 4, 5), fetch(6, 6, 7)) == set()
    seen = (fetch(6, 4, 5), fetch(5, 6, 7))
    assert names(commit(5, 0, 1), lost, *seen) == {"committed-fell"}


def test_a_commit_that_is_sent_again_may_follow_a_newer_one_until_it_ends():
    seen = (fetch(6, 1, 2), fetch(7, 3, 4), fetch(6, 8, 9))
    slow, quick = commit(6, 0, 7), commit(7, 2.5, 2.8)
    assert names(slow, quick, *seen) == {"committed-fell"}
    assert names(slow._replace(again=True), quick, *seen) == set()
    assert names(slow._replace(again=True, end_s=2.7), quick, *seen) == {"committed-fell"}
    later = (fetch(7, 10, 11),)
    assert names(slow._replace(again=True), quick, *seen, *later) == {"committed-fell"}


@pytest.mark.parametrize(("result", "expected"), [(OK, {"committed-fell"}), (INFO, set())])
def test_a_history_is_judged_by_group_and_partition(result, expected):
    def op(kind, value, at, result=OK, group="g"):
        return Op("r", "by hand", kind, result, at, at + 0.5, (group, {"t:0": value}))

    ops = [op("commit", 1, 0), op("commit", 2, 1, result), op("fetch", 1, 2)]
    others = [op("commit", 9, 0, group="h"), op("commit", 8, 1, FAIL), op("fetch", 9, 3, group="h")]
    assert {finding.anomaly for finding in check([*ops, *others])} == expected


@st.composite
def small(draw, commits=3):
    """Some commits of different values and up to three fetches, over each other as it comes."""
    times = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda both: both[0] < both[1])
    values = list(range(draw(st.integers(0, commits))))
    history = [commit(value, *draw(times)) for value in values]
    for _ in range(draw(st.integers(0, 3))):
        history.append(fetch(draw(st.sampled_from([NOTHING, *values])), *draw(times)))
    # no two moments are the same, so that before and after are never in question
    return [
        access._replace(start_s=access.start_s + at / 10, end_s=access.end_s + at / 10 + 0.01)
        for at, access in enumerate(history)
    ]


def explained(history):
    """Some order of all calls, in which who ended first comes first, is one of a register."""
    for order in permutations(history):
        held = NOTHING
        for at, access in enumerate(order):
            if any(later.end_s < access.start_s for later in order[at + 1 :]):
                break
            if access.writes:
                held = access.value
            elif access.value != held:
                break
        else:
            return True
    return False


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(small())
def test_zones_say_what_trying_all_orders_says(history):
    assert (names(*history) == set()) == explained(history)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(small(commits=2))
def test_of_commits_sent_again_zones_say_what_all_orders_with_copies_of_them_say(history):
    history = [access._replace(again=access.writes and access.value == 0) for access in history]
    copies = [access for access in history if access.again] * 2
    assert (names(*history) == set()) == explained([*history, *copies])
