"""Two gateways of one cluster, each of this release or of an earlier one, and what they show."""

import asyncio
import socket

from tests.gateway.admin_commands import produced
from tests.gateway.test_dev import ask
from tests.ledger.zookeeper_rig import lasting
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until

PARTITIONS = 4
LED_S_MAX = 60.0
CREATE, METADATA = 19, 3


def create(gateway, topic, partitions=PARTITIONS):
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    wanted |= {"assignments": [], "configs": []}
    body = {"topics": [wanted], "timeout": 30_000, "validate_only": False}
    (created,) = ask(gateway.port, CREATE, 5, body).topics
    assert created.error_code == 0, created.error_message


def shown(gateway, topic):
    """Return (leader, epoch) of each partition, as this gateway shows them."""
    (row,) = ask(gateway.port, METADATA, 9, {"topics": [{"name": topic}]}).topics
    return [
        (each.leader_id, each.leader_epoch)
        for each in sorted(row.partitions, key=lambda each: each.partition_index)
    ]


def epochs(gateway, topic):
    return [epoch for _, epoch in shown(gateway, topic)]


def led(gateway, topic):
    return all(node >= 0 and epoch >= 0 for node, epoch in shown(gateway, topic))


def agreed(gateways, topic):
    """Return the epochs, once all partitions are led and all gateways show the same."""

    def same():
        seen = {tuple(shown(gateway, topic)) for gateway in gateways}
        return len(seen) == 1 and led(gateways[0], topic)

    wait_until(same, "all gateways to show the same leaders and epochs", LED_S_MAX)
    return epochs(gateways[0], topic)


def write(gateway, topic, partitions=PARTITIONS):
    for partition in range(partitions):
        produced(gateway, topic, 1, partition=partition)


def is_listening(gateway):
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", gateway.port)) == 0


def take_session_flag_of_this_tree(gateway):
    gateway.session_flag = ("--session", "ms")  # as this tree and `BEFORE` have it


class Pair:
    """Two gateways of one cluster, over one bookie."""

    def __init__(self, world, directory):
        self.world = world
        root = world.zookeeper.servers
        options = ("--replication-factor", "1")
        self.all = [
            ClusterGateway(directory / f"gateway-{node}", root, options, node_id=node)
            for node in (0, 1)
        ]

    def end(self):
        for gateway in self.all:
            if gateway.running:
                gateway.kill()

    def nodes(self, path):
        """Return the data of all nodes below `path`, by path."""

        async def read():
            store = await lasting(self.world.zookeeper.servers)
            try:
                return {where: node.data for where, node in (await store.read_tree(path)).items()}
            finally:
                await store.close()

        return asyncio.run(read())

    def starts(self):
        found = self.nodes("/streams")
        return [data for path, data in found.items() if path.endswith("/start")]

    def formats(self):
        return {data[2] for data in self.nodes("/gateway/owners").values()}
