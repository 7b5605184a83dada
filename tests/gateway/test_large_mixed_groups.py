"""Goal: a change of the protocol is safe while a target is made with pauses, and costs little.

Method: the pure core with classic members beside members of the consumer protocol, and real
requests to a coordinator over simulated bookies, on virtual time.
"""

import asyncio
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import CONSUMER_MEMBERS_CEILING, GroupLimits
from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import ConsumerRefused, ConsumerSettings, Now
from gateway.core.consumer_protocol import decode_assignment, encode_assignment
from gateway.core.group import Group, GroupSettings
from gateway.core.group_members import GroupMembership, Joining, MemberRecord, State, Syncing
from gateway.core.group_migration import CONVERTED_MAX
from tests.gateway.consumer_rig import TIMING, fresh_group
from tests.gateway.mixed_rig import classic_member, heartbeat, join, sync
from tests.gateway.subscription_bytes import subscription
from tests.gateway.test_consumer_group_handlers import world
from tests.gateway.test_consumer_group_hostile import Topics, beat, run
from tests.gateway.test_mixed_groups import ALL, classic_group, mixed

REBALANCE = "rebalance_in_progress"


def joining(member, topics=("t",)):
    protocols = (("range", subscription(sorted(topics))),)
    return Joining(
        member_id=member,
        protocol_type="consumer",
        protocols=protocols,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        fresh_id=f"fresh-{member}",
    )


def now_of(topics, ms=0):
    return Now(ms, topics, TIMING)


class Assigning:
    """A group for which a target is being made: consumers `a` and `b`, and classic member `x`."""

    def __init__(self):
        self.topics = Topics(6_000)
        self.names = sorted(self.topics.known)
        self.now = now_of(self.topics)
        self.group = fresh_group()
        beat(self.group, self.topics, "a", topics=frozenset(self.names))
        beat(self.group, self.topics, "b", topics=frozenset(self.names[1:]))
        self.join("x", self.names[2:])
        outcome = self.join("y", self.names[3:])
        assert outcome.assign is not None
        self.steps = outcome.assign

    def join(self, member, names):
        return self.group.join(joining(member, names), self.now)

    def leave(self, member):
        return beat(self.group, self.topics, member, -1).changes


# a target that is made with pauses


@pytest.mark.slow
def test_a_group_that_has_become_a_classic_one_takes_no_late_target():
    world = Assigning()
    group = world.group
    world.leave("a")
    world.leave("b")
    assert group.ended is not None
    assert [each.member_id for each in group.ended.members] == ["x", "y"]
    found, _ = run(world.steps)
    assert "x" in found
    epochs = group.roster.group
    assert group.on_assigned(found) == {}
    assert group.on_resolved({"t.*": frozenset({"t"})}, 1, 0, world.now) == {}
    assert group.roster.group == epochs


@pytest.mark.slow
def test_a_classic_member_joins_while_a_target_is_made_and_gets_the_next_one():
    world = Assigning()
    group = world.group
    before = group.assignment_epoch
    outcome = world.join("z", world.names)
    assert outcome.assign is None  # one at a time
    assert outcome.joined.generation == before
    synced = group.sync(Syncing("z", before), world.now)
    assert decode_assignment(synced.assignment).partitions == {}
    beats = group.classic_heartbeat("z", before, None, world.now)
    assert (beats.code.name, beats.assign) == ("none", None)
    found, _ = run(world.steps)
    assert group.on_assigned(found) and "z" not in group.roster.targets
    beats = group.classic_heartbeat("z", before, None, world.now)
    assert (beats.code.name, beats.assign is not None) == (REBALANCE, True)  # the next target
    found, _ = run(beats.assign)
    assert group.on_assigned(found)
    target = group.roster.targets["z"]
    assert target
    for held in (each for name, each in group.roster.targets.items() if name != "z"):
        assert not target.keys() & held.keys()  # topics of one partition
    assert world.join("z", world.names).joined.generation == group.epoch


