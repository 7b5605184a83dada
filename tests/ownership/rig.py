"""Several gateways on one simulated metadata tree, each with a catalog, a cluster and a listener.

A listener opens what it gains, as a gateway would: the epoch is the next number of the stream,
which no opening ever gets twice. It notes who serves what from when to when, and fails the test
when two gateways that live serve one stream.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

from gateway.cluster.lease import Lease
from gateway.cluster.port import StreamKey
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.topics.catalog import Catalog
from tests.peers.processes import until
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

SESSION_MS = 1000
SESSION_S = SESSION_MS / 1000


class CountingMetadata(SimMetadata):
    """Counts what is asked, by kind and by the second part of the path."""

    def __init__(self, tree=None, faults=None):
        super().__init__(tree, faults)
        self.asked = Counter()

    def _renew(self):
        if self.faults.cut:  # a client that hears nothing does not hear of that either
            asyncio.get_running_loop().call_later(0.05, self._renew)
        else:
            super()._renew()

    def watch(self, path, on_changed):
        """Who was told of a change reads it: a follower tells no sooner than it has it."""

        def seen():
            self._catch_up()
            on_changed()

        return super().watch(path, seen)

    def _note(self, kind, path):
        self.asked[kind, path.split("/")[2] if path.count("/") > 1 else path] += 1

    async def get(self, path):
        self._note("get", path)
        return await super().get(path)

    async def set(self, path, data, version):
        self._note("set", path)
        return await super().set(path, data, version)

    async def create(self, path, data=b"", **how):
        self._note("create", path)
        return await super().create(path, data, **how)

    async def children(self, path):
        self._note("children", path)
        return await super().children(path)

    async def multi(self, ops):
        self._note("multi", ops[0].path)
        await super().multi(ops)


class Gateway:
    """One gateway: it opens what it gains and serves it until it is lost or drained."""

    def __init__(self, world, node_id, faults, rack=""):
        self.world = world
        self.node_id = node_id
        self.metadata = CountingMetadata(world.tree, faults)
        self.catalog = Catalog(self.metadata, bookies=lambda: 3)
        self.serving = {}  # key: its epoch, or None while it is being opened
        self.opens = True
        self.gains = []
        self.losses = []
        self.drained = []
        self.expired = 0
        self.replaced = []
        self.heard_s = None  # None: all is well, the last answer was a moment ago
        self.tasks = set()
        tokens = (f"{node_id:02d}{world.draw.getrandbits(96):024x}" for _ in itertools.count())
        self.cluster = ZooKeeperCluster(
            self.metadata,
            self.catalog,
            world.clock,
            node_id=node_id,
            host=f"host-{node_id}",
            port=9092 + node_id,
            rack=rack,
            session_ms=SESSION_MS,
            lease=Lease(world.clock, self._answered_s, lambda: SESSION_MS),
            balance_settle_s=1.0,
            balance_at_once=4,
            new_token=lambda: next(tokens),
            keeps_epochs=world.keeps_epochs,
        )
        self.cluster.on_expired(self._on_expired)
        self.cluster.on_replaced(self.replaced.append)
        self.cluster.set_hand_over(self.hand_over)

    @property
    def lives(self):
        """Its registration is there: nobody may take what it has."""
        node = self.world.tree.nodes.get(f"/gateway/brokers/{self.node_id}")
        return node is not None and node.session == self.metadata.session

    def _answered_s(self):
        return self.world.clock.monotonic_s() if self.heard_s is None else self.heard_s

    def _on_expired(self):
        self.expired += 1
        assert not self.serving, "the session ended and something is still served"

    async def start(self):
        faults = self.metadata.faults
        trouble = (faults.unsent, faults.reply_lost)
        faults.unsent = faults.reply_lost = 0.0  # who loads the catalog tries again by himself
        await self.catalog.load()
        faults.unsent, faults.reply_lost = trouble
        await self.cluster.start(self)
        return self

    # The listener.

    def gained(self, key):
        assert key not in self.serving
        self.world.check_alone(key, self)
        self.gains.append(key)
        self.serving[key] = None
        if self.opens:
            task = asyncio.get_running_loop().create_task(self._open(key))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _open(self, key):
        await asyncio.sleep(self.world.open_s)
        if self.serving.get(key, 0) is None:
            epoch = self.serving[key] = self.world.next_epoch(key)
            await self.cluster.opened(key, epoch)

    def lost(self, key):
        self.losses.append(key)
        self.serving.pop(key, None)

    async def hand_over(self, key):
        await asyncio.sleep(self.world.drain_s)
        self.drained.append(key)
        self.serving.pop(key, None)

    # What befalls it.

    async def kill(self):
        """Kill -9: it does nothing any more; its session ends by itself."""
        self.metadata.dead = True
        self.serving.clear()
        self.world.gateways.remove(self)
        for task in [*self.tasks, self.cluster._partitions.rounds.task]:
            task.cancel()
        self.cluster._partitions.balancer.cancel()
        session = self.metadata.session
        asyncio.get_running_loop().call_later(SESSION_S, self.world.tree.end_session, session)

    async def pause(self, seconds):
        """Cut off from the store; the session ends if it lasts so long."""
        self.heard_s = self.world.clock.monotonic_s()
        self.metadata.faults.cut = True
        ends = asyncio.get_running_loop().call_later(SESSION_S, self.metadata.expire)
        await asyncio.sleep(seconds)
        ends.cancel()
        self.metadata.faults.cut = False
        self.heard_s = None

    async def stop(self):
        """A graceful end."""
        await self.cluster.hand_over_all(self.hand_over)
        await self.cluster.stop()
        await self.catalog.close()
        await self.metadata.close()
        self.world.gateways.remove(self)

    def owned(self, topic):
        return [p for p in range(topic.partitions) if self.cluster.owns(key_of(topic, p))]


class World:
    """All of them. `latency_s` each way to the store."""

    def __init__(
        self, seed=0, *, latency_s=0.001, open_s=0.01, drain_s=0.01, keeps_epochs=True, **faults
    ):
        self.keeps_epochs = keeps_epochs
        self.draw = random.Random(seed)
        self.tree = MetadataTree()
        self.clock = SimClock()
        self.open_s = open_s
        self.drain_s = drain_s
        self.gateways = []
        self.sets = Counter()  # changes of each owners node
        self.tree.on_set = self._on_set
        self._faults = {"latency_s": latency_s, **faults}
        self._epochs = {}

    def _on_set(self, path, data, version):
        if path.startswith("/gateway/owners/"):
            self.sets[path.rpartition("/")[2]] += 1

    def gateway(self, node_id, rack="", **faults):
        given = MetadataFaults(draw=self.draw, **(self._faults | faults))
        made = Gateway(self, node_id, given, rack)
        self.gateways.append(made)
        return made

    async def start(self, *node_ids):
        """Started one after the other."""
        return [await self.gateway(node_id).start() for node_id in node_ids]

    async def stop(self):
        """Nothing is left running; nobody hands over."""
        for one in self.gateways:
            await one.cluster.stop()
            await one.catalog.close()
            for task in list(one.tasks):
                task.cancel()
            await asyncio.gather(*one.tasks, return_exceptions=True)

    def check_alone(self, key, new):
        for other in self.gateways:
            if other is not new and other.lives:
                assert key not in other.serving, f"{key}: two owners"

    def next_epoch(self, key):
        self._epochs[key] = self._epochs.get(key, 0) + 1
        return self._epochs[key]

    async def settled(self, topic, gateways=None):
        """Every partition has one owner, which lives and has opened it, and all know of it."""
        every = gateways or self.gateways

        def settled():
            for partition in range(topic.partitions):
                key = key_of(topic, partition)
                leaders = {one.cluster.leader(key) for one in every}
                owners = [one.node_id for one in every if one.cluster.owns(key)]
                if len(leaders) != 1 or next(iter(leaders)).epoch < 0:
                    return False
                if owners != [next(iter(leaders)).node_id]:
                    return False
            return True

        await until(settled, "every partition has an owner that all know")

    def leaders(self, topic):
        """Node ids by partition, as all gateways see them."""
        seen = {
            tuple(one.cluster.leader(key_of(topic, p)).node_id for p in range(topic.partitions))
            for one in self.gateways
        }
        assert len(seen) == 1, seen
        return seen.pop()


def key_of(topic, partition):
    return StreamKey(topic.topic_id, partition)
