"""Goal: topics that clients name are created, whatever happens to the creation of others.

Method: a creation that fails, is cancelled or never ends, for more names than are created at once.
Deletions of topics of these names last until the test ends them.
"""

import asyncio

import pytest

from gateway.topics.auto_creation import AutoCreation
from gateway.topics.catalog import Catalog
from tests.sim.metadata import SimMetadata

NAMES = [f"topic-{number}" for number in range(50)]  # three times those that are created at once


class Creator:
    """Create topics; `failure` is raised instead while it is set. Counts the reports."""

    def __init__(self):
        self.failure = None
        self.asked = []
        self.reports = 0
        asyncio.get_running_loop().set_exception_handler(self._on_report)

    def _on_report(self, _, context):
        self.reports += 1

    async def create(self, name):
        self.asked.append(name)
        await asyncio.sleep(1)
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("failure", [ValueError("a mistake"), asyncio.CancelledError()])
async def test_names_are_created_after_failures_that_nobody_expected(failure):
    creator = Creator()
    creation = AutoCreation(creator.create, is_changing=lambda _: False)
    creator.failure = failure
    for name in NAMES:
        creation.begin(name)
    await asyncio.sleep(10)
    assert creator.asked == NAMES
    assert creator.reports == len(NAMES)
    creator.failure = None
    creation.begin(NAMES[0])  # a client asks again
    await asyncio.sleep(10)
    assert creator.asked == [*NAMES, NAMES[0]]


async def test_nothing_is_created_after_the_end():
    creator = Creator()
    creation = AutoCreation(creator.create, is_changing=lambda _: False)
    for name in NAMES:
        creation.begin(name)
    await asyncio.sleep(0.5)
    begun = list(creator.asked)
    await creation.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    creation.begin("late")
    await asyncio.sleep(10)
    assert creator.asked == begun
    assert 0 < len(begun) < len(NAMES)
    assert creator.reports == 0


async def test_a_closed_catalog_creates_no_topic():
    store = SimMetadata()
    catalog = Catalog(store)
    await catalog.load()
    catalog.auto_creation.begin("orders")
    await catalog.close()
    await asyncio.sleep(10)
    assert catalog.all() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


class SlowDeletions:
    """A catalog whose topics of `NAMES` are deleted, with data that stay until `delete_data`."""

    def __init__(self):
        self.catalog = Catalog(SimMetadata())
        self._may_end = asyncio.Event()
        self._deletions = []

    async def begin(self):
        await self.catalog.load()
        self.catalog.on_deleted.append(lambda _: self._may_end.wait())
        for name in NAMES:
            await self.catalog.create(name, 1, 1, {})
            self._deletions.append(asyncio.create_task(self.catalog.delete(name)))
        await asyncio.sleep(1)
        assert self.catalog.all() == []

    async def delete_data(self):
        self._may_end.set()
        await asyncio.gather(*self._deletions)


async def test_topics_are_created_while_others_of_wanted_names_are_being_deleted():
    deletions = SlowDeletions()
    await deletions.begin()
    for name in [*NAMES, "orders"]:
        deletions.catalog.auto_creation.begin(name)
    await asyncio.sleep(10)
    assert [topic.name for topic in deletions.catalog.all()] == ["orders"]
    await deletions.delete_data()


async def test_a_topic_that_is_wanted_during_its_deletion_is_created_afterwards():
    deletions = SlowDeletions()
    await deletions.begin()
    for name in NAMES:
        deletions.catalog.auto_creation.begin(name)
    await asyncio.sleep(10)
    await deletions.delete_data()
    await asyncio.sleep(10)
    assert [topic.name for topic in deletions.catalog.all()] == sorted(NAMES)


async def test_a_topic_that_is_wanted_during_its_deletion_is_not_created_after_the_end():
    deletions = SlowDeletions()
    await deletions.begin()
    for name in NAMES:
        deletions.catalog.auto_creation.begin(name)
    await asyncio.sleep(10)
    await deletions.catalog.close()
    await deletions.delete_data()
    await asyncio.sleep(10)
    assert deletions.catalog.all() == []
