"""Goal: topics are created, changed and deleted atomically, survive restarts, and share no id.

Method: the catalog over the in-memory store of the simulator on virtual time; lost replies and
races are made by hand. Producer ids are tested here too: they use the same store.
"""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from gateway.config import TopicDefaults
from gateway.topics import producer_ids
from gateway.topics.catalog import Catalog
from gateway.topics.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicExists,
    UnknownTopic,
)
from gateway.topics.producer_ids import ProducerIds
from ledger.errors import MetadataUnavailable, StreamUnavailable
from ledger.ports.metadata import NODE_BYTES_MAX
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata


def store(tree, seed=0, **faults):
    """Return a session on `tree` whose calls take time, so that others run in between."""
    return SimMetadata(tree, MetadataFaults(random.Random(seed), **faults))


async def loaded(tree, **kwargs):
    catalog = Catalog(store(tree), **kwargs)
    await catalog.load()
    return catalog


@asynccontextmanager
async def new_catalog(**kwargs):
    yield await loaded(MetadataTree(), **kwargs)


async def test_a_created_topic_is_found_by_name_and_by_id():
    async with new_catalog() as catalog:
        topic = await catalog.create("orders", 6, 1, {"retention.ms": "1000"})
        assert (topic.name, topic.partitions, topic.replication_factor) == ("orders", 6, 1)
        assert topic.configs == {"retention.ms": "1000"}
        assert catalog.by_name("orders") is topic
        assert catalog.by_id(topic.topic_id) is topic
        assert catalog.all() == [topic]
        assert catalog.config(topic).retention_ms == 1000


async def test_topics_survive_a_restart():
    tree = MetadataTree()
    first = await loaded(tree)
    await first.create("b", 2, 1, {"segment.ms": "60000"})
    await first.create("a", 1, 1, {})
    await first.add_partitions("b", 5)
    second = await loaded(tree)
    assert second.all() == first.all()
    assert [topic.name for topic in second.all()] == ["a", "b"]
    assert second.by_name("b").partitions == 5


async def test_a_recreated_topic_has_a_new_id():
    async with new_catalog() as catalog:
        old = await catalog.create("orders", 1, 1, {})
        await catalog.delete("orders")
        assert catalog.by_name("orders") is None
        assert catalog.by_id(old.topic_id) is None
        new = await catalog.create("orders", 1, 1, {})
        assert new.topic_id != old.topic_id


async def test_deleting_one_life_of_a_topic_spares_the_next():
    async with new_catalog() as catalog:
        old = await catalog.create("orders", 1, 1, {})
        await catalog.delete("orders")
        new = await catalog.create("orders", 1, 1, {})
        with pytest.raises(UnknownTopic):
            await catalog.delete("orders", old.topic_id)
        assert catalog.by_name("orders") is new


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("there", 1, 1, {}), TopicExists, "Topic 'there' already exists."),
        (("a b", 1, 1, {}), InvalidTopic, "Topic name is invalid: 'a b' contains one or more"),
        (("..", 1, 1, {}), InvalidTopic, "Topic name is invalid: '..' is not allowed"),
        (("__cluster_metadata", 1, 1, {}), InvalidTopic, "prohibited"),
        (("x_y", 1, 1, {}), InvalidTopic, "Topic 'x_y' collides with existing topic: x.y"),
        (("new", 0, 1, {}), InvalidPartitions, "invalid non-positive value"),
        (("new", 101, 1, {}), InvalidPartitions, "101 partitions would exceed the limit of 100"),
        (("new", 1, 0, {}), InvalidReplicationFactor, "invalid non-positive value"),
        (
            ("new", 1, 3, {}),
            InvalidReplicationFactor,
            "The target replication factor of 3 cannot be reached because only 1 broker(s)",
        ),
        (("new", 1, 1, {"foo": "1"}), InvalidConfig, "Unknown topic config name: foo"),
    ],
)
async def test_a_refused_topic_gets_the_reason_and_leaves_nothing(arguments, error, message):
    tree = MetadataTree()
    catalog = await loaded(tree, defaults=TopicDefaults(partitions_max=100))
    await catalog.create("there", 1, 1, {})
    await catalog.create("x.y", 1, 1, {})
    before = dict(tree.nodes)
    with pytest.raises(error) as refused:
        await catalog.create(*arguments)
    assert message in str(refused.value)
    assert dict(tree.nodes) == before
    assert len(catalog.all()) == 2


