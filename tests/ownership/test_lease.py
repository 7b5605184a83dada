"""Goal: an owner answers as one only while nobody can have taken over.

Method: the lease by hand, on virtual time; what a cluster makes of it is in `test_streams`.
"""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.lease import Lease
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.zookeeper.zookeeper_connection import _ProofAnswer


class HandClock:
    def __init__(self):
        self.now_s = 0.0

    def now_ms(self):
        raise AssertionError("wall time may jump: no lease rests on it")

    def monotonic_s(self):
        return self.now_s


def lease_of(clock, confirmed_s, session_ms):
    return Lease(clock, lambda: confirmed_s, lambda: session_ms)


@given(st.floats(0, 1e6), st.integers(100, 60_000), st.floats(0, 2))
def test_a_lease_is_held_for_nine_tenths_of_the_session_after_its_proof(at_s, ms, part):
    clock = HandClock()
    lease = lease_of(clock, at_s, ms)
    clock.now_s = at_s + part * ms / 1000
    assert lease() == (clock.now_s < lease.until_s)
    assert abs(lease.until_s - (at_s + ms * 0.0009)) < 1e-6


@given(st.floats(0, 1e6), st.integers(100, 60_000))
def test_a_lease_has_ended_well_before_the_session_can(at_s, ms):
    lease = lease_of(HandClock(), at_s, ms)
    assert lease.until_s < at_s + 0.95 * ms / 1000


def test_a_lease_follows_the_session_that_the_server_grants():
    clock, granted = HandClock(), [3_000]
    lease = Lease(clock, lambda: 0.0, lambda: granted[0])
    clock.now_s = 1.5
    assert lease()
    granted[0] = 1_500
    assert not lease()


def test_what_was_never_confirmed_gives_no_lease():
    clock = HandClock()
    clock.now_s = 100.0
    assert not lease_of(clock, 0.0, 10_000)()


def test_time_for_which_the_machine_was_suspended_counts_against_the_lease(monkeypatch):
    awake_s, suspended_s = 1000.0, 50.0

    def clock_gettime(which):
        return awake_s + (suspended_s if which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    monkeypatch.setattr(time, "monotonic", lambda: awake_s)
    request = _ProofAnswer(lambda _: None)
    lease = Lease(SystemClock(), lambda: request.sent_s, lambda: 9000)
    awake_s += 8.0
    assert lease()
    suspended_s += 1.0
    assert not lease()
