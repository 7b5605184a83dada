"""Goal: coordinators on the cluster of a cluster keep offsets and members over death, pause and
farewell, with positions in nodes and in log segments.

Method: whole clusters and coordinators on virtual time over one simulated metadata tree and
simulated bookies; a member and a register of offsets ask as clients do.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.config import GroupLimits
from gateway.groups.coordinator import Coordinator
from gateway.groups.views import Refused
from ledger.errors import LedgerError
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from tests.gateway.group_world import Consumer
from tests.ownership.rig import SESSION_S
from tests.ownership.rig import World as Cluster
from tests.peers.processes import until
from tests.subscriptions.log_world import LogWorld

both_stores = pytest.mark.parametrize("logs", [False, True], ids=["nodes", "log-segments"])


class Host:
    """One gateway: its cluster's part, and the groups that it coordinates."""

    def __init__(self, world, gateway):
        self.gateway = gateway
        self.node_id = gateway.node_id
        self.process = None if world.logs is None else world.logs.process()
        store = None if self.process is None else self.process.store(enabled=True)
        self.groups = Coordinator(
            gateway.metadata,
            gateway.catalog,
            world.cluster.clock,
            GroupLimits(),
            store=store,
            claims=gateway.cluster,
        )
        gateway.cluster.on_expired(self.groups.lost)
        gateway.cluster.on_members_changed(self._members_changed)
        self.adopting = None
        self.lives = True

    async def start(self):
        await self.gateway.start()
        await self.groups.start()

    def _members_changed(self):
        if self.adopting is None or self.adopting.done():
            self.adopting = asyncio.get_running_loop().create_task(self._adopt())

    async def _adopt(self):
        try:
            await self.groups.adopt(await self.gateway.cluster.orphans())
        except LedgerError:
            pass  # requests will load them

    async def die(self):
        """Kill -9."""
        self.lives = False
        if self.process is not None:
            self.process.kill()
        await self.gateway.kill()

    def end(self):
        """Nothing that still waits for the dead is left."""
        loaded_groups = self.groups._loaded_groups
        loaded_groups._session_timer.stop()
        loaded_groups._idle_timer.stop()
        loaded_groups._idle.clear()
        tasks = [self.adopting, self.groups._background, loaded_groups._evicting]
        tasks += loaded_groups._unloading.values()
        tasks += [each.task for each in loaded_groups._loading.values()]
        for task in tasks:
            if task is not None:
                task.cancel()

    async def pause(self):
        """Cut off from ZooKeeper for longer than its session; no answer of the next session counts
        before the loss of this one is told.
        """
        gateway, told = self.gateway, self.gateway.expired
        gateway.heard_s = asyncio.get_running_loop().time()
        gateway.metadata.faults.cut = True
        asyncio.get_running_loop().call_later(SESSION_S, gateway.metadata.expire)
        await asyncio.sleep(4 * SESSION_S)
        gateway.metadata.faults.cut = False
        await until(lambda: gateway.expired > told, "the loss is told")
        gateway.heard_s = None

    async def leave(self):
        self.lives = False
        await asyncio.gather(
            self.gateway.cluster.hand_over_all(self.gateway.hand_over), self.groups.hand_over()
        )
        await self.groups.stop()
        await self.gateway.stop()


class World:
    """Three gateways of one cluster, and the ways clients have to them."""

    def __init__(self, logs):
        self.cluster = Cluster()
        self.logs = None
        if logs:
            self.logs = LogWorld()
            self.logs.tree = self.cluster.tree
        self.hosts = {}

    async def __aenter__(self):
        for node_id in (1, 2, 3):
            self.hosts[node_id] = Host(self, self.cluster.gateway(node_id))
            await self.hosts[node_id].start()
        first = self.hosts[1].gateway
        topic = await first.catalog.create("t", 1, 1, {})
        self.key = TopicIdPartition(topic.topic_id, 0)
        await asyncio.sleep(1)
        return self

    async def __aexit__(self, *error):
        for host in self.hosts.values():
            if host.lives:
                await host.groups.stop()
            host.end()
        await self.cluster.stop()

    async def coordinator(self, group):
        """Whom any gateway that lives names."""
        while True:
            for host in [host for host in self.hosts.values() if host.lives]:
                found = await host.gateway.cluster.coordinator(group)
                if found is not None and self.hosts[found.node_id].lives:
                    return self.hosts[found.node_id]
            await asyncio.sleep(0.05)

    async def commit(self, host, group, offset):
        position = {self.key: CommittedOffset(offset=offset, commit_time_ms=1)}
        return (await host.groups.commit(group, "", -1, None, position)).name

    async def committed(self, host, group):
        """An offset, or the code of a refusal."""
        try:
            found = (await host.groups.offsets(group)).get(self.key)
        except Refused as refused:
            return refused.code.name
        return -1 if found is None else found.offset


