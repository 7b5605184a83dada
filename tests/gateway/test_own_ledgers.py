"""Goal: the page of `gateway dev` reads its own ledgers as readers of the ledger port see them.

Method: a store without bookies; and a gateway in a thread with records in three bookies, which is
read without a connection and through the port, on the loop of the gateway.
"""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer

from gateway.admin.bookies import list_known_bookies
from gateway.admin.cluster import read_ledgers
from gateway.admin.storage import StorageConnection, storage_over
from gateway.http.site import Site
from ledger.adapters.grpc.grpc_metadata import GrpcMetadata
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from ledger.errors import MetadataUnavailable, NoNode, ReadOnlyStore
from ledger.ids import EntryId
from ledger.node.read_port import ReadPort
from ledger.ports.bookies import Status
from ledger.ports.metadata import ANY_VERSION, Create
from tests.gateway.page_rig import PageRig

HIDDEN = "/gateway/scram"


async def nothing():
    pass


@pytest.mark.real_loop
async def test_this_process_sees_the_nodes_that_readers_of_the_port_see(tmp_path):
    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    for path in (f"{HIDDEN}/ann", "/gateway/scrambled", "/ledgers/L1"):
        await store.create(path, path.encode(), parents=True)
    port = ReadPort(store, [], lambda _: EntryId(-1), nothing, hidden=(HIDDEN,))
    await port.start(0)
    own, _ = await port.shown()
    remote = GrpcMetadata("127.0.0.1", port.port)
    fired = []
    for path in ("/", "/gateway", HIDDEN, f"{HIDDEN}/ann", "/ledgers", "/ledgers/available", "/no"):
        for name in ("get", "exists", "children", "read_tree", "paths"):
            assert await seen(own, name, path) == await seen(remote, name, path), (name, path)
        own.watch(path, lambda path=path: fired.append(path))
    await store.set(f"{HIDDEN}/ann", b"new", ANY_VERSION)
    await store.set("/gateway/scrambled", b"new", ANY_VERSION)
    await store.create("/ledgers/L2")
    await asyncio.sleep(0)
    assert "/ledgers" in fired
    assert not [path for path in fired if path.startswith(HIDDEN)]
    await remote.close()
    await port.stop()
    await store.close()


@pytest.mark.real_loop
async def test_a_port_that_has_stopped_opens_no_more(tmp_path):
    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    port = ReadPort(store, [], lambda _: EntryId(-1), nothing)
    await port.start(0)
    await port.stop()
    with pytest.raises(ConnectionError):
        await port.shown()
    await store.close()


async def seen(store, name, path):
    try:
        return await getattr(store, name)(path)
    except NoNode:
        return NoNode


@pytest.mark.real_loop
async def test_this_process_can_change_nothing_either(tmp_path):
    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    port = ReadPort(store, [], lambda _: EntryId(-1), nothing)
    await port.start(0)
    own, _ = await port.shown()
    for change in (
        own.set("/ledgers", b"", ANY_VERSION),
        own.create("/mine"),
        own.delete("/ledgers"),
        own.multi([Create("/mine")]),
    ):
        with pytest.raises(ReadOnlyStore):
            await change
    await own.close()
    assert not await store.exists("/mine")
    await port.stop()
    await store.close()


@pytest.mark.real_loop
async def test_what_a_crash_left_open_is_closed_before_this_process_reads(tmp_path):
    failures = [MetadataUnavailable("not now")]
    prepared = []

    async def prepare():
        if failures:
            raise failures.pop()
        prepared.append(True)

    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    port = ReadPort(store, [], lambda _: EntryId(-1), prepare)
    await port.start(0)
    with pytest.raises(MetadataUnavailable):
        await port.shown()
    await asyncio.gather(port.shown(), port.shown())
    assert prepared == [True]
    await port.stop()
    await store.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with PageRig(tmp_path_factory.mktemp("own") / "data", bookies=3, ledger_port=0) as started:
        producer = Producer({"bootstrap.servers": started.bootstrap})
        for number in range(3):
            producer.produce("orders", f"record {number}")
        assert producer.flush(60) == 0
        yield started


@pytest.mark.process
def test_the_page_reads_the_same_ledgers_and_bookies_as_through_the_port(rig):
    ctx = rig.running.ctx

    async def compare():
        site = Site(ctx, ctx.config.http, rig.bootstrap)
        own = await site.storage()
        assert await site.storage() is own
        async with StorageConnection(ctx.metadata_address) as remote:
            rows = [await list_known_bookies(each) for each in (own, remote)]
            for row in (*rows[0], *rows[1]):
                assert row.pop("free_bytes") > 0
                assert row.pop("disk_bytes") > 0
            assert rows[0] == rows[1]
            assert len(rows[0]) == 3
            found = [await read_ledgers(each, (1, None), embedded=True) for each in (own, remote)]
            assert found[0].facts == found[1].facts
            for ledger in await own.client.list_ledgers():
                metadata = await own.metadata_of(ledger)
                assert metadata == await remote.metadata_of(ledger)
                for bookie in metadata.fragments[0].ensemble:
                    reads = [await each.bookies.read(bookie, ledger, 0) for each in (own, remote)]
                    assert reads[0].status is reads[1].status
                    assert bytes(reads[0].body or b"") == bytes(reads[1].body or b"")
                    assert reads[0].lac == reads[1].lac
        await site.close()
        return own

    own = rig.run(compare())
    assert own.bookies.available() == ()


@pytest.mark.process
def test_no_bookie_is_changed_through_it(rig):
    ctx = rig.running.ctx

    async def tried():
        store, bookies = await ctx.own_ledgers()
        own = storage_over(store, bookies)
        (ledger, *_) = await own.client.list_ledgers()
        (bookie, *_) = bookies.registered()
        loop = asyncio.get_running_loop()
        added = loop.create_future()
        bookies.add(bookie, ledger, 99, b"", [b"x"], added.set_result)
        return [
            await added,
            await bookies.end_limbo(bookie, ledger, b""),
            await bookies.write_lac(bookie, ledger, b"", 5),
            (await bookies.read(bookie, ledger, 0, fence_key=b"")).status,
            *(each.status for each in await bookies.fence_many(bookie, [(ledger, b"")])),
        ]

    assert rig.run(tried()) == [Status.READ_ONLY] * 5
