"""Three gateways that coordinate a group, members of both protocols, and faults by seed.

Gateways are killed, cut off from the metadata store or from all bookies, stopped and started, or
stand still and wake up as zombies; sessions end, the power fails. Often a fault waits until a
member is in a state that was drawn. Requests are late or lost, and so are answers. Members join,
leave, die, fall silent past their session, and are replaced by members of the other protocol, so
that the group changes its protocol and back. Then all is well: the group must come to its target.
`GroupsOracle` lists what must never happen.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from random import Random
from uuid import UUID

from gateway.config import GroupLimits
from gateway.core.consumer_members import STATIC_LEAVE_EPOCH, ConsumerTiming, MemberState
from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.topics import catalog, internal_topics
from ledger.registry.ledger_ids import first_unused_ledger
from tests.sim.groups_clients import (
    SESSION_S,
    ClassicMember,
    ConsumerMember,
    Operator,
    Reader,
)
from tests.sim.groups_host import GroupsHost
from tests.sim.groups_oracle import GROUP, MEMBER_STATES, TOPIC, GroupsOracle
from tests.sim.metadata import SimMetadata
from tests.sim.transacting_world import GATEWAYS, TransactingWorld

REST_S = 120.0  # virtual seconds after which the group must have come to its target
CALM = 6  # looks, half a second apart, at which nothing may have changed
PATIENCE_S = 1.5  # for which a fault waits for a member in a state that was drawn
HARMS = ("kill", "cut", "pause", "unplug", "expire", "stop", "power")
MEMBER_FAULTS = ("crash", "leave", "join", "switch", "silence")
_EVENTS = (
    *("kill", "kill", "kill", "cut", "cut", "pause", "pause", "unplug", "unplug", "expire"),
    *("stop", "start", "power", "crash", "leave", "leave", "join", "join", "join"),
    *("switch", "switch", "switch", "switch", "silence"),
)
_SERVER_STATES = {
    MemberState.STABLE: "stable",
    MemberState.UNREVOKED_PARTITIONS: "revoking",
    MemberState.UNRELEASED_PARTITIONS: "unreleased",
}


class GroupsWorld(TransactingWorld):
    """Everything of one seed."""

    events = _EVENTS
    host_type = GroupsHost
    group = GROUP
    group_limits = GroupLimits(
        session_timeout_ms_min=1_000, initial_rebalance_delay_ms=200, new_member_timeout_ms=5_000
    )

    def __init__(self, seed):
        super().__init__(seed)
        draw = self.draw = Random(f"{seed}:groups")
        self.network.draw = self.storage.draw = draw
        self.oracle = GroupsOracle(self)
        self.report = self.oracle.report
        self.partitions = draw.choice([3, 4, 6])
        self.timing = ConsumerTiming(int(SESSION_S * 1000), 300, draw.choice([0, 0, 500]))
        self.eager = draw.random() < 0.5
        self.places = draw.randint(2, 5)
        self.static = draw.random() < 0.4  # the member of the first place is a static one
        self.consumers = draw.choice([0.0, 0.5, 1.0])  # the share of the protocol at the end
        self.members = []  # those that live
        self.begun = 0
        self.operator = Operator(self, "operator")
        self.readers = [Reader(self, f"reader {number}") for number in range(2)]

    async def boot(self):
        catalog.uuid4 = lambda: UUID(int=self.draw.getrandbits(128))  # or no seed repeats
        await self.storage.start(await first_unused_ledger(SimMetadata(self.tree)))
        self.hosts = [self.host_type(self, number) for number in range(GATEWAYS)]
        await asyncio.gather(*(host.start() for host in self.hosts))
        first, count = self.hosts[0].catalog, len(self.storage.bookies)
        await self._retried(lambda: internal_topics.ensure(first, CONSUMER_OFFSETS))
        await self._retried(lambda: first.create(TOPIC, self.partitions, count, {}))
        self.topic_id = first.by_name(TOPIC).topic_id
        await self.operator.begin(self.partitions)

    def _observed(self):
        return nullcontext()

    # -- members ------------------------------------------------------------------------------

    def begin_member(self, kind=None):
        """Begin a member in a place that is free."""
        if len(self.members) >= self.places:
            return
        self.begun += 1
        if kind is None:
            kind = ConsumerMember if self.draw.random() < 0.5 else ClassicMember
        used = any(each.instance_id for each in self.members)
        instance_id = "i" if self.static and not used else None
        letter = "k" if kind is ClassicMember else "c"
        member = kind(self, f"{letter}{self.begun}", instance_id)
        self.members.append(member.begin())

    async def _end(self, member, *, leaves):
        """End a member. Raises what it has raised itself."""
        if member.task.done():
            member.task.result()
        await (member.leave() if leaves else member.end())
        if member in self.members:
            self.members.remove(member)

    def _some_member(self):
        here = [each for each in self.members if not each.ending]
        return self.draw.choice(here) if here else None

    async def _crash(self, _):
        await self._end_some(leaves=False)

    async def _leave(self, _):
        await self._end_some(leaves=True)

    async def _end_some(self, *, leaves):
        member = self._some_member()
        if member is not None:
            self._background(self._end(member, leaves=leaves))

    async def _join(self, _):
        self.begin_member()

    async def _switch(self, _):
        """Restart a member with the other protocol."""
        member = self._some_member()
        if member is not None:
            kind = ClassicMember if isinstance(member, ConsumerMember) else ConsumerMember
            leaves = self.draw.random() < 0.7
            self._background(self._switched(member, kind, leaves=leaves))

    async def _switched(self, member, kind, *, leaves):
        await self._end(member, leaves=leaves)
        self.begin_member(kind)

    async def _silence(self, _):
        """Cut a member off, so that its session ends without its knowing."""
        member = self._some_member()
        if member is not None:
            now_s = asyncio.get_running_loop().time()
            member.silent_until_s = now_s + self.draw.uniform(0.5, 2.0) * SESSION_S

    # -- faults -------------------------------------------------------------------------------

    def coordinator(self):
        """The gateway that serves and has the group in memory, or None."""
        return next((each for each in self.hosts if each.reachable and each.loaded), None)

    async def event(self):
        draw = self.draw
        name = draw.choice(self.events)
        if name in HARMS and draw.random() < 0.7:
            await self._await_state(draw.choice(MEMBER_STATES))
        host = self.coordinator() if draw.random() < 0.8 else None
        host = host or draw.choice(self.hosts)
        if self._can(name, host):
            boots = self.storage.boots
            await getattr(self, f"_{name}")(host)
            self.oracle.seen[name] += name != "power" or self.storage.boots > boots

    def _can(self, name, host):
        """Return whether this event would change anything."""
        if name == "join":
            return len(self.members) < self.places
        if name == "start":
            return not all(each.alive for each in self.hosts)
        if name in MEMBER_FAULTS:
            return not all(each.ending for each in self.members)
        return host.reachable

    async def _await_state(self, state):
        """Wait until a member is in a state, but not for long."""
        for _ in range(int(PATIENCE_S / 0.005)):
            if self._has_member_in(state):
                return
            await asyncio.sleep(0.005)

    def _has_member_in(self, state):
        if state in ("joining", "leaving"):
            return any(each.doing == state for each in self.members)
        host = self.coordinator()
        group = None if host is None else host.loaded.consumer
        if group is None:
            return False
        if state == "left for a while":
            return any(each.epoch == STATIC_LEAVE_EPOCH for each in group.members.values())
        return any(_SERVER_STATES[each.state] == state for each in group.members.values())

    async def _kill(self, host):
        if host.serving:
            host.kill()
            delay_s = self.draw.choice([0.3, 1.0, 4.0]) * self.draw.random()
            asyncio.get_running_loop().call_later(delay_s, self._restart, host)

    def _restart(self, host):
        if host in self.hosts and not host.alive:
            self.start_one(host.node_id)

    async def _stop(self, host):
        await super()._stop(host)
        asyncio.get_running_loop().call_later(4 * self.draw.random(), self._restart, host)

    async def _unplug(self, host):
        if host.serving:
            host.unplug()
            delay_s = self.draw.choice([0.3, 1.0, 4.0]) * self.draw.random()
            asyncio.get_running_loop().call_later(delay_s, host.plug)

    # -- the story ----------------------------------------------------------------------------

    async def _story(self):
        draw = self.draw
        self.clients = [asyncio.ensure_future(reader.run()) for reader in self.readers]
        for _ in range(draw.randint(1, self.places)):
            self.begin_member()
        await asyncio.sleep(draw.uniform(0.2, 3.0))
        for _ in range(draw.randint(6, 24)):
            await self.event()
            await asyncio.sleep(draw.expovariate(1 / draw.choice([0.2, 1.0])))
            if not self.members:
                self.begin_member()

    async def _heal_all(self):
        for host in self.hosts:
            host.plug()
        await super()._heal_all()
        for member in self.members:
            member.silent_until_s = 0.0

    async def _end_clients(self):
        """Replace members by those of the protocol at the end, one by one, and fill all places."""
        count = round(self.consumers * self.places)
        kinds = [ConsumerMember] * count + [ClassicMember] * (self.places - count)
        while any(each.ending for each in self.members):
            await asyncio.sleep(0.1)
        for member in list(self.members):
            if type(member) in kinds:
                kinds.remove(type(member))
            else:
                await self._end(member, leaves=True)
        for kind in kinds:
            self.begin_member(kind)
            await asyncio.sleep(self.draw.uniform(0, 1))

    async def _quiet(self):
        """Wait until the group has come to its target, and stays there. True if it did."""
        loop = asyncio.get_running_loop()
        until_s, calm, before, why = loop.time() + REST_S, 0, None, "?"
        while loop.time() < until_s and not self.oracle.violations:
            await asyncio.sleep(0.5)
            why = self._unread() or await self.operator.unrest()
            shown = sorted((each.name, each.epoch, *sorted(each.owned)) for each in self.members)
            calm = calm + 1 if not why and shown == before else 0
            before = shown
            if calm == CALM:
                return True
        if not self.oracle.violations:
            self.report("never", why)
        return False

    def _unread(self):
        """Return what members do not read as they should, or "". Raises what a member raised."""
        for each in self.members:
            if each.task.done():
                each.task.result()
        read = sorted(place for each in self.members for place in each.owned)
        if read != list(range(self.partitions)):
            return f"{read} of {self.partitions} partitions are read"
        counts = [len(each.owned) for each in self.members]
        consumers = any(isinstance(each, ConsumerMember) for each in self.members)
        if consumers and max(counts) - min(counts) > 1:
            return f"members read {counts} partitions"
        return ""

    async def _check_end(self):
        while await self.operator.fetch(range(self.partitions)) is None:
            await self.operator.pause()
        self.oracle.check_register()
        for reading in self.clients:
            assert not reading.done(), reading
            reading.cancel()
        for member in list(self.members):
            await self._end(member, leaves=False)
