"""Goal: a group has one coordinator that lives, and those of a dead one are found without a search.

Method: several clusters on one simulated metadata tree, in virtual time; what is asked is counted.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.cluster.coordinator_ownership import CLAIMS, COORDINATORS
from ledger.errors import MetadataUnavailable, NotOwner
from tests.ownership.rig import SESSION_S
from tests.ownership.test_streams import new_world
from tests.peers.processes import until


async def all_know(world, count):
    await until(
        lambda: all(len(one.cluster.members()) == count for one in world.gateways), "all know all"
    )


def candidate_of(world, group):
    node_id = world.gateways[0].cluster._partitions.state.ring.candidate(group)
    return next(one for one in world.gateways if one.node_id == node_id)


def groups_of(world, gateway, count):
    """Names whose candidate that gateway is."""
    names = (f"group-{number}" for number in range(100_000))
    found = (name for name in names if candidate_of(world, name) is gateway)
    return [next(found) for _ in range(count)]


def claimed(world):
    """Groups that are claimed, and what the other way round says."""
    nodes = world.tree.nodes
    groups = {path.rpartition("/")[2] for path in nodes if path.startswith(f"{COORDINATORS}/")}
    index = {
        path.rpartition("/")[2]
        for path in nodes
        if path.startswith(f"{CLAIMS}/") and path.count("/") == 4
    }
    return groups, index


async def test_every_gateway_names_the_candidate_of_a_group_that_nobody_has():
    async with new_world() as world:
        await world.start(1, 2, 3)
        await all_know(world, 3)
        for number in range(20):
            named = [await one.cluster.coordinator(f"group-{number}") for one in world.gateways]
            assert {member.node_id for member in named} == {
                candidate_of(world, f"group-{number}").node_id
            }


async def test_only_the_candidate_claims_what_nobody_has():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        (group,) = groups_of(world, two, 1)
        for refused in (one.cluster.claim, one.cluster.check):
            with pytest.raises(NotOwner, match="gateway 2 is to have it"):
                await refused(group)
        await two.cluster.check(group)
        assert claimed(world) == (set(), set())
        await two.cluster.claim(group)
        await two.cluster.check(group)
        with pytest.raises(NotOwner, match="gateway 2 has it"):
            await one.cluster.check(group)
        assert (await one.cluster.coordinator(group)).node_id == 2


async def test_a_claim_stays_when_a_gateway_joins_that_would_be_the_candidate():
    async with new_world() as world:
        one, _two = await world.start(1, 2)
        await all_know(world, 2)
        names = groups_of(world, one, 60)
        await world.gateway(3).start()
        await all_know(world, 3)
        (three,) = [gateway for gateway in world.gateways if gateway.node_id == 3]
        group = next(name for name in names if candidate_of(world, name) is three)
        with pytest.raises(NotOwner):
            await one.cluster.claim(group)
        await three.cluster.claim(group)
        await one.cluster.stop()
        four = await world.gateway(4).start()
        for gateway in (three, four):
            assert (await gateway.cluster.coordinator(group)).node_id == 3


async def test_a_claim_that_is_held_costs_no_request():
    async with new_world() as world:
        (one,) = await world.start(1)
        await all_know(world, 1)
        await one.cluster.claim("group")
        asked = sum(one.metadata.asked.values())
        for _ in range(100):
            await one.cluster.claim("group")
        assert sum(one.metadata.asked.values()) == asked


async def test_what_was_released_leaves_nothing_and_can_be_claimed_again():
    async with new_world() as world:
        (one,) = await world.start(1)
        await all_know(world, 1)
        for group in ("group", "a/b", "..", ""):
            await one.cluster.claim(group)
        assert len(claimed(world)[0]) == 4
        for group in ("group", "a/b", "..", ""):
            await one.cluster.release(group)
        assert claimed(world) == (set(), set())
        await one.cluster.claim("group")
        assert claimed(world) == ({"group"}, {"group"})


async def test_a_claim_that_cannot_be_read_any_more_is_made_anew_by_who_had_it():
    async with new_world() as world:
        (one,) = await world.start(1)
        await one.cluster.claim("g")
        world.tree.set(f"{COORDINATORS}/g", b"rot", -1)
        await one.cluster.release("g")
        await one.cluster.claim("g")
        assert (await one.cluster.coordinator("g")).node_id == 1
        assert claimed(world) == ({"g"}, {"g"})


async def claim_all(gateway, groups):
    await asyncio.gather(*map(gateway.cluster.claim, groups))


async def test_to_release_what_another_one_has_does_nothing():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        (group,) = groups_of(world, two, 1)
        await two.cluster.claim(group)
        await one.cluster.release(group)
        assert claimed(world) == ({group}, {group})


async def test_groups_of_a_dead_gateway_are_orphans_of_their_candidates_and_each_claims_its_own():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        await all_know(world, 3)
        names = groups_of(world, three, 50)
        for group in names:
            await three.cluster.claim(group)
        assert await one.cluster.orphans() == []
        await three.kill()
        await asyncio.sleep(SESSION_S)
        await all_know(world, 2)
        orphans = [await one.cluster.orphans(), await two.cluster.orphans()]
        assert sorted(orphans[0] + orphans[1]) == sorted(names)
        for gateway, groups in zip((one, two), orphans, strict=True):
            assert all(candidate_of(world, group) is gateway for group in groups)
            await claim_all(gateway, groups)
            assert await gateway.cluster.orphans() == []
        assert claimed(world) == (set(names), set(names))


async def test_orphans_are_found_by_few_requests_however_many_groups_there_are():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        await claim_all(two, groups_of(world, two, 400))
        await claim_all(one, groups_of(world, one, 400))
        await two.kill()
        await asyncio.sleep(SESSION_S)
        await all_know(world, 1)
        asked = sum(one.metadata.asked.values())
        assert len(await one.cluster.orphans()) == 400
        assert sum(one.metadata.asked.values()) - asked <= 4


async def test_many_orphans_are_claimed_by_few_changes():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        names = groups_of(world, two, 400)
        await claim_all(two, names)
        await two.kill()
        await asyncio.sleep(SESSION_S)
        await all_know(world, 1)
        before = one.metadata.asked["multi", "coordinators"]
        await claim_all(one, await one.cluster.orphans())
        assert claimed(world)[0] == set(names)
        assert one.metadata.asked["multi", "coordinators"] - before <= len(names) / 10
        assert await one.cluster.orphans() == []
        assert not [path for path in world.tree.nodes if path.startswith(f"{CLAIMS}/2-")]


async def test_of_many_some_of_which_are_another_ones_the_rest_is_claimed():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        mine, others = groups_of(world, one, 5), groups_of(world, two, 5)
        ended = await asyncio.gather(
            *map(one.cluster.claim, [*others, *mine]), return_exceptions=True
        )
        assert [type(each) for each in ended] == [NotOwner] * 5 + [type(None)] * 5
        assert claimed(world)[0] == set(mine)


async def test_two_that_both_claim_are_told_apart_by_one_change():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        (group,) = groups_of(world, two, 1)
        one.cluster._claims._ring = lambda: Itself(1)
        ended = await asyncio.gather(
            one.cluster.claim(group), two.cluster.claim(group), return_exceptions=True
        )
        assert sorted(type(one) for one in ended if one is not None) == [NotOwner]


class Itself:
    """A ring of one."""

    def __init__(self, node_id):
        self.node_id = node_id

    def candidate(self, group):
        return self.node_id


async def test_a_session_that_ended_ends_all_its_claims():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        (group,) = groups_of(world, two, 1)
        await two.cluster.claim(group)
        await two.pause(2 * SESSION_S)
        assert (await one.cluster.coordinator(group)).node_id == 1
        await one.cluster.claim(group)
        await all_know(world, 2)
        with pytest.raises(NotOwner, match="gateway 1 has it"):
            await two.cluster.claim(group)


async def test_groups_claimed_while_the_session_ended_are_not_held():
    async with new_world() as world:
        (one,) = await world.start(1)
        multi = one.metadata.multi

        async def outlived(ops):
            await multi(ops)
            one.metadata.expire()
            await until(lambda: one.expired, "the loss is told")

        one.metadata.multi = outlived
        claims = map(one.cluster.claim, groups_of(world, one, 3))
        ended = await asyncio.gather(*claims, return_exceptions=True)
        assert [type(each) for each in ended] == [MetadataUnavailable] * 3
        one.metadata.multi = multi


async def test_who_leaves_claims_nothing_and_is_named_by_nobody():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        groups = groups_of(world, two, 3)
        await two.cluster.claim(groups[0])
        await two.cluster.hand_over_all(two.hand_over)
        with pytest.raises(NotOwner):
            await two.cluster.claim(groups[1])
        await until(lambda: one.cluster._partitions.state.ring.nodes == (1,), "one knows")
        assert (await one.cluster.coordinator(groups[1])).node_id == 1
        with pytest.raises(NotOwner, match="gateway 2 has it"):
            await one.cluster.claim(groups[0])  # it still answers for it
        await two.cluster.release(groups[0])
        await one.cluster.claim(groups[0])


@pytest.mark.parametrize("seed", range(10))
async def test_lost_replies_only_cost_another_try(seed):
    async with new_world(seed) as world:
        one, two = await world.start(1, 2)
        await all_know(world, 2)
        for gateway in (one, two):
            gateway.metadata.faults.reply_lost = gateway.metadata.faults.unsent = 0.15
        groups = {gateway: groups_of(world, gateway, 10) for gateway in (one, two)}
        for _ in range(3):
            for gateway, group in [(one, group) for one in groups for group in groups[one]]:
                await patient(gateway.cluster.claim, group)
            for gateway, group in [(one, group) for one in groups for group in groups[one][:5]]:
                await patient(gateway.cluster.release, group)
        kept = set(groups[one][5:] + groups[two][5:])
        assert claimed(world) == (kept, kept)


async def patient(ask, group):
    while True:
        try:
            return await ask(group)
        except MetadataUnavailable:
            await asyncio.sleep(0.01)
