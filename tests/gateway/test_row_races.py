"""Goal: no change of a stored row is lost, and none is acknowledged that the store does not hold.

Method: two gateways on one tree of the simulator. One changes rows between the other's reading and
its writing, while the other reads from a follower that lags, or while the other starts.
"""

import asyncio
import random

import pytest

from gateway.settings.stored_rows import StoredRows
from ledger.errors import NoNode
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

ROOT = "/rows"
FOR_EVER_S = 1e9
SOON_S = 5


class Interrupted(SimMetadata):
    """Run `interlude`, if any, once, after a row was read and before its reader continues."""

    interlude = None

    async def get(self, path):
        node = await super().get(path)
        if path != ROOT:
            await self._interrupted()
        return node

    async def read_tree(self, path):
        nodes = await super().read_tree(path)
        await self._interrupted()
        return nodes

    async def _interrupted(self):
        if self.interlude is not None:
            interlude, self.interlude = self.interlude, None
            await interlude()


async def loaded(store):
    rows = StoredRows(store, ROOT, "rows")
    await rows.load()
    return rows


async def set_to(rows, value, key="ann"):
    await rows.change(key, lambda _: value)


async def stored(tree):
    """Return what a gateway reads that starts now."""
    return dict((await loaded(SimMetadata(tree))).items())


async def two_gateways():
    tree = MetadataTree()
    store = Interrupted(tree)
    return tree, store, await loaded(store), await loaded(SimMetadata(tree))


async def create_again(rows):
    """Delete the row and create it with another value."""
    await set_to(rows, None)
    await set_to(rows, {"b": "new"})


async def delete_and_let_watches_fire(rows):
    await set_to(rows, None)
    await asyncio.sleep(SOON_S)


async def test_a_row_that_was_created_again_is_not_replaced_by_its_earlier_life():
    tree, store, ours, theirs = await two_gateways()
    await set_to(ours, {"a": "revoked"})
    store.interlude = lambda: create_again(theirs)
    await ours.change("ann", lambda value: {**value, "c": "ours"})
    assert await stored(tree) == {"ann": {"b": "new", "c": "ours"}}
    assert ours.get("ann") == {"b": "new", "c": "ours"}


async def test_a_row_that_was_created_again_is_not_deleted_for_its_earlier_life():
    tree, store, ours, theirs = await two_gateways()
    await set_to(ours, {"a": "revoked"})

    def without_a(value):
        return {name: each for name, each in value.items() if name != "a"} or None

    store.interlude = lambda: create_again(theirs)
    await ours.change("ann", without_a)
    assert await stored(tree) == {"ann": {"b": "new"}}


async def test_changes_and_deletions_of_many_rows_at_once_are_all_made():
    tree, _, ours, theirs = await two_gateways()
    users = [f"user-{number}" for number in range(30)]
    for user in users:
        await set_to(ours, {"a": "1"}, user)
    store = SimMetadata(tree, MetadataFaults(random.Random(7)))  # its calls take time
    slow = await loaded(store)
    await asyncio.gather(
        *(set_to(slow, None, user) for user in users[::3]),
        *(set_to(slow, {"b": "2"}, user) for user in users[1::3]),
        *(set_to(theirs, None, user) for user in users[2::3]),
    )
    assert await stored(tree) == {user: {"b": "2"} for user in users[1::3]}


@pytest.mark.parametrize(("old", "new"), [(None, {"a": "1"}), ({"a": "1"}, {"a": "2"})])
async def test_a_change_is_not_acknowledged_because_an_old_reading_shows_it(old, new):
    tree = MetadataTree()
    theirs = await loaded(SimMetadata(tree))
    await set_to(theirs, old)
    ours = await loaded(SimMetadata(tree, MetadataFaults(random.Random(1), lag_s=FOR_EVER_S)))
    await set_to(theirs, new)
    await set_to(ours, old)
    assert (await stored(tree)).get("ann") == old


async def test_a_row_that_is_deleted_while_a_gateway_starts_does_not_stay_in_its_memory():
    tree = MetadataTree()
    theirs = await loaded(SimMetadata(tree))
    await set_to(theirs, {"a": "revoked"})
    store = Interrupted(tree)
    store.interlude = lambda: delete_and_let_watches_fire(theirs)
    ours = await loaded(store)
    await asyncio.sleep(SOON_S)
    assert ours.get("ann") is None
    await set_to(theirs, {"b": "new"})
    await asyncio.sleep(SOON_S)
    assert ours.get("ann") == {"b": "new"}


async def test_a_row_that_was_deleted_is_not_shown_again_by_a_reading_that_began_before():
    _, store, ours, theirs = await two_gateways()
    await set_to(ours, {"a": "1"})
    await asyncio.sleep(SOON_S)
    seen = []

    async def delete():  # before the watch continues with the row that it has read
        await set_to(ours, None)
        # The watch reads again after a pause of at least 20 ms.
        asyncio.get_running_loop().call_later(0.01, lambda: seen.append(ours.get("ann")))

    store.interlude = delete
    await set_to(theirs, {"a": "2"})
    await asyncio.sleep(SOON_S)
    assert seen == [None]


async def test_a_row_that_lives_only_while_a_gateway_starts_does_not_stay_in_its_memory():
    tree = MetadataTree()
    theirs = await loaded(SimMetadata(tree))
    store = CreatedMeanwhile(tree)
    store.create_row = lambda: set_to(theirs, {"a": "revoked"})
    store.interlude = lambda: delete_and_let_watches_fire(theirs)
    ours = await loaded(store)
    await asyncio.sleep(SOON_S)
    assert ours.get("ann") is None


class CreatedMeanwhile(Interrupted):
    """Create a row after the names of rows were read for the first time."""

    create_row = None

    async def children(self, path):
        names = await super().children(path)
        if self.create_row is not None:
            create, self.create_row = self.create_row, None
            await create()
        return names


async def test_a_change_fails_if_the_table_is_not_there():
    tree, store, ours, _ = await two_gateways()
    await store.delete(ROOT)
    with pytest.raises(NoNode):
        await set_to(ours, {"a": "1"})
    assert ROOT not in tree.nodes
