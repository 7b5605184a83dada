"""Goal: every metadata store answers as the port says. Method: one suite, run on each store.

What only the embedded store promises (files, locks, crashes) has a file of its own:
tests/ledger/test_sqlite_metadata.py.
"""

import asyncio
import contextlib

import pytest

from ledger.adapters.grpc.grpc_metadata import GrpcMetadata
from ledger.adapters.grpc.grpc_metadata_server import MetadataServer
from ledger.adapters.links.shown_metadata import ShownMetadata
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoNode, NotEmpty
from ledger.ports.metadata import (
    ANY_VERSION,
    NODE_BYTES_MAX,
    Check,
    Create,
    Delete,
    Node,
    Set,
)
from tests.ledger.zookeeper_rig import lasting
from tests.sim.metadata import SimMetadata

pytestmark = pytest.mark.real_loop


@contextlib.asynccontextmanager
async def sqlite_store(request):
    path = request.getfixturevalue("tmp_path")
    store = SqliteMetadata(path / "metadata.db")
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def simulated_store(request):
    store = SimMetadata()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def zookeeper_store(request):
    server = request.getfixturevalue("zookeeper")
    store = await lasting(server.servers, chroot=server.unused_chroot())
    try:
        yield store
    finally:
        await store.close()


class ShownStore:
    """Changed by its owner, read and watched over gRPC by somebody else."""

    def __init__(self, owned, shown):
        self.owned = owned
        self.shown = shown
        self.get, self.exists, self.children = shown.get, shown.exists, shown.children
        self.read_tree, self.paths, self.sync = shown.read_tree, shown.paths, shown.sync
        self.watch, self.watch_session = shown.watch, shown.watch_session

    def __getattr__(self, name):
        change = getattr(self.owned, name)

        async def after_watches(*args, **more):
            if not self.shown.is_closed:
                await self.shown.sync("/")  # a watch is set once a later call of its reader returns
            return await change(*args, **more)

        return after_watches

    async def close(self):
        await self.shown.close()
        await self.owned.close()


@contextlib.asynccontextmanager
async def shown_store(request):
    async with sqlite_store(request) as owned:
        server = MetadataServer(owned)
        shown = GrpcMetadata("127.0.0.1", await server.start("127.0.0.1", 0))
        try:
            yield ShownStore(owned, shown)
        finally:
            await shown.close()
            await server.stop()


class ViewedStore(ShownMetadata):
    """Changed by its owner, read and watched through a view in the same process."""

    def __init__(self, owned):
        super().__init__(owned, {}, ())
        self.set, self.create, self.delete = owned.set, owned.create, owned.delete
        self.multi, self.close = owned.multi, owned.close


@contextlib.asynccontextmanager
async def viewed_store(request):
    async with sqlite_store(request) as owned:
        yield ViewedStore(owned)


STORES = [sqlite_store, simulated_store, zookeeper_store, shown_store, viewed_store]


@pytest.fixture(params=STORES, ids=lambda factory: factory.__name__)
def opened(request):
    """Opens a fresh store, as an async context manager."""
    return lambda: request.param(request)


async def test_a_created_node_has_its_data_and_version_0(opened):
    async with opened() as store:
        assert await store.create("/a", b"x") == "/a"
        assert await store.get("/a") == Node(b"x", 0)


async def test_each_set_raises_the_version_by_one(opened):
    async with opened() as store:
        await store.create("/a")
        assert await store.set("/a", b"1", 0) == 1
        assert await store.set("/a", b"2", 1) == 2
        assert await store.set("/a", b"3", ANY_VERSION) == 3
        assert await store.get("/a") == Node(b"3", 3)


async def test_a_set_with_an_old_version_changes_nothing(opened):
    async with opened() as store:
        await store.create("/a", b"0")
        await store.set("/a", b"1", 0)
        with pytest.raises(BadVersion):
            await store.set("/a", b"2", 0)
        assert await store.get("/a") == Node(b"1", 1)


