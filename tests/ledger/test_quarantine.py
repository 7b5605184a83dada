"""Goal: bookies that fail or lag are avoided for a while, never too many, never for ever.

Method: time is a number. Hypothesis feeds any outcomes; single facts are told one by one.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.load import DecayingLoad
from ledger.core.quarantine import Quarantine

BOOKIES = [f"b{n}" for n in range(7)]
FIRST_S, LONGEST_S = 10.0, 60.0


def quarantine():
    return Quarantine(
        failures_max=3, first_s=FIRST_S, longest_s=LONGEST_S, slow_factor=10, slow_s_min=0.1
    )


def fail(one, bookie, now_s, times=3):
    for _ in range(times):
        one.on_result(bookie, False, None, now_s)


def caught_for_s(one, bookie, now_s):
    """How long it stays quarantined from `now_s` on, in whole seconds."""
    waited_s = 0
    while bookie in one.suspects(now_s + waited_s):
        waited_s += 1
    return waited_s


outcomes = st.lists(
    st.tuples(
        st.sampled_from(BOOKIES),
        st.booleans(),
        st.none() | st.sampled_from([0.001, 0.5, 30.0]),
        st.floats(0, 20),
    ),
    max_size=200,
)


@pytest.mark.slow
@given(outcomes, st.integers(0, 7), st.integers(0, 7))
def test_never_more_than_a_third_are_avoided_and_enough_are_kept(events, count, keep):
    one, now_s = quarantine(), 0.0
    for bookie, ok, seconds, passed_s in events:
        now_s += passed_s
        one.on_result(bookie, ok, seconds, now_s)
        avoided = one.avoid(now_s, BOOKIES[:count], keep)
        assert avoided <= one.suspects(now_s) & set(BOOKIES[:count])
        assert 3 * len(avoided) <= count and len(avoided) <= max(0, count - keep)


@given(outcomes)
def test_nobody_is_avoided_for_longer_than_the_longest_time(events):
    one, now_s = quarantine(), 0.0
    for bookie, ok, seconds, passed_s in events:
        now_s += passed_s
        one.on_result(bookie, ok, seconds, now_s)
    assert not one.suspects(now_s + LONGEST_S)


def test_some_failures_in_a_row_are_needed():
    one = quarantine()
    for now_s in range(20):
        fail(one, "b0", now_s, times=2)
        one.on_result("b0", True, None, now_s)
    assert not one.suspects(20)
    fail(one, "b0", 20)
    assert one.suspects(20) == {"b0"}


def test_a_quarantine_ends_by_itself():
    one = quarantine()
    fail(one, "b0", 100)
    assert caught_for_s(one, "b0", 100) == FIRST_S


def test_a_failure_on_probation_doubles_the_time_up_to_the_longest():
    one, now_s, times = quarantine(), 0.0, []
    fail(one, "b0", now_s)
    for _ in range(5):
        times.append(caught_for_s(one, "b0", now_s))
        now_s += times[-1]
        fail(one, "b0", now_s, times=1)
    assert times == [10, 20, 40, 60, 60]


def test_each_good_period_halves_the_time_until_all_is_forgotten():
    one = quarantine()
    fail(one, "b0", 0)
    fail(one, "b0", 10, times=1)
    fail(one, "b0", 30, times=1)  # for 40 s
    one.on_result("b0", True, None, 70 + 39)
    one.on_result("b0", True, None, 70 + 40)  # 20 s from now on
    fail(one, "b0", 111, times=1)
    assert caught_for_s(one, "b0", 111) == 40
    for now_s in (151 + 40, 151 + 60, 151 + 70):  # 20, 10, forgotten
        one.on_result("b0", True, None, now_s)
    fail(one, "b0", 230, times=2)
    assert not one.suspects(230)


def test_what_happens_during_a_quarantine_changes_nothing():
    one = quarantine()
    fail(one, "b0", 0)
    fail(one, "b0", 5, times=9)
    one.on_result("b0", True, None, 6)
    assert caught_for_s(one, "b0", 0) == FIRST_S


def measured(one, latencies, now_s=0.0):
    for _ in range(16):
        for bookie, seconds in latencies.items():
            one.on_result(bookie, True, seconds, now_s)


def test_a_bookie_many_times_slower_than_the_others_is_quarantined():
    one = quarantine()
    measured(one, {"b0": 0.01, "b1": 0.01, "b2": 0.02, "b3": 0.5})
    assert one.suspects(0) == {"b3"}


def test_what_is_slow_but_like_the_others_or_fast_enough_is_not():
    for latencies in (
        {"b0": 0.4, "b1": 0.4, "b2": 2.0},
        {"b0": 0.0001, "b1": 0.0001, "b2": 0.09},
        {"b0": 0.01, "b1": 2.0},
    ):
        one = quarantine()
        measured(one, latencies)
        assert not one.suspects(0)


def test_one_slow_answer_is_no_outlier():
    one = quarantine()
    measured(one, dict.fromkeys(("b0", "b1", "b2"), 0.01))
    one.on_result("b2", True, 1.0, 0)
    one.on_result("b3", True, 30.0, 0)
    assert not one.suspects(0)


def test_of_many_that_fail_a_third_is_avoided_and_all_are_asked_last():
    one = quarantine()
    for at, bookie in enumerate(BOOKIES[:4]):
        fail(one, bookie, float(at))
    assert one.suspects(4) == set(BOOKIES[:4])
    assert one.avoid(4, BOOKIES[:6], keep=3) == {"b2", "b3"}, "those with most time to go"
    assert one.avoid(4, BOOKIES[:6], keep=5) == {"b3"}


def test_failing_bookies_are_avoided_before_slow_ones():
    one = quarantine()
    measured(one, {"b1": 0.01, "b2": 0.01, "b3": 0.02, "b0": 0.5})
    fail(one, "b1", 0)
    assert one.suspects(0) == {"b0", "b1"}
    assert one.avoid(0, BOOKIES[:4], keep=3) == {"b1"}


def test_load_halves_and_is_forgotten():
    load = DecayingLoad(half_life_s=10)
    load.add("b0", 8, now_s=100)
    load.add("b1", 1, now_s=110)
    load.add("b0", 2, now_s=110)
    assert load.at(110) == {"b0": 6, "b1": 1}
    assert load.at(120) == {"b0": 3, "b1": 0.5}
    assert load.at(1000) == {}
