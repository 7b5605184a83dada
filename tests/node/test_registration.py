"""Goal: a bookie is listed once, where it is, as long as it lives; readers of the list keep what
they last knew.

Method: the simulated metadata tree on virtual time: sessions that expire, calls that are lost,
nodes that others left or took.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest

from ledger.errors import BookieIdInUse
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo
from ledger.registry import layout, service_info
from ledger.registry.discovery import Discovery
from ledger.registry.registration import Registration, wait_until_unregistered
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

BOOKIE = BookieId("bookie-01234567")
INFO = BookieInfo("10.0.0.1", 3181, "/rack-1")
OTHER = INFO._replace(host="10.0.0.2")
WRITABLE, READONLY = f"{layout.AVAILABLE}/{BOOKIE}", f"{layout.READONLY}/{BOOKIE}"
SETTLE_S = 30.0


class World:
    """One cluster's metadata, and who looks at it."""

    def __init__(self) -> None:
        self.tree = MetadataTree()

    def session(self, faults: MetadataFaults | None = None) -> SimMetadata:
        return SimMetadata(self.tree, faults)

    def listed(self) -> list[str]:
        return [path for path in (WRITABLE, READONLY) if path in self.tree.nodes]


@asynccontextmanager
async def new_world():
    world = World()
    await layout.init_layout(world.session(), lambda: "cluster-1")
    yield world


async def registered(store, info=INFO, **how) -> Registration:
    registration = Registration(store, BOOKIE, info, **how)
    await registration.start()
    return registration


# -- registration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("read_only", "path"), [(False, WRITABLE), (True, READONLY)])
async def test_it_is_listed_with_its_address_until_it_stops(read_only, path):
    async with new_world() as world:
        info = INFO._replace(read_only=read_only)
        registration = await registered(world.session(), info)
        assert world.listed() == [path]
        data = world.tree.nodes[path].data
        assert service_info.decode(data, BOOKIE, read_only=read_only) == info
        await registration.stop()
        assert world.listed() == []


async def test_it_moves_between_the_lists_without_ever_missing_from_both():
    async with new_world() as world:
        registration = await registered(world.session(MetadataFaults(Random(1))))
        seen = []
        for path in (WRITABLE, READONLY):
            world.session().watch(path, lambda: seen.append(world.listed()))
        await registration.set_read_only(True)
        assert world.listed() == [READONLY]
        await registration.set_read_only(False)
        assert world.listed() == [WRITABLE]
        assert seen
        assert all(len(listed) == 1 for listed in seen)
        await registration.stop()


@pytest.mark.parametrize("read_only", [False, True])
async def test_after_a_lost_session_it_is_listed_again_where_it_was(read_only):
    async with new_world() as world:
        store = world.session()
        registration = await registered(store)
        await registration.set_read_only(read_only)
        before = world.listed()
        for _ in range(3):
            store.expire()
            assert world.listed() == []
            await asyncio.sleep(SETTLE_S)
            assert world.listed() == before
        await registration.stop()


async def test_a_node_that_somebody_removed_comes_back():
    async with new_world() as world:
        registration = await registered(world.session())
        world.tree.delete(WRITABLE)
        await asyncio.sleep(SETTLE_S)
        assert world.listed() == [WRITABLE]
        await registration.stop()


@pytest.mark.parametrize("path", [WRITABLE, READONLY])
async def test_a_left_over_that_names_our_own_address_is_replaced_at_once(path):
    async with new_world() as world:
        dead = world.session()
        await dead.create(path, service_info.encode(BOOKIE, INFO), ephemeral=True)
        registration = await registered(world.session(), wait_s=10)
        assert asyncio.get_running_loop().time() < 1
        assert world.listed() == [WRITABLE]
        await dead.close()
        assert world.listed() == [WRITABLE]
        await registration.stop()


async def test_a_bookie_that_restarts_within_its_session_is_seen_to_have_started_again():
    async with new_world() as world:
        discovery = Discovery(world.session())
        await registered(world.session(), INFO._replace(start="first"))
        await discovery.start()
        changes = []
        discovery.on_changed(lambda: changes.append(discovery.registered().get(BOOKIE)))
        again = INFO._replace(start="second", rack="/rack-2")
        await registered(world.session(), again, wait_s=10)
        assert asyncio.get_running_loop().time() < 1
        await asyncio.sleep(1)
        assert changes[-1] == again
        await discovery.stop()


@pytest.mark.parametrize("path", [WRITABLE, READONLY])
async def test_a_left_over_of_another_address_is_waited_for(path):
    async with new_world() as world:
        dead = world.session()
        await dead.create(path, service_info.encode(BOOKIE, OTHER), ephemeral=True)
        asyncio.get_running_loop().call_later(6, dead.expire)
        registration = await registered(world.session(), wait_s=10)
        assert 6 <= asyncio.get_running_loop().time() < 7
        assert world.listed() == [WRITABLE]
        await registration.stop()


@pytest.mark.parametrize("path", [WRITABLE, READONLY])
async def test_while_another_process_lives_the_second_is_refused_and_changes_nothing(path):
    async with new_world() as world:
        await world.session().create(path, service_info.encode(BOOKIE, OTHER), ephemeral=True)
        with pytest.raises(BookieIdInUse, match=r"10\.0\.0\.2:3181"):
            await registered(world.session(), wait_s=10)
        assert 10 <= asyncio.get_running_loop().time() < 11
        assert world.listed() == [path]


