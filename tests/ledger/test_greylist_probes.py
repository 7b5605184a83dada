"""Goal: extra requests find slow bookies and measure those that return, and stay few.

Method: time is a number; requests and samples are told one by one.
"""

import pytest

from ledger.core.bookie_health import PROBE_EVERY, PROBE_EVERY_S, PROBES_MAX
from ledger.core.latency import WINDOW, SampleKind
from tests.ledger.greylist_rig import (
    READ,
    SLOW_S,
    TAIL,
    catch,
    fail,
    greylist,
    measured,
    probed,
    take,
)


def test_one_read_in_64_asks_another_bookie_while_too_few_were_measured():
    one = greylist()
    take(one, "b0", 0.001, 0)
    asked = probed(one, "b0", 3 * PROBE_EVERY)
    assert list(asked) == [PROBE_EVERY, 2 * PROBE_EVERY, 3 * PROBE_EVERY]
    measured(one, {"b1": 0.001, "b2": 0.001}, times=3)
    assert not probed(one, "b0", 3 * PROBE_EVERY), "there is something to compare with"
    assert probed(one, "b0", PROBE_EVERY, now_s=4000.0) == {}, "nothing is known of b0 either"
    take(one, "b0", 0.001, 4000.0)
    assert len(probed(one, "b0", PROBE_EVERY, now_s=4000.0)) == 1, "half an hour later it is not"


def test_one_tail_read_in_64_always_asks_two_since_one_alone_is_no_sample():
    one = greylist()
    measured(one, dict.fromkeys(("b0", "b1", "b2"), 0.0), kind=TAIL)
    assert len(probed(one, "b0", 3 * PROBE_EVERY, kind=TAIL)) == 3


def test_a_suspicion_is_checked_at_once_in_turn_and_not_for_ever():
    one = greylist()
    take(one, "b1", 0.001, 0)
    take(one, "b0", 0.05, 0)
    asked = []
    for number in range(1, 10 * PROBE_EVERY - 20):
        other = one.choose_probe("b0", READ, ("b0", "b1", "b2"), 0.0)
        if other is not None:
            asked.append(other)
            if number < 5:
                take(one, other, 0.001, number)
    assert asked[:4] in (["b1", "b2"] * 2, ["b2", "b1"] * 2)
    assert PROBES_MAX <= len(asked) <= PROBES_MAX + 10
    take(one, "b0", 0.001, 0)
    assert len(probed(one, "b0", 10)) == 0


def test_a_suspicion_is_checked_again_after_seconds_though_the_suspect_makes_requests_rare():
    one = greylist()
    measured(one, {"b1": 0.001, "b2": 0.001}, times=3)
    take(one, "b0", 0.05, 0)
    assert len(probed(one, "b0", PROBES_MAX)) == PROBES_MAX
    slow_s, asked_s = 0.05, []
    for number in range(round(3 * PROBES_MAX * PROBE_EVERY_S / slow_s)):
        now_s = number * slow_s
        if one.choose_probe("b0", READ, ("b0", "b1", "b2"), now_s) is not None:
            asked_s.append(now_s)
    assert PROBES_MAX * PROBE_EVERY_S - 1 <= asked_s[0] <= PROBES_MAX * PROBE_EVERY_S + 1
    assert asked_s[PROBES_MAX - 1] < asked_s[0] + 1, "only many in a row prove something"
    assert len(asked_s) <= 3 * (PROBES_MAX + 1)


@pytest.mark.parametrize("every_s", [0.0, 0.05, 0.5, 1.0, 3.0])
def test_a_lasting_suspicion_has_the_same_most_probes_in_a_row_for_rare_requests(every_s):
    one = greylist()
    measured(one, {"b1": 0.001, "b2": 0.001}, times=3)
    take(one, "b0", 0.05, 0)
    asked = [
        one.choose_probe("b0", READ, ("b0", "b1", "b2"), number * every_s) is not None
        for number in range(100)
    ]
    longest = max(len(run) for run in "".join(".x"[each] for each in asked).split("."))
    assert longest == PROBES_MAX


def test_greylisted_bookies_are_not_probed():
    one = greylist()
    fail(one, "b1", 0)
    take(one, "b2", 0.001, 0)
    take(one, "b0", 0.05, 0)
    assert set(probed(one, "b0", 5).values()) == {"b2"}
    assert not probed(one, "b1", 3 * PROBE_EVERY)
    assert not probed(one, "b0", 5, replicas=("b0", "b1"))


def test_a_sticky_reader_finds_its_bookie_slow_with_the_help_of_probes():
    one, now_s = greylist(), 0.0
    for _ in range(PROBE_EVERY + 10):
        other = one.choose_probe("b0", READ, ("b0", "b1", "b2"), now_s)
        if other is not None:
            take(one, other, 0.002, now_s + 0.002, beside=("b0",))
        now_s += 0.05
        take(one, "b0", 0.05, now_s, beside=())
    assert one.suspects(now_s) == {"b0"}


def test_a_bookie_on_probation_is_compared_at_once():
    one = greylist()
    now_s, _ = catch(one, 0.0)
    assert not probed(one, "b2", 5, now_s=now_s), "it is asked for lack of others"
    for kind in SampleKind:
        assert len(probed(one, "b2", 5, kind=kind, now_s=now_s + SLOW_S)) >= 3


def test_a_bookie_on_probation_is_compared_until_a_whole_window_is_good():
    one = greylist()
    now_s = catch(one, 0.0)[0] + SLOW_S
    for _ in range(WINDOW - 1):
        now_s = measured(one, {"b2": 0.001}, now_s, times=1)
        assert one.choose_probe("b2", READ, ("b0", "b1", "b2"), now_s) in ("b0", "b1")
    now_s = measured(one, {"b2": 0.001}, now_s, times=1)
    assert one.choose_probe("b2", READ, ("b0", "b1", "b2"), now_s) is None


@pytest.mark.parametrize(("kind", "other"), [(READ, TAIL), (TAIL, READ)])
def test_a_bookie_on_probation_is_asked_last_until_a_whole_window_is_good(kind, other):
    one, names = greylist(), ("b0", "b1", "b2")
    now_s = catch(one, 0.0)[0] + SLOW_S
    for _ in range(WINDOW):
        assert one.ask_last(names, (), now_s, 2, kind) == {"b2"}
        assert one.choose_probe("b0", kind, names, now_s) == "b2"
        take(one, "b0", 0.001, now_s, kind=kind, beside=("b2",))
        now_s += 0.001
        take(one, "b2", 0.001, now_s, kind=kind, beside=("b0",))
    assert not one.ask_last(names, (), now_s, 2, kind)
    assert one.choose_probe("b0", kind, names, now_s) is None
    assert one.ask_last(names, (), now_s, 2, other) == {"b2"}


def test_probes_of_a_bookie_on_probation_have_a_budget_and_one_to_compare_with_is_enough():
    one, names = greylist(), ("b0", "b1", "b2")
    now_s = catch(one, 0.0)[0] + SLOW_S
    measured(one, {"b0": 0.001}, now_s, times=3)
    assert len(probed(one, "b0", 5 * PROBES_MAX, now_s=now_s)) == PROBES_MAX
    now_s += PROBES_MAX * PROBE_EVERY_S
    for _ in range(WINDOW):
        assert one.choose_probe("b0", READ, names, now_s) == "b2"
        take(one, "b0", 0.001, now_s + 0.001, beside=("b2",))
        now_s += 0.2
        take(one, "b2", 0.2, now_s, beside=("b0",))
    assert one.suspects(now_s) == {"b2"}
