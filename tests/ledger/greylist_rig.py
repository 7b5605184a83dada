"""A greylist whose time is a number, and what its tests do with it."""

from ledger.core.bookie_health import Greylist, HealthRules, SlowDetection
from ledger.core.latency import WINDOW, SampleKind

BOOKIES = [f"b{n}" for n in range(7)]
FIRST_S, LONGEST_S = 10.0, 60.0
SLOW_S, SLOW_S_MAX = 60.0, 1800.0
READ, TAIL = SampleKind.READ, SampleKind.TAIL


def greylist(detection=SlowDetection.ENABLED, **rules):
    defaults = {
        "failures_max": 3,
        "failing_s": FIRST_S,
        "failing_s_max": LONGEST_S,
        "margin": 3.0,
        "slow_s_min": 0.005,
        "slow_s": SLOW_S,
        "slow_s_max": SLOW_S_MAX,
        "average_s": 1800.0,
    }
    return Greylist(HealthRules(detection=detection, **(defaults | rules)))


def fail(one, bookie, now_s, times=3):
    for _ in range(times):
        one.on_result(bookie, False, now_s)


def take(one, bookie, seconds, now_s, *, kind=READ, size=100, replicas=BOOKIES, beside=BOOKIES):
    """One sample, as the client counts it. The same request was sent to all `beside`."""
    if one.on_sample(bookie, kind, size, seconds, now_s, beside):
        one.judge(bookie, kind, size, now_s, replicas)


def measured(one, latencies, now_s=0.0, *, times=WINDOW + 3, **more):
    """All in turn, a millisecond apart; returns when it was over."""
    for _ in range(times):
        for bookie, seconds in latencies.items():
            now_s += 0.001
            take(one, bookie, seconds, now_s, **more)
    return now_s


def caught_for_s(one, bookie, now_s):
    """How long it stays greylisted from `now_s` on, in whole seconds."""
    waited_s = 0
    while bookie in one.suspects(now_s + waited_s):
        waited_s += 1
    return waited_s


def catch(one, now_s):
    """`b2` is slow from `now_s` on until it is caught. Returns the time and for how long."""
    for number in range(1000):
        now_s += 0.001
        take(one, "b0", 0.001, now_s)
        take(one, "b1", 0.001, now_s)
        take(one, "b2", 0.2, now_s)
        if "b2" in one.suspects(now_s):
            assert number < 2 * WINDOW
            return now_s, caught_for_s(one, "b2", now_s)
    raise AssertionError("it was never caught")


def probed(one, bookie, times, *, kind=READ, replicas=("b0", "b1", "b2"), now_s=0.0):
    """Return the bookie that each probe asks, by the number of the request."""
    asked = {}
    for number in range(1, times + 1):
        other = one.choose_probe(bookie, kind, replicas, now_s)
        if other is not None:
            asked[number] = other
    return asked
