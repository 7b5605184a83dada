"""Goal: rot that a reader meets reaches the list of those who mend, once, and outlives a lost call.

Method: the list over simulated metadata; the copy that rots is said, as a reader's health says it.
"""

import asyncio
from contextlib import asynccontextmanager

from ledger.ids import BookieId, EntryId, LedgerId
from ledger.repair.corruption_reports import CorruptionReporter
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataTree, SimMetadata

B1, B2 = BookieId("b1"), BookieId("b2")
SEVEN, EIGHT = LedgerId(7), LedgerId(8)


@asynccontextmanager
async def listed_reports():
    tree = MetadataTree()
    store = SimMetadata(tree)
    listed = UnderreplicatedLedgers(store, SimClock(), BookieId("test"))
    await listed.prepare()
    suspicions = CorruptionReporter(listed)
    try:
        yield tree, store, listed, suspicions
    finally:
        await suspicions.stop()


async def said(listed, ledger):
    return (await listed.note(ledger)).suspects


async def test_a_ledger_with_a_rotten_copy_is_marked_and_the_bookie_named():
    async with listed_reports() as (_tree, _store, listed, suspicions):
        suspicions.on_corrupt(B1, SEVEN, EntryId(3))
        suspicions.on_corrupt(B2, EIGHT, EntryId(0))
        await asyncio.sleep(1)
        assert await listed.ledgers() == [SEVEN, EIGHT]
        assert await said(listed, SEVEN) == {B1}
        assert await said(listed, EIGHT) == {B2}


async def test_many_rotten_entries_of_one_copy_are_told_once():
    async with listed_reports() as (tree, _store, _listed, suspicions):
        changes = []
        tree.on_set = lambda path, data, version: changes.append(path)
        for entry in range(100):
            suspicions.on_corrupt(B1, SEVEN, EntryId(entry))
        await asyncio.sleep(1)
        told = len(changes)
        for entry in range(100):
            suspicions.on_corrupt(B1, SEVEN, EntryId(entry))
        await asyncio.sleep(1)
        assert 0 < told == len(changes)


async def test_what_could_not_be_stored_is_stored_later():
    async with listed_reports() as (_tree, store, listed, suspicions):
        store.expire()
        suspicions.on_corrupt(B1, SEVEN, EntryId(3))
        await asyncio.sleep(5)
        assert await listed.ledgers() == [SEVEN]
        assert await said(listed, SEVEN) == {B1}
