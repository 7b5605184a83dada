"""Goal: a list of a ledger's entries is whole, and costs steps and memory by rows of the index, not
by entries. Many callers of one ledger cost one list, and a list whose caller has gone ends.

Method: a bookie over the simulated table, whose reads and steps are counted. Rows are written to
the table, as millions of adds would leave them.
"""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from contextlib import contextmanager
from random import Random

import pytest

from ledger.bookie import entry_index
from ledger.bookie.control_calls import ControlCalls
from ledger.bookie.entry_lister import EntryLister
from ledger.core.extents import EntryLocation, Extent, encode_extent
from ledger.ports.bookies import Status
from ledger.wire import bookie_pb2 as pb
from tests.ledger.bookie_rig import KEY, SMALL, add, started_bookie
from tests.sim.disk import DiskFaults

ROW_ENTRIES = 1024
ROWS = 2_000
ENTRIES = ROWS * ROW_ENTRIES


def fill(bookie, rig, *, ledger=7, rows=ROWS, entries=ROW_ENTRIES, gap=0):
    """Store rows, each with this number of entries; `gap` entries between two rows are missing."""
    offsets, lengths = tuple(range(0, 60 * entries, 60)), (36,) * entries
    puts = []
    for row in range(rows):
        first = row * (entries + gap)
        key = entry_index._ENTRY_KEY.pack(b"e", ledger, first)
        puts.append((key, encode_extent(Extent(first, 1, 4096, offsets, lengths))))
    rig.table.write(puts)
    state = bookie.storage.index.create(ledger, KEY)
    state.stored_last = state.last_entry = first + entries - 1
    return state


class Scans:
    """The rows that were read from the table, and the number of reads."""

    def __init__(self, monkeypatch, table):
        self.rows = self.count = 0
        self.rows_max = 0
        scan = table.scan

        def counted(*asked):
            found = scan(*asked)
            self.count += 1
            self.rows += len(found)
            self.rows_max = max(self.rows_max, len(found))
            return found

        monkeypatch.setattr(table, "scan", counted)


@contextmanager
def counted_calls(counts):
    """Count the calls of functions, in Python and in C, and each step of a generator."""

    def on_event(frame, event, argument):
        if event in ("call", "c_call"):
            counts.append(1)

    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(None)


async def test_two_million_entries_are_listed_in_steps_and_memory_of_their_rows(monkeypatch):
    async with started_bookie() as (rig, bookie):
        fill(bookie, rig)
        scans = Scans(monkeypatch, rig.table)
        calls = []
        tracemalloc.start()
        try:
            await bookie.list_entries(6)  # of no ledger: what was never imported is now
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            reply = await bookie.list_entries(7)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        with counted_calls(calls):
            assert await bookie.list_entries(7) == reply
    assert reply == (Status.OK, ((0, ENTRIES - 1),))
    assert len(calls) < 20 * ROWS < ENTRIES / 50
    assert peak < ENTRIES / 4
    assert scans.rows <= 2 * (ROWS + scans.count)
    assert scans.rows_max <= 1024, "rows in one turn of the loop"


@pytest.mark.parametrize("seed", range(20))
async def test_what_the_index_lacks_and_what_moves_there_is_listed_once_and_in_order(seed):
    draw = Random(seed)
    async with started_bookie(faults=DiskFaults(sync_s_max=0.01)) as (rig, bookie):
        fill(bookie, rig, rows=1500, entries=3, gap=2)
        known = {row * 5 + at for row in range(1500) for at in range(3)}
        for entry in set(draw.sample(range(8000), 3)) - known:
            await rig.add(7, entry)
            known.add(entry)
        adding = [add(bookie, 7, entry) for entry in draw.sample(range(8000, 9000), 20)]
        reply = await bookie.list_entries(7)
        await asyncio.gather(*adding)
        later = await bookie.list_entries(7)
    listed = [entry for first, last in reply.runs for entry in range(first, last + 1)]
    assert listed == sorted(set(listed)), "rising, none twice"
    assert known <= set(listed)
    assert all(a[1] + 1 < b[0] for a, b in zip(reply.runs, reply.runs[1:], strict=False))
    assert sum(last - first + 1 for first, last in later.runs) == len(known) + 20


