"""A `Cluster` whose members, leaders and lease the test sets."""

import asyncio

from gateway.cluster.port import ClusterMember, Leader


def member(node_id, rack="", *, leaving=False, listeners=()):
    token = f"token{node_id}"
    return ClusterMember(
        *(node_id, f"host{node_id}", 9000 + node_id, rack, token, leaving), listeners=listeners
    )


class PaperCluster:
    """A cluster port. `leaders` and `ring` are by partition; `leader_of_others` is for the rest."""

    def __init__(self, node_id, members, *, leader_of_others=None):
        self.node_id = node_id
        self.alive = members
        self.leaders = {}
        self.leader_of_others = leader_of_others or Leader()
        self.ring = [each.node_id for each in members]
        self.lease = True
        self.coordinators = {}  # group: member, None, or an error to raise
        self.silent = set()  # groups whose coordinator cannot be determined
        self.led = asyncio.Event()
        self.led.set()
        self.waited_s = []

    def lease_held(self):
        return self.lease

    def members(self):
        return self.alive

    def leader(self, key):
        return self.leaders.get(key.partition, self.leader_of_others)

    def leader_epoch(self, key):
        return self.leader(key).epoch

    def replicas(self, key, count):
        first = self.leader(key).node_id
        return [first, *(node for node in self.ring if node != first)][:count]

    def owns(self, key):
        return self.leader(key).node_id == self.node_id

    async def wait_led(self, topic_id, timeout_s):
        self.waited_s.append(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self.led.wait()
        except TimeoutError:
            return False
        return True

    async def coordinator(self, group):
        known = self.coordinators.get(group)
        if isinstance(known, Exception):
            raise known
        if group in self.silent:
            await asyncio.Event().wait()
        return known
