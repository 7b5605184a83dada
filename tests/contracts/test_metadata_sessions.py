"""Goal: a metadata store whose session was lost goes on with a new one, as its port says.

Method: one suite, run on ZooKeeper and on the simulated store; both end the session from outside.
"""

import asyncio
import contextlib

import pytest

from ledger.errors import MetadataUnavailable
from ledger.ports.metadata import ANY_VERSION, Node
from tests.ledger.zookeeper_rig import Told, end_session, lasting
from tests.peers.proxy import Proxy
from tests.sim.metadata import MetadataTree, SimMetadata


@contextlib.asynccontextmanager
async def simulated(request):
    tree = MetadataTree()
    store, other = SimMetadata(tree), SimMetadata(tree)

    async def end():
        store.expire()

    yield store, other, end
    await store.close()
    await other.close()


@contextlib.asynccontextmanager
async def zookeeper(request):
    server = request.getfixturevalue("zookeeper")
    root = server.unused_chroot()
    with Proxy(server.port) as proxy:
        store = await lasting(proxy.address, chroot=root)
        other = await lasting(server.servers, chroot=root)

        async def end():
            await asyncio.to_thread(end_session, server, proxy, store)

        yield store, other, end
        await store.close()
        await other.close()


STORES = [simulated, pytest.param(zookeeper, marks=pytest.mark.real_loop)]


@pytest.fixture(params=STORES, ids=lambda factory: factory.__name__)
def opened(request):
    """Opens a store, another one, and a function that ends the session of the first only."""
    return lambda: request.param(request)


async def patient(call):
    """The answer of the first call that gets one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except MetadataUnavailable:
                await asyncio.sleep(0.001)


async def test_a_store_goes_on_by_itself_and_tells_that_its_session_is_new(opened):
    async with opened() as (store, other, end):
        await store.create("/kept", b"x")
        await store.create("/live", ephemeral=True)
        await other.create("/others", ephemeral=True)
        renewed = Told()
        store.watch_session(renewed)
        await end()
        await renewed.times(1)
        assert not await store.exists("/live")
        assert await store.exists("/others")
        assert await store.get("/kept") == Node(b"x", 0)
        assert await store.create("/live", ephemeral=True) == "/live"
        assert await other.exists("/live")
        assert renewed.count == 1


async def test_a_call_is_answered_soon_after_the_session_was_lost(opened):
    async with opened() as (store, _other, end):
        await end()
        assert await patient(lambda: store.create("/a")) == "/a"


async def test_watches_outlive_the_session_and_are_told_once_for_it(opened):
    async with opened() as (store, other, end):
        await store.create("/a")
        told, told_of_none, renewed = Told(), Told(), Told()
        store.watch("/a", told)
        store.watch("/none", told_of_none)
        store.watch_session(renewed)
        await store.get("/a")
        await end()
        await renewed.times(1)
        await told.times(1)
        await told_of_none.times(1)
        await store.get("/a")
        assert (told.count, told_of_none.count) == (1, 1)
        await other.set("/a", b"new", ANY_VERSION)
        await other.create("/none")
        await told.times(2)
        await told_of_none.times(2)


async def test_ephemeral_nodes_of_a_lost_session_are_told_to_others_as_gone(opened):
    async with opened() as (store, other, end):
        await store.create("/live", parents=True)
        await store.create("/live/me", ephemeral=True)
        told = Told()
        other.watch("/live", told)
        await other.children("/live")
        await end()
        await told.times(1)
        assert await other.children("/live") == []


async def test_who_no_longer_watches_the_session_hears_nothing(opened):
    async with opened() as (store, _other, end):
        ended, renewed = Told(), Told()
        store.watch_session(ended)()
        store.watch_session(renewed)
        await end()
        await renewed.times(1)
        assert ended.count == 0


async def test_a_store_loses_one_session_after_the_other(opened):
    async with opened() as (store, _other, end):
        renewed = Told()
        store.watch_session(renewed)
        for count in (1, 2, 3):
            await store.create("/live", ephemeral=True)
            await end()
            await renewed.times(count)
            assert not await store.exists("/live")
        assert renewed.count == 3
