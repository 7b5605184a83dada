"""Several gateways' groups over one metadata tree, on virtual time.

`Cluster` is the referee: who lives, who has a lease, whom the ring names. Claims are nodes of the
tree, changed by version only, so that what two coordinators do at once is decided there.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.groups.views import Refused
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoNode, NotOwner
from subscriptions.znodes.znode_format import node_name, subscriber_of
from tests.gateway.group_world import Consumer, World
from tests.sim.metadata import MetadataTree

ROOT = "/gateway/coordinators"


class Cluster:
    """Gateways by name. The ring: the gateway with the highest checksum of (its name, group)."""

    def __init__(self):
        self.tree = MetadataTree()
        self.tree.create(ROOT, b"", parents=True)
        self.members = {}  # name -> token of its incarnation
        self.leaving = set()
        self.tokens = 0

    def register(self, name):
        self.tokens += 1
        self.members[name] = f"{name}#{self.tokens}"
        return self.members[name]

    def candidate(self, group):
        there = [name for name in self.members if name not in self.leaving]
        return max(there, key=lambda name: zlib.crc32(f"{name}/{group}".encode()), default=None)

    def groups_of(self, name, count, prefix="g"):
        """Names of so many groups that the ring gives to this gateway."""
        found, number = [], 0
        while len(found) < count:
            group = f"{prefix}{number}"
            number += 1
            if self.candidate(group) == name:
                found.append(group)
        return found

    def claimant(self, group):
        """The gateway that lives and has claimed the group, or None."""
        record = self.tree.nodes.get(f"{ROOT}/{node_name(group)}")
        token = "" if record is None else record.data.decode()
        return token.partition("#")[0] if token in self.members.values() else None


class Claims:
    """`GroupClaims` of one gateway. `lease` False: it was not heard of for too long."""

    def __init__(self, cluster, name, metadata):
        self._cluster = cluster
        self._name = name
        self._metadata = metadata
        self.token = cluster.register(name)
        self.lease = True
        self.claims = []  # names, in the order in which they were claimed
        self.hold = None  # an event that every claim waits for

    def lease_held(self):
        return self.lease

    async def claim(self, group):
        if self.hold is not None:
            await self.hold.wait()
        path = f"{ROOT}/{node_name(group)}"
        try:
            node = await self._metadata.get(path)
        except NoNode:
            node = None
        holder = "" if node is None else node.data.decode()
        if holder == self.token:
            return
        if holder in self._cluster.members.values():
            raise NotOwner(f"{group} is {holder}'s")
        if self._cluster.candidate(group) != self._name:
            raise NotOwner(f"{group} is for {self._cluster.candidate(group)}")
        try:
            if node is None:
                await self._metadata.create(path, self.token.encode())
            else:
                await self._metadata.set(path, self.token.encode(), node.version)
        except (BadVersion, NodeExists, NoNode) as error:
            raise NotOwner(f"{group}: {error}") from error
        self.claims.append(group)

    async def check(self, group):
        path = f"{ROOT}/{node_name(group)}"
        holder = ""
        if await self._metadata.exists(path):
            holder = (await self._metadata.get(path)).data.decode()
        taken = holder != self.token and holder in self._cluster.members.values()
        if taken or (holder != self.token and self._cluster.candidate(group) != self._name):
            raise NotOwner(group)

    async def release(self, group):
        path = f"{ROOT}/{node_name(group)}"
        try:
            node = await self._metadata.get(path)
            if node.data.decode() == self.token:
                await self._metadata.delete(path, node.version)
        except (NoNode, BadVersion):
            return

    def candidate(self, group):
        return self._cluster.candidate(group) == self._name

    async def claimed_elsewhere(self, groups):
        claimed = {subscriber_of(name) for name in await self._metadata.children(ROOT)}
        return {
            group
            for group in claimed.intersection(groups)
            if self._cluster.claimant(group) not in (None, self._name)
        }


class Gateway(World):
    """One of the cluster's gateways. Enter it to start."""

    def __init__(self, cluster, name, **settings):
        super().__init__(tree=cluster.tree, **settings)
        self.cluster = cluster
        self.name = name
        self.claims = Claims(cluster, name, self.metadata)

    def die(self):
        """Kill -9: its session ends with it."""
        self.metadata.closed = True
        self.groups._background.cancel()
        self.cluster.members.pop(self.name, None)

    def expire(self):
        """The session has ended and this process does not know it yet: its lease ran out before."""
        self.claims.lease = False
        self.cluster.members.pop(self.name, None)

    def reborn(self):
        """The next incarnation of the same process serves."""
        self.claims.token = self.cluster.register(self.name)
        self.groups.lost()
        self.claims.lease = True

    async def leave(self):
        """A graceful end."""
        self.cluster.leaving.add(self.name)
        await self.groups.hand_over()
        await self.groups.stop()
        self.cluster.members.pop(self.name)
        self.cluster.leaving.discard(self.name)

    async def orphans(self):
        """Groups of dead gateways that the ring gives to this one."""
        names = [subscriber_of(name) for name in await self.metadata.children(ROOT)]
        return [
            group
            for group in names
            if self.cluster.claimant(group) is None and self.cluster.candidate(group) == self.name
        ]


class Roamer(Consumer):
    """A member that finds its coordinator as clients do: asks the cluster again when sent away."""

    RETRY = ("not_coordinator", "coordinator_not_available", "coordinator_load_in_progress")

    def __init__(self, cluster, gateways, group, name, **more):
        self.cluster = cluster
        self.gateways = gateways
        super().__init__(None, group, name, **more)

    @property
    def world(self):
        name = self.cluster.claimant(self.group) or self.cluster.candidate(self.group)
        return self.gateways[name]

    @world.setter
    def world(self, value):
        pass

    async def heartbeat(self):
        while True:
            try:
                error = await asyncio.wait_for(super().heartbeat(), 5)
            except (TimeoutError, MetadataUnavailable, KeyError):
                error = "coordinator_not_available"
            if error not in self.RETRY:
                return error
            await asyncio.sleep(0.1)


@asynccontextmanager
async def started_brokers(names="ab", **settings):
    """The cluster and its gateways by name, all started."""
    cluster = Cluster()
    gateways = {name: Gateway(cluster, name, **settings) for name in names}
    async with AsyncExitStack() as stack:
        for each in gateways.values():
            await stack.enter_async_context(each)
        yield cluster, gateways


async def told(asking):
    """The code of an answer, also of a refusal."""
    try:
        answer = await asking
    except Refused as refused:
        return refused.code.name
    return getattr(getattr(answer, "error", answer), "name", answer)


async def settled(members, generation):
    """All members are in this generation and know their part of it."""
    while not all(m.generation == generation and m.assignment for m in members):
        await asyncio.sleep(0.1)
