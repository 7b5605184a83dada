"""Goal: a gateway that is killed is replaced long before its ZooKeeper session would expire.

Method: two gateways with sessions of a minute, as processes. The owner of every partition is killed
alone. If others waited for the session, the test would wait in vain.
"""

from __future__ import annotations

import signal

import pytest

from tests.cluster.ownership_rig import OwnershipRig
from tests.histories.background import Background
from tests.histories.workload import make_topic
from tests.peers.processes import wait_until
from tests.peers.zookeeper import SESSION_MS_MAX

pytestmark = pytest.mark.alone

TAKEN_OVER_S_MAX = 30.0  # half of the session


@pytest.fixture
def rig(tmp_path):
    background = Background()
    background.start()
    try:
        with OwnershipRig(
            tmp_path, background, gateways=2, bookies=1, session_ms=SESSION_MS_MAX
        ) as started:
            yield started
    finally:
        background.stop()


def test_others_take_over_from_a_killed_gateway_without_waiting_for_its_session(rig):
    keys = make_topic(rig.gateways.bootstrap, "led", 4, 1)
    rig.wait_led(keys)
    first, second = rig.gateways
    first.process.send_signal(signal.SIGKILL)
    wait_until(
        lambda: set(rig.leaders(keys).values()) == {second.node_id},
        "the other gateway to lead every partition",
        TAKEN_OVER_S_MAX,
        pause_s=0.1,
    )
    assert second.process.exit_code is None
