"""Goal: a ledger that is read in order from disk is announced to the disk ahead of its reader,
never past what is durable. Method: a bookie over the simulated disk that records announcements.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import SMALL, Room, started_bookie
from tests.sim.bookie_world import entry_bytes
from tests.sim.disk import SimLogFile

AHEAD = 20_000
CONFIG = replace(SMALL, read_ahead_bytes=AHEAD)
BODY = bytes(3000)
ENTRIES = 60


async def filled(rig, monkeypatch):
    """Write two ledgers, one beside the other. Return the list of announcements to come."""
    for entry in range(ENTRIES):
        for ledger in (1, 2):
            assert await rig.add(ledger, entry, BODY) is Status.OK
    announced = []
    monkeypatch.setattr(
        SimLogFile,
        "expect_reads",
        lambda file, position, size: announced.append((file, position, position + size)),
    )
    return announced


async def read(bookie, first, ledger=1):
    reply = await bookie.read_many(ledger, first, ENTRIES, 2 * len(BODY) + 100)
    return first + len(reply.bodies)


async def test_what_follows_in_the_log_is_announced_to_a_reader_in_order(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        at = await read(bookie, 0)
        assert announced == [], "one read is no order"
        at = await read(bookie, at)
        assert len(announced) == 1
        while at < ENTRIES:
            at = await read(bookie, at)
        for file in {file for file, _, _ in announced}:
            spans = [(begin, end) for of, begin, end in announced if of is file]
            assert all(end - begin <= 2 * AHEAD for begin, end in spans)
            assert all(before[1] <= after[0] for before, after in pairwise(spans))
        covered = sum(end - begin for _, begin, end in announced)
        assert covered > ENTRIES * len(BODY), "most of the log, each byte once"


async def test_readers_of_neighbouring_ledgers_announce_each_byte_once(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        at = dict.fromkeys((1, 2), 0)
        while min(at.values()) < ENTRIES:
            for ledger, first in at.items():
                at[ledger] = await read(bookie, first, ledger)
        for file in {file for file, _, _ in announced}:
            spans = sorted((begin, end) for of, begin, end in announced if of is file)
            assert all(before[1] <= after[0] for before, after in pairwise(spans))
        covered = sum(end - begin for _, begin, end in announced)
        assert covered > 2 * ENTRIES * len(BODY) * 3 // 4


async def test_a_reader_a_little_behind_another_one_announces_what_lies_between(monkeypatch):
    async with started_bookie(replace(CONFIG, file_bytes=1 << 20)) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        for ledger, begins in ((1, 6), (2, 4)):
            at = await read(bookie, begins, ledger)
            await read(bookie, at, ledger)
        index = bookie.storage.index
        (place,) = index.extents(index.state(2), 6, 6, 1)
        assert any(begin <= place.position < end for _, begin, end in announced)


async def test_a_later_reader_announces_what_the_page_cache_may_have_lost(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        covered = []
        for ledger in (1, 2):
            announced.clear()
            at = 0
            while at < ENTRIES:
                at = await read(bookie, at, ledger)
            covered.append(sum(end - begin for _, begin, end in announced))
            await asyncio.sleep(3600)
        assert covered[1] > covered[0] * 9 // 10


async def test_a_reader_that_jumps_announces_nothing(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        for first in (40, 3, 30, 7, 50, 0):
            await read(bookie, first)
        assert announced == []


async def test_nothing_is_announced_past_the_durable_end(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        at = ENTRIES - 8
        while at < ENTRIES:
            at = await read(bookie, at)
        last = bookie.storage.journal.end
        assert announced
        assert all(end <= last.position for _, _, end in announced)


async def test_reads_that_check_copies_announce_nothing(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        for first in range(0, 40, 2):
            await bookie.read_many(1, first, first + 1, 1 << 20, from_disk=True)
        assert announced == []


async def test_a_file_that_compaction_deletes_before_it_is_announced_ends_no_read(monkeypatch):
    async with started_bookie(CONFIG) as (rig, bookie):
        await filled(rig, monkeypatch)
        at = await read(bookie, 0)
        room, cleaner = Room(), LogCleaner(bookie.storage)
        reading = asyncio.ensure_future(bookie.read_many(1, at, at, 1 << 20, room))
        await asyncio.sleep(0.1)
        await bookie.storage.checkpoint()
        await cleaner.compact_file(1)
        await cleaner.delete_files([1])
        room.free.set()
        reply = await reading
        assert reply.status is Status.OK
        assert [bytes(body) for body in reply.bodies] == [entry_bytes(1, at, BODY)]


async def test_a_file_that_is_deleted_before_it_is_announced_leaves_the_entries_of_others(
    monkeypatch,
):
    async with started_bookie(CONFIG) as (rig, bookie):
        await filled(rig, monkeypatch)
        index = bookie.storage.index
        await bookie.storage.checkpoint()
        places = index.extents(index.state(1), 0, ENTRIES, 1 << 20)
        of_second_file = next(extent for extent in places if extent.file_id == 2)
        first = of_second_file.first - 1
        await read(bookie, first - 2)
        room, cleaner = Room(), LogCleaner(bookie.storage)
        reading = asyncio.ensure_future(bookie.read_many(1, first, first + 1, 1 << 20, room))
        await asyncio.sleep(0.1)
        await cleaner.compact_file(2)
        await cleaner.delete_files([2])
        room.free.set()
        reply = await reading
        assert reply.status is Status.OK
        assert bytes(reply.bodies[0]) == entry_bytes(1, first, BODY)


async def test_much_is_announced_in_pieces_that_the_system_does_not_cut_short(monkeypatch):
    config = replace(CONFIG, file_bytes=1 << 24, read_ahead_bytes=5 << 19)
    large = bytes(1 << 18)
    async with started_bookie(config) as (rig, bookie):
        announced = await filled(rig, monkeypatch)
        for entry in range(ENTRIES, ENTRIES + 20):
            assert await rig.add(1, entry, large) is Status.OK
        for first in (ENTRIES, ENTRIES + 1):
            await bookie.read_many(1, first, first, 1 << 20)
        sizes = [end - begin for _, begin, end in announced]
        assert sum(sizes) > 5 << 19
        assert len(sizes) == 3
        assert max(sizes) <= 1 << 20
        assert all(before[2] == after[1] for before, after in pairwise(announced))
