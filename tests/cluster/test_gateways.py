"""Goal: three gateways are one Kafka, while an owner dies, sleeps and leaves under recorded load.

Method: three gateways, three bookies and ZooKeeper as processes; stock clients and writers by hand
note every call; then the checker judges the history (`tests/histories`). `make proof-failover` does
the same for longer.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster.gateways_stage import Stage
from tests.histories.checker import bad
from tests.histories.history import save
from tests.histories.report import counts, table
from tests.peers.stalls import Stalls

pytestmark = pytest.mark.alone

PAUSE_S = 3.0  # three sessions
TRIES = 3  # a machine that stands still may cost a gateway its connections, which clients notice
STALL_S = 0.2
CALM_SESSION_MS = 6_000  # of the gateways that leave: nothing waits for the end of a session
WORST_S_MAX = 25.0  # on a machine that tests share; the proof has its own bound


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """All harms, one after the other; what each did, and the history."""
    directory = tmp_path_factory.mktemp("cluster")
    with Stage(directory, pace=3.0) as stage:
        found = {"killed": stage.kill(), "paused": stage.pause(PAUSE_S)}
        found["history"], found["findings"] = stage.finish()
    save(found["history"], directory / "history.jsonl.gz")
    return found


def test_nothing_that_clients_saw_is_unlike_a_log(told):
    assert bad(told["findings"]) == [], table(told["history"], told["findings"])


def test_nothing_acknowledged_is_lost_or_doubled(told):
    found = counts(told["history"], told["findings"])
    assert found["acked"] > 500
    assert (found["lost"], found["doubled"]) == (0, 0)


def test_others_take_over_from_one_who_was_killed(told):
    assert told["killed"].worst_s < WORST_S_MAX


def test_an_owner_that_slept_acknowledges_nothing_new_and_answers_no_read(told):
    zombie = told["paused"]
    assert zombie.acks == zombie.late, "only what may have been on its way when it was stopped"
    assert zombie.reads == 0
    assert zombie.asked > 0


def test_a_gateway_that_leaves_is_noticed_by_no_client_and_no_group(tmp_path):
    codes = []
    with Stage(tmp_path, pace=3.0, session_ms=CALM_SESSION_MS) as stage:
        recorder = stage.recorder
        for _ in range(TRIES):
            stage.calm()
            before = recorder.errors + recorder.rebalances
            with Stalls() as stalls:
                codes.append(stage.stop()[0])
            noticed = recorder.errors + recorder.rebalances - before
            disturbed = stalls.longest_s >= STALL_S or stage.rig.gateways.stood_still()
            if noticed == Counter() or not disturbed:
                break
        _, findings = stage.finish()
    assert set(codes) == {0}
    assert not noticed, "errors and rebalances"
    assert bad(findings) == []