@pytest.mark.slow
def test_a_heartbeat_of_a_classic_member_begins_a_target_that_could_not_be_made():
    world = Assigning()
    assert world.group.on_assigned(None) == {}
    generation = world.group.members["x"].epoch
    beats = world.group.classic_heartbeat("x", generation, None, world.now)
    assert beats.assign is not None
    assert world.group.on_assigned(run(beats.assign)[0])
    assert world.group.assignment_epoch == world.group.epoch


class Late:
    """Steps that end with a target which no member may get. `left` counts those to come."""

    def __init__(self, loaded, group):
        self.left, self.loaded, self.group = 3, loaded, group

    def assign(self, w):
        return w.groups.consumers._assign(self.loaded, self.group, self._steps())

    def _steps(self):
        while self.left:
            self.left -= 1
            yield
        return {name: {} for name in self.group.members}


async def test_the_coordinator_drops_a_target_of_the_group_before_a_change_of_its_protocol():
    async with world(initial_rebalance_delay_ms=100) as w:
        other = await mixed(w)
        loaded = w.loaded["g"]
        late = Late(loaded, loaded.consumer)
        assert (await w.beat("a", -1)).error_code.name == "none"
        assert loaded.consumer is None
        await late.assign(w)
        assert late.left == 3  # nothing is computed in vain
        assert loaded.consumer is None and loaded.group.state is not State.DEAD
        assert await heartbeat(w, other.member_id, loaded.group.generation) == REBALANCE
        assert (await w.beat("b")).error_code.name == "none"
        assert loaded.consumer not in (None, late.group)
        targets = dict(loaded.consumer.roster.targets)
        await late.assign(w)
        assert loaded.consumer.roster.targets == targets
        await Late(loaded, loaded.consumer).assign(w)  # as many steps as that group lets run
        assert loaded.consumer.roster.targets == targets  # none was due


async def test_a_target_and_expressions_that_begin_after_the_change_do_not_stop_the_gateway():
    """A task begins in a later turn of the loop than the request that makes it."""
    async with world(initial_rebalance_delay_ms=100) as w:
        await mixed(w)
        loaded = w.loaded["g"]
        group = loaded.consumer
        resolving = partial(w.groups.consumers._resolve, loaded, group, frozenset({"t.*"}))
        tasks = [
            asyncio.ensure_future(Late(loaded, group).assign(w)),
            asyncio.ensure_future(resolving(lambda _: True)),
        ]
        leaves = group.remove(["a"], w.groups.consumers.now("g"))
        w.groups.consumers.write(loaded, leaves)
        assert loaded.consumer is None
        assert await asyncio.gather(*tasks) == [None, None]
        await w.groups.consumers.settle(loaded)
        assert w.loaded["g"] is loaded


# a write of the classic protocol in flight


@pytest.mark.parametrize("turns", range(0, 12, 2))
async def test_an_upgrade_while_an_assignment_is_being_stored_gives_no_partition_twice(turns):
    async with world(initial_rebalance_delay_ms=100) as w:
        (leader,), generation = await classic_group(w, 1)
        new = (await join(w)).member_id
        waits = asyncio.ensure_future(join(w, new))
        again = asyncio.ensure_future(join(w, leader, ALL, generation))
        generation = (await again).generation_id
        assert (await waits).generation_id == generation
        rows = [(new, bytes_of(ALL)), (leader, bytes_of(()))]
        stores = asyncio.ensure_future(sync(w, leader, generation, assignments=rows))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert (await w.beat("a")).error_code.name == "none"
        answered = (await stores).error_code.name
        group = w.loaded["g"].consumer
        held = {name: sum(map(len, each.assigned.values())) for name, each in group.members.items()}
        assert held["a"] == 0
        assert held in ({leader: 4, new: 0, "a": 0}, {leader: 0, new: 4, "a": 0})
        assert answered == REBALANCE or held[new] == 4
        assert await heartbeat(w, new, generation) in (REBALANCE, "none")
        before = dict(group.members)
        w.groups.consumers._loaded_groups.unload(w.loaded["g"], ErrorCode.coordinator_not_available)
        assert (await w.described()).group_state in ("Assigning", "Reconciling")
        assert {name: each.assigned for name, each in w.loaded["g"].consumer.members.items()} == {
            name: each.assigned for name, each in before.items()
        }


