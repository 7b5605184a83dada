"""Goal: no request loses the connection to ZooKeeper because it is larger than a server takes.

Method: a store on a real ZooKeeper behind a proxy, which counts the connections.
"""

import asyncio
import functools

import pytest

from ledger.adapters.zookeeper.zookeeper_requests import FIELDS_BYTES_MAX, REQUEST_BYTES_MAX
from ledger.errors import EntryTooLarge, NoNode
from ledger.ports.metadata import ANY_VERSION, NODE_BYTES_MAX, Create, Delete
from tests.ledger.zookeeper_rig import world_on

pytestmark = pytest.mark.real_loop


@pytest.fixture
def sessions(zookeeper):
    """Opens sessions on the shared server."""
    return functools.partial(world_on, zookeeper)


async def test_a_multi_larger_than_a_server_takes_is_refused_before_it_is_sent(sessions):
    async with sessions() as world:
        half = b"x" * (NODE_BYTES_MAX // 2)
        await world.far.multi([Create("/a", half), Create("/b", half[:-1024])])
        with pytest.raises(EntryTooLarge):
            await world.far.multi([Create("/c", half), Create("/d", half), Create("/e", half)])
        assert await world.far.children("/") == ["a", "b"]
        assert world.proxy.accepted == 1


def path_of(size):
    return "/" + "x" * (size - 1)


LONG = path_of(REQUEST_BYTES_MAX - FIELDS_BYTES_MAX + 1)
CALLS = {
    "get": lambda store: store.get(LONG),
    "exists": lambda store: store.exists(LONG),
    "set": lambda store: store.set(LONG, b"", 0),
    "set with data": lambda store: store.set(LONG[: NODE_BYTES_MAX // 2], DATA, 0),
    "create": lambda store: store.create(LONG),
    "create with data": lambda store: store.create(LONG[: NODE_BYTES_MAX // 2], DATA),
    "create below": lambda store: store.create(f"{LONG}/a", parents=True),
    "delete": lambda store: store.delete(LONG),
    "multi": lambda store: store.multi([Delete(LONG)]),
    "children": lambda store: store.children(LONG),
    "read_tree": lambda store: store.read_tree(LONG),
    "paths": lambda store: store.paths(LONG),
    "sync": lambda store: store.sync(LONG),
}
DATA = b"x" * (NODE_BYTES_MAX // 2 + 1_000)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_request_larger_than_a_server_takes_is_refused_before_it_is_sent(sessions, call):
    """The server would close the connection, and with it fail all requests in flight."""
    async with sessions() as world:
        with pytest.raises(EntryTooLarge) as refused:
            await call(world.far)
        assert len(str(refused.value)) < 300
        assert await world.far.children("/") == []
        assert world.proxy.accepted == 1


async def test_the_largest_requests_are_answered(sessions):
    async with sessions() as world:
        root = len(world.far._root)
        longest = path_of(REQUEST_BYTES_MAX - FIELDS_BYTES_MAX - root)
        assert not await world.far.exists(longest)
        with pytest.raises(NoNode):
            await world.far.get(longest)
        data = b"x" * (REQUEST_BYTES_MAX - FIELDS_BYTES_MAX - root - NODE_BYTES_MAX // 2)
        await world.far.create(path_of(NODE_BYTES_MAX // 2), data)
        await world.far.set(path_of(NODE_BYTES_MAX // 2), data, 0)
        assert world.proxy.accepted == 1


async def test_reads_of_one_turn_with_long_paths_keep_the_connection(sessions):
    """A client names groups, and the name of a node is up to three times as long as its group."""
    async with sessions() as world:
        group = "/gateway/coordinators/" + "%2F" * 32_767
        reads = [world.far.get(f"{group}{number:02}") for number in range(64)]
        found = await asyncio.gather(*reads, world.far.children("/"), return_exceptions=True)
        assert [type(each) for each in found[:64]] == [NoNode] * 64
        assert found[64] == []
        assert world.proxy.accepted == 1


async def test_data_over_the_bound_is_our_own_mistake(sessions):
    async with sessions() as world:
        with pytest.raises(AssertionError):
            await world.far.create("/a", b"x" * (NODE_BYTES_MAX + 1))
        with pytest.raises(AssertionError):
            await world.far.set("/", b"x" * (NODE_BYTES_MAX + 1), ANY_VERSION)
