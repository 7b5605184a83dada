"""Goal: each stream has one owner that lives, soon, and whoever does not live owns nothing.

Method: several clusters on one simulated metadata tree, in virtual time; the rig fails whenever two
gateways that live serve one stream, and an opening never gets the same epoch twice.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import UUID

import pytest

from gateway.cluster import owners_table
from gateway.cluster.owners_table import OWNERS
from gateway.cluster.port import Leader
from gateway.core.ownership import Incarnation, Owners
from gateway.core.ring import Assignment, Ring
from gateway.topics.errors import TopicExists
from ledger.errors import MetadataUnavailable, NotOwner
from ledger.sealed import seal
from tests.ownership.rig import SESSION_S, World, key_of
from tests.peers.processes import until


@asynccontextmanager
async def new_world(seed=0, **faults):
    world = World(seed, **faults)
    try:
        async with asyncio.timeout(600):  # of virtual time
            yield world
    finally:
        await world.stop()


def stored(world, topic):
    record = world.tree.nodes.get(f"{OWNERS}/{topic.topic_id}")
    return None if record is None else Owners.decode(record.data, "owners")


async def test_every_partition_of_a_new_topic_is_led_by_its_candidate():
    async with new_world() as world:
        one, two, _three = await world.start(1, 2, 3)
        topic = await two.catalog.create("events", 12, 3, {})
        assert await two.cluster.wait_led(topic.topic_id, 5.0)
        await world.settled(topic)
        assert sorted(set(world.leaders(topic))) == [1, 2, 3]
        assigned = one.cluster._partitions.state.assignment()
        assert list(assigned.candidates(topic.topic_id)) == list(world.leaders(topic))


async def test_waiting_for_leaders_ends_when_nobody_opens():
    async with new_world() as world:
        (one,) = await world.start(1)
        one.opens = False
        topic = await one.catalog.create("events", 2, 1, {})
        assert not await one.cluster.wait_led(topic.topic_id, 1.0)


async def test_replicas_are_the_leader_and_then_others_each_once():
    async with new_world() as world:
        one, *_ = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 6, 3, {})
        await world.settled(topic)
        for partition in range(6):
            key = key_of(topic, partition)
            replicas = one.cluster.replicas(key, 3)
            assert sorted(replicas) == [1, 2, 3]
            assert replicas[0] == one.cluster.leader(key).node_id
            assert one.cluster.replicas(key, 2) == replicas[:2]


async def test_a_dead_owner_is_followed_by_its_candidates_soon_after_its_session_ended():
    async with new_world() as world:
        one, _two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 12, 3, {})
        await world.settled(topic)
        before = world.leaders(topic)
        await three.kill()
        ended_s = world.clock.monotonic_s() + SESSION_S
        await world.settled(topic)
        assert world.clock.monotonic_s() - ended_s < 0.2
        after = world.leaders(topic)
        assert set(after) == {1, 2}
        assert all(now == then for now, then in zip(after, before, strict=True) if then != 3)


async def test_a_takeover_of_many_partitions_is_one_set_by_each_candidate():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 600, 3, {})
        await world.settled(topic)
        for gateway in (one, two):
            gateway.opens = False  # so that nothing but claims is written
        before = world.sets[str(topic.topic_id)]
        await three.kill()
        await until(lambda: len(one.owned(topic)) + len(two.owned(topic)) == 600, "taken over")
        assert world.sets[str(topic.topic_id)] - before == 2


async def test_epochs_of_many_partitions_are_published_together():
    async with new_world() as world:
        (one,) = await world.start(1)
        before = sum(world.sets.values())
        topic = await one.catalog.create("events", 500, 1, {})
        await world.settled(topic)
        assert sum(world.sets.values()) - before <= 4


async def test_an_epoch_is_published_after_it_was_told_and_not_before():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        one.opens = two.opens = False
        topic = await one.catalog.create("events", 1, 1, {})
        await until(lambda: one.gains or two.gains, "claimed")
        owner, other = (one, two) if one.gains else (two, one)
        key = key_of(topic, 0)
        await until(lambda: other.cluster.leader(key).node_id == owner.node_id, "seen")
        assert other.cluster.leader(key) == Leader(owner.node_id, -1)
        await owner.cluster.opened(key, 7)
        assert stored(world, topic).epoch(0) == 7
        await until(lambda: other.cluster.leader(key).epoch == 7, "the epoch is seen")


async def test_a_late_word_of_an_earlier_opening_lowers_no_epoch():
    async with new_world() as world:
        (one,) = await world.start(1)
        one.opens = False
        topic = await one.catalog.create("events", 1, 1, {})
        await until(lambda: one.gains, "claimed")
        key = key_of(topic, 0)
        await one.cluster.opened(key, 7)
        await one.cluster.opened(key, 6)
        assert one.cluster.leader(key).epoch == stored(world, topic).epoch(0) == 7


async def test_a_pause_shorter_than_the_session_changes_no_owner():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 12, 3, {})
        await world.settled(topic)
        gains = [list(gateway.gains) for gateway in (one, two, three)]
        sets = sum(world.sets.values())
        await three.pause(0.9 * SESSION_S)
        await asyncio.sleep(20)
        assert [list(gateway.gains) for gateway in (one, two, three)] == gains
        assert not (one.losses or two.losses or three.losses)
        assert sum(world.sets.values()) == sets


async def test_a_paused_owner_stops_answering_before_anybody_takes_over():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)
        pause = asyncio.create_task(two.pause(10))
        await asyncio.sleep(0.6 * SESSION_S)
        assert two.cluster.lease_held()
        await until(lambda: not two.cluster.lease_held(), "the lease ends")
        assert len(one.owned(topic)) < 8
        assert one.cluster.members()[1].node_id == 2
        await until(lambda: len(one.owned(topic)) == 8, "taken over")
        assert not two.cluster.lease_held()
        await pause


async def test_a_session_that_ended_loses_all_and_comes_back_under_a_new_token():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)
        old, owned = two.cluster._membership.incarnation, two.owned(topic)
        assert owned
        await two.pause(3 * SESSION_S)
        await until(lambda: two.expired, "it hears of it")
        assert two.losses == [key_of(topic, partition) for partition in owned]
        assert two.owned(topic) == []
        await until(lambda: two.cluster._membership.registered, "registered again")
        assert two.cluster._membership.incarnation not in (None, old)
        await world.settled(topic)


async def test_no_epoch_is_shown_twice_by_two_owners():
    async with new_world() as world:
        one, two, three = await world.start(1, 2, 3)
        topic = await one.catalog.create("events", 9, 3, {})
        shown = {partition: [] for partition in range(9)}

        def look():
            for partition, seen in shown.items():
                leader = one.cluster.leader(key_of(topic, partition))
                if leader.epoch >= 0 and leader not in seen:
                    seen.append(leader)

        for gateway in (two, three, two):
            await world.settled(topic)
            look()
            await gateway.pause(2 * SESSION_S)
            for _ in range(20):
                await asyncio.sleep(0.05)
                look()
        await world.settled(topic)
        look()
        for seen in shown.values():
            epochs = [leader.epoch for leader in seen]
            assert epochs == sorted(set(epochs))


async def test_two_that_believe_in_the_same_claim_are_told_apart_by_one_set():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        for gateway in (one, two):  # each takes itself for the candidate of everything
            gateway.cluster._partitions.state.assignment = lambda gateway=gateway: Everything(
                gateway.node_id
            )
        topic = await one.catalog.create("events", 20, 2, {})
        await world.settled(topic)
        assert sorted(one.owned(topic) + two.owned(topic)) == list(range(20))


class Everything:
    """An assignment in which one gateway is the candidate of all."""

    def __init__(self, node_id):
        self.node_id = node_id

    def candidates(self, topic_id):
        return [self.node_id] * 20

    def candidate(self, topic_id, partition):
        return self.node_id

    def successors(self, topic_id, partition):
        return [self.node_id]


async def test_an_old_list_of_members_takes_nothing_from_an_owner_that_lives():
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 8, 1, {})
        await world.settled(topic)
        old = world.gateway(2)
        await old.start()
        freeze = old.cluster._membership  # it will not hear of who comes now
        freeze.refresh = nothing
        three = await world.gateway(3).start()
        await one.stop()
        await until(lambda: three.owned(topic), "three was given something")
        old.cluster._partitions.rounds.wake()
        await asyncio.sleep(2)
        assert three.losses == []
        assert sorted(old.owned(topic) + three.owned(topic)) == list(range(8))


async def test_an_owner_that_was_never_in_the_list_of_members_is_followed_when_it_has_gone():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 4, 2, {})
        await world.settled(topic)
        await two.metadata.create("/gateway/brokers/7", b"not to be read: it may live")
        node = await two.metadata.get(f"{OWNERS}/{topic.topic_id}")
        taken = Owners.decode(node.data, "owners").changed({0: Incarnation(7, "short-lived")})
        await two.metadata.set(f"{OWNERS}/{topic.topic_id}", taken.encode(), node.version)
        await asyncio.sleep(SESSION_S)
        assert one.cluster.leader(key_of(topic, 0)) == Leader()
        await two.metadata.delete("/gateway/brokers/7")
        await world.settled(topic)


async def test_a_store_that_is_behind_declares_nobody_dead_that_lives():
    async with new_world() as world:
        one = world.gateway(1, lag_s=0.001)
        await one.start()
        store, membership = one.metadata, one.cluster._membership
        then = dict(store._nodes), store._seen
        two = await world.gateway(2).start()
        # A new session, on a server that is behind: only `sync` makes it go on.
        store._nodes, store._seen = then
        store._follower = lambda: store._nodes
        membership._live = {}
        assert not await membership.is_dead(two.cluster._membership.incarnation)


async def test_a_session_that_ends_between_sync_and_read_declares_nobody_dead_that_lives():
    async with new_world() as world:
        one = world.gateway(1, lag_s=0.001)
        await one.start()
        store, membership = one.metadata, one.cluster._membership
        then = dict(store._nodes), store._seen
        two = await world.gateway(2).start()
        sync = store.sync
        await one.cluster._partitions.rounds.stop()  # they would write, and so catch up

        async def sync_then_renew(path):
            """A new session follows, on a server that is behind."""
            store.sync = sync
            await sync(path)
            store._nodes, store._seen = then
            store._follower = lambda: store._nodes
            membership._on_renewed()

        store.sync = sync_then_renew
        membership._live = {}
        assert not await membership.is_dead(two.cluster._membership.incarnation)


async def nothing():
    """A refresh that learns nothing."""


async def test_a_second_gateway_of_one_node_id_is_refused_after_two_sessions():
    async with new_world() as world:
        await world.start(1)
        twin = world.gateway(1)
        began_s = world.clock.monotonic_s()
        with pytest.raises(NotOwner, match="gateway 1 at host-1:9093 lives already"):
            await twin.start()
        assert 2 * SESSION_S <= world.clock.monotonic_s() - began_s < 2 * SESSION_S + 1


async def test_a_gateway_that_was_killed_is_followed_by_its_successor_under_one_node_id():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)
        await two.kill()
        again = await world.gateway(2).start()
        await world.settled(topic)
        await until(lambda: again.owned(topic), "it has its share again")


async def test_a_gateway_whose_place_was_taken_meanwhile_says_so():
    async with new_world() as world:
        _one, two = await world.start(1, 2)
        pause = asyncio.create_task(two.pause(10 * SESSION_S))
        await asyncio.sleep(2 * SESSION_S)
        twin = await world.gateway(2).start()
        await pause
        await until(lambda: two.replaced, "told that it was replaced")
        assert "gateway 2" in two.replaced[0]
        assert twin.cluster._membership.registered


async def test_a_node_that_somebody_removed_ends_the_incarnation():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)
        old = two.cluster._membership.incarnation
        world.tree.delete("/gateway/brokers/2")
        await until(lambda: two.expired, "it drops everything")
        await world.settled(topic)
        assert two.cluster._membership.incarnation not in (None, old)


async def test_a_list_that_was_asked_for_before_the_registration_does_not_end_it():
    async with new_world() as world:
        await world.start(1)
        two = world.gateway(2)
        membership = two.cluster._membership
        token = membership.self_member.token
        await asyncio.gather(membership.refresh(), membership.register())
        assert membership.incarnation == Incarnation(2, token)


async def test_a_topic_that_another_gateway_deletes_is_lost_and_its_owners_node_goes():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 8, 2, {})
        await world.settled(topic)
        owned = two.owned(topic)
        await one.catalog.delete("events")
        await until(lambda: two.losses, "lost")
        assert two.losses == [key_of(topic, partition) for partition in owned]
        await until(lambda: stored(world, topic) is None, "its node goes")
        await asyncio.sleep(10)
        assert stored(world, topic) is None
        assert one.cluster.leader(key_of(topic, 0)) == Leader()


async def test_partitions_that_another_gateway_adds_are_led():
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topic = await one.catalog.create("events", 2, 2, {})
        await world.settled(topic)
        grown = await two.catalog.add_partitions("events", 10)
        await world.settled(grown)
        assert sorted(one.owned(grown) + two.owned(grown)) == list(range(10))


async def write_topic(metadata, topic_id):
    """As a gateway would that chose this id."""
    name = f"t-{topic_id.int}"
    said = {"name": name, "partitions": 1, "replication_factor": 1, "configs": {}}
    await metadata.create(f"/gateway/topics/by-name/{name}", str(topic_id).encode())
    await metadata.create(f"/gateway/topics/by-id/{topic_id}", seal(said))


async def test_a_topic_whose_candidate_is_another_once_more_topics_are_known_is_led():
    ring = Ring((1, 2))
    ids = [(UUID(int=low), UUID(int=high)) for high in range(2, 12) for low in range(1, high)]

    def candidate(topic_id, *others):
        return Assignment(ring, [(each, 1) for each in (topic_id, *others)]).candidate(topic_id, 0)

    later, first = next(
        (low, high) for low, high in ids if candidate(high) == 1 and candidate(high, low) == 2
    )

    async with new_world() as world:
        one, two = await world.start(1, 2)
        away = asyncio.get_running_loop().create_task(one.pause(0.5 * SESSION_S))
        await asyncio.sleep(0.01)
        await write_topic(two.metadata, first)  # two leaves it to one
        await until(lambda: two.catalog.by_id(first), "two knows the first")
        await asyncio.sleep(0.1)
        await write_topic(two.metadata, later)  # and one, who hears of both at once, to two
        await away
        for written in (first, later):
            await until(lambda t=written: one.catalog.by_id(t), "one knows both")
            await world.settled(one.catalog.by_id(written))


async def test_owners_whose_watches_were_lost_are_noticed_all_the_same(monkeypatch):
    monkeypatch.setattr(owners_table, "LOOKED_AT", 1)
    async with new_world() as world:
        one, two = await world.start(1, 2)
        topics = [await one.catalog.create(f"events-{n}", 8, 1, {}) for n in range(3)]
        for topic in topics:
            await world.settled(topic)
        for path, watchers in world.tree.watches.items():
            if path.startswith(OWNERS):
                watchers.clear()
        keys = [key_of(topic, partition) for topic in topics for partition in one.owned(topic)]
        for key in keys:
            one.cluster.note_opened(key, 77)
        await until(
            lambda: {two.cluster.leader(key).epoch for key in keys} == {77},
            "every owners node to be read again",
        )


async def test_the_owners_of_a_topic_that_went_while_nobody_was_there_are_removed():
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 2, 1, {})
        await world.settled(topic)
        await one.stop()
        world.tree.delete(f"/gateway/topics/by-id/{topic.topic_id}")
        world.tree.delete("/gateway/topics/by-name/events")
        assert stored(world, topic) is not None
        await world.start(2)
        await until(lambda: stored(world, topic) is None, "its node goes")


@pytest.mark.parametrize("call", ["children", "exists", "delete"])
async def test_a_search_for_topics_that_went_is_repeated_after_errors(call):
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 2, 1, {})
        await world.settled(topic)
        await one.stop()
        world.tree.delete(f"/gateway/topics/by-id/{topic.topic_id}")
        world.tree.delete("/gateway/topics/by-name/events")
        two = world.gateway(2)
        real, failed_s = getattr(two.metadata, call), []

        async def fails_at_first(path, *rest):
            if (path == OWNERS or str(topic.topic_id) in path) and len(failed_s) < 6:
                failed_s.append(world.clock.monotonic_s())
                raise MetadataUnavailable("no connection")
            return await real(path, *rest)

        setattr(two.metadata, call, fails_at_first)
        await two.start()
        await until(lambda: stored(world, topic) is None, "its node goes")
        pauses_s = [later - sooner for sooner, later in pairwise(failed_s)]
        assert len(pauses_s) == 5
        assert all(later > 1.5 * sooner for sooner, later in pairwise(pauses_s[:4]))


async def test_owners_that_cannot_be_read_are_left_alone():
    async with new_world() as world:
        one, _two = await world.start(1, 2)
        topic = await one.catalog.create("events", 2, 2, {})
        await world.settled(topic)
        world.tree.set(f"{OWNERS}/{topic.topic_id}", b"rot", -1)
        await asyncio.sleep(10)
        assert world.tree.get(f"{OWNERS}/{topic.topic_id}").data == b"rot"
        other = await one.catalog.create("others", 2, 2, {})
        await world.settled(other)


async def test_owners_that_could_not_be_read_are_written_anew_once_somebody_removed_them():
    async with new_world() as world:
        (one,) = await world.start(1)
        topic = await one.catalog.create("events", 4, 2, {})
        await world.settled(topic)
        world.tree.set(f"{OWNERS}/{topic.topic_id}", b"rot", -1)
        two = await world.gateway(2).start()  # which never saw them
        await one.kill()
        await asyncio.sleep(2 * SESSION_S)
        await two.metadata.delete(f"{OWNERS}/{topic.topic_id}")
        await world.settled(topic)
        assert stored(world, topic) is not None


async def test_who_leaves_does_not_wait_for_owners_that_cannot_be_read():
    async with new_world() as world:
        one, _two = await world.start(1, 2)
        topic = await one.catalog.create("events", 4, 2, {})
        await world.settled(topic)
        world.tree.set(f"{OWNERS}/{topic.topic_id}", b"rot", -1)
        async with asyncio.timeout(10):
            await one.stop()


@pytest.mark.parametrize("seed", range(20))
async def test_lost_replies_lost_requests_and_old_reads_only_cost_time(seed):
    async with new_world(seed, unsent=0.05, reply_lost=0.1, lag_s=0.05) as world:
        gateways = [await world.gateway(number).start() for number in (1, 2, 3)]
        one = gateways[0]
        topic = await made(one, "events", 9)
        await world.settled(topic)
        await gateways[world.draw.randrange(3)].kill()
        await world.settled(topic)
        rest = world.gateways
        await rest[0].pause(2 * SESSION_S)
        await world.settled(topic)
        owned = sorted(partition for gateway in rest for partition in gateway.owned(topic))
        assert owned == list(range(9))


async def made(gateway, name, partitions):
    """The topic, whatever became of the replies."""
    while gateway.catalog.by_name(name) is None:
        try:
            await gateway.catalog.create(name, partitions, 3, {})
        except (MetadataUnavailable, TopicExists):
            await asyncio.sleep(0.1)
    return gateway.catalog.by_name(name)
