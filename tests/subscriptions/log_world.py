"""Subscriptions stores over simulated bookies, links without chance, and any metadata store.

`LogWorld` joins processes to one metadata tree and three bookies; each process has its own session.
`kill` is kill -9: the process receives nothing more, but its requests still arrive. A process
counts its changes of metadata and its adds to bookies, and a test may let it die at one of them.
"""

import asyncio
from functools import partial
from random import Random

from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.ids import BookieId, LedgerId
from ledger.streams.plain_log import LogQuorum, PlainLogs
from subscriptions.rollout.open_store import open_store, open_stream_store
from subscriptions.segments.log_claim import LogStoreConfig
from subscriptions.segments.log_node import decode_node
from subscriptions.znodes.znode_format import node_name
from tests.sim.cluster import model_bookie
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata
from tests.sim.network import Network, SimBookies, Weather

GROUPS = "/gateway/groups"
STREAM = "/streams/s"


def quorum():
    return LogQuorum(3, 3, 2)


class Died(Exception):
    """Raised to a test that waits for a process that was killed."""


class Steps:
    """Every effect that a process has on the world, numbered from 1.

    At step `last` the process dies: before the effect, or after it and before the reply.
    """

    def __init__(self):
        self.taken = 0
        self.writes = []  # (kind, path) of the changes of metadata
        self.adds = 0
        self.last = None
        self.after = False
        self.died = asyncio.Event()

    def next(self):
        """True if the process dies here, before the effect."""
        self.taken += 1
        return self.taken == self.last and not self.after

    def over(self):
        """True if the process dies here, after the effect."""
        return self.taken == self.last and self.after


class SteppedMetadata(SimMetadata):
    """A session that counts its changes as steps."""

    def __init__(self, tree, draw, steps, kill):
        faults = MetadataFaults(draw, latency_s=0.001)
        super().__init__(tree, faults)
        self.steps = steps
        self.kill = kill
        self.reads = 0

    async def _stepped(self, what, path, call):
        self.steps.writes.append((what, path))
        if self.steps.next():
            self.kill()
            await asyncio.Event().wait()
        if self.steps.over():
            await call()
            self.kill()
            await asyncio.Event().wait()
        return await call()

    async def set(self, path, data, version):
        return await self._stepped("set", path, partial(super().set, path, data, version))

    async def create(self, path, data=b"", **how):
        return await self._stepped("create", path, partial(super().create, path, data, **how))

    async def delete(self, path, version=-1):
        return await self._stepped("delete", path, partial(super().delete, path, version))

    async def multi(self, ops):
        ops = list(ops)
        return await self._stepped("multi", ops[-1].path, partial(super().multi, ops))

    async def get(self, path):
        self.reads += 1
        return await super().get(path)


class SteppedBookies(SimBookies):
    """A port that counts adds as steps, one for all bookies of an entry."""

    def __init__(self, network, host, steps, kill):
        super().__init__(network, host)
        self.steps = steps
        self.kill = kill
        self.entry = None

    def add(self, bookie, ledger, entry, *rest, **how):
        if self.dead:
            return
        self.steps.adds += 1
        if (ledger, entry) != self.entry:
            self.entry = (ledger, entry)
            if self.steps.next():
                self.kill()
                return
        super().add(bookie, ledger, entry, *rest, **how)
        if self.steps.over():  # only this bookie received it
            self.kill()


class Process:
    """One process: a metadata session, a ledger client, and the stores it opens."""

    def __init__(self, world, host, metadata):
        self.steps = Steps()
        self.metadata = metadata or SteppedMetadata(world.tree, world.draw, self.steps, self.kill)
        self.port = SteppedBookies(world.network, host, self.steps, self.kill)
        self.clock = SimClock()
        self.client = LedgerClient(self.metadata, self.port, self.clock, world.config)
        self.logs = PlainLogs(self.client, quorum)

    def store(self, *, native=False, enabled=True, **config):
        config = LogStoreConfig(**config)
        how = (enabled, self.metadata, self.logs, self.clock)
        if native:
            return open_stream_store(*how, STREAM, config=config)
        return open_store(*how, config=config)

    def kill(self):
        self.port.dead = True
        self.metadata.dead = True
        self.steps.died.set()

    async def lives(self, work):
        """Return the result of the work. Raises Died if the process dies first."""
        task = asyncio.ensure_future(work)
        died = asyncio.ensure_future(self.steps.died.wait())
        try:
            await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Died
            return task.result()
        finally:
            died.cancel()
            if not task.done():
                task.cancel()


class LogWorld:
    """`metadata` is shared by all processes; by default each has a session on a tree in memory."""

    def __init__(self, metadata=None):
        self.draw = Random(1)
        self.config = LedgerClientConfig(read_timeout_s=1.0)
        bookies = {BookieId(f"b{n}"): model_bookie(self.draw) for n in range(3)}
        self.network = Network(self.draw, Weather(tail_rate=0.0, timeout_s=0.5), bookies)
        self.shared = metadata
        self.tree = MetadataTree()
        self.processes = 0

    def process(self):
        self.processes += 1
        return Process(self, f"p{self.processes}", self.shared)

    def store(self, **settings):
        """Open a store in a process of its own."""
        return self.process().store(**settings)

    def data(self, subscriber, *, native=False):
        root = f"{STREAM}/subscribers" if native else GROUPS
        return self.tree.get(f"{root}/{node_name(subscriber)}").data

    def node(self, subscriber, *, native=False):
        return decode_node(self.data(subscriber, native=native), "/node")

    def put(self, path, data):
        """Write a node as another program would."""
        self.tree.create(path, data, parents=True)

    async def ledgers(self):
        return [LedgerId(each) for each in await self.process().client.list_ledgers()]

    async def records(self, ledger):
        """Read the records of a ledger without fencing it."""
        return [bytes(each.data) for each in await self.process().logs.read(ledger)]
