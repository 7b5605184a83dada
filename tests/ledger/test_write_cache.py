"""Goal: a bookie serves its newest entries from memory: only durable ones, none of a deleted
ledger, within its bound, and a reader that checks copies sees the disk.

Method: a bookie over the simulated disk on virtual time, whose files are damaged or counted.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from dataclasses import replace
from random import Random

from ledger.bookie.answer_room import AnswerRoom, AnswerShare
from ledger.bookie.config import READ_ENTRIES_MAX
from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.bookie.write_cache import ENTRY_BYTES, WriteCache
from ledger.ids import pinned_bytes
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import SMALL, Room, add, started_bookie
from tests.sim.bookie_world import entry_bytes
from tests.sim.disk import DiskFaults

CACHED = replace(SMALL, write_cache_bytes=1 << 20)
BODY = bytes(3000)


def damage(rig):
    """Damage the log files from here on: every read of an entry from disk then fails."""
    for name in rig.disk.names():
        if name.startswith("log-"):
            view = rig.disk.open(name)._content.view
            view[:] = bytes(len(view))


async def fill(rig, ledger=1, entries=5):
    for entry in range(entries):
        assert await rig.add(ledger, entry, BODY) is Status.OK


async def bodies_of(bookie, ledger=1, *, first=0, last=99, **how):
    reply = await bookie.read_many(ledger, first, last, 1 << 20, **how)
    return reply.status, [bytes(body) for body in reply.bodies]


async def test_the_newest_entries_are_served_without_the_disk():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig)
        damage(rig)
        whole = [entry_bytes(1, entry, BODY) for entry in range(5)]
        assert await bodies_of(bookie) == (Status.OK, whole)
        assert await bodies_of(bookie, first=3) == (Status.OK, whole[3:])
        reply = await bookie.read_many(1, 1, 99, 2 * len(whole[0]))
        assert [bytes(body) for body in reply.bodies] == whole[1:3]
        assert (await bookie.read(1, 2)).body == whole[2]
        assert (await bookie.read(1, -1)).body == whole[4]
        assert reply.lac == 3
        assert bookie.storage.write_cache.hits == 5


async def test_a_read_that_checks_copies_sees_the_disk():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig)
        damage(rig)
        assert await bodies_of(bookie, from_disk=True) == (Status.IO_ERROR, [])


async def test_nothing_is_served_before_it_is_durable():
    async with started_bookie(CACHED, DiskFaults(sync_s_max=60.0)) as (rig, bookie):
        await fill(rig, entries=1)
        late = add(bookie, 1, 1, BODY)
        await asyncio.sleep(0.1)
        assert not late.done()
        assert await bodies_of(bookie) == (Status.OK, [entry_bytes(1, 0, BODY)])
        waiting = asyncio.ensure_future(bookie.read(1, 1))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await late is Status.OK
        assert (await waiting).body == entry_bytes(1, 1, BODY)


async def test_nothing_of_a_deleted_ledger_is_served_or_kept():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig, ledger=1)
        await fill(rig, ledger=2, entries=2)
        held = bookie.storage.write_cache.bytes_held
        await bookie.delete_ledgers([1])
        assert await bodies_of(bookie) == (Status.NO_LEDGER, [])
        assert (await bookie.read(1, 0)).status is Status.NO_LEDGER
        assert len((await bodies_of(bookie, 2))[1]) == 2
        assert 0 < bookie.storage.write_cache.bytes_held < held / 2


async def test_an_add_in_one_group_with_the_deletion_of_its_ledger_is_not_kept():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig, entries=1)
        late = add(bookie, 1, 1, BODY)
        await bookie.delete_ledgers([1])
        await late
        assert await bodies_of(bookie, first=1) == (Status.NO_LEDGER, [])
        assert bookie.storage.write_cache.bytes_held == 0


async def test_a_failed_group_is_never_served():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig, entries=1)
        rig.disk.fail_next_sync = True
        assert await rig.add(1, 1, BODY) is Status.IO_ERROR
        assert (await bookie.read(1, 1)).status is Status.IO_ERROR
        assert await bodies_of(bookie, first=1) == (Status.IO_ERROR, [])
        assert (await bodies_of(bookie))[1] == [entry_bytes(1, 0, BODY)]


async def test_the_copy_that_repairs_an_entry_replaces_the_cached_one():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig, entries=1)
        damage(rig)
        assert await rig.add(1, 0, BODY, recovery=True) is Status.OK
        assert bookie.storage.write_cache.measure(1, 0, 0, 1 << 20) == 0
        assert await bodies_of(bookie) == (Status.OK, [entry_bytes(1, 0, BODY)])
        assert await bodies_of(bookie, from_disk=True) == (Status.OK, [entry_bytes(1, 0, BODY)])


async def test_the_oldest_group_leaves_first_and_is_read_from_disk():
    async with started_bookie(replace(SMALL, write_cache_bytes=4 * len(BODY))) as (rig, bookie):
        await fill(rig, entries=20)
        cache = bookie.storage.write_cache
        assert cache.bytes_held <= cache.bytes_max
        whole = [entry_bytes(1, entry, BODY) for entry in range(20)]
        assert (await bodies_of(bookie))[1] == whole
        assert cache.hits == 0
        damage(rig)
        assert (await bodies_of(bookie, first=19))[1] == whole[19:]
        assert cache.hits == 1


async def test_old_entries_that_compaction_moves_take_no_place_of_new_ones():
    async with started_bookie(replace(SMALL, write_cache_bytes=4 * len(BODY))) as (rig, bookie):
        await fill(rig, entries=40)
        cache = bookie.storage.write_cache
        await bookie.storage.checkpoint()
        await LogCleaner(bookie.storage).compact_file(1)
        assert bookie.storage.index.used_bytes(1) == 0
        assert cache.measure(1, 0, 0, 1 << 20) == 0
        assert cache.measure(1, 39, 39, 1 << 20) > len(BODY)
        assert len((await bodies_of(bookie, last=99))[1]) == 40


async def test_an_answer_that_waits_for_room_does_not_outlive_its_ledger():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig)
        room = Room()
        reading = asyncio.ensure_future(bookie.read_many(1, 0, 99, 1 << 20, room))
        one = asyncio.ensure_future(bookie.read(1, 0, room))
        await asyncio.sleep(0.1)
        await bookie.delete_ledgers([1])
        room.free.set()
        assert (await reading).status is (await one).status is Status.NO_LEDGER


async def test_an_answer_that_waits_for_room_keeps_nothing_in_memory():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig, entries=100)
        room = Room()
        tracemalloc.start()
        reads = [bookie.read_many(1, 0, 99, 1 << 20, room) for _ in range(50)]
        reads += [bookie.read(1, entry, room) for entry in range(50)]
        waiting = [asyncio.ensure_future(read) for read in reads]
        await asyncio.sleep(0.1)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        room.free.set()
        replies = await asyncio.gather(*waiting)
    assert [reply.status for reply in replies] == [Status.OK] * 100
    assert kept < 100 * len(BODY), "by 50 reads of 100 entries, and 50 of one"


async def test_what_is_evicted_while_its_answer_waits_for_room_is_read_from_disk():
    async with started_bookie(CACHED) as (rig, bookie):
        await fill(rig, entries=10)
        room = AnswerRoom(100_000, 60.0)
        assert await room.take(95_000)
        share, one = AnswerShare(room), AnswerShare(room)
        reading = asyncio.ensure_future(bookie.read_many(1, 2, 8, 1 << 20, share))
        single = asyncio.ensure_future(bookie.read(1, 5, one))
        await asyncio.sleep(0.1)
        cache = bookie.storage.write_cache
        cache.bytes_max = 0
        cache.end_group()
        await fill(rig, ledger=2, entries=1)
        room.give_back(95_000)
        reply = await reading
        assert [bytes(body) for body in reply.bodies] == [
            entry_bytes(1, entry, BODY) for entry in range(2, 9)
        ]
        assert (await single).body == entry_bytes(1, 5, BODY)
        assert share.size == sum(map(len, reply.bodies)), "taken once"
        assert one.size == len(entry_bytes(1, 5, BODY))


async def test_an_answer_has_a_bounded_number_of_entries_wherever_they_are():
    count = 2 * READ_ENTRIES_MAX + 100
    config = replace(CACHED, write_cache_bytes=1 << 24, index_batch_entries=3000)
    async with started_bookie(config) as (_, bookie):
        added = [add(bookie, 1, entry) for entry in range(count)]
        assert set(await asyncio.gather(*added)) == {Status.OK}
        assert bookie.storage.index.state(1).stored_last in range(3000 - 1, count - 1)
        for how in ({}, {"from_disk": True}):
            at, sizes = 0, []
            while at < count:
                status, bodies = await bodies_of(bookie, first=at, last=count, **how)
                assert status is Status.OK
                assert bodies == [entry_bytes(1, at + n, b"x") for n in range(len(bodies))]
                at += len(bodies)
                sizes.append(len(bodies))
            assert max(sizes) <= READ_ENTRIES_MAX
            assert len(sizes) <= 4


# -- what is counted -----------------------------------------------------------------------------


class Message(bytearray):
    """A message that can be watched."""


def put(cache, ledger, entry, message, start, size):
    cache.put(ledger, entry, (memoryview(message)[start : start + size],))


def test_a_body_counts_the_whole_message_that_it_keeps():
    cache = WriteCache(100_000)
    message = Message(50_000)
    put(cache, 1, 0, message, 0, 100)
    put(cache, 2, 0, message, 100, 100)
    cache.end_group()
    assert cache.bytes_held == 50_000 + 2 * ENTRY_BYTES
    put(cache, 1, 1, Message(70_000), 0, 100)
    cache.end_group()
    assert cache.bytes_held == 70_000 + ENTRY_BYTES
    assert cache.find(1, 0, 9, 1 << 20) == cache.find(2, 0, 9, 1 << 20) == []


def test_no_message_is_kept_by_a_small_part_of_it():
    cache = WriteCache(1 << 20)
    message = Message(50_000)
    put(cache, 1, 0, message, 0, 100)
    put(cache, 2, 0, message, 100, 30_000)
    cache.end_group()
    small, large = cache.find(1, 0, 0, 1 << 20), cache.find(2, 0, 0, 1 << 20)
    assert isinstance(large[0], memoryview) and large[0].obj is message
    alive = weakref.ref(message)
    cache.drop([1, 2])
    del message, large
    gc.collect()
    assert small == [bytes(100)]
    assert alive() is None
    assert cache.bytes_held == 0


def test_an_answer_keeps_at_most_twice_the_bytes_that_it_counts():
    draw = Random(7)
    for _ in range(200):
        cache = WriteCache(1 << 24)
        for entry in range(20):
            message = Message(draw.randrange(1_000, 20_000))
            put(cache, 1, entry, message, 0, len(message) // draw.randrange(1, 10))
        cache.end_group()
        found = cache.find(1, 0, 99, 1 << 20)
        size = sum(map(len, found))
        assert cache.measure(1, 0, 99, 1 << 20) == size
        assert pinned_bytes(found) <= 2 * size


def test_small_entries_take_no_more_memory_than_is_counted():
    cache = WriteCache(4 << 20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for group in range(400):
            for number in range(100):
                cache.put(1, group * 100 + number, (memoryview(bytes(100)),))
            cache.end_group()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 3 << 20 < cache.bytes_held <= 4 << 20
    assert taken < 1.25 * cache.bytes_held


def test_held_bytes_are_those_of_all_messages_whatever_is_put_dropped_and_evicted():
    draw = Random(3)
    cache = WriteCache(40_000)
    for step in range(2_000):
        for _ in range(draw.randrange(4)):
            message = Message(draw.randrange(1_000, 9_000))
            for at in range(draw.randrange(1, 4)):
                put(cache, draw.randrange(5), step, message, at * 100, 100)
        cache.end_group()
        if draw.random() < 0.1:
            cache.drop([draw.randrange(5)])
        assert 0 <= cache.bytes_held <= 40_000
    cache.drop(range(5))
    assert cache.bytes_held == 0
    assert all(cache.find(ledger, 0, 9, 1) == [] for ledger in range(5))
