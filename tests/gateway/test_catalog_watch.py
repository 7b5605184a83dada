"""Goal: each broker soon has the topic changes of all others, without losing or repeating any.

Method: several catalogs on one tree of the simulator, virtual time; sessions that lag, lose replies
and expire by seed; a random walk of all of them ends with what the store holds.
"""

import asyncio
import contextlib
import random
from contextlib import asynccontextmanager

import pytest

from gateway.topics.catalog import Catalog
from gateway.topics.errors import InvalidPartitions, TopicError
from ledger.errors import LedgerError
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

SOON_S = 0.5
QUIET_S = 30


class CountedMetadata(SimMetadata):
    """Count how often the list of topics is read.

    A watch on a real server fires when that server has applied the change. The simulator's fires
    when the leader has, so this session catches up first.
    """

    listings = 0

    def watch(self, path, on_changed):
        def fire():
            self._catch_up()
            on_changed()

        self._catch_up()
        return super().watch(path, fire)

    async def children(self, path):
        self.listings += 1
        return await super().children(path)


async def gateway(tree, seed=0, **faults):
    store = CountedMetadata(tree, MetadataFaults(random.Random(seed), **faults))
    catalog = Catalog(store)
    await catalog.load()
    return catalog, store


async def two():
    tree = MetadataTree()
    ours, _ = await gateway(tree, 1)
    theirs, _ = await gateway(tree, 2)
    return ours, theirs


@asynccontextmanager
async def two_catalogs():
    yield await two()


async def test_a_topic_that_another_gateway_makes_is_known_soon():
    async with two_catalogs() as (ours, theirs):
        topic = await theirs.create("orders", 3, 1, {"retention.ms": "5"})
        await asyncio.sleep(SOON_S)
        assert ours.by_name("orders") == ours.by_id(topic.topic_id) == topic
        assert ours.config(topic).retention_ms == 5


async def test_partitions_that_another_gateway_adds_are_known_soon():
    async with two_catalogs() as (ours, theirs):
        await ours.create("orders", 3, 1, {})
        await asyncio.sleep(SOON_S)
        await theirs.add_partitions("orders", 7)
        await asyncio.sleep(SOON_S)
        assert ours.by_name("orders").partitions == 7


async def test_settings_that_another_gateway_changes_are_known_soon():
    async with two_catalogs() as (ours, theirs):
        await ours.create("orders", 3, 1, {"retention.ms": "5"})
        assert ours.config(ours.by_name("orders")).retention_ms == 5
        await asyncio.sleep(SOON_S)
        await theirs.change_configs("orders", lambda old: {**old, "retention.ms": "9"})
        await asyncio.sleep(SOON_S)
        assert ours.config(ours.by_name("orders")).retention_ms == 9


async def test_settings_changed_by_two_at_once_are_both_kept():
    async with two_catalogs() as (ours, theirs):
        await ours.create("orders", 3, 1, {})
        await asyncio.sleep(SOON_S)
        await asyncio.gather(
            ours.change_configs("orders", lambda old: {**old, "retention.ms": "9"}),
            theirs.change_configs("orders", lambda old: {**old, "segment.ms": "60000"}),
            theirs.add_partitions("orders", 4),
        )
        await asyncio.sleep(SOON_S)
        assert ours.by_name("orders").configs == {"retention.ms": "9", "segment.ms": "60000"}
        assert ours.by_name("orders").partitions == 4


async def test_who_does_not_know_of_a_growth_yet_does_not_undo_it():
    async with two_catalogs() as (ours, theirs):
        await ours.create("orders", 3, 1, {})
        await asyncio.sleep(SOON_S)
        await ours.close()  # its watches never fire
        await theirs.add_partitions("orders", 8)
        with pytest.raises(InvalidPartitions):
            await ours.add_partitions("orders", 5)
        assert theirs.by_name("orders").partitions == 8


async def test_a_topic_that_another_gateway_deletes_is_forgotten_and_its_data_left_to_the_deleter():
    async with two_catalogs() as (ours, theirs):
        topic = await ours.create("orders", 3, 1, {})
        await asyncio.sleep(SOON_S)
        told = []
        ours.on_forgotten.append(lambda gone: told.append(("forgotten here", gone)))
        ours.on_deleted.append(lambda gone: told.append(("deleted here", gone)))
        theirs.on_forgotten.append(lambda gone: told.append(("forgotten there", gone)))
        theirs.on_deleted.append(lambda gone: told.append(("deleted there", gone)))
        await theirs.delete("orders")
        await asyncio.sleep(SOON_S)
        assert sorted(told) == [("deleted there", topic), ("forgotten here", topic)]
        assert ours.by_name("orders") is ours.by_id(topic.topic_id) is None


