"""One gateway of a simulated cluster: its partitions and groups are real, its world is not.

It can be killed, cut off from the metadata store (the session ends without its knowing), or paused
(nothing is heard, and what clients send waits at its door until it wakes up as a zombie).
"""

import asyncio
from random import Random

from gateway.cluster.lease import LEASE_SHARE
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.config import GatewayConfig, GroupLimits
from gateway.groups.coordinator import Coordinator
from gateway.process.broker_lifecycle import BrokerLifecycle
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import Partitions
from ledger.client.client import LedgerClient
from ledger.errors import LedgerError
from ledger.streams.stream import StreamServices
from subscriptions.znodes.znode_store import GroupZnodeStore
from tests.sim.loop import SimClock
from tests.sim.machines import Port
from tests.sim.metadata import MetadataFaults, SimMetadata

SESSION_S = 1.0
NEVER = 60.0


class Session(SimMetadata):
    """It is not renewed, and hears of no change, while nothing reaches the store or its host."""

    def __init__(self, tree, faults):
        super().__init__(tree, faults)
        self.unheard = []

    def _renew(self):
        if not self.faults.cut and self.gate is None:
            super()._renew()

    def watch(self, path, on_changed):
        def tell():
            if self.gate is not None:
                self.unheard.append(on_changed)
            else:
                on_changed()

        return super().watch(path, tell)


class HeldPort(Port):
    """While its host is paused, what bookies answer waits."""

    def __init__(self, bookies):
        super().__init__(bookies)
        self.gate = None
        self.unheard = []

    def _tell(self, on_added, status):
        if self.gate is not None:
            self.unheard.append((on_added, status))
        else:
            super()._tell(on_added, status)

    async def _heard(self, reply):
        if self.gate is not None:
            await self.gate.wait()
        return await super()._heard(reply)


class Host:
    """One process under a node id. `start` it; then it serves until it is killed or stopped."""

    def __init__(self, world, node_id):
        self.world = world
        self.node_id = node_id
        self.alive = True
        self.started = False
        self.leaving = False
        world.processes += 1
        self.name = f"gateway {node_id}, process {world.processes}"
        self.faults = MetadataFaults(
            Random(f"{world.seed}:{world.processes}"),
            latency_s=world.metadata_faults.latency_s,
            unsent=world.metadata_faults.unsent,
            reply_lost=world.metadata_faults.reply_lost,
            node_by_node=world.seed % 3 == 0,
        )
        self.session = Session(world.tree, self.faults)
        self.port = HeldPort(world.storage.bookies)
        self.silent_since_s = None
        self.inbox = []  # what clients sent to a paused host

    def lease(self):
        if self.silent_since_s is None:
            return True
        return self.now() < self.silent_since_s + SESSION_S * LEASE_SHARE

    @staticmethod
    def now():
        return asyncio.get_running_loop().time()

    async def start(self):
        clock, world = SimClock(), self.world
        client = LedgerClient(self.session, self.port, clock, world.client_config)
        self.services = StreamServices(self.session, client, clock, world.limits)
        self.catalog = Catalog(self.session, bookies=lambda: len(world.storage.bookies))
        await self.retried(self.catalog.load)
        self.cluster = ZooKeeperCluster(
            self.session,
            self.catalog,
            clock,
            node_id=self.node_id,
            host="gateway",
            port=9000 + self.node_id,
            rack="",
            session_ms=int(SESSION_S * 1000),
            lease=self.lease,
            new_token=lambda: f"token-{world.draw.getrandbits(64):016x}",
        )
        config = GatewayConfig(zookeeper="simulated", node_id=self.node_id)
        self.partitions = Partitions(
            self.catalog, self.services, config, self.on_freed, self.cluster
        )
        self.partitions._stream_config = lambda topic: world.stream_config  # small segments
        self.groups = Coordinator(
            self.session,
            self.catalog,
            clock,
            GroupLimits(),
            store=GroupZnodeStore(self.session),
            claims=self.cluster,
        )
        ended = asyncio.get_running_loop().create_future()
        self.sharing = BrokerLifecycle(self.cluster, self.partitions, self.groups, ended)
        place = ("gateway", 9000 + self.node_id)
        await self.retried(lambda: self.sharing.start(*place, place))
        await self.groups.start()
        self.started = True

    async def retried(self, work):
        """A process that cannot start is started again."""
        while True:
            try:
                return await work()
            except LedgerError:
                await asyncio.sleep(0.1)

    async def on_freed(self):
        """Bookies collect by themselves."""

    @property
    def serving(self):
        return self.alive and self.started

    @property
    def reachable(self):
        return self.serving and self.session.gate is None

    @property
    def partition(self):
        """The one that it leads, as far as it knows; None: clients are sent elsewhere."""
        return self.partitions.find("t", 0) if self.serving else None

    # -- what may happen to it ----------------------------------------------------------------

    def kill(self):
        """No process any more. The store finds out when the session has run out."""
        self.alive = False
        self.port.dead = self.session.dead = True
        if self.started:
            for partition in self.partitions._by_key.values():
                partition.closed = True
        self._silent()

    def cut(self):
        """The store is out of reach, bookies and clients are not."""
        self.faults.cut = True
        self._silent()

    def pause(self):
        self.session.gate = self.port.gate = asyncio.Event()
        self._silent()

    def _silent(self):
        if self.silent_since_s is None:
            self.silent_since_s = self.now()
        asyncio.get_running_loop().call_later(SESSION_S, self._expire, self.silent_since_s)

    def _expire(self, since_s):
        """The store's side of it; the gateway hears when it can."""
        if self.silent_since_s == since_s and not self.session.expired and not self.session.closed:
            self.session.expired = True
            self.session.tree.end_session(self.session.session)

    def heal(self):
        """All is well again; a zombie first answers whom it can, or first hears of its loss."""
        if not self.alive:
            return
        self.faults.cut = False
        gate, self.session.gate, self.port.gate = self.session.gate, None, None
        steps = [self._wake, self._renew]
        self.world.draw.shuffle(steps)
        for step in steps:
            step()
        if gate is not None:
            gate.set()

    def heal_later(self):
        """Heal after a time that is drawn."""
        draw = self.world.draw
        delay_s = draw.expovariate(1 / draw.choice([0.2, 2.0]))
        asyncio.get_running_loop().call_later(delay_s, self.heal)

    def lose_session(self):
        """Let the store end a session that is well, and heal after a time that is drawn."""
        self.session.tree.end_session(self.session.session)
        self.session.expired = True
        self.silent_since_s = self.now() - SESSION_S
        asyncio.get_running_loop().call_later(self.world.draw.random(), self.heal)

    def _renew(self):
        """A lease begins with the first answer of the session that serves."""
        if self.session.expired:
            self.session._renew()
            asyncio.get_running_loop().call_soon(self._pinged)
        else:
            self._pinged()

    def _pinged(self):
        self.silent_since_s = None

    def _wake(self):
        inbox, self.inbox = self.inbox, []
        unheard, self.port.unheard = self.port.unheard, []
        changes, self.session.unheard = self.session.unheard, []
        for on_added, status in unheard:
            self.port._tell(on_added, status)
        for work in inbox:
            work()
        for on_changed in changes:
            on_changed()

    def told(self, work):
        """Clients' requests reach it now, or when it wakes up."""
        if self.session.gate is not None:
            self.inbox.append(work)
        else:
            work()

    async def stop(self):
        """An orderly end: all it led is led by others before it is gone."""
        self.leaving = True
        await self.sharing.stop()
        await self.groups.stop()
        await self.partitions.stop()
        await self.catalog.close()
        self.alive = False
        await self.session.close()
