"""Goal: the partitions of a topic without streams have leaders by the ring, and no owners.

Method: gateways on a simulated metadata tree; brokers join, leave and die.
"""

from __future__ import annotations

import asyncio

from gateway.cluster.port import StreamKey
from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.topics import internal_topics
from tests.ownership.rig import World

SETTLED_S = 30.0


def leaders(gateway):
    topic = gateway.catalog.by_name(CONSUMER_OFFSETS)
    keys = [StreamKey(topic.topic_id, index) for index in range(topic.partitions)]
    return [gateway.cluster.leader(key) for key in keys]


async def test_the_ring_leads_and_nobody_owns():
    world = World()
    gateways = await world.start(1, 2, 3)
    await internal_topics.ensure(gateways[0].catalog, CONSUMER_OFFSETS)
    await asyncio.sleep(SETTLED_S)
    first, *others = [leaders(one) for one in gateways]
    assert all(found == first for found in others)
    nodes = [found.node_id for found in first]
    assert {found.epoch for found in first} == {0}
    assert all(14 <= nodes.count(node) <= 18 for node in (1, 2, 3))
    assert not any(path.startswith("/gateway/owners/") for path in world.tree.nodes)
    assert [one.gains for one in gateways] == [[], [], []]
    topic_id = gateways[0].catalog.by_name(CONSUMER_OFFSETS).topic_id
    assert await gateways[0].cluster.wait_led(topic_id, 0.0)
    await world.stop()


async def test_the_partitions_of_a_dead_broker_have_other_leaders_of_the_same_epoch():
    world = World()
    gateways = await world.start(1, 2)
    await internal_topics.ensure(gateways[0].catalog, CONSUMER_OFFSETS)
    await asyncio.sleep(SETTLED_S)
    await gateways[1].kill()
    await asyncio.sleep(SETTLED_S)
    assert {tuple(found) for found in leaders(gateways[0])} == {(1, 0)}
    await world.stop()


async def test_ordinary_topics_are_owned_beside_it():
    world = World()
    gateways = await world.start(1, 2)
    await internal_topics.ensure(gateways[0].catalog, CONSUMER_OFFSETS)
    topic = await gateways[0].catalog.create("t", 8, 1, {})
    await asyncio.sleep(SETTLED_S)
    owned = [one.owned(topic) for one in gateways]
    assert sorted([*owned[0], *owned[1]]) == list(range(8))
    assert world.tree.nodes[f"/gateway/owners/{topic.topic_id}"]
    await world.stop()
