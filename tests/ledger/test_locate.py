"""Goal: `Locate` returns a place only if the log file has the entry there.

Method: an independent walk over the log files, before and after rolls, repairs, the rewriting of
log files, deletions and restarts; planted index rows and answers, which the walk must find; old
releases over both transports.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from ledger.adapters.grpc.grpc_library import aio
from ledger.bookie import control_calls, tcp_connection
from ledger.bookie.gc.collector import collect
from ledger.bookie.in_process import open_local_bookie
from ledger.bookie.log_file_cache import LogFileCache
from ledger.bookie.read_only_view import ReadOnlyView
from ledger.core.extents import EntryLocation
from ledger.ports.bookies import BookieInfo, LocateReply, Status
from ledger.wire.tcp_frames import CALL_METHODS, FENCE_MANY
from tests.contracts.test_bookies import CONFIG
from tests.ledger.bookie_rig import KEY, SMALL, add, started_bookie
from tests.ledger.log_walk import files_of, newest, walk
from tests.ledger.transports import bookies_of, on_transport, server_of
from tests.sim.bookie_world import entry_buffers

FILE = "log-0000000000000001"


async def check_places(rig, wanted):
    """Compare the places of these entries with those that a walk over the files finds."""
    found = walk(files_of(rig.disk))
    for ledger, entry in wanted:
        reply = await rig.bookie.locate(ledger, entry)
        places = found.get((ledger, entry), [])
        assert (reply.status is Status.OK) == bool(places), (ledger, entry, reply)
        if places:
            named = (f"log-{reply.file_id:016x}", reply.position, reply.length)
            assert named == places[-1][:3], (ledger, entry)


def only(*ledgers):
    async def list_ledgers():
        return list(ledgers)

    return list_ledgers


ENTRIES = [(ledger, entry) for ledger in (1, 2, 3) for entry in range(40)]


async def filled(rig):
    """Entries of three ledgers, side by side, over several log files."""
    for entry in range(40):
        await asyncio.gather(
            add(rig.bookie, 1, entry, b"a" * (100 + entry)),
            add(rig.bookie, 2, entry, b"b" * 4000),
            add(rig.bookie, 3, entry, b"c" * 10),
        )


@pytest.mark.parametrize("batch", [1, 7, 512])
async def test_every_place_is_that_of_the_log_files_over_rolls_and_restarts(batch):
    async with started_bookie(replace(SMALL, index_batch_entries=batch)) as (rig, _):
        await filled(rig)
        assert len([name for name in rig.disk.names() if name.startswith("log-")]) > 2
        await check_places(rig, ENTRIES)
        for again in (rig.restart, rig.kill):
            await again()
            await check_places(rig, ENTRIES)


async def test_an_entry_that_moved_to_another_file_has_its_new_place():
    async with started_bookie() as (rig, bookie):
        await filled(rig)
        before = await bookie.locate(1, 0)
        assert before.file_id == 1
        assert (await collect(bookie, only(1, 3), compaction_threshold=1.0)).files_rewritten
        after = await bookie.locate(1, 0)
        assert after.file_id > before.file_id
        assert (await bookie.locate(2, 0)).status is Status.NO_LEDGER
        await check_places(rig, ENTRIES)
        await rig.kill()
        await check_places(rig, ENTRIES)


async def test_a_repaired_entry_has_the_place_of_the_repair():
    async with started_bookie() as (rig, bookie):
        await filled(rig)
        before = await bookie.locate(1, 0)
        rig.disk.flip_bit(FILE, before.position + 60)
        body = entry_buffers(1, 0, b"a" * 100)
        done = asyncio.get_running_loop().create_future()
        bookie.add(1, 0, KEY, body, done.set_result, recovery=True)
        assert await done is Status.OK
        assert (await bookie.locate(1, 0))[1:] > before[1:]
        await check_places(rig, [(1, 0), (1, 1)])


async def test_what_a_bookie_does_not_have_is_denied():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        assert await bookie.locate(1, 1) == LocateReply(Status.NO_ENTRY)
        assert await bookie.locate(2, 0) == LocateReply(Status.NO_LEDGER)
        assert await bookie.locate(1, -1) == LocateReply(Status.BAD_REQUEST)


async def test_an_entry_on_its_way_is_located_once_it_is_durable():
    async with started_bookie() as (rig, bookie):
        added = add(bookie, 1, 0)
        reply = await bookie.locate(1, 0)
        assert await added is Status.OK
        assert (f"log-{reply.file_id:016x}", *reply[2:]) == newest(files_of(rig.disk), 1, 0)[:3]


async def test_a_reader_on_the_ledger_port_gets_the_same_places():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        view = ReadOnlyView(bookie, lambda _: -1)
        assert await view.locate(1, 0) == await bookie.locate(1, 0)


# -- stale rows ------------------------------------------------------------------------------------


async def make_stale(rig, ledger, entry, **other):
    """Let the index name another place for an entry that is stored."""
    index = rig.bookie.storage.index
    await rig.bookie.storage.checkpoint()
    state = index.state(ledger)
    location = index.find(state, entry)
    assert isinstance(location, EntryLocation)
    index.put(state, entry, location._replace(**other))
    index.write_batch(rig.bookie.storage.journal.end)
    return location


async def stale_rows(rig):
    """Make each kind of stale row. Yields its entry."""
    await filled(rig)
    two = rig.bookie.storage.index.find(rig.bookie.storage.index.state(1), 2)
    await make_stale(rig, 1, 1, position=two.position, length=two.length)
    yield 1, 1
    await make_stale(rig, 1, 3, file_id=99)
    yield 1, 3
    three = rig.bookie.storage.index.find(rig.bookie.storage.index.state(1), 4)
    await make_stale(rig, 1, 4, length=three.length - 1)
    yield 1, 4
    await make_stale(rig, 1, 5, position=10)
    yield 1, 5
    await make_stale(rig, 1, 6, position=1 << 30)
    yield 1, 6


async def test_a_stale_row_is_no_place():
    async with started_bookie() as (rig, bookie):
        async for ledger, entry in stale_rows(rig):
            assert await bookie.locate(ledger, entry) == LocateReply(Status.IO_ERROR)


async def test_a_file_that_was_deleted_behind_an_open_one_holds_nothing():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        assert (await bookie.read_many(1, 0, 0, 99, from_disk=True)).status is Status.OK
        rig.disk.unlink(FILE)
        assert await bookie.locate(1, 0) == LocateReply(Status.IO_ERROR)


async def test_a_file_that_cannot_be_read_is_an_error(monkeypatch):
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)

        def broken(name):
            raise OSError(errno.EIO, name)

        monkeypatch.setattr(rig.disk, "open", broken)
        assert await bookie.locate(1, 0) == LocateReply(Status.IO_ERROR)


async def test_a_place_that_a_compaction_made_stale_meanwhile_is_found_again(monkeypatch):
    async with started_bookie() as (rig, bookie):
        await filled(rig)
        holds, moved = LogFileCache.holds, []

        async def compacted_first(cache, *place):
            if not moved:
                moved.append(await collect(bookie, only(1, 3), compaction_threshold=1.0))
            return await holds(cache, *place)

        monkeypatch.setattr(LogFileCache, "holds", compacted_first)
        reply = await bookie.locate(1, 0)
        assert moved[0].files_rewritten
        assert (f"log-{reply.file_id:016x}", *reply[2:]) == newest(files_of(rig.disk), 1, 0)[:3]


async def test_the_walk_finds_an_answer_from_a_stale_row(monkeypatch):
    """The planted mistake: the index is believed without a look into the file."""

    async def believed(*_):
        return True

    monkeypatch.setattr(LogFileCache, "holds", believed)
    async with started_bookie() as (rig, _):
        async for ledger, entry in stale_rows(rig):
            with pytest.raises(AssertionError):
                await check_places(rig, [(ledger, entry)])


# -- old releases ----------------------------------------------------------------------------------


async def located(tmp_path, transport):
    """The replies of a bookie of an earlier release to Locate, and to a read after it."""
    with on_transport(transport):
        opened = await open_local_bookie(tmp_path / "bookie", config=CONFIG)
        server = server_of(opened.bookie)
        name = opened.bookie.bookie_id
        registered = {name: BookieInfo(port=await server.start("127.0.0.1", 0))}
        port = bookies_of(lambda: registered)
        replies = [await port.locate(name, 1, 0) for _ in range(2)]
        lac = await port.read_lac(name, 1)
        await port.close()
        await server.stop(0)
        await opened.close()
    return replies, lac.status


@pytest.mark.real_loop
async def test_over_tcp_a_bookie_that_did_not_announce_it_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(tcp_connection, "FEATURES", FENCE_MANY)
    calls = control_calls.ControlCalls.by_name
    old = {name for name in CALL_METHODS if name != "Locate"}
    monkeypatch.setattr(
        control_calls.ControlCalls,
        "by_name",
        lambda self: {name: call for name, call in calls(self).items() if name in old},
    )
    replies, lac = await located(tmp_path, "tcp")
    assert replies == [LocateReply(Status.BAD_VERSION)] * 2
    assert lac is Status.NO_LEDGER  # on the same connection


@pytest.mark.real_loop
async def test_over_grpc_a_bookie_without_it_is_asked_once(tmp_path, monkeypatch):
    calls = control_calls.ControlCalls.by_name
    monkeypatch.setattr(
        control_calls.ControlCalls,
        "by_name",
        lambda self: {name: call for name, call in calls(self).items() if name != "Locate"},
    )
    asked, unary = [], aio.Channel.unary_unary

    def counted(channel, method, *rest, **named):
        asked.append(method)
        return unary(channel, method, *rest, **named)

    monkeypatch.setattr(aio.Channel, "unary_unary", counted)
    replies, lac = await located(tmp_path, "grpc")
    assert replies == [LocateReply(Status.BAD_VERSION)] * 2
    assert [method for method in asked if method.endswith("Locate")] == asked[:1]
    assert lac is Status.NO_LEDGER
