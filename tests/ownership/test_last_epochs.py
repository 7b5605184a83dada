"""Goal: a partition between two owners shows its last epoch at every gateway, and no lower one.

Method: several clusters on one simulated metadata tree, in virtual time; openings are held back.
"""

from __future__ import annotations

import asyncio
import struct

import pytest

from gateway.cluster.owners_table import OWNERS
from gateway.cluster.port import Leader
from gateway.core.ownership import FORMAT_1, FORMAT_2
from tests.ownership.rig import SESSION_S, key_of
from tests.ownership.test_streams import new_world, stored
from tests.peers.processes import until


def shown(gateway, topic):
    return [gateway.cluster.leader_epoch(key_of(topic, p)) for p in range(topic.partitions)]


def stored_format(world, topic):
    return struct.unpack_from(">2sB", world.tree.nodes[f"{OWNERS}/{topic.topic_id}"].data)[1]


async def open_all(*gateways):
    """Open the partitions that the gateways gained and did not open."""
    for gateway in gateways:
        for key in [key for key, epoch in gateway.serving.items() if epoch is None]:
            await gateway._open(key)


async def test_a_new_partition_shows_0_until_its_first_owner_has_opened_it():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        one.opens = two.opens = False
        topic = await one.catalog.create("events", 4, 1, {})
        assert shown(one, topic) == [0] * 4
        await until(lambda: len(one.gains) + len(two.gains) == 4, "claimed")
        await until(lambda: two.catalog.by_name("events"), "seen")
        assert shown(one, topic) == shown(two, topic) == [0] * 4
        three = await world.gateway(3).start()
        assert shown(three, topic) == [0] * 4


@pytest.mark.parametrize("keeps_epochs", [True, False])
async def test_between_two_owners_the_last_epoch_is_shown(keeps_epochs):
    """A gateway that joins meanwhile shows it only if the node keeps it."""
    async with new_world(keeps_epochs=keeps_epochs) as world:
        one, two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 12, 3, {})
        await world.settled(topic)
        assert stored_format(world, topic) == (FORMAT_2 if keeps_epochs else FORMAT_1)
        epochs = shown(one, topic)
        lost = [p for p, node in enumerate(world.leaders(topic)) if node == 3]
        one.opens = two.opens = False
        gains = len(one.gains) + len(two.gains)
        await three.kill()
        await asyncio.sleep(SESSION_S / 2)
        assert shown(one, topic) == shown(two, topic) == epochs
        await until(lambda: len(one.gains) + len(two.gains) == gains + len(lost), "taken over")
        leaders = [one.cluster.leader(key_of(topic, p)) for p in lost]
        assert all(leader.epoch == -1 and leader != Leader() for leader in leaders)
        assert shown(one, topic) == shown(two, topic) == epochs
        four = await world.gateway(4).start()
        expected = list(epochs)
        if not keeps_epochs:
            expected = [-1 if p in lost else epoch for p, epoch in enumerate(epochs)]
        assert shown(four, topic) == expected
        await open_all(one, two)
        await world.settled(topic)
        assert all(after >= before for after, before in zip(shown(one, topic), epochs, strict=True))
        assert shown(one, topic) == shown(two, topic) == shown(four, topic)


async def test_before_its_first_look_a_gateway_shows_no_epoch_that_might_be_too_low():
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 2, 1, {})
        await world.settled(topic)
        two = world.gateway(2)
        await two.catalog.load()
        assert shown(two, topic) == [-1, -1]
        await two.cluster.start(two)
        assert shown(two, topic) == shown(one, topic) == [1, 1]


@pytest.mark.parametrize("keeps_epochs", [True, False])
async def test_an_epoch_is_shown_once_it_is_published(keeps_epochs):
    async with new_world(keeps_epochs=keeps_epochs) as world:
        one, two = await world.start(1, 2)
        one.opens = two.opens = False
        topic = await one.catalog.create("events", 1, 1, {})
        await until(lambda: one.gains or two.gains, "claimed")
        owner = one if one.gains else two
        key = key_of(topic, 0)
        for epoch in (7, 8):  # the second one of a partition that opens again
            before = shown(owner, topic)
            owner.cluster.note_opened(key, epoch)
            assert shown(owner, topic) == before
            assert owner.cluster.leader(key).epoch in (-1, *before)
            await owner.cluster.opened(key, epoch)
            assert shown(owner, topic) == [epoch]
            assert owner.cluster.leader(key) == Leader(owner.node_id, epoch)


async def test_an_epoch_whose_owner_dies_before_it_is_published_was_not_shown():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        one.opens = two.opens = False
        topic = await one.catalog.create("events", 1, 1, {})
        await until(lambda: one.gains or two.gains, "claimed")
        owner, other = (one, two) if one.gains else (two, one)
        owner.metadata.faults.cut = True
        owner.cluster.note_opened(key_of(topic, 0), 7)
        seen = shown(owner, topic)
        await owner.kill()
        await until(lambda: other.gains, "taken over")
        assert shown(other, topic) >= seen


async def test_an_owner_that_opened_a_partition_need_not_publish_its_epoch_to_lead_the_topic():
    async with new_world() as world:
        (one,) = await world.start(1)
        one.opens = False
        topic = await one.catalog.create("events", 1, 1, {})
        await until(lambda: one.gains, "claimed")
        one.metadata.faults.cut = True
        assert not await one.cluster.wait_led(topic.topic_id, 0)
        one.cluster.note_opened(key_of(topic, 0), 7)
        assert await one.cluster.wait_led(topic.topic_id, 0)


async def test_an_epoch_that_cannot_be_published_beside_a_corrupt_node_is_shown_and_stays():
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 1, 1, {})
        await world.settled(topic)
        key, path = key_of(topic, 0), f"{OWNERS}/{topic.topic_id}"
        good = world.tree.nodes[path].data
        await one.metadata.set(path, b"no owners", -1)
        await until(lambda: not one.cluster._ownership.get(topic.topic_id).readable, "it is seen")
        one.cluster.note_opened(key, 7)
        assert shown(one, topic) == [7]
        assert one.cluster.leader(key).epoch == 7
        await one.metadata.set(path, good, -1)
        await until(lambda: one.cluster._ownership.get(topic.topic_id).readable, "it is repaired")
        assert shown(one, topic) == [7]
        await one.cluster.opened(key, 7)
        assert stored(world, topic).epoch(0) == shown(one, topic)[0] == 7
