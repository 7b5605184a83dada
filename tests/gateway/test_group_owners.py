"""Goal: many gateways coordinate groups as one: a group has one coordinator, whoever else is asked
says so, and neither failover nor a graceful end costs a member its place or a commit its life.

Method: two or three whole coordinators on virtual time over one metadata tree; a referee says who
lives, who has a lease and whom the ring names.
"""

import asyncio

import pytest

from gateway.core.group_members import Joining, Leaving, Syncing
from gateway.groups.group_scanner import READS_MAX
from gateway.groups.loaded_groups import IDLE_MS
from subscriptions.committed_offset import CommittedOffset
from subscriptions.znodes.znode_store import GroupZnodeStore
from tests.gateway.group_owners import Cluster, Gateway, Roamer, settled, started_brokers, told

DAY_S = 86_400.0
IDLE_S = IDLE_MS / 1000 + 1
SENT_AWAY = {"not_coordinator", "coordinator_load_in_progress", "coordinator_not_available"}


def asked_everything(world, group):
    """Every request that only a coordinator may answer."""
    joining = Joining(
        member_id="",
        protocol_type="consumer",
        protocols=(("range", b""),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        fresh_id="1",
        id_required=False,
    )
    groups = world.groups
    return [
        groups.join(group, joining),
        groups.sync(group, Syncing("m", 1)),
        groups.heartbeat(group, "m", 1, None),
        groups.leave(group, (Leaving("m"),)),
        world.commit(group, 9),
        groups.offsets(group),
        groups.delete_offsets(group, {world.key(): "t"}),
        groups.describe(group),
        groups.delete(group),
    ]


# One coordinator


async def test_a_group_is_claimed_before_it_is_loaded():
    class Watched(GroupZnodeStore):
        async def load(self, subscriber):
            seen.append(cluster.claimant(subscriber))
            return await super().load(subscriber)

    seen, cluster = [], Cluster()

    world = Gateway(cluster, "a")
    world.store = Watched(world.metadata)
    async with world:
        assert await world.commit("g", 5) == "none"
        assert await world.committed("g") == 5
    assert seen == ["a"]


async def test_a_gateway_that_did_not_claim_the_group_answers_nothing_for_it():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        assert await gateways["a"].commit(group, 5) == "none"
        answers = [await told(each) for each in asked_everything(gateways["b"], group)]
        assert set(answers) == {"not_coordinator"}
        assert gateways["b"].loaded == {}
        assert await gateways["a"].committed(group) == 5


async def test_a_group_that_nobody_has_made_is_answered_for_by_its_candidate_alone():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        assert await told(gateways["b"].committed(group)) == "not_coordinator"
        assert await gateways["a"].committed(group) is None
        assert cluster.claimant(group) is None  # asking leaves no claim behind
        assert gateways["a"].claims.claims == []  # and makes none


async def test_a_living_coordinator_keeps_its_group_when_the_ring_names_another():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("b", 1)
        cluster.leaving.add("b")
        assert await gateways["a"].commit(group, 5) == "none"
        cluster.leaving.discard("b")
        assert cluster.candidate(group) == "b"
        assert await told(gateways["b"].committed(group)) == "not_coordinator"
        assert await gateways["a"].committed(group) == 5


async def test_two_that_claim_at_once_are_one_coordinator():
    async with started_brokers() as (cluster, gateways):
        cluster.candidate = lambda group: asking.pop()
        asking = ["b", "a"] * 2  # each believes that the ring names it
        codes = await asyncio.gather(*(w.commit("g", 5) for w in gateways.values()))
        assert sorted(codes) == ["none", "not_coordinator"]


# The lease


async def test_a_coordinator_without_a_lease_answers_nothing():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        world = gateways["a"]
        assert await world.commit(group, 5) == "none"
        world.claims.lease = False
        answers = [await told(each) for each in asked_everything(world, group)]
        assert set(answers) == {"not_coordinator"}
        assert await told(world.groups.list()) == "coordinator_not_available"


async def test_a_stale_coordinator_does_not_answer_with_what_it_once_knew():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        stale, fresh = gateways["a"], gateways["b"]
        assert await stale.commit(group, 5) == "none"
        stale.expire()
        assert await fresh.commit(group, 6) == "none"
        assert group in stale.loaded  # it does not know yet
        assert await told(stale.committed(group)) == "not_coordinator"
        assert await stale.commit(group, 7) == "not_coordinator"
        assert await fresh.committed(group) == 6


async def test_a_commit_that_the_lease_did_not_outlive_is_not_acknowledged():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        world = gateways["a"]
        assert await world.commit(group, 5) == "none"
        world.metadata.delay_s = 1.0
        committing = asyncio.ensure_future(world.commit(group, 6))
        await asyncio.sleep(0.5)
        world.claims.lease = False
        assert await committing == "not_coordinator"


async def test_members_that_wait_in_a_rebalance_are_not_answered_without_a_lease():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        world = gateways["a"]
        consumer = world.consumer(group)
        consumer.member_id = (await world.groups.join(group, consumer._joining())).member_id
        joining = asyncio.ensure_future(world.groups.join(group, consumer._joining()))
        await asyncio.sleep(1)
        world.claims.lease = False
        await asyncio.sleep(30)
        assert not joining.done()  # nor does time go on in the group
        world.claims.lease = True
        assert await told(joining) == "none"


async def test_a_time_without_a_lease_costs_no_member_its_place():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        world = gateways["a"]
        consumer = world.consumer(group)
        await consumer.join()
        world.claims.lease = False
        await asyncio.sleep(25)  # its session is 10 s
        world.claims.lease = True
        await asyncio.sleep(5)
        assert await consumer.heartbeat() == "none"


async def test_the_next_incarnation_forgets_what_the_last_one_had():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        world, other = gateways["a"], gateways["b"]
        assert await world.commit(group, 5) == "none"
        world.expire()
        assert await other.commit(group, 6) == "none"
        world.reborn()
        assert world.loaded == {}
        assert await told(world.committed(group)) == "not_coordinator"
        other.die()
        assert await world.committed(group) == 6


async def test_a_load_that_the_incarnation_did_not_outlive_answers_nothing():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        world = gateways["a"]
        assert await world.commit(group, 5) == "none"
        await asyncio.sleep(2 * IDLE_S)
        world.metadata.delay_s = 1.0
        loading = asyncio.ensure_future(told(world.committed(group)))
        await asyncio.sleep(0.5)
        world.expire()
        world.reborn()
        assert await loading == "not_coordinator"


# Failover


class Register:
    """One group's offset, written and read at all gateways: no answer is older than an ack."""

    def __init__(self, gateways, group):
        self.gateways = gateways
        self.group = group
        self.acked = -1
        self.refusals = set()

    async def write(self):
        for offset in range(1_000):
            for world in self.gateways.values():
                code = await world.commit(self.group, offset)
                if code == "none":
                    self.acked = offset
                else:
                    self.refusals.add(code)
            await asyncio.sleep(0.05)

    async def read(self):
        while True:
            for world in self.gateways.values():
                least = self.acked
                found = await told(world.committed(self.group))
                if isinstance(found, str):
                    self.refusals.add(found)
                else:
                    assert (-1 if found is None else found) >= least
            await asyncio.sleep(0.03)


async def test_over_a_failover_nobody_is_told_minus_one_or_an_old_offset():
    async with started_brokers(delay_s=0.2) as (cluster, gateways):
        registers = [Register(gateways, group) for group in cluster.groups_of("a", 8)]
        asking = [asyncio.ensure_future(each.write()) for each in registers]
        asking += [asyncio.ensure_future(each.read()) for each in registers]
        await asyncio.sleep(3)
        gateways["a"].claims.lease = False
        await asyncio.sleep(1)
        before = [each.acked for each in registers]
        cluster.members.pop("a")
        await asyncio.sleep(3)
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        assert all(each.acked > was for each, was in zip(registers, before, strict=True))
        assert set[str]().union(*(each.refusals for each in registers)) <= SENT_AWAY


async def test_members_keep_generation_and_assignment_over_a_failover():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        members = [Roamer(cluster, gateways, group, f"c{n}").start() for n in range(3)]
        await settled(members, 1)
        before = [m.assignment for m in members]
        assert await gateways["a"].commit(group, 5, 0, members[0].member_id, 1) == "none"
        gateways["a"].die()
        await asyncio.sleep(60)
        assert [(m.generation, m.assignment, m.errors) for m in members] == [
            (1, part, []) for part in before
        ]
        assert cluster.claimant(group) == "b"
        assert await gateways["b"].committed(group) == 5


async def test_a_rebalance_that_the_coordinator_did_not_outlive_is_made_by_the_next_one():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        members = [Roamer(cluster, gateways, group, "c0").start()]
        await settled(members, 1)
        members.append(Roamer(cluster, gateways, group, "c1").start())
        await asyncio.sleep(0.5)
        gateways["a"].die()
        gateways["a"].groups.lost()  # whoever waits hears of it as of a connection that breaks
        await settled(members, 2)
        assert {m.assignment for m in members} == {b"part 1 of 2", b"part 2 of 2"}


async def test_after_a_failover_a_stale_generation_or_member_or_instance_is_refused():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        static = gateways["a"].consumer(group, "c", instance="one")
        await static.join()
        old_id = static.member_id
        again = gateways["a"].consumer(group, "c", instance="one")
        await again.join()
        gateways["a"].die()
        world = gateways["b"]

        async def commit(*member):
            code = await world.groups.commit(
                group, *member, {world.key(): CommittedOffset(offset=1)}
            )
            return code.name

        assert await commit(again.member_id, 2, "one") == "illegal_generation"
        assert await commit("stranger", 1, None) == "unknown_member_id"
        assert await commit(old_id, 1, "one") == "fenced_instance_id"
        assert await commit(again.member_id, 1, "one") == "none"


async def test_of_two_coordinators_only_the_one_that_loaded_last_can_acknowledge():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        old, new = gateways["a"], gateways["b"]
        assert await old.commit(group, 5) == "none"
        cluster.members.pop("a")  # its clock runs slow: it believes that its lease holds
        assert await new.commit(group, 6) == "none"
        assert await old.commit(group, 7) == "not_coordinator"
        assert await new.committed(group) == 6


async def test_orphans_are_adopted_unasked_and_the_dead_among_their_members_noticed():
    async with started_brokers() as (cluster, gateways):
        groups = cluster.groups_of("a", 5)
        for group in groups[:3]:
            await gateways["a"].consumer(group).join()
        for group in groups[3:]:
            assert await gateways["a"].commit(group, 5) == "none"
        gateways["a"].die()
        world = gateways["b"]
        await world.groups.adopt(await world.orphans())
        assert sorted(world.loaded) == sorted(groups)
        await asyncio.sleep(15)
        states = {each.group_id: each.state.value for each in await world.groups.list()}
        assert states == dict.fromkeys(groups, "Empty")


@pytest.mark.slow
async def test_orphans_are_adopted_a_bounded_number_at_once():
    async with started_brokers(initial_rebalance_delay_ms=0) as (cluster, gateways):
        groups = cluster.groups_of("a", 3 * READS_MAX)
        for group in groups:
            await gateways["a"].consumer(group).join()
        gateways["a"].die()
        world = gateways["b"]
        under_way, most = [0], [0]
        claim = world.claims.claim

        async def counted(group):
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            await asyncio.sleep(0.01)
            await claim(group)
            under_way[0] -= 1

        world.claims.claim = counted
        await world.groups.adopt(await world.orphans())
        assert len(world.loaded) == len(groups)
        assert most[0] == READS_MAX


async def test_an_orphan_that_another_gateway_claims_first_is_that_gateways():
    async with started_brokers("abc") as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        await gateways["a"].consumer(group).join()
        gateways["a"].die()
        heir = cluster.candidate(group)
        other = next(name for name in "bc" if name != heir)
        await gateways[other].groups.adopt([group])
        assert gateways[other].loaded == {}
        await gateways[heir].groups.adopt([group])
        assert list(gateways[heir].loaded) == [group]


# A graceful end


async def test_members_keep_generation_and_assignment_when_their_coordinator_leaves():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        members = [Roamer(cluster, gateways, group, f"c{n}").start() for n in range(3)]
        await settled(members, 1)
        await gateways["a"].leave()
        assert cluster.claimant(group) is None
        await asyncio.sleep(60)
        assert [(m.generation, m.joins, m.errors) for m in members] == [(1, 2, [])] * 3
        assert cluster.claimant(group) == "b"


async def test_a_commit_under_way_is_answered_before_the_group_is_released():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        assert await gateways["a"].commit(group, 5) == "none"
        gateways["a"].metadata.delay_s = 1.0
        committing = asyncio.ensure_future(gateways["a"].commit(group, 6))
        await asyncio.sleep(0.1)
        leaving = asyncio.ensure_future(gateways["a"].groups.hand_over())
        await asyncio.sleep(0.1)
        assert cluster.claimant(group) == "a"
        assert await gateways["a"].commit(group, 7) == "not_coordinator"
        await leaving
        assert (await committing) in {"none", "not_coordinator"}
        cluster.leaving.add("a")
        assert await gateways["b"].committed(group) == 6


async def test_a_gateway_that_handed_over_claims_nothing_more():
    async with started_brokers() as (cluster, gateways):
        groups = cluster.groups_of("a", 100)
        for group in groups:
            assert await gateways["a"].commit(group, 5) == "none"
        await gateways["a"].groups.hand_over()
        assert gateways["a"].loaded == {}
        assert {cluster.claimant(group) for group in groups} == {None}
        assert await gateways["a"].commit(groups[0], 6) == "not_coordinator"
        assert await told(gateways["a"].committed("new")) == "not_coordinator"


async def test_a_rebalance_under_way_at_a_hand_over_goes_on_at_the_next_coordinator():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        members = [Roamer(cluster, gateways, group, "c0").start()]
        await settled(members, 1)
        members.append(Roamer(cluster, gateways, group, "c1").start())
        await asyncio.sleep(0.5)
        await gateways["a"].leave()
        await settled(members, 2)
        assert {m.assignment for m in members} == {b"part 1 of 2", b"part 2 of 2"}


async def test_offsets_of_a_topic_that_another_gateway_deleted_go_too():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        assert await gateways["a"].commit(group, 5) == "none"
        assert await gateways["a"].commit(group, 6, topic="u") == "none"
        key = gateways["a"].key()
        await gateways["b"].catalog.delete("t")
        await asyncio.sleep(5)
        assert key not in await gateways["a"].groups.offsets(group)
        assert await gateways["a"].committed(group, topic="u") == 6