async def test_the_next_life_of_a_topic_takes_the_place_of_the_one_before():
    async with two_catalogs() as (ours, theirs):
        old = await ours.create("orders", 3, 1, {})
        await asyncio.sleep(SOON_S)
        forgotten = []
        ours.on_forgotten.append(forgotten.append)
        await theirs.delete("orders")
        new = await theirs.create("orders", 2, 1, {})
        await asyncio.sleep(SOON_S)
        assert ours.by_name("orders") == new
        assert ours.by_id(old.topic_id) is None
        assert forgotten == [old]


@pytest.mark.parametrize("whose", ["ours", "theirs"])
async def test_each_change_of_topics_and_partitions_is_reported_once(whose):
    async with two_catalogs() as (ours, theirs):
        changing = {"ours": ours, "theirs": theirs}[whose]
        told = []
        ours.on_changed.append(lambda: told.append([t.partitions for t in ours.all()]))
        await changing.create("orders", 3, 1, {})
        await asyncio.sleep(SOON_S)
        await changing.add_partitions("orders", 4)
        await asyncio.sleep(SOON_S)
        await changing.change_configs("orders", lambda old: {"retention.ms": "5"})
        await asyncio.sleep(SOON_S)
        await changing.delete("orders")
        await asyncio.sleep(SOON_S)
        assert told == [[3], [4], []]


@pytest.mark.slow
async def test_a_storm_of_changes_costs_a_few_readings():
    tree = MetadataTree()
    ours, store = await gateway(tree, 1)
    theirs, _ = await gateway(tree, 2)
    told = []
    ours.on_changed.append(lambda: told.append(len(ours.all())))
    store.listings = 0
    await asyncio.gather(*(theirs.create(f"t{n}", 1, 1, {}) for n in range(300)))
    await asyncio.sleep(SOON_S)
    assert told[-1] == 300
    assert len(told) <= 5
    assert store.listings <= 5


async def test_a_new_session_sees_what_changed_while_there_was_none():
    tree = MetadataTree()
    ours, store = await gateway(tree, 1, lag_s=0.3)
    theirs, _ = await gateway(tree, 2)
    kept = await theirs.create("kept", 1, 1, {})
    gone = await theirs.create("gone", 1, 1, {})
    await asyncio.sleep(2)
    assert ours.all() == [gone, kept]
    store.expire()
    await theirs.delete("gone")
    new = await theirs.create("new", 1, 1, {})
    grown = await theirs.add_partitions("kept", 5)
    await asyncio.sleep(5)
    assert ours.all() == [grown, new]


async def test_changes_are_seen_after_the_store_was_out_of_reach():
    tree = MetadataTree()
    ours, store = await gateway(tree, 1)
    theirs, _ = await gateway(tree, 2)
    store.faults.cut = True
    topic = await theirs.create("orders", 1, 1, {})
    await asyncio.sleep(20)
    assert ours.all() == []
    store.faults.cut = False
    await asyncio.sleep(QUIET_S)
    assert ours.all() == [topic]


async def change(catalog, draw):
    """Request a change of one of a few topics."""
    name = draw.choice("abc")
    topic = catalog.by_name(name)
    choice = draw.randrange(4)
    if choice == 0 and topic is not None:
        await catalog.add_partitions(name, topic.partitions + 1)
    elif choice == 1:
        await catalog.delete(name)
    else:
        await catalog.create(name, 1, 1, {})


async def walk(catalog, draw):
    """Request some changes, and ignore their errors."""
    for _ in range(15):
        with contextlib.suppress(TopicError, LedgerError):
            await change(catalog, draw)
        await asyncio.sleep(draw.random())


def partitions_never_fall(catalog):
    most = {}

    def on_changed():
        for topic in catalog.all():
            assert topic.partitions >= most.get(topic.topic_id, 0)
            most[topic.topic_id] = topic.partitions

    return on_changed


@pytest.mark.parametrize("seed", range(25))
async def test_after_any_changes_by_any_broker_all_have_what_the_store_holds(seed):
    draw, tree = random.Random(seed), MetadataTree()
    gateways = [await gateway(tree, 3 * seed + n, lag_s=0.2, latency_s=0.05) for n in range(3)]
    for catalog, store in gateways:
        catalog.on_changed.append(partitions_never_fall(catalog))
        store.faults.reply_lost = store.faults.unsent = 0.05
    walks = [asyncio.ensure_future(walk(c, draw)) for c, _ in gateways]
    await asyncio.sleep(draw.random() * 5)
    draw.choice(gateways)[1].expire()
    await asyncio.gather(*walks)
    for _, store in gateways:
        store.faults.reply_lost = store.faults.unsent = 0
    await asyncio.sleep(QUIET_S)
    fresh, _ = await gateway(tree, seed)
    for catalog, _ in gateways:
        assert catalog.all() == fresh.all()
        assert all(catalog.by_id(topic.topic_id) == topic for topic in fresh.all())
        assert catalog.known_names() == fresh.known_names()
        assert catalog._partitions_total == sum(t.partitions for t in fresh.all())
