"""Goal: a watch of the ZooKeeper store reports every change, also behind a lost connection.

Method: a real ZooKeeper behind a proxy that loses, holds and cuts what passes.
"""

import asyncio
import functools

import pytest

from ledger.ports.metadata import ANY_VERSION
from tests.ledger.zookeeper_rig import Told, no_thread_is_left, world_on
from tests.peers.processes import until
from tests.peers.proxy import TO_CLIENT, TO_SERVER

pytestmark = pytest.mark.real_loop


@pytest.fixture
def sessions(zookeeper):
    """Opens sessions on the shared server. Afterwards no thread is left."""
    yield functools.partial(world_on, zookeeper)
    assert no_thread_is_left()


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.set("/a", b"new", ANY_VERSION),
        lambda s: s.create("/a/child"),
        lambda s: s.delete("/a"),
        lambda s: s.create("/not/yet", parents=True),
    ],
    ids=["data", "children", "deleted", "created"],
)
async def test_a_change_made_while_the_connection_was_lost_is_told(sessions, change):
    async with sessions() as world:
        await world.far.create("/a")
        told = Told()
        world.far.watch("/a", told)
        world.far.watch("/not", told)
        await world.far.get("/a")
        world.proxy.refuse()
        await change(world.near)
        world.proxy.heal()
        await told.times(1)
        assert world.renewed == 0


async def test_a_lost_connection_alone_is_not_told_as_a_change(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        told = Told()
        world.far.watch("/a", told)
        world.far.watch("/none", told)
        await world.far.get("/a")
        world.proxy.cut()
        await until(lambda: world.proxy.accepted >= 2, "to connect again")
        await world.far.get("/a")
        await world.far.get("/a")  # after the first of them the watches were armed
        assert told.count == 0
        await world.near.set("/a", b"new", ANY_VERSION)
        await told.times(1)


async def test_a_change_between_firing_and_arming_is_told(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        told = Told()
        world.far.watch("/a", told)
        await world.far.get("/a")
        passed = world.proxy.passed_bytes(TO_CLIENT)
        world.proxy.freeze(TO_SERVER)  # the watch fires, but cannot be armed
        await world.near.set("/a", b"1", ANY_VERSION)
        await until(lambda: world.proxy.passed_bytes(TO_CLIENT) > passed, "the watch to fire")
        await world.near.create("/a/child")
        assert told.count == 0  # a call now would not be repeated for the child
        world.proxy.heal()
        await told.times(1)


async def test_a_change_after_a_watch_whose_arming_was_lost_is_told(sessions):
    async with sessions() as world:
        await world.near.create("/a")
        world.proxy.freeze(TO_SERVER)
        told = Told()
        world.far.watch("/a", told)
        await world.near.set("/a", b"new", ANY_VERSION)
        world.proxy.cut()
        world.proxy.heal()
        await told.times(1)


async def test_a_deleted_node_is_told_once(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        told = Told()
        world.far.watch("/a", told)
        await world.far.get("/a")
        await world.near.delete("/a")
        await told.times(1)
        await world.far.exists("/a")
        await world.far.exists("/a")
        assert told.count == 1


async def test_a_watch_made_without_a_connection_is_armed_by_the_next_one(sessions):
    async with sessions() as world:
        await world.near.create("/a")
        world.proxy.refuse()
        await until(lambda: not world.far._bridge._connected, "the connection to be lost")
        told = Told()
        world.far.watch("/a", told)
        world.proxy.heal()
        await world.far.get("/a")
        await world.near.set("/a", b"new", ANY_VERSION)
        await told.times(1)


async def test_watching_a_path_again_and_again_costs_one_watch(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        told = Told()
        passed = world.proxy.passed_bytes(TO_SERVER)
        for _ in range(100):
            world.far.watch("/a", lambda: None)()
        world.far.watch("/a", told)
        await world.far.get("/a")
        assert world.proxy.passed_bytes(TO_SERVER) < passed + 1_000
        assert world.server.ask("wchp").count(f"{world.far._root}/a\n") == 1
        await world.near.set("/a", b"new", ANY_VERSION)
        await told.times(1)
        assert len(world.far._watches._watched) == 1


async def test_who_watches_again_is_told_though_the_watch_before_fired_while_it_was_armed(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        world.proxy.freeze(TO_CLIENT)
        world.far.watch("/a", lambda: None)()
        path = f"{world.far._root}/a\n"
        await until(lambda: path in world.server.ask("wchp"), "the watch to be set")
        await world.near.delete("/a")
        world.proxy.heal()
        await world.far.exists("/a")
        told = Told()
        world.far.watch("/a", told)
        await world.far.exists("/a")
        await world.near.create("/a")
        await told.times(1)


async def test_a_watch_nobody_wants_is_forgotten_when_it_fires(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        world.far.watch("/a", lambda: None)()
        await world.far.delete("/a")
        await until(lambda: not world.far._watches._watched, "it to be forgotten")


async def test_a_watch_nobody_wants_is_removed_at_the_server(sessions):
    """Else every ledger that was followed to its end leaves a watch behind."""
    async with sessions() as world:
        told = Told()
        await world.near.create("/fired")
        await world.near.create("/never-fired")
        unwatch = [world.far.watch(name, told) for name in ("/fired", "/never-fired", "/missing")]
        await world.far.exists("/")
        await world.near.set("/fired", b"", ANY_VERSION)
        await told.times(1)
        for one in unwatch:
            one()
        watched = world.far._watches._watched
        await until(lambda: not watched, "the watches to be removed")
        await world.far.exists("/")  # answered after the removals
        assert world.far._root not in world.server.ask("wchp")


async def test_many_watches_outlive_a_broken_connection(sessions):
    async with sessions() as world:
        paths = [f"/topics/{number}" for number in range(3_000)]
        await asyncio.gather(*(world.near.create(path, parents=True) for path in paths))
        told = {path: Told() for path in paths}
        for path in paths:
            world.far.watch(path, told[path])
        await world.far.exists("/")
        world.proxy.cut()
        await until(lambda: world.proxy.accepted >= 2, "to connect again")
        await asyncio.gather(*(world.near.set(path, b"new", 0) for path in paths))
        for one in told.values():
            await one.times(1)
        assert world.renewed == 0