async def test_of_many_racing_sets_with_one_version_exactly_one_wins(opened):
    async with opened() as store:
        await store.create("/a")
        results = await asyncio.gather(
            *(store.set("/a", b"%d" % i, 0) for i in range(20)), return_exceptions=True
        )
        winners = [i for i, result in enumerate(results) if result == 1]
        assert len(winners) == 1
        assert sum(isinstance(result, BadVersion) for result in results) == 19
        assert await store.get("/a") == Node(b"%d" % winners[0], 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("/no"),
        lambda store: store.set("/no", b"", ANY_VERSION),
        lambda store: store.delete("/no"),
        lambda store: store.children("/no"),
        lambda store: store.create("/no/child"),
        lambda store: store.create("/no/child", sequential=True),
        lambda store: store.multi([Check("/no", ANY_VERSION)]),
    ],
    ids=["get", "set", "delete", "children", "create", "sequential", "check"],
)
async def test_what_needs_a_node_that_is_not_there_raises_no_node(opened, call):
    async with opened() as store:
        with pytest.raises(NoNode):
            await call(store)


async def test_exists_tells_present_from_absent(opened):
    async with opened() as store:
        assert not await store.exists("/a")
        await store.create("/a")
        assert await store.exists("/a")
        await store.delete("/a")
        assert not await store.exists("/a")


async def test_creating_a_node_twice_raises_node_exists_and_keeps_the_first(opened):
    async with opened() as store:
        await store.create("/a", b"first")
        with pytest.raises(NodeExists):
            await store.create("/a", b"second")
        assert await store.get("/a") == Node(b"first", 0)


async def test_parents_are_made_empty_when_asked(opened):
    async with opened() as store:
        await store.create("/a/b/c", b"x", parents=True)
        assert await store.get("/a") == Node(b"", 0)
        assert await store.get("/a/b") == Node(b"", 0)
        assert await store.get("/a/b/c") == Node(b"x", 0)


async def test_a_node_recreated_after_delete_starts_again_at_version_0(opened):
    async with opened() as store:
        await store.create("/a", b"1")
        await store.set("/a", b"2", 0)
        await store.delete("/a", 1)
        await store.create("/a", b"3")
        assert await store.get("/a") == Node(b"3", 0)


async def test_a_delete_with_an_old_version_changes_nothing(opened):
    async with opened() as store:
        await store.create("/a")
        await store.set("/a", b"1", 0)
        with pytest.raises(BadVersion):
            await store.delete("/a", 0)
        assert await store.exists("/a")


async def test_a_node_with_children_cannot_be_deleted(opened):
    async with opened() as store:
        await store.create("/a/b", parents=True)
        with pytest.raises(NotEmpty):
            await store.delete("/a")
        await store.delete("/a/b")
        await store.delete("/a")


async def test_children_are_names_sorted_and_direct_only(opened):
    async with opened() as store:
        for path in ("/a/c", "/a/b", "/a/b.2", "/a/b/deep", "/ab/x", "/a0"):
            await store.create(path, parents=True)
        assert await store.children("/a") == ["b", "b.2", "c"]
        assert await store.children("/a/c") == []
        assert set(await store.children("/")) >= {"a", "a0", "ab"}


async def test_read_tree_gives_all_below_and_nothing_beside(opened):
    async with opened() as store:
        for path in ("/a/b/c", "/a/d", "/a.b/x", "/a0/x", "/ab/x"):
            await store.create(path, path.encode(), parents=True)
        assert await store.read_tree("/a") == {
            "/a/b": Node(b"", 0),
            "/a/b/c": Node(b"/a/b/c", 0),
            "/a/d": Node(b"/a/d", 0),
        }
        assert {"/a", "/a/b/c", "/ab/x"} <= set(await store.read_tree("/"))
        assert await store.read_tree("/none") == {}


async def test_paths_names_all_below_parents_first_and_nothing_beside(opened):
    async with opened() as store:
        for path in ("/a/b/c", "/a/d", "/a/b.1", "/a.b/x", "/a0/x", "/ab/x"):
            await store.create(path, b"x", parents=True)
        found = await store.paths("/a")
        assert sorted(found) == ["/a/b", "/a/b.1", "/a/b/c", "/a/d"]
        assert found.index("/a/b") < found.index("/a/b/c")
        assert {"/a", "/a/b/c", "/ab/x"} <= set(await store.paths("/"))
        assert await store.paths("/a/d") == await store.paths("/none") == []


async def test_children_are_sorted_however_they_were_made(opened):
    names = [f"{letter}{number}" for number in (10, 9, 2, 1) for letter in "bAa_Z-é"]

    async with opened() as store:
        await store.create("/a")
        for name in names:
            await store.create(f"/a/{name}")
        assert await store.children("/a") == sorted(names)