async def test_configs_that_no_node_holds_are_refused_before_anything_is_made():
    """The store asserts its limit, so a request that reached it would end with its connection."""
    large = {"leader.replication.throttled.replicas": ",".join(["1:1"] * (NODE_BYTES_MAX // 4))}
    async with new_catalog() as catalog:
        made = []
        catalog.on_created.append(lambda topic: made.append(topic.name))
        with pytest.raises(InvalidConfig, match="Set shorter values, or delete some"):
            await catalog.create("t", 1, 1, large)
        assert made == []
        await catalog.create("t", 1, 1, {"segment.ms": "7"})
        with pytest.raises(InvalidConfig, match="Set shorter values, or delete some"):
            await catalog.change_configs("t", lambda now: {**now, **large})
        assert dict(catalog.by_name("t").configs) == {"segment.ms": "7"}


async def test_three_bookies_take_three_replicas():
    async with new_catalog(bookies=lambda: 3) as catalog:
        topic = await catalog.create("orders", 1, 3, {})
        assert topic.replication_factor == 3


async def test_all_topics_together_have_a_limit():
    async with new_catalog(defaults=TopicDefaults(partitions_total_max=10)) as catalog:
        await catalog.create("a", 6, 1, {})
        with pytest.raises(InvalidPartitions, match="would exceed the cluster limit of 10"):
            await catalog.create("b", 5, 1, {})
        await catalog.create("b", 4, 1, {})
        with pytest.raises(InvalidPartitions, match="would exceed the cluster limit of 10"):
            await catalog.add_partitions("a", 7)
        await catalog.delete("b")
        await catalog.create("c", 4, 1, {})


async def test_of_many_racing_creations_one_wins_and_the_others_find_it():
    async with new_catalog() as catalog:
        results = await asyncio.gather(
            *(catalog.create("orders", 1, 1, {}) for _ in range(10)), return_exceptions=True
        )
        assert results[0] is catalog.by_name("orders")
        assert all(isinstance(result, TopicExists) for result in results[1:])


async def test_racing_names_that_collide_do_not_both_win():
    async with new_catalog() as catalog:
        results = await asyncio.gather(
            catalog.create("a.b", 1, 1, {}), catalog.create("a_b", 1, 1, {}), return_exceptions=True
        )
        assert isinstance(results[1], InvalidTopic)
        assert [topic.name for topic in catalog.all()] == ["a.b"]


async def test_a_topic_becomes_visible_after_its_listeners_have_run():
    async with new_catalog() as catalog:
        seen = []

        async def prepare(topic):
            await asyncio.sleep(1)
            seen.append((topic.name, catalog.by_name("orders"), catalog.by_id(topic.topic_id)))

        catalog.on_created.append(prepare)
        topic = await catalog.create("orders", 2, 1, {})
        assert seen == [("orders", None, topic)]
        assert catalog.by_name("orders") is topic


async def test_a_listener_that_fails_stops_the_creation():
    tree = MetadataTree()
    catalog = await loaded(tree)

    def refuse(topic):
        raise StreamUnavailable("no")

    catalog.on_created.append(refuse)
    with pytest.raises(StreamUnavailable):
        await catalog.create("orders", 1, 1, {})
    catalog.on_created.remove(refuse)
    assert catalog.all() == (await loaded(tree)).all() == []
    await catalog.create("orders", 1, 1, {})


async def test_a_topic_is_deleted_before_its_data():
    tree = MetadataTree()
    catalog = await loaded(tree)
    topic = await catalog.create("orders", 1, 1, {})
    heard = []

    async def drop(gone):
        heard.append((gone, catalog.by_name("orders"), (await loaded(tree)).all()))

    catalog.on_deleted.append(drop)
    await catalog.delete("orders")
    assert heard == [(topic, None, [])]
    with pytest.raises(UnknownTopic):
        await catalog.delete("orders")


async def test_data_that_cannot_be_dropped_now_does_not_fail_the_deletion():
    async with new_catalog() as catalog:
        await catalog.create("orders", 1, 1, {})

        async def fail(topic):
            raise StreamUnavailable("later")

        catalog.on_deleted.append(fail)
        await catalog.delete("orders")
        assert catalog.all() == []


async def test_partitions_are_only_added():
    async with new_catalog() as catalog:
        await catalog.create("orders", 3, 1, {})
        grown = []
        catalog.on_created.append(lambda topic: grown.append(topic.partitions))
        with pytest.raises(InvalidPartitions, match="Topic already has 3 partition"):
            await catalog.add_partitions("orders", 3)
        with pytest.raises(InvalidPartitions, match="2 would not be an increase"):
            await catalog.add_partitions("orders", 2)
        with pytest.raises(UnknownTopic):
            await catalog.add_partitions("none", 2)
        topic = await catalog.add_partitions("orders", 5)
        assert topic.partitions == 5
        assert catalog.by_name("orders") is topic is catalog.by_id(topic.topic_id)
        assert grown == [5]


async def test_a_creation_whose_reply_was_lost_is_found_by_the_next_try():
    for seed in range(20):
        tree = MetadataTree()
        await loaded(tree)
        catalog = Catalog(store(tree, seed, reply_lost=0.5))
        while True:
            try:
                await catalog.create("orders", 3, 1, {})
            except MetadataUnavailable:
                continue
            except TopicExists:
                pass
            break
        assert catalog.by_name("orders") == (await loaded(tree)).by_name("orders") is not None


async def test_a_change_made_by_another_gateway_is_not_overwritten():
    tree = MetadataTree()
    ours, theirs = await loaded(tree), None
    await ours.create("orders", 1, 1, {})
    theirs = await loaded(tree)
    await theirs.add_partitions("orders", 8)

    raced = False

    async def race(topic):  # after the read, before the write
        nonlocal raced
        if not raced:
            raced = True
            await theirs.add_partitions("orders", 9)

    ours.on_created.append(race)
    with pytest.raises(InvalidPartitions):
        await ours.add_partitions("orders", 9)
    assert (await loaded(tree)).by_name("orders").partitions == 9


async def test_a_topic_made_by_another_gateway_is_found_when_we_try_to_make_it():
    tree = MetadataTree()
    ours, theirs = await loaded(tree), await loaded(tree)
    topic = await theirs.create("orders", 7, 1, {})
    with pytest.raises(TopicExists):
        await ours.create("orders", 1, 1, {})
    assert ours.by_name("orders") == topic


async def test_a_cancelled_caller_does_not_split_memory_from_store():
    tree = MetadataTree()
    catalog = await loaded(tree)

    async def slow(topic):
        await asyncio.sleep(5)

    catalog.on_created.append(slow)
    task = asyncio.ensure_future(catalog.create("orders", 1, 1, {}))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(10)
    assert task.cancelled()
    assert catalog.all() == (await loaded(tree)).all() != []


async def test_one_unreadable_topic_is_offline_and_the_others_are_not():
    tree = MetadataTree()
    catalog = await loaded(tree)
    bad = await catalog.create("bad", 1, 1, {})
    await catalog.create("good", 1, 1, {})
    path = f"/gateway/topics/by-id/{bad.topic_id}"
    await SimMetadata(tree).set(path, b"\xff rot", -1)
    again = await loaded(tree)
    assert [topic.name for topic in again.all()] == ["good"]
    assert list(again.unreadable) == [path]
    with pytest.raises(TopicExists):  # its data may be recovered: the name stays reserved
        await again.create("bad", 1, 1, {})


async def test_fields_that_a_newer_version_wrote_are_kept():
    from ledger.sealed import seal, unseal

    tree = MetadataTree()
    catalog = await loaded(tree)
    topic = await catalog.create("orders", 1, 1, {})
    path = f"/gateway/topics/by-id/{topic.topic_id}"
    store = SimMetadata(tree)
    document = unseal((await store.get(path)).data, path)
    await store.set(path, seal(document | {"owner": "billing"}), -1)
    await catalog.add_partitions("orders", 2)
    assert unseal((await store.get(path)).data, path)["owner"] == "billing"


@pytest.mark.slow
async def test_producer_ids_are_unique_across_callers_processes_and_restarts():
    tree = MetadataTree()
    processes = [ProducerIds(store(tree, seed)) for seed in range(4)]
    ids = await asyncio.gather(*(p.next() for p in processes for _ in range(2500)))
    ids += [await ProducerIds(store(tree)).next() for _ in range(3)]
    assert len(set(ids)) == len(ids) == 10_003
    assert min(ids) >= 0


async def test_a_lost_reply_costs_a_block_and_never_gives_an_id_twice():
    async def some(ids):
        got = []
        while len(got) < 1500:
            try:
                got.append(await ids.next())
            except MetadataUnavailable:
                continue
        return got

    tree = MetadataTree()
    processes = [ProducerIds(store(tree, seed, reply_lost=0.3)) for seed in range(4)]
    every = [each for ids in await asyncio.gather(*map(some, processes)) for each in ids]
    assert len(set(every)) == len(every) == 6000


async def test_a_block_of_producer_ids_costs_one_change():
    tree = MetadataTree()
    ids = ProducerIds(SimMetadata(tree))
    await ids.next()
    version = tree.get(producer_ids.PATH).version
    for _ in range(999):
        await ids.next()
    assert tree.get(producer_ids.PATH).version == version
    await ids.next()
    assert tree.get(producer_ids.PATH).version == version + 1


async def test_an_id_that_is_given_out_late_is_of_a_block_claimed_late():
    """So that a partition tells producers that began after a loss by their ids."""
    tree = MetadataTree()
    assert await producer_ids.next_block(SimMetadata(tree)) == 0
    ids = ProducerIds(SimMetadata(tree))
    early = await ids.next()
    first = await producer_ids.next_block(SimMetadata(tree))
    assert early < first
    await asyncio.sleep(producer_ids.BLOCK_S + 0.1)
    assert await ids.next() == first