async def test_entries_that_compaction_moves_during_a_list_stay_in_it():
    async with started_bookie() as (rig, bookie):
        state = fill(bookie, rig)
        index = bookie.storage.index
        listing = asyncio.ensure_future(bookie.list_entries(7))
        moved = 0
        while not listing.done():
            for entry in range(moved, moved + 300, 7):
                index.put(state, entry * 500, EntryLocation(2, 4096 + 60 * entry, 36))
            index.write_batch(bookie.storage.journal.end)
            moved += 300
            await asyncio.sleep(0)
        assert moved > 900
        assert (await listing).runs == ((0, ENTRIES - 1),)


async def test_a_list_whose_caller_has_gone_ends(monkeypatch):
    async with started_bookie() as (rig, bookie):
        fill(bookie, rig)
        scans = Scans(monkeypatch, rig.table)
        listing = asyncio.ensure_future(bookie.list_entries(7))
        while not scans.count:
            await asyncio.sleep(0)
        listing.cancel()
        await asyncio.sleep(1)
        assert scans.rows < ROWS / 2
        assert bookie._reader._lister._newest == {}


async def test_callers_who_ask_again_cost_one_list_and_all_are_answered(monkeypatch):
    async with started_bookie() as (rig, bookie):
        fill(bookie, rig)
        scans = Scans(monkeypatch, rig.table)
        asked = []
        for _ in range(50):
            asked.append(asyncio.ensure_future(bookie.list_entries(7)))
            await asyncio.sleep(0)
        fill(bookie, rig, ledger=8, rows=3)
        other = bookie.list_entries(8)
        replies = await asyncio.gather(*asked)
        assert (await other).runs == ((0, 3 * ROW_ENTRIES - 1),)
    assert {reply.runs for reply in replies} == {((0, ENTRIES - 1),)}
    assert scans.rows < 2 * ROWS + 50 * 512


@pytest.mark.parametrize("gone", [{3}, {1, 3}, {0, 2, 3}])
async def test_callers_go_on_when_the_newest_one_has_gone(gone):
    async with started_bookie() as (rig, bookie):
        fill(bookie, rig)
        asked = []
        for _ in range(4):
            asked.append(asyncio.ensure_future(bookie.list_entries(7)))
            await asyncio.sleep(0)
        for number in gone:
            asked[number].cancel()
        left = [task for number, task in enumerate(asked) if number not in gone]
        async with asyncio.timeout(10):
            replies = await asyncio.gather(*left)
        assert {reply.runs for reply in replies} == {((0, ENTRIES - 1),)}
        assert bookie._reader._lister._newest == {}


async def test_an_entry_that_is_durable_when_an_older_list_runs_is_in_the_newer_one():
    async with started_bookie() as (rig, bookie):
        fill(bookie, rig)
        older = asyncio.ensure_future(bookie.list_entries(7))
        await asyncio.sleep(0)
        assert await rig.add(7, ENTRIES + 5) is Status.OK
        runs = ((0, ENTRIES - 1), (ENTRIES + 5, ENTRIES + 5))
        assert (await bookie.list_entries(7)).runs == runs
        assert (await older).status is Status.OK


async def test_a_damaged_row_is_an_error_for_every_caller():
    async with started_bookie() as (rig, bookie):
        fill(bookie, rig)
        key = entry_index._ENTRY_KEY.pack(b"e", 7, ENTRIES - ROW_ENTRIES)
        rig.table.write([(key, b"damaged")])
        asked = [asyncio.ensure_future(bookie.list_entries(7)) for _ in range(3)]
        replies = await asyncio.gather(*asked)
    assert [reply.status for reply in replies] == [Status.IO_ERROR] * 3


async def test_a_list_of_many_ranges_leaves_the_loop_to_others():
    """A bookie of a striped ledger has two of three entries, a range each."""
    rows = 30_000
    async with started_bookie(SMALL) as (rig, bookie):
        fill(bookie, rig, rows=rows, entries=2, gap=1)
        call = ControlCalls(bookie, asyncio.Semaphore()).by_name()["ListEntries"]
        request = pb.LedgerRequest(bookie=bookie.bookie_id, ledger=7)
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        lister = EntryLister(bookie.storage.index)
        counting = asyncio.ensure_future(count_turns())
        await lister.runs_of(bookie.storage.index.state(7))
        listing, turns = turns, 0
        reply = pb.EntriesReply.FromString(await call(request.SerializeToString()))
        counting.cancel()
    assert list(reply.runs) == [0, 2, *[1, 2] * (rows - 1)]
    assert turns - listing >= rows // 4096, "its encoding pauses too"
