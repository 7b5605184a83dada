"""Goal: groups that nobody needs cost next to nothing, and one gateway lists and sweeps each.

Method: two or three whole coordinators on virtual time over one metadata tree, as in
test_group_owners.
"""

import asyncio

import pytest

from gateway.groups.group_scanner import EXPIRE_S
from gateway.groups.loaded_groups import IDLE_MS, REST_MS
from ledger.errors import EntryUnknown, MetadataUnavailable
from subscriptions.znodes.znode_store import GroupZnodeStore
from tests.gateway.group_owners import Roamer, settled, started_brokers

DAY_S = 86_400.0
IDLE_S = IDLE_MS / 1000 + 1

# Groups that rest


@pytest.mark.slow
async def test_a_group_that_nobody_needs_is_let_go_and_its_claim_with_it():
    async with started_brokers() as (cluster, gateways):
        groups = cluster.groups_of("a", 200)
        for group in groups:
            assert await gateways["a"].commit(group, 5) == "none"
        await asyncio.sleep(2 * IDLE_S)
        assert gateways["a"].loaded == {}
        assert gateways["a"].groups._store._claims == {}
        assert {cluster.claimant(group) for group in groups} == {None}
        assert await gateways["a"].committed(groups[7]) == 5


async def test_a_group_with_members_or_fresh_commits_stays():
    async with started_brokers() as (cluster, gateways):
        groups = cluster.groups_of("a", 3)
        world = gateways["a"]
        member = world.consumer(groups[0]).start()
        await settled([member], 1)
        assert await world.commit(groups[2], 0) == "none"
        for offset in range(12):
            assert await world.commit(groups[1], offset) == "none"
            await asyncio.sleep(IDLE_S / 3)
        assert sorted(world.loaded) == sorted(groups[:2])


async def test_a_resting_group_is_listed_by_exactly_one_gateway():
    async with started_brokers("abc", initial_rebalance_delay_ms=0) as (cluster, gateways):
        expected = set()
        for name, world in gateways.items():
            for group in cluster.groups_of(name, 20):
                assert await world.commit(group, 5) == "none"
                expected.add(group)
        sticky = cluster.groups_of("b", 30)[20:]
        cluster.leaving.add("b")
        for group in sticky:  # claimed by others while the ring said so
            gateways[cluster.candidate(group)].consumer(group).start()
            expected.add(group)
        await asyncio.sleep(1)
        cluster.leaving.discard("b")
        for _ in range(2):
            listed = [e.group_id for w in gateways.values() for e in await w.groups.list()]
            assert sorted(listed) == sorted(expected)
            await asyncio.sleep(2 * IDLE_S)
        assert [name for w in gateways.values() for name in w.loaded if name not in sticky] == []


async def test_a_group_that_another_gateway_has_in_memory_is_listed_by_that_one():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("b", 1)
        assert await gateways["b"].commit(group, 5) == "none"
        await asyncio.sleep(2 * IDLE_S)
        cluster.leaving.add("b")
        assert await gateways["a"].commit(group, 6) == "none"
        cluster.leaving.discard("b")
        assert [each.group_id for each in await gateways["a"].groups.list()] == [group]
        assert await gateways["b"].groups.list() == []


async def test_after_a_failover_every_group_is_listed_once():
    async with started_brokers("abc") as (cluster, gateways):
        groups = cluster.groups_of("a", 20)
        for group in groups:
            assert await gateways["a"].commit(group, 5) == "none"
        await gateways["a"].consumer(groups[0]).join()
        gateways["a"].die()
        rest = [gateways["b"], gateways["c"]]
        for world in rest:
            await world.groups.adopt(await world.orphans())
        listed = [e.group_id for w in rest for e in await w.groups.list()]
        assert sorted(listed) == sorted(groups)


async def test_a_group_that_another_gateway_deleted_is_listed_no_more():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        assert await gateways["a"].commit(group, 5) == "none"
        await asyncio.sleep(2 * IDLE_S)
        assert [e.group_id for e in await gateways["a"].groups.list()] == [group]
        cluster.leaving.add("a")
        assert (await gateways["b"].groups.delete(group)).name == "none"
        cluster.leaving.discard("a")
        assert await gateways["a"].groups.list() == []


async def test_a_group_released_with_members_that_died_is_taken_when_members_change():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        await gateways["a"].consumer(group).join()
        await gateways["b"].groups.list()
        await gateways["a"].leave()
        await gateways["b"].groups.adopt([])
        assert list(gateways["b"].loaded) == [group]


