"""Goal: an entry that is gone is said to be gone; nothing is deleted, closed over or made up.

Method: copies vanish from model bookies; the worker tries; metadata, list and note are looked at.
"""

import asyncio
from contextlib import asynccontextmanager

from ledger.repair.entry_ranges import ranges_of
from ledger.repair.replication_worker import RepairStatus
from tests.repair.rig import Rig, mend


@asynccontextmanager
async def new_rig(**how):
    yield Rig(**how)


async def with_entry_3_gone(rig):
    """A closed ledger of which no bookie holds entry 3 any more."""
    ledger = await rig.ledger(6)
    for name in rig.members(ledger):
        rig.forget(name, ledger, 3)
    await rig.underreplicated.mark(ledger, [])
    return ledger


async def test_a_lost_entry_is_noted_and_its_ledger_stays_marked_and_as_it_is():
    async with new_rig() as rig:
        ledger = await with_entry_3_gone(rig)
        before = rig.metadata(ledger)
        outcome = (await mend(rig.worker()))[ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        assert "lost: entries 3 are missing" in outcome.reasons[0]
        assert (await rig.underreplicated.note(ledger)).lost == ranges_of([3])
        assert await rig.marked() == [ledger]
        assert rig.metadata(ledger) == before
        for name in rig.members(ledger):
            assert sorted(rig.bookie(name).durable_entries(ledger)) == [0, 1, 2, 4, 5]


async def test_a_copy_that_turns_up_again_ends_the_loss():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        keeper = rig.members(ledger)[0]
        kept = rig.bookie(keeper).durable_entries(ledger)[3]
        for name in rig.members(ledger):
            rig.forget(name, ledger, 3)
        await rig.underreplicated.mark(ledger, [])
        worker = rig.worker()
        await mend(worker)
        rig.bookie(keeper).ledgers[ledger].entries[3] = kept
        await mend(worker)
        assert rig.faults(ledger) == []
        assert await rig.marked() == []
        assert (await rig.underreplicated.note(ledger)).lost == ()


async def test_other_copies_of_a_ledger_with_a_lost_entry_are_mended_where_they_belong():
    async with new_rig() as rig:
        ledger = await with_entry_3_gone(rig)
        name = rig.members(ledger)[1]
        rig.forget(name, ledger, 0, 1)
        await mend(rig.worker())
        assert sorted(rig.bookie(name).durable_entries(ledger)) == [0, 1, 2, 4, 5]


async def test_a_lost_bookie_keeps_its_place_where_its_share_has_a_lost_entry():
    async with new_rig() as rig:
        ledger = await with_entry_3_gone(rig)
        before = rig.metadata(ledger)
        rig.lose(rig.members(ledger)[0])
        await rig.underreplicated.mark(ledger, [rig.members(ledger)[0]])
        await mend(rig.worker())
        assert rig.metadata(ledger) == before


async def test_an_entry_whose_only_holder_is_away_is_not_lost_and_comes_back_with_it():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        keeper, other, third = rig.members(ledger)
        rig.forget(other, ledger, 3)
        rig.forget(third, ledger, 3)
        rig.world.network.cut("worker", keeper)
        await rig.underreplicated.mark(ledger, [other])
        worker = rig.worker()
        outcome = (await mend(worker))[ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        assert (await rig.underreplicated.note(ledger)).unreadable == ranges_of([3])
        rig.world.network.heal()
        await mend(worker)
        assert rig.faults(ledger) == []
        assert await rig.marked() == []


async def test_two_denials_of_three_are_no_loss_while_one_is_away_and_heal_when_it_returns():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        keeper, other, third = rig.members(ledger)
        rig.forget(other, ledger, 3)
        rig.forget(third, ledger, 3)
        rig.lose(keeper)
        await rig.underreplicated.mark(ledger, [keeper])
        worker = rig.worker()
        await mend(worker)
        note = await rig.underreplicated.note(ledger)
        assert (note.lost, note.unreadable) == ((), ranges_of([3]))
        assert keeper in rig.members(ledger)
        rig.bookie(keeper).restart()
        await mend(worker)
        assert rig.faults(ledger) == []


async def test_bookies_that_answer_nothing_make_nothing_lost():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        before = rig.metadata(ledger)
        for name in rig.members(ledger):
            rig.world.network.cut("worker", name)
        await rig.underreplicated.mark(ledger, [])
        outcome = (await mend(rig.worker()))[ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        assert (await rig.underreplicated.note(ledger)).lost == ()
        assert rig.metadata(ledger) == before


async def test_a_sole_copy_in_limbo_is_read_from_there_and_spread():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        keeper, other, third = rig.members(ledger)
        rig.forget(other, ledger, 3)
        rig.forget(third, ledger, 3)
        rig.bookie(keeper).begin_limbo(ledger + 1)
        await rig.underreplicated.mark(ledger, [])
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert await rig.marked() == []


async def test_an_entry_that_only_a_limbo_bookie_may_have_had_keeps_the_limbo():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        names = rig.members(ledger)
        for name in names:
            rig.forget(name, ledger, 3)
        rig.bookie(names[0]).begin_limbo(ledger + 1)
        rig.lose(names[1])
        await rig.underreplicated.mark(ledger, [])
        worker = rig.worker()
        await mend(worker)
        await asyncio.sleep(0)
        assert rig.bookie(names[0]).ledgers[ledger].limbo
        assert (await rig.underreplicated.note(ledger)).lost == ()
        assert (await rig.underreplicated.note(ledger)).unreadable == ranges_of([3])
