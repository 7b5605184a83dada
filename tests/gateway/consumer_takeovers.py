"""Members of a group and coordinators that are killed, on virtual time, from one seed.

    python -m tests.gateway.consumer_takeovers FIRST LAST

runs the seeds, and prints those with an error.

A member reads what it was assigned until it revokes it or learns that it was fenced. Its requests
get lost, and so do their answers. A coordinator is killed between two requests, or at any write
within one. The next coordinator takes the group over. `check` compares after each step what the
members were told with what the coordinator has.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from random import Random
from unittest import mock

from gateway.core import consumer_group as core
from gateway.core.consumer_members import ConsumerTiming, RecordKind
from gateway.core.consumer_roster import ConsumerRoster
from gateway.groups import consumer_groups as shell
from gateway.groups import stored_consumer_group as stored
from ledger.log import set_level
from tests.gateway.consumer_rig import Client
from tests.gateway.consumer_world import ConsumerWorld
from tests.sim.loop import simulate
from tests.sim.seeds import repeat

TIMING = ConsumerTiming(session_timeout_ms=45_000, assignment_interval_ms=0)
ANSWER_S_MAX = 5.0
FENCED = {"fenced_member_epoch", "unknown_member_id", "group_id_not_found", "fenced_instance_id"}


class Run:
    """One history. `seed` decides all of it."""

    def __init__(self, seed):
        self.draw = Random(seed)
        self.clients = {name: Client(name, instance="i" if name == "c" else None) for name in "abc"}
        self.world = None
        # The highest epochs that any answer has shown, of the group's members and the group.
        self.shown = {}
        self.group_epoch = 0
        # The last acknowledged offset of each partition; the next one to commit.
        self.acknowledged = {}
        self.offset = 0
        self.kills = 0
        # When each member last had an answer to a heartbeat.
        self.beats = {}
        # Static members that left for a while, and when their place ends.
        self.away = {}

    async def start(self):
        self.world = ConsumerWorld()
        await self._enter()
        await self.world.commit("g", 0)  # an empty group without offsets would be deleted

    async def _enter(self):
        await self.world.__aenter__()
        self.world.groups.consumers.timing_of = lambda _: TIMING

    async def kill(self):
        """Kill the coordinator now, and let the next one take over."""
        self.kills += 1
        self.world = self.world.next()
        await self._enter()

    async def steps(self, count):
        """Take this many steps. Then let all come to rest."""
        actions = [self.heartbeat] * 6 + [self.revoke] * 3 + [self.commit] * 2
        actions += [self.kill, self.kill_within, self.leave, self.pause, self.commit_late]
        for _ in range(count):
            await self.draw.choice(actions)()
            await self.check()
        await self.rest()

    def some(self):
        return self.draw.choice(sorted(self.clients))

    # -- members --------------------------------------------------------------------------------

    async def heartbeat(self, name=None, *, loses=True):
        name = name or self.some()
        client = self.clients[name]
        reply = await self._ask(name, client)
        lost = loses and self.draw.random() < 0.2
        if reply is None or (lost and reply.error_code.name == "none"):
            self.clients[name] = replace(client, reports=client.joined)
            return
        if reply.error_code.name in FENCED:
            self.clients[name] = client.fenced()
        if reply.error_code.name != "none":
            return
        self.away.pop(client.instance, None)
        self.beats[name] = asyncio.get_running_loop().time()
        client = replace(client, epoch=reply.member_epoch, reports=False)
        if reply.assignment is not None:
            rows = reply.assignment.topic_partitions
            assigned = frozenset((row.topic_id, each) for row in rows for each in row.partitions)
            client = replace(client, assigned=assigned, pending=True)
        self.clients[name] = client
        self.shown[name] = reply.member_epoch

    async def _ask(self, name, client):
        """Return the answer to a heartbeat, or None if the coordinator died meanwhile."""
        # It reports what it is about to read, too: the answer may be lost, and it begins then.
        asked = replace(client, owned=client.owned | client.assigned).request()
        fields = {"instance_id": client.instance}
        if asked.owned is not None and client.joined:
            fields["topic_partitions"] = [
                {"topic_id": topic, "partitions": sorted(some)}
                for topic, some in asked.owned.items()
            ]
        return await self._answer(self.world.beat(name, asked.epoch, **fields))

    async def _answer(self, request):
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await request
        except TimeoutError:
            return None

    async def revoke(self):
        name = self.some()
        if self.clients[name].joined:
            self.clients[name] = self.clients[name].revoked()

    async def commit(self):
        """Commit an offset of a partition that a member reads."""
        name = self.some()
        client = self.clients[name]
        if client.joined and client.owned:
            await self._commit(name, client.epoch, self.draw.choice(sorted(client.owned))[1])

    async def commit_late(self):
        """Commit an offset of a partition that the member does not read, with an epoch before."""
        name = self.some()
        client = self.clients[name]
        if client.epoch > 2:
            await self._commit(name, client.epoch - 1, self.draw.randrange(4))

    async def _commit(self, name, epoch, partition):
        self.offset += 1
        place = (self.world.topic_id(), partition)
        code = await self._answer(self.world.commit_at(name, epoch, self.offset, partition))
        if code != "none":
            if code is None or code == "not_coordinator":
                self.acknowledged.pop(partition, None)  # the outcome is not known
            return
        self.acknowledged[partition] = self.offset
        readers = [each.name for each in self._live() if place in each.owned and each.name != name]
        assert not readers, f"{name} committed {partition} that {readers} reads"

    async def leave(self):
        name = self.some()
        client = self.clients[name]
        if not client.joined:
            return
        static = client.instance is not None
        epoch = -2 if static else -1
        reply = await self._answer(self.world.beat(name, epoch, instance_id=client.instance))
        if static and reply is not None and reply.error_code.name == "none":
            self.away[client.instance] = self.beats[name] + 44
        self.clients[name] = client.fenced()
        self.shown.pop(name, None)

    async def pause(self):
        await asyncio.sleep(self.draw.choice([1, 10, 50]))

    # -- coordinators ---------------------------------------------------------------------------

    async def kill_within(self):
        """Let the coordinator die at one of its next writes, while members send heartbeats."""
        steps = self.world.process.steps
        steps.last = steps.taken + self.draw.randint(1, 4)
        steps.after = self.draw.random() < 0.5
        for _ in range(3):
            await self.heartbeat(loses=False)
        await self.kill()

    def _group(self):
        loaded = self.world.loaded.get("g")
        return None if loaded is None else loaded.consumer

    def _live(self):
        """Return the clients that are members within their epochs."""
        group = self._group()
        members = {} if group is None else group.members
        return [
            each
            for each in self.clients.values()
            if each.joined and each.name in members and each.epoch <= members[each.name].epoch
        ]

    # -- what must hold -------------------------------------------------------------------------

    async def check(self):
        found = await self._answer(self.world.described())
        if found is None or found.error_code.name not in ("none", "group_id_not_found"):
            return
        if found.error_code.name == "group_id_not_found" and not self.acknowledged:
            self.shown, self.group_epoch = {}, 0  # it was empty, and was deleted
            return
        members = {each.member_id: each for each in found.members}
        assert found.group_epoch >= self.group_epoch, "the group's epoch fell"
        self.group_epoch = found.group_epoch
        for name, epoch in self.shown.items():
            assert found.group_epoch >= epoch, f"{name} was shown {epoch}"
            if name in members and members[name].member_epoch != -2:
                assert members[name].member_epoch >= epoch, f"{name}'s epoch fell"
        for one, other in combinations(self._live(), 2):
            both = one.owned & other.owned
            assert not both, f"{one.name} and {other.name} read {both}"
        now_s = asyncio.get_running_loop().time()
        for instance, until_s in self.away.items():
            here = [each for each in found.members if each.instance_id == instance]
            assert here or now_s > until_s, "the place of a static member was given away"
        for partition, offset in self.acknowledged.items():
            committed = await self.world.committed("g", partition)
            assert (committed or 0) >= offset, "an acknowledged commit was lost"

    async def rest(self):
        """Let every member send heartbeats until nothing changes."""
        await asyncio.sleep(60)  # members that are gone expire
        for _ in range(12):
            for name in self.clients:
                await self.heartbeat(name, loses=False)
                if self.clients[name].joined:
                    self.clients[name] = self.clients[name].revoked()
                await self.check()
            await asyncio.sleep(1)
        read = [place for each in self.clients.values() for place in each.owned]
        assert len(read) == len(set(read)) == 4, f"{read} is read"
        assert (await self.world.described()).group_state == "Stable"


async def history(seed, count=25):
    """Run one history. Returns it."""
    run = Run(seed)
    await run.start()
    await run.steps(count)
    loaded_groups = run.world.groups._loaded_groups
    loaded_groups._session_timer.stop()
    run.world.groups._background.cancel()
    return run


# -- mistakes -------------------------------------------------------------------------------------


async def _at_once(self, loaded):
    """Answer before the change is durable."""


def _forgets(kind):
    decode = stored.decode_notes

    async def decode_some(keyed, where):
        found = await decode(keyed, where)
        return {key: each for key, each in found.items() if key.kind is not kind}

    return decode_some


def _any_commit(self, *_, **__):
    return lambda topic, partition: True


_leave = core.ConsumerGroup._leave


def _frees(self, request, now):
    """Remove a static member that leaves for a while."""
    return _leave(self, replace(request, epoch=-1), now)


MISTAKES = {
    "an epoch is shown before it is durable": (shell.ConsumerGroups, "settle", _at_once),
    "a takeover forgets current assignments": (
        shell,
        "decode_notes",
        _forgets(RecordKind.CURRENT),
    ),
    "a partition is given before it was released": (ConsumerRoster, "owner", lambda *_: None),
    "a stale epoch may commit": (core.ConsumerGroup, "check_commit", _any_commit),
    "a static leave frees at once": (core.ConsumerGroup, "_leave", _frees),
}


@contextmanager
def planted(name):
    where, what, mistake = MISTAKES[name]
    with mock.patch.object(where, what, mistake):
        yield


def run(seed):
    """Return the errors found with this seed."""
    set_level("OFF")
    try:
        simulate(history(seed))
    except (AssertionError, BaseExceptionGroup) as error:
        return [repr(error)]
    return []


if __name__ == "__main__":
    sys.exit(repeat(run))