async def left_by_the_dead(cluster, gateways, count):
    """Gateway `a` has committed an offset for each of the groups, and is dead. Returns them."""
    groups = cluster.groups_of("a", count)
    for group in groups:
        assert await gateways["a"].commit(group, 5) == "none"
    gateways["a"].die()
    return groups


async def test_what_a_dead_gateway_left_open_is_put_in_order_and_let_go():
    async with started_brokers() as (cluster, gateways):
        groups = await left_by_the_dead(cluster, gateways, 10)
        world = gateways["b"]
        await world.groups.adopt(await world.orphans())
        assert sorted(world.loaded) == sorted(groups)
        assert await world.orphans() == []
        assert await world.commit(groups[0], 6) == "none"
        await asyncio.sleep(REST_MS / 1000 + 1)
        assert list(world.loaded) == groups[:1], "one that is used stays as long as any other"
        assert {cluster.claimant(group) for group in groups[1:]} == {None}


async def test_an_orphan_whose_load_fails_is_claimed_by_nobody_and_tried_by_each_sweep():
    async with started_brokers() as (cluster, gateways):
        groups = await left_by_the_dead(cluster, gateways, 3)
        world, tried = gateways["b"], []
        store = world.groups._store
        load, names = store.load, store.list

        async def failing(group):
            tried.append(group)
            raise EntryUnknown("no bookie answers")

        async def unavailable():
            store.list = names
            raise MetadataUnavailable("a test")

        store.load, store.list = failing, unavailable
        with pytest.raises(MetadataUnavailable):
            await world.groups.adopt(await world.orphans())
        for sweeps in range(1, 4):
            assert sorted(tried) == sorted(groups * sweeps)
            assert {cluster.claimant(group) for group in groups} == {None}
            await asyncio.sleep(EXPIRE_S)
        store.load = load
        await asyncio.sleep(EXPIRE_S)
        assert {group for group in groups if group in world.loaded} == set(groups)


async def test_a_claim_whose_reply_was_lost_is_released():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        claims = gateways["a"].claims
        claim = claims.claim

        async def without_reply(name):
            await claim(name)
            raise MetadataUnavailable("the reply was lost")

        claims.claim = without_reply
        assert await gateways["a"].commit(group, 5) != "none"
        assert claims.claims == [group]
        assert cluster.claimant(group) is None


async def test_an_orphan_that_cannot_be_loaded_is_put_in_order_by_the_next_sweep():
    async with started_brokers() as (cluster, gateways):
        groups = await left_by_the_dead(cluster, gateways, 10)
        world = gateways["b"]
        claim = world.claims.claim

        async def refused(group):
            raise MetadataUnavailable(group)

        world.claims.claim = refused
        await world.groups.adopt(await world.orphans())
        assert world.loaded == {}
        assert sorted(await world.orphans()) == sorted(groups)
        world.claims.claim = claim
        await asyncio.sleep(EXPIRE_S + 2 * IDLE_S)
        assert world.loaded == {}
        assert await world.orphans() == []


# Expiry


@pytest.mark.slow
async def test_offsets_expire_by_the_hand_of_the_one_gateway_that_would_coordinate():
    async with started_brokers("abc") as (cluster, gateways):
        groups = cluster.groups_of("a", 10)
        for group in groups:
            assert await gateways["a"].commit(group, 5) == "none"
        written = {name: len(world.metadata.multis) for name, world in gateways.items()}
        await asyncio.sleep(7 * DAY_S - 60)
        assert len(await gateways["a"].groups.list()) == 10
        await asyncio.sleep(EXPIRE_S + 120)
        assert await gateways["a"].groups.list() == []
        assert gateways["b"].claims.claims == gateways["c"].claims.claims == []
        for name in "bc":
            assert len(gateways[name].metadata.multis) == written[name]


@pytest.mark.slow
async def test_offsets_of_a_group_with_members_outlive_a_failover():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        member = Roamer(cluster, gateways, group, "c", session_ms=1_800_000)
        await member.join()
        assert await gateways["a"].commit(group, 5, 0, member.member_id, 1) == "none"
        gateways["a"].die()
        for _ in range(8 * 24 * 4):
            assert await member.heartbeat() == "none"
            await asyncio.sleep(900)
        assert await gateways["b"].committed(group) == 5


@pytest.mark.slow
async def test_a_sweep_without_a_lease_removes_nothing():
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        assert await gateways["a"].commit(group, 5) == "none"
        for world in gateways.values():
            world.claims.lease = False
        await asyncio.sleep(8 * DAY_S)
        assert await GroupZnodeStore(gateways["a"].metadata).list() == [group]
