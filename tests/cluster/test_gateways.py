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

pytestmark = pytest.mark.timeout(600)

PAUSE_S = 3.0  # three sessions
# A gateway or ZooKeeper that stands still for a third of a session costs connections, which clients
# notice. What the hand-over itself does to them, they notice each time.
TRIES = 8
STEADY_TRIES = 4  # of them: this process did not stand still
STALL_S = 0.2
WORST_S_MAX = 60.0  # on a machine that tests share; the proof has its own bound


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """All harms, one after the other; what each did, and the history."""
    directory = tmp_path_factory.mktemp("cluster")
    with Stage(directory, pace=3.0) as stage:
        recorder = stage.recorder
        found = {"killed": stage.kill(), "paused": stage.pause(PAUSE_S)}
        steady = 0
        for _ in range(TRIES):
            stage.calm()
            before = recorder.errors + recorder.rebalances
            with Stalls() as stalls:
                found["stopped"] = stage.stop()
            found["noticed"] = recorder.errors + recorder.rebalances - before
            steady += stalls.longest_s < STALL_S
            if found["noticed"] == Counter() or steady == STEADY_TRIES:
                break
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


def test_a_gateway_that_leaves_is_noticed_by_no_client_and_no_group(told):
    code, _ = told["stopped"]
    assert code == 0
    assert not told["noticed"], "errors and rebalances"
