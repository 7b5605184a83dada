"""Goal: Kafka clients of a cluster do not notice the loss of a bookie, and it is made good.

Method: `gateway serve` over real bookies, idempotent librdkafka producers that know every
acknowledgement; one bookie of three, or of four, is killed under load; a group reads on.
"""

from __future__ import annotations

import re
import signal

import pytest

from tests.cluster.world import World, wait
from tests.crash.load import Load, judge, read_all
from tests.histories import workload
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until

pytestmark = pytest.mark.alone

SEGMENT_BYTES = 1024 * 1024
PARTITIONS = 2
MORE = 2_000
SESSION_MS = 20_000  # no test waits for its end
PAUSE_S = 0.015  # after 50 records of a producer: the work is not in the load


def make_topic(bootstrap, topic):
    """Of three copies; its segments roll soon."""
    settings = {"segment.bytes": str(SEGMENT_BYTES)}
    workload.make_topic(bootstrap, topic, PARTITIONS, 3, settings)


class Stage:
    """A world, its gateway, and two producers on the topic `before`."""

    def __init__(self, directory, bookies):
        self.world = World(directory, bookies)
        self.directory = directory

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.world.stop()
            raise

    def start(self):
        self.world.start()
        data = self.directory / "gateway"
        self.gateway = ClusterGateway(
            data, self.world.zookeeper.servers, session_ms=SESSION_MS
        ).start()
        make_topic(self.gateway.bootstrap, "before")
        self.loads = [self.load("before", name) for name in ("one", "two")]
        self.more("producers to produce")
        return self

    def __exit__(self, *_):
        if self.gateway.running:
            self.gateway.stop()
        self.world.stop()

    def load(self, topic, name):
        return Load(self.gateway.bootstrap, topic, name, pause_s=PAUSE_S)

    def more(self, what, loads=None):
        """So many more acknowledgements for each of the producers."""
        for load in loads or self.loads:
            wanted = len(load.told.offsets) + MORE
            wait_until(lambda load=load, to=wanted: len(load.told.offsets) >= to, what, 60.0)

    def keeps_all(self, topics):
        """No write failed, and all that was acknowledged is where it was acknowledged."""
        for topic, loads in topics.items():
            told = [load.end() for load in loads]
            assert judge(read_all(self.gateway.bootstrap, topic, PARTITIONS), told) > MORE


def repaired(world):
    """Nothing is marked, and no ledger that is closed lacks a copy or is narrow."""
    return not world.under_replicated() and not world.narrow()


def test_one_bookie_of_three_may_die_and_what_was_narrow_is_widened(tmp_path):
    with Stage(tmp_path, 3) as stage:
        world = stage.world
        world.auditor()
        make_topic(stage.gateway.bootstrap, "after")
        world.bookies[1].kill()
        stage.more("producers to go on with two bookies")
        late = [stage.load("after", "three")]
        stage.more("an unused topic to work with two bookies", late)
        wait(world.narrow, "segments to be on the two bookies that are left")
        world.bookies[1].start()
        stage.more("producers to go on with three bookies")
        stage.keeps_all({"before": stage.loads, "after": late})
        stage.gateway.stop()
        world.close_all()
        wait(lambda: repaired(world), "narrow ledgers to be widened", 60.0)
        stage.gateway.start()
        for topic in ("before", "after"):
            read_all(stage.gateway.bootstrap, topic, PARTITIONS)


def test_with_a_spare_the_list_of_ledgers_that_lack_copies_drains_by_itself(tmp_path):
    with Stage(tmp_path, 4) as stage:
        world = stage.world
        world.auditor()
        dead = world.bookies[2]
        dead.kill()
        stage.more("producers to go on")
        stage.keeps_all({"before": stage.loads})
        stage.gateway.stop()
        world.close_all()
        wait(lambda: dead.id not in world.members(), "every lost copy to be made anew", 60.0)
        wait(lambda: world.under_replicated() == [], "the list to be empty")


def test_a_second_gateway_of_one_node_id_is_refused_and_follows_one_that_was_killed(tmp_path):
    with Stage(tmp_path, 3) as stage:
        zookeeper = stage.world.zookeeper.servers
        second = ClusterGateway(tmp_path / "second", zookeeper)  # waits for two of its sessions
        try:
            second.start()
            raise AssertionError("two gateways of one node id serve")
        except RuntimeError as refused:
            assert str(refused).startswith("ended with 78: ")
            assert re.search(r"gateway 0 at .* lives already", str(refused))
        for load in stage.loads:
            load.end()
        told = [load.told for load in stage.loads]
        stage.gateway.process.send_signal(signal.SIGKILL)  # it alone: its session ends at once
        stage.gateway.wait_exit()
        second.session_ms = SESSION_MS
        second.start()
        try:
            assert judge(read_all(second.bootstrap, "before", PARTITIONS), told) >= MORE
        finally:
            second.stop()