async def test_asking_whether_nobody_is_registered_changes_nothing():
    async with new_world() as world:
        own = service_info.encode(BOOKIE, INFO)
        await world.session().create(WRITABLE, own, ephemeral=True)
        await wait_until_unregistered(world.session(), BOOKIE, INFO, 5, replace=False)
        assert world.listed() == [WRITABLE]


async def test_somebody_who_takes_the_id_while_we_had_no_session_is_told_and_outlasted():
    async with new_world() as world:
        store, told = world.session(), []
        registration = await registered(store, on_problem=told.append)
        rival = world.session()
        store.expire()
        await rival.create(WRITABLE, service_info.encode(BOOKIE, OTHER), ephemeral=True)
        await asyncio.sleep(SETTLE_S)
        assert any("10.0.0.2:3181" in problem for problem in told)
        await rival.close()
        await asyncio.sleep(SETTLE_S)
        data = world.tree.nodes[WRITABLE].data
        assert service_info.decode(data, BOOKIE, read_only=False) == INFO
        await registration.stop()


def test_it_settles_whatever_was_lost_on_the_way():
    async def main(seed: int) -> None:
        world, draw = World(), Random(seed)
        await layout.init_layout(world.session(), lambda: "cluster-1")
        faults = MetadataFaults(draw, unsent=0.1, reply_lost=0.3)
        store = world.session()
        registration = await registered(store)
        store.faults = faults
        read_only = False
        for _ in range(10):
            if draw.random() < 0.2:
                store.expire()
            read_only = draw.random() < 0.5
            moving = asyncio.ensure_future(registration.set_read_only(read_only))
            await asyncio.sleep(draw.random() * 0.1)
            await (moving if draw.random() < 0.3 else asyncio.sleep(0))
        await asyncio.sleep(60)
        assert world.listed() == [READONLY if read_only else WRITABLE], seed
        store.faults = None
        await registration.stop()

    for seed in range(60):
        simulate(main(seed))


async def test_stopping_without_the_store_takes_no_error():
    async with new_world() as world:
        store = world.session()
        registration = await registered(store)
        await store.close()
        await registration.stop()
        assert world.listed() == []


# -- discovery -------------------------------------------------------------------------------------


async def watching(world, changes=None) -> tuple[Discovery, SimMetadata]:
    store = world.session()
    discovery = Discovery(store)
    await discovery.start()
    if changes is not None:
        discovery.on_changed(lambda: changes.append(dict(discovery.registered())))
    return discovery, store


async def test_it_knows_who_is_registered_and_hears_of_changes():
    async with new_world() as world:
        changes = []
        discovery, _ = await watching(world, changes)
        assert discovery.registered() == {}
        registration = await registered(world.session())
        await asyncio.sleep(1)
        assert discovery.registered() == {BOOKIE: INFO}
        await registration.set_read_only(True)
        await asyncio.sleep(1)
        assert discovery.registered() == {BOOKIE: INFO._replace(read_only=True)}
        await registration.stop()
        await asyncio.sleep(1)
        assert [len(each) for each in changes] == [1, 1, 0]
        await discovery.stop()


async def test_it_keeps_the_last_picture_while_the_store_does_not_answer():
    async with new_world() as world:
        registration = await registered(world.session())
        changes = []
        discovery, store = await watching(world, changes)
        store.faults = MetadataFaults(Random(1), unsent=1.0)
        await registration.stop()
        await asyncio.sleep(100)
        assert discovery.registered() == {BOOKIE: INFO}
        store.faults = None
        await asyncio.sleep(SETTLE_S)
        assert discovery.registered() == {}
        assert changes == [{}]
        await discovery.stop()


async def test_after_a_lost_session_it_looks_again():
    async with new_world() as world:
        discovery, store = await watching(world)
        store.expire()
        registration = await registered(world.session())
        await asyncio.sleep(SETTLE_S)
        assert discovery.registered() == {BOOKIE: INFO}
        await registration.stop()
        await discovery.stop()


async def test_one_that_says_something_odd_does_not_hide_the_others():
    async with new_world() as world:
        registration = await registered(world.session())
        await world.session().create(f"{layout.AVAILABLE}/odd", b"\xff\xff", ephemeral=True)
        await world.session().create(f"{layout.AVAILABLE}/10.0.0.9:3181", b"", ephemeral=True)
        discovery, _ = await watching(world)
        assert discovery.registered() == {
            BOOKIE: INFO,
            BookieId("10.0.0.9:3181"): BookieInfo("10.0.0.9", 3181),
        }
        await discovery.stop()
        await registration.stop()


def test_a_bookie_that_moves_between_the_lists_is_never_missing_from_the_picture():
    async def main(seed: int) -> None:
        world = World()
        await layout.init_layout(world.session(), lambda: "cluster-1")
        registration = await registered(world.session())
        changes: list[dict] = []
        discovery, store = await watching(world, changes)
        store.faults = MetadataFaults(Random(seed))
        for turn in range(20):
            await registration.set_read_only(turn % 2 == 0)
            await asyncio.sleep(Random(seed * 100 + turn).random() * 0.02)
        await asyncio.sleep(1)
        assert changes
        assert all(each.keys() == {BOOKIE} for each in changes), seed
        await discovery.stop()
        await registration.stop()

    for seed in range(20):
        simulate(main(seed))


async def test_who_no_longer_wants_to_hear_is_not_told():
    async with new_world() as world:
        discovery, _ = await watching(world)
        told = []
        unwatch = discovery.on_changed(lambda: told.append(1))
        unwatch()
        unwatch()
        registration = await registered(world.session())
        await asyncio.sleep(1)
        assert discovery.registered()
        assert told == []
        await registration.stop()
        await discovery.stop()