class Register:
    """A group's offset: what was acknowledged, and that nobody ever says less."""

    def __init__(self, world, group):
        self.world = world
        self.group = group
        self.acked = -1
        self.acks_s = []

    async def write(self):
        offset = 0
        while True:
            host = await self.world.coordinator(self.group)
            try:
                code = await asyncio.wait_for(self.world.commit(host, self.group, offset), 0.5)
            except TimeoutError:
                code = "request_timed_out"
            if code == "none":
                self.acked = offset
                self.acks_s.append(asyncio.get_running_loop().time())
                offset += 1
            await asyncio.sleep(0.02)

    async def read(self, host):
        while host.lives:
            least = self.acked
            try:
                found = await asyncio.wait_for(self.world.committed(host, self.group), 0.5)
            except TimeoutError:
                found = "request_timed_out"
            assert isinstance(found, str) or found >= least
            await asyncio.sleep(0.02)


class Roamer(Consumer):
    """A member that asks its coordinator, whoever that is."""

    def __init__(self, cluster, group, name):
        super().__init__(None, group, name)
        self.cluster = cluster

    async def join(self):
        self.world = await self.cluster.coordinator(self.group)
        await super().join()

    async def heartbeat(self):
        while True:
            self.world = await self.cluster.coordinator(self.group)
            try:
                error = await asyncio.wait_for(super().heartbeat(), 0.5)
            except TimeoutError:
                error = "request_timed_out"
            if error not in ("not_coordinator", "coordinator_not_available", "request_timed_out"):
                return error
            await asyncio.sleep(0.1)


@asynccontextmanager
async def new_world(logs):
    async with World(logs) as world:
        yield world


async def over(world, harm):
    """A register through this: the longest time without an acknowledgement."""
    register = Register(world, "g")
    tasks = [asyncio.ensure_future(register.write())]
    tasks += [asyncio.ensure_future(register.read(host)) for host in world.hosts.values()]
    await until(lambda: register.acked > 10, "commits are acknowledged")
    victim = await world.coordinator("g")
    before = register.acked
    await harm(victim)
    await asyncio.sleep(5)
    assert register.acked > before + 10
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    gaps = [b - a for a, b in zip(register.acks_s, register.acks_s[1:], strict=False)]
    return max(gaps), victim


@both_stores
async def test_a_killed_coordinator_loses_no_commit_and_is_replaced_within_a_session(logs):
    async with new_world(logs) as world:
        gap_s, victim = await over(world, Host.die)
        assert await world.coordinator("g") is not victim
        assert gap_s < SESSION_S + 0.5 + 0.5  # and what a client waits for an answer


@both_stores
async def test_a_coordinator_that_was_paused_answers_with_nothing_old(logs):
    async with new_world(logs) as world:
        await over(world, Host.pause)


@both_stores
async def test_a_coordinator_that_leaves_hands_its_groups_over_without_a_gap(logs):
    async with new_world(logs) as world:
        gap_s, victim = await over(world, Host.leave)
        assert await world.coordinator("g") is not victim
        assert gap_s < 0.5


@both_stores
@pytest.mark.parametrize("harm", [Host.die, Host.leave])
async def test_members_stay_in_their_generation_whatever_becomes_of_the_coordinator(logs, harm):
    async with new_world(logs) as world:
        members = [Roamer(world, "g", f"c{n}").start() for n in range(2)]
        await until(lambda: all(m.generation == 1 and m.assignment for m in members), "a group")
        await harm(await world.coordinator("g"))
        await asyncio.sleep(30)
        assert [(m.generation, m.errors) for m in members] == [(1, [])] * 2
        for member in members:
            await member.die()


@both_stores
async def test_orphans_are_in_memory_before_anybody_asks(logs):
    async with new_world(logs) as world:
        member = Roamer(world, "g", "c")
        await member.join()
        await (await world.coordinator("g")).die()
        assert await until(
            lambda: any(
                "g" in h.groups._loaded_groups.groups for h in world.hosts.values() if h.lives
            ),
            "somebody has loaded it",
            3 * SESSION_S,
        )


@both_stores
async def test_every_group_is_listed_by_one_gateway_at_work_at_rest_and_after_a_death(logs):
    async with new_world(logs) as world:
        names = sorted(f"g{n}" for n in range(30))
        for name in names:
            assert await world.commit(await world.coordinator(name), name, 1) == "none"

        async def listed():
            living = [host for host in world.hosts.values() if host.lives]
            return sorted([e.group_id for host in living for e in await host.groups.list()])

        assert await listed() == names
        await asyncio.sleep(200)
        assert await listed() == names
        await world.hosts[2].die()
        await asyncio.sleep(3 * SESSION_S)
        assert await listed() == names