def bytes_of(partitions):
    return encode_assignment([("t", partitions)] if partitions else [], 3)


# bounds


def classic(count, topics=("topic-0",)):
    """Return a classic group of so many members."""
    data = (("range", subscription(topics)),)
    records = tuple(
        MemberRecord(f"c{at}", None, "c", "/h", 10_000, 60_000, data, b"") for at in range(count)
    )
    membership = GroupMembership(3, "consumer", "range", "c0", records)
    return Group.restore(membership, GroupSettings(0, 1_000, 10_000, 2**23), 0)


def test_a_classic_group_of_too_many_members_is_not_upgraded():
    topics = Topics(1)
    with pytest.raises(ConsumerRefused) as refused:
        ConsumerGroup.upgrade("g", classic(CONVERTED_MAX + 1), ConsumerSettings(), now_of(topics))
    assert refused.value.code.name == "group_max_size_reached"
    assert "it has more than 1000 members, or more than 2097152 bytes" in refused.value.text


def test_a_classic_group_of_too_large_subscriptions_is_not_upgraded():
    topics = Topics(1)
    large = classic(200, [f"topic-{at:010}" for at in range(600)])
    with pytest.raises(ConsumerRefused) as refused:
        ConsumerGroup.upgrade("g", large, ConsumerSettings(), now_of(topics))
    assert refused.value.code.name == "group_max_size_reached"


def test_a_group_of_too_many_classic_members_becomes_a_classic_one_once_fewer_remain():
    topics = Topics(1)
    group, _ = ConsumerGroup.upgrade(
        "g", classic(CONVERTED_MAX), ConsumerSettings(), now_of(topics)
    )
    beat(group, topics, "a", topics=frozenset({"topic-0"}))
    group.join(joining("x", ["topic-0"]), now_of(topics))
    beat(group, topics, "a", -1)
    assert group.ended is None and group.roster.consumers == 0
    group.remove(["c7"], now_of(topics))
    assert group.ended is not None and len(group.ended.members) == CONVERTED_MAX


def test_members_whose_sessions_end_together_raise_the_group_epoch_once():
    topics, group = Topics(1), fresh_group()
    for name in ("a", "b", "c"):
        beat(group, topics, name, topics=frozenset({"topic-0"}))
    group.join(joining("x", ["topic-0"]), now_of(topics))
    epoch, later = group.epoch, now_of(topics, TIMING.session_timeout_ms + 1)
    changes = group.tick(later)
    assert changes and group.epoch == epoch + 1
    assert not group.members and group.roster.consumers == 0


def test_the_setting_of_the_most_members_does_not_lift_the_ceiling():
    assert GroupLimits().consumer_members_max == 2**31 - 1
    assert CONSUMER_MEMBERS_CEILING == 10_000


async def test_the_ceiling_holds_with_the_default_of_the_setting():
    async with world() as w:
        assert w.groups.consumers._settings.members_max == CONSUMER_MEMBERS_CEILING
    async with world(consumer_members_max=3) as w:
        await w.beat("a")
        for _ in range(2):
            await classic_member(w)
        before = await w.described()
        assert (await join(w)).error_code.name == "group_max_size_reached"
        assert (await join(w, "made up")).error_code.name == "group_max_size_reached"
        assert await w.described() == before


async def test_classic_members_count_in_the_bytes_of_their_group():
    async with world(group_bytes_max=2_000) as w:
        await w.beat("a")
        large = [f"topic-{at:04}" for at in range(80)]
        assert (await join(w, "x", topics=large)).error_code.name == "group_max_size_reached"
        assert len((await w.described()).members) == 1
        assert (await join(w, "x")).error_code.name == "none"
