"""Goal: `gateway group ...` finds groups over two gateways, shows what a group committed, and takes
it back to where it was at a time.

Method: the commands, against two real gateways with positions in log segments, ZooKeeper and three
bookies; one gateway is killed.
"""

from __future__ import annotations

import json
import signal
import time

from confluent_kafka import TopicPartition

from tests.cluster.world import World
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers.gateway import Gateways
from tests.peers.processes import wait_until

LOG_SEGMENTS = ["--log-segment-based-subscriptions-store-enabled"]
GROUPS = [f"readers-{n}" for n in range(6)]


class Commands:
    """The commands, and what they answered as JSON."""

    def __init__(self, bootstrap, zookeeper):
        self.bootstrap = bootstrap
        self.zookeeper = zookeeper

    def ask(self, *words):
        code, out, errors = invoke(*words, "-o", "json", bootstrap=self.bootstrap)
        assert code == 0, (words, errors)
        return json.loads(out)

    def offset(self, group):
        (row,) = self.ask("group", "describe", group)
        return row["current_offset"]

    def coordinator(self, group):
        """The node id of the gateway that has the group."""
        (row,) = self.ask("group", "describe", group, "--state")
        return int(row["coordinator"].rpartition("(")[2].rstrip(")"))

    def listed(self):
        return [row["group"] for row in self.ask("group", "list")]

    def seek(self, group, *words):
        plan = self.ask("group", "seek", group, *words, "--execute")
        return [row["new_offset"] for row in plan["offsets"]]

    def history(self, group):
        rows = self.ask("group", "history", group, "-z", self.zookeeper)
        return [row["offset"] for row in rows if row["topic"]]

    def restore(self, group, at):
        words = ("--at", at, "-z", self.zookeeper, "--execute")
        (row,) = self.ask("group", "restore", group, *words)["offsets"]
        return row["new_offset"]


def commit(gateway, group, offset):
    reader = consumer(gateway, group)
    reader.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    reader.close()


def test_groups_of_two_gateways_are_listed_moved_and_restored_though_one_is_killed(tmp_path):
    with World(tmp_path, 3, proxied=False) as world:
        servers = world.zookeeper.servers
        gateways = Gateways(tmp_path, servers, 2, LOG_SEGMENTS, session_ms=20_000).start()
        try:
            commands = Commands(gateways.bootstrap, world.zookeeper.servers)
            commands.ask("topic", "create", "t")
            produced(gateways[0], "t", 20)
            for group in GROUPS:
                commit(gateways[1], group, 3)
            assert commands.listed() == GROUPS
            group = next(group for group in GROUPS if commands.coordinator(group) == 0)
            commit(gateways[0], group, 5)
            then = a_moment_that_is_past()
            commit(gateways[0], group, 7)
            assert commands.seek(group, "--all-topics", "--to-latest") == [20]
            assert commands.seek(group, "--undo") == [7]
            assert commands.history(group)[:3] == [3, 5, 7]
            assert commands.restore(group, then) == 5
            gateways[0].process.send_signal(signal.SIGKILL)  # it alone: its session ends at once
            wait_until(lambda: commands.offset(group) == 5, "the other gateway to answer", 60.0)
            assert commands.coordinator(group) == 1
            assert commands.listed() == GROUPS
            assert commands.seek(group, "--undo") == [7]
        finally:
            gateways.kill()


def a_moment_that_is_past():
    """What was committed before this call is older, what comes after it is newer."""
    moment = time.gmtime(time.time() + 1)
    wait_until(lambda: time.gmtime() > moment, "a second to pass", 5.0)
    return time.strftime("%Y-%m-%dT%H:%M:%S", moment)
