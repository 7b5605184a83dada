"""Goal: a gateway that leaves hands over what it has, and one that joins gets its share.

Method: several clusters on one simulated metadata tree, in virtual time; the rig fails whenever a
stream is gained by one gateway while another that lives still serves it.
"""

from __future__ import annotations

import asyncio

import pytest

from ledger.errors import StreamUnavailable
from tests.ownership.rig import SESSION_S, key_of
from tests.ownership.test_streams import new_world, stored
from tests.peers.processes import until


async def test_who_leaves_drains_every_stream_before_its_next_candidate_has_it():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 30, 3, {})
        await world.settled(topic)
        owned = two.owned(topic)
        await two.stop()
        assert sorted(two.drained) == [key_of(topic, partition) for partition in owned]
        await world.settled(topic)
        assigned = one.cluster._partitions.state.assignment()
        given = [one.cluster.leader(key_of(topic, partition)).node_id for partition in owned]
        assert given == [assigned.candidate(topic.topic_id, partition) for partition in owned]
        assert three.losses == one.losses == []


async def test_a_hand_over_waits_for_no_session_to_end():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 30, 2, {})
        await world.settled(topic)
        began_s = world.clock.monotonic_s()
        await two.stop()
        await world.settled(topic)
        assert world.clock.monotonic_s() - began_s < 0.3 * SESSION_S


async def test_many_streams_of_one_topic_are_handed_over_by_few_sets():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 600, 2, {})
        await world.settled(topic)
        before, owned = world.sets[str(topic.topic_id)], len(two.owned(topic))
        await two.cluster.hand_over_all(two.hand_over)
        assert world.sets[str(topic.topic_id)] - before < owned / 8
        assert two.owned(topic) == []


async def test_the_last_one_that_leaves_gives_to_nobody_and_the_next_one_takes_it():
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 4, 1, {})
        await world.settled(topic)
        await one.stop()
        assert stored(world, topic).free(4, lambda holder: False) == [0, 1, 2, 3]
        began_s = world.clock.monotonic_s()
        await world.start(2)
        await world.settled(topic)
        assert world.clock.monotonic_s() - began_s < 0.5 * SESSION_S


@pytest.mark.parametrize("error", [StreamUnavailable("no bookie answers"), MemoryError()])
async def test_a_stream_that_cannot_be_drained_is_given_away_as_it_is(error):
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)

        async def fails(key):
            two.serving.pop(key)
            raise error

        await two.cluster.hand_over_all(fails)
        assert two.owned(topic) == []
        await world.settled(topic)


async def test_a_drain_without_end_is_given_up():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 4, 2, {})
        await world.settled(topic)

        async def never(key):
            two.serving.pop(key)
            await asyncio.Event().wait()

        await two.cluster.hand_over_all(never)
        assert two.owned(topic) == []


async def test_who_leaves_while_the_store_is_away_hands_over_when_it_is_back():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)
        pause = asyncio.create_task(two.pause(0.7 * SESSION_S))
        await asyncio.sleep(0)
        await two.cluster.hand_over_all(two.hand_over)
        await pause
        await world.settled(topic)
        assert len(one.owned(topic)) == 8


async def test_nothing_is_given_to_who_leaves():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        await two.cluster.hand_over_all(two.hand_over)
        topic = await one.catalog.create("events", 12, 3, {})
        await world.settled(topic)
        assert set(world.leaders(topic)) == {1, 3}
        gains = len(two.gains)
        await three.stop()
        await world.settled(topic)
        assert set(world.leaders(topic)) == {1}
        assert len(two.gains) == gains == 0


async def test_all_that_leave_at_once_leave_nothing_owned():
    async with new_world() as world:
        gateways = await world.start(1, 2, 3)
        topic = await gateways[0].catalog.create("events", 12, 3, {})
        await world.settled(topic)
        await asyncio.gather(*(one.cluster.hand_over_all(one.hand_over) for one in gateways))
        assert stored(world, topic).free(12, lambda holder: False) == list(range(12))


async def test_who_joins_is_given_its_share_and_nothing_else_moves():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 30, 2, {})
        await world.settled(topic)
        await asyncio.sleep(10)  # nobody is new any more
        before = world.leaders(topic)
        three = await world.gateway(3).start()
        await until(lambda: one.cluster._partitions.state.ring.nodes == (1, 2, 3), "one knows")
        assigned = one.cluster._partitions.state.assignment()
        share = [p for p in range(30) if assigned.candidate(topic.topic_id, p) == 3]
        await until(lambda: three.owned(topic) == share, "it has its share")
        await world.settled(topic)
        after = world.leaders(topic)
        assert [p for p in range(30) if before[p] != after[p]] == share
        assert sorted(one.drained + two.drained) == [key_of(topic, p) for p in share]


async def test_streams_move_a_few_at_once():
    async with new_world() as world:
        world.drain_s = 0.2
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 60, 2, {})
        await world.settled(topic)
        three = await world.gateway(3).start()
        await until(lambda: one.cluster._partitions.state.ring.nodes == (1, 2, 3), "one knows")
        assigned = one.cluster._partitions.state.assignment()
        share = list(assigned.candidates(topic.topic_id)).count(3)
        assert share > 10
        draining = []
        await until(lambda: three.gains, "the first ones move")
        while len(three.gains) < share:
            await asyncio.sleep(0.05)
            draining += [len(gateway.cluster._partitions.state.draining) for gateway in (one, two)]
        assert 1 <= max(draining) <= 4
        assert draining.count(0) >= len(draining) / 3  # and then they rest


async def test_what_has_settled_moves_no_more():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 30, 2, {})
        three = await world.gateway(3).start()
        await asyncio.sleep(10)
        await world.settled(topic)
        gains = [len(gateway.gains) for gateway in (one, two, three)]
        sets = sum(world.sets.values())
        await asyncio.sleep(60)
        assert [len(gateway.gains) for gateway in (one, two, three)] == gains
        assert sum(world.sets.values()) == sets


async def test_nothing_moves_when_a_gateway_has_gone_or_a_topic_has_come():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 12, 3, {})
        await world.settled(topic)
        await three.kill()
        await world.settled(topic)
        for number in range(10):
            await one.catalog.create(f"more-{number}", 3, 2, {})
        await asyncio.sleep(20)
        assert one.losses == two.losses == []


async def test_who_flaps_while_it_is_to_be_given_streams_gets_none():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 12, 2, {})
        await world.settled(topic)
        three = await world.gateway(3).start()
        await asyncio.sleep(0.5)  # less than it has to have been there
        await three.cluster.stop()
        await asyncio.sleep(20)
        assert one.losses == two.losses == []


def led_by(world, topic):
    one = world.gateways[0].cluster
    return {one.leader(key_of(topic, p)).node_id for p in range(topic.partitions)}


@pytest.mark.parametrize("seed", range(10))
async def test_restarts_one_by_one_lose_no_stream_on_a_store_that_loses_replies(seed):
    async with new_world(seed) as world:
        await world.start(1, 2, 3)
        topic = await world.gateways[0].catalog.create("events", 9, 3, {})
        for one in world.gateways:
            one.metadata.faults.reply_lost, one.metadata.faults.unsent = 0.1, 0.05
        for node_id in (1, 2, 3):
            await world.settled(topic)
            (leaving,) = [one for one in world.gateways if one.node_id == node_id]
            await leaving.stop()
            again = world.gateway(node_id, reply_lost=0.1, unsent=0.05)
            await again.start()
        await world.settled(topic)
        await until(lambda: led_by(world, topic) == {1, 2, 3}, "each has some again", 120)
