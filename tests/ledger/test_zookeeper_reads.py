"""Goal: reads and syncs of one turn are one request, and every caller gets its own answer.

Method: a store on a real ZooKeeper; the requests that it hands to its connection are counted.
"""

import asyncio

import pytest

from ledger.adapters.zookeeper.zookeeper_requests import REQUEST_BYTES_MAX
from ledger.errors import NoNode
from tests.ledger.zookeeper_rig import connected

pytestmark = pytest.mark.real_loop


def counted(store):
    """The requests that the store hands to its connection from now on."""
    asked, ask = [], store._bridge.ask

    def note(request):
        asked.append(request)
        return ask(request)

    store._bridge.ask = note
    return asked


async def test_reads_of_one_turn_are_one_request_and_each_gets_its_own_answer(zookeeper):
    async with connected(zookeeper.servers, zookeeper.unused_chroot()) as store:
        for number in range(3):
            await store.create(f"/n{number}", b"%d" % number * number)
        asked = counted(store)
        paths = ["/n0", "/n1", "/missing", "/n2"]
        reads = [*map(store.get, paths), store.children("/"), store.children("/missing")]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(each).__name__ for each in asked] == ["MultiRead"]
        assert [node.data for node in found[:2]] == [b"", b"1"]
        assert isinstance(found[2], NoNode)
        assert found[3].data == b"22"
        assert {"n0", "n1", "n2"} <= set(found[4])
        assert isinstance(found[5], NoNode)


async def test_syncs_of_one_turn_are_one_request_ahead_of_the_reads(zookeeper):
    async with connected(zookeeper.servers, zookeeper.unused_chroot()) as store:
        await store.create("/n")
        asked = counted(store)
        await asyncio.gather(store.get("/n"), *(store.sync(f"/{n}") for n in range(9)))
        assert [type(each).__name__ for each in asked] == ["Sync", "GetData"]


async def test_a_read_sees_no_later_write_of_the_same_turn(zookeeper):
    async with connected(zookeeper.servers, zookeeper.unused_chroot()) as store:
        await store.create("/n", b"before")
        reads = [asyncio.ensure_future(store.get("/n")) for _ in range(2)]
        write = asyncio.ensure_future(store.set("/n", b"after", 0))
        late = asyncio.ensure_future(store.get("/n"))
        assert [(await read).data for read in reads] == [b"before"] * 2
        await write
        assert (await late).data == b"after"


async def test_reads_of_one_turn_are_as_many_requests_as_their_bytes_need(zookeeper):
    async with connected(zookeeper.servers, zookeeper.unused_chroot()) as store:
        asked = counted(store)
        paths = [f"/{'x' * 98_301}{number}" for number in range(25)]
        found = await asyncio.gather(*map(store.get, paths), return_exceptions=True)
        assert [str(each) for each in found] == paths  # each NoNode, in the order of the calls
        assert [len(each.reads) for each in asked] == [10, 10, 5]
        assert all(len(each.serialize()) + 8 <= REQUEST_BYTES_MAX for each in asked)