async def test_many_may_make_the_same_parents_at_once(opened):
    async with opened() as store:
        made = await asyncio.gather(*(store.create(f"/a/b/c/{i}", parents=True) for i in range(20)))
        assert made == [f"/a/b/c/{i}" for i in range(20)]
        assert len(await store.children("/a/b/c")) == 20


async def test_a_sequential_number_is_of_the_parent_whatever_comes_before_it(opened):
    async with opened() as store:
        await store.create("/a")
        first = await store.create("/a/n-", sequential=True)
        await store.create("/a/plain")
        second = await store.create("/a/m-", sequential=True)
        third = await store.create("/a/other-", ephemeral=True, sequential=True)
        assert int(first[-10:]) < int(second[-10:]) < int(third[-10:])
        assert second == f"/a/m-{second[-10:]}"


async def test_racing_sequential_creates_get_numbers_of_their_own(opened):
    async with opened() as store:
        await store.create("/a")
        made = await asyncio.gather(*(store.create("/a/n-", sequential=True) for _ in range(50)))
        assert len(set(made)) == 50
        assert await store.children("/a") == sorted(path[3:] for path in made)


async def test_sequential_names_rise_even_after_the_last_one_was_deleted(opened):
    async with opened() as store:
        await store.create("/a")
        paths = [await store.create("/a/n-", sequential=True) for _ in range(3)]
        await store.delete(paths[-1])
        paths.append(await store.create("/a/n-", sequential=True))
        assert paths == sorted(set(paths))
        for path in paths:
            assert path.startswith("/a/n-") and len(path) == len("/a/n-") + 10
            int(path[-10:])


async def test_multi_does_all_in_order(opened):
    async with opened() as store:
        await store.create("/old", b"1")
        await store.multi(
            [
                Check("/old", 0),
                Create("/a", b"x"),
                Create("/a/b", b"y"),
                Set("/a", b"z", 0),
                Delete("/old", 0),
            ]
        )
        assert await store.get("/a") == Node(b"z", 1)
        assert await store.get("/a/b") == Node(b"y", 0)
        assert not await store.exists("/old")


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Create("/there"), NodeExists),
        (Create("/none/x"), NoNode),
        (Set("/there", b"", 7), BadVersion),
        (Set("/none", b"", ANY_VERSION), NoNode),
        (Delete("/there", 7), BadVersion),
        (Delete("/full"), NotEmpty),
        (Check("/there", 7), BadVersion),
    ],
)
async def test_multi_does_nothing_when_one_part_fails(opened, op, error):
    async with opened() as store:
        await store.create("/there", b"as it was")
        await store.create("/full/child", parents=True)
        with pytest.raises(error):
            await store.multi([Create("/new"), Set("/there", b"changed", 0), op, Delete("/new")])
        assert not await store.exists("/new")
        assert (await store.get("/there")).data == b"as it was"


async def test_an_empty_multi_does_nothing(opened):
    async with opened() as store:
        await store.create("/a", b"x")
        await store.multi([])
        assert await store.get("/a") == Node(b"x", 0)


async def test_a_failing_change_does_not_disturb_those_that_run_beside_it(opened):
    async with opened() as store:
        await store.create("/a")
        results = await asyncio.gather(
            *(store.create(f"/a/{i}", b"%d" % i) for i in range(50)),
            *(store.create("/none/x") for _ in range(50)),
            return_exceptions=True,
        )
        assert results[:50] == [f"/a/{i}" for i in range(50)]
        assert all(isinstance(result, NoNode) for result in results[50:])
        assert len(await store.children("/a")) == 50


async def test_a_watch_hears_of_data_children_and_the_node_itself(opened):
    async with opened() as store:
        heard = asyncio.Event()
        store.watch("/a", heard.set)

        async def expect(change):
            heard.clear()
            await change
            async with asyncio.timeout(60):
                await heard.wait()

        await expect(store.create("/a"))
        await expect(store.set("/a", b"x", 0))
        await expect(store.create("/a/b"))
        await expect(store.delete("/a/b"))
        await expect(store.delete("/a"))
        await expect(store.multi([Create("/a"), Create("/c")]))


