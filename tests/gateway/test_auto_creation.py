"""Goal: topics that clients name are created, whatever happens to the creation of others.

Method: a creation that fails, is cancelled or never ends, for more names than are created at once.
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
    creation = AutoCreation(creator.create)
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
    creation = AutoCreation(creator.create)
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
