"""Goal: what a bookie reports about itself is exact, and costs the same however much it holds.

Method: random lives of a bookie on simulated ground; its report is compared with its ledgers and
files after each step. Reads of the table and lists of the directory are counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from ledger.bookie.gc.collector import collect
from ledger.core.journal_format import parse_file_name
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import KEY, OTHER_KEY, SMALL, Rig, started_bookie
from tests.sim.disk import FULL_IN_A_SYNC

HASTY = replace(SMALL, ledgers_in_memory_max=2, index_batch_entries=2)


async def assert_exact(rig):
    bookie = rig.bookie
    stats = await bookie.stats()
    files = [name for name in rig.disk.names() if parse_file_name(name) is not None]
    assert stats.status is Status.OK
    assert stats.ledgers == len(bookie.ledgers())
    assert stats.free_bytes == rig.disk.free_bytes()
    assert stats.disk_bytes == len(files) * rig.config.file_bytes + stats.free_bytes


async def step(rig, draw):
    bookie, ledger = rig.bookie, draw.randrange(12)
    chance = draw.random()
    if chance < 0.5:
        await rig.add(ledger, draw.randrange(1_000), bytes(draw.choice([10, 4_000])))
    elif chance < 0.6:
        await rig.add(ledger, 0, key=OTHER_KEY)
    elif chance < 0.7:
        await bookie.fence(ledger, KEY)
    elif chance < 0.8:
        await bookie.delete_ledgers([ledger, ledger])
    elif chance < 0.85:
        kept = draw.sample(range(12), 8)

        async def listed():
            return kept

        await collect(bookie, listed, compaction_threshold=draw.choice([0.0, 0.9]))
    elif chance < 0.9:
        await bookie.storage.journal.roll()
    elif chance < 0.95:
        await bookie.storage.checkpoint()
    else:
        await draw.choice([rig.restart, rig.kill])()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("config", [SMALL, HASTY], ids=["roomy", "hasty"])
async def test_the_report_is_exact_after_each_step_of_a_life(config, seed):
    draw = Random(seed)
    rig = Rig(config)
    await rig.start()
    for _ in range(80):
        await step(rig, draw)
        await assert_exact(rig)


async def test_a_further_report_reads_neither_the_table_nor_the_directory():
    async with started_bookie() as (rig, bookie):
        for ledger in range(40):
            await rig.add(ledger, 0)
        await assert_exact(rig)
        scans, lists = [], []
        scan, names = rig.table.scan, rig.disk.names

        def scanned(*given):
            scans.append(given)
            return scan(*given)

        def listed():
            lists.append(1)
            return names()

        rig.table.scan, rig.disk.names = scanned, listed
        for _ in range(5):
            assert (await bookie.stats()).ledgers == 40
        assert (scans, lists) == ([], [])
        await rig.add(99, 0)
        assert (await bookie.stats()).ledgers == 41
        await bookie.delete_ledgers([99, 3])
        assert (await bookie.stats()).ledgers == 39
        assert scans == []
        await bookie.storage.journal.roll()
        await bookie.stats()
        assert len(lists) == 1


async def test_a_file_that_a_full_disk_refused_is_not_counted_any_more():
    async with started_bookie() as (rig, bookie):
        for ledger in range(3):
            await rig.add(ledger, 0)
        await bookie.storage.journal.roll()
        await bookie.delete_ledgers([0, 1, 2])
        await assert_exact(rig)
        rig.disk.accidents.append(FULL_IN_A_SYNC)
        rolling = asyncio.ensure_future(bookie.storage.journal.roll())
        files = len(rig.disk.names())
        while len(rig.disk.names()) == files:
            await asyncio.sleep(0)
        bookie.storage.index.drop_file(0)  # as the garbage collector does meanwhile
        await assert_exact(rig)
        with pytest.raises(OSError, match="sync failed"):
            await rolling
        await assert_exact(rig)