async def test_a_watch_that_was_ended_hears_nothing_more(opened):
    async with opened() as store:
        heard = []
        await store.create("/a")
        unwatch = store.watch("/a", lambda: heard.append("ended"))
        unwatch()
        unwatch()
        told = asyncio.Event()
        store.watch("/a", told.set)
        await store.set("/a", b"x", 0)
        async with asyncio.timeout(60):
            await told.wait()
        assert heard == []


async def test_a_watch_does_not_hear_of_other_nodes(opened):
    async with opened() as store:
        heard = []
        await store.create("/a/b", parents=True)
        store.watch("/a", lambda: heard.append("/a"))
        told = asyncio.Event()
        store.watch("/a/b/c", told.set)
        await store.create("/ab")
        await store.set("/a/b", b"x", 0)  # grandchildren and their data are not ours
        await store.create("/a/b/c")
        async with asyncio.timeout(60):
            await told.wait()
        assert heard == []


async def test_who_reads_when_told_ends_with_the_last_change(opened):
    async with opened() as store:
        await store.create("/a", b"0")
        told = asyncio.Event()
        store.watch("/a", told.set)

        async def change():
            for i in range(1, 41):
                await store.set("/a", b"%d" % i, ANY_VERSION)

        changing = asyncio.ensure_future(change())
        seen = b"0"
        async with asyncio.timeout(60):
            while seen != b"40":
                await told.wait()
                told.clear()
                seen = (await store.get("/a")).data
        await changing


async def test_a_path_whose_parents_do_not_exist_may_be_watched(opened):
    async with opened() as store:
        told = asyncio.Event()
        store.watch("/x/y/z", told.set)
        await store.create("/x/y/z", parents=True)
        async with asyncio.timeout(60):
            await told.wait()


async def test_all_who_watch_a_path_are_told_and_may_come_and_go(opened):
    async with opened() as store:
        await store.create("/a")
        first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
        end_first = store.watch("/a", first.set)
        store.watch("/a", second.set)
        end_first()
        store.watch("/a", third.set)
        await store.set("/a", b"x", ANY_VERSION)
        async with asyncio.timeout(60):
            await second.wait()
            await third.wait()
        assert not first.is_set()


async def test_who_watches_the_session_hears_nothing_while_it_lasts(opened):
    async with opened() as store:
        heard = []
        unwatch = store.watch_session(lambda: heard.append("renewed"))
        await store.create("/a", ephemeral=True)
        await store.sync("/a")
        unwatch()
        unwatch()
        assert heard == []


async def test_an_ephemeral_node_has_no_children(opened):
    async with opened() as store:
        await store.create("/a", ephemeral=True)
        with pytest.raises(AssertionError):
            await store.create("/a/b")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("/"),
        lambda store: store.exists("/"),
        lambda store: store.set("/a", b"", 0),
        lambda store: store.create("/a"),
        lambda store: store.delete("/a"),
        lambda store: store.multi([Check("/", ANY_VERSION)]),
        lambda store: store.children("/"),
        lambda store: store.paths("/"),
        lambda store: store.read_tree("/"),
    ],
    ids=["get", "exists", "set", "create", "delete", "multi", "children", "paths", "read_tree"],
)
async def test_a_closed_store_says_that_the_outcome_is_unknown(opened, call):
    async with opened() as store:
        await store.close()
        await store.close()
        with pytest.raises(MetadataUnavailable):
            await call(store)


async def test_a_caller_who_went_away_disturbs_nobody(opened):
    async with opened() as store:
        await store.create("/a")
        going = [asyncio.ensure_future(store.set("/a", b"x", ANY_VERSION)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in going:
            task.cancel()
        results = await asyncio.gather(
            *going, *(store.create(f"/a/{i}") for i in range(5)), return_exceptions=True
        )
        assert results[5:] == [f"/a/{i}" for i in range(5)]


async def test_an_ephemeral_node_is_there_until_its_session_ends(opened):
    async with opened() as store:
        await store.create("/live", parents=True)
        path = await store.create("/live/me-", b"x", ephemeral=True, sequential=True)
        await store.multi([Create("/live/other", b"y", ephemeral=True)])
        assert await store.get(path) == Node(b"x", 0)
        assert len(await store.children("/live")) == 2


async def test_a_large_node_comes_back_whole(opened):
    data = (bytes(range(256)) * 4096)[:NODE_BYTES_MAX]

    async with opened() as store:
        await store.create("/large", data)
        await store.sync("/large")
        assert (await store.get("/large")).data == data
