"""Goal: a proof of a session never names a time that ZooKeeper's leader did not hear of.

Method: a model of a follower that reports the sessions it heard of every half tick, and of a link
that breaks at some time; the requests of the client are drawn.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.adapters.zookeeper.session_proof import REPORTED_SHARE, SessionProof

SESSION_S = 10.0
REPORT_S = SESSION_S * REPORTED_SHARE

delays = st.floats(0, 3)
writes = st.lists(st.tuples(st.floats(0.001, 4), delays, delays), min_size=1, max_size=40)


@given(writes, st.floats(0, REPORT_S))
def test_the_leader_has_heard_of_the_session_by_then(steps, phase_s):
    """Each step: a pause, then a write, which arrives and is answered after two delays."""
    proof, now_s = SessionProof(), 100.0
    proof.on_connected(now_s)
    arrived = [now_s]
    for pause_s, there_s, back_s in steps:
        sent_s = now_s + pause_s
        now_s = sent_s + there_s + back_s
        # The last report before this write left for the leader, and what it told of the session.
        report_s = sent_s + there_s - (sent_s + there_s - phase_s) % REPORT_S
        arrived_s = max(at for at in arrived if at <= max(report_s, arrived[0]))
        proof.on_written(sent_s, now_s, SESSION_S)
        assert proof.heard_s <= arrived_s  # the link may break now: the leader knows no more
        arrived.append(sent_s + there_s)


def test_regular_writes_advance_the_proof():
    proof = SessionProof()
    proof.on_connected(100.0)
    for number in range(1, 81):
        sent_s = 100.0 + number * SESSION_S / 8
        proof.on_written(sent_s, sent_s + 0.01, SESSION_S)
        if number > 3:
            assert sent_s - proof.heard_s < 0.4 * SESSION_S


@pytest.mark.parametrize("connects", [False, True])
def test_writes_to_an_earlier_server_are_not_proved_by_those_to_a_later_one(connects):
    proof = SessionProof()
    proof.on_connected(100.0)
    proof.on_written(101.0, 101.1, SESSION_S)
    if connects:
        proof.on_connected(100.5)
    proof.on_written(109.0, 109.1, SESSION_S)
    assert proof.heard_s == (100.5 if connects else 101.0)
