"""Goal: repair and a live writer do not hurt each other; an open last fragment is fenced first.

Method: real writer and real worker on one simulated cluster.
"""

import asyncio
from contextlib import asynccontextmanager

from ledger.errors import Fenced, LedgerClosed
from ledger.repair.replication_worker import RepairStatus
from tests.repair.rig import Rig, mend


@asynccontextmanager
async def new_rig(**how):
    yield Rig(**how)


async def add(told, first, last):
    before = len(told.news)
    for number in range(first, last + 1):
        await told.writer.room()
        told.add(b"entry ", b"%d" % number)
    await told.wait(before + last + 1 - first)
    assert not any(error for _, error in told.news)


async def test_the_writer_goes_on_while_its_earlier_fragment_is_mended_and_both_changes_stand():
    async with new_rig(bookies=7) as rig:
        writer, told = await rig.ledger(5, close=False)
        ledger = writer.metadata.ledger
        first_lost = writer.metadata.last_fragment.ensemble[0]
        rig.lose(first_lost)
        await add(told, 5, 9)
        await asyncio.sleep(5)
        await add(told, 10, 10)  # the writer has replaced it: a second fragment
        await asyncio.sleep(5)
        assert len(rig.metadata(ledger).fragments) == 2
        await rig.underreplicated.mark(ledger, [first_lost])
        await mend(rig.worker())
        assert all(first_lost not in one.ensemble for one in rig.metadata(ledger).fragments)
        second_lost = rig.metadata(ledger).last_fragment.ensemble[1]
        rig.lose(second_lost)
        await add(told, 11, 14)  # its compare-and-set meets the repaired metadata
        await asyncio.sleep(5)
        await writer.close()
        await rig.underreplicated.mark(ledger, [second_lost])
        await mend(rig.worker())
        assert rig.metadata(ledger).last_entry == 14
        assert rig.faults(ledger) == []
        assert await rig.marked() == []


async def test_an_open_last_fragment_is_not_touched_within_the_grace_period():
    async with new_rig() as rig:
        writer, _ = await rig.ledger(5, close=False)
        ledger, before = writer.metadata.ledger, writer.metadata
        lost = before.last_fragment.ensemble[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        worker = rig.worker(grace_s=30.0)
        outcome = (await mend(worker))[ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        assert outcome.retry_s == 30.0
        await asyncio.sleep(29)
        await mend(worker)
        assert rig.metadata(ledger) == before
        assert not rig.outside(ledger) or all(
            not rig.bookie(name).durable_entries(ledger) for name in rig.outside(ledger)
        )


async def test_after_the_grace_period_the_ledger_is_fenced_closed_and_then_mended():
    async with new_rig() as rig:
        writer, told = await rig.ledger(5, close=False)
        ledger = writer.metadata.ledger
        lost = writer.metadata.last_fragment.ensemble[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        worker = rig.worker(grace_s=30.0)
        working = asyncio.create_task(worker.run())
        await asyncio.sleep(40)
        assert rig.metadata(ledger).last_entry == 4
        assert rig.faults(ledger) == []
        assert await rig.marked() == []
        assert worker.progress.fences == 1
        told.add(b"late")
        await told.wait(6)
        assert isinstance(told.news[5][1], Fenced | LedgerClosed)
        working.cancel()


async def test_a_writer_that_replaces_the_bookie_itself_is_not_fenced():
    async with new_rig(bookies=5) as rig:
        writer, told = await rig.ledger(5, close=False)
        ledger = writer.metadata.ledger
        lost = writer.metadata.last_fragment.ensemble[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        working = asyncio.create_task(rig.worker(grace_s=30.0).run())
        await asyncio.sleep(10)
        await add(told, 5, 9)
        await asyncio.sleep(100)
        assert await rig.marked() == []
        await add(told, 10, 12)
        await writer.close()
        assert rig.metadata(ledger).last_entry == 12
        assert rig.faults(ledger) == []
        working.cancel()


async def test_a_writer_is_not_fenced_while_no_other_bookie_could_take_the_place():
    async with new_rig(bookies=3) as rig:
        writer, told = await rig.ledger(5, close=False)
        ledger = writer.metadata.ledger
        lost = writer.metadata.last_fragment.ensemble[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        worker = rig.worker(grace_s=5.0)
        working = asyncio.create_task(worker.run())
        await asyncio.sleep(600)
        await add(told, 5, 9)
        assert worker.progress.fences == 0
        assert await rig.marked() == [ledger]
        rig.bookie(lost).restart()
        worker.on_bookies_changed()
        await asyncio.sleep(10)
        await writer.close()
        worker.on_bookies_changed()
        await asyncio.sleep(10)
        assert rig.faults(ledger) == []
        assert await rig.marked() == []
        working.cancel()


async def test_what_a_returned_bookie_lacks_of_the_open_fragment_keeps_the_mark_until_it_closes():
    async with new_rig() as rig:
        writer, told = await rig.ledger(5, close=False)
        ledger = writer.metadata.ledger
        name = writer.metadata.last_fragment.ensemble[0]
        rig.forget(name, ledger, 1)
        await rig.underreplicated.mark(ledger, [name])
        worker = rig.worker()
        outcome = (await mend(worker))[ledger]
        assert outcome.reasons == ("copies are missing in the open last fragment",)
        assert rig.metadata(ledger) == writer.metadata
        await writer.close()
        await mend(worker)
        assert rig.faults(ledger) == []
        assert await rig.marked() == []
        assert told.errors.count(type(None)) == 5


async def test_copies_on_their_way_to_a_slow_bookie_do_not_keep_a_busy_ledger_marked():
    async with new_rig() as rig:
        writer, told = await rig.ledger(3, close=False)
        ledger, name = writer.metadata.ledger, writer.metadata.last_fragment.ensemble[0]
        rig.world.network.slow[("writer", name)] = 15.0  # tens of milliseconds behind the others

        async def keep_adding():
            while True:
                await add(told, told.writer.lap + 1, told.writer.lap + 1)

        adding = asyncio.create_task(keep_adding())
        await asyncio.sleep(5)
        await rig.underreplicated.mark(ledger, [name])
        outcome = (await mend(rig.worker(settle_s=0.5)))[ledger]
        assert outcome.result is RepairStatus.REPAIRED
        assert rig.metadata(ledger) == writer.metadata
        assert not adding.done()
        adding.cancel()


async def test_an_open_ledger_in_limbo_is_recovered_filled_and_let_out_of_limbo():
    async with new_rig(bookies=3) as rig:
        writer, _ = await rig.ledger(5, close=False)
        ledger = writer.metadata.ledger
        name = writer.metadata.last_fragment.ensemble[0]
        rig.forget(name, ledger, 3)
        rig.bookie(name).begin_limbo(ledger + 1)
        await rig.underreplicated.mark(ledger, [name])
        working = asyncio.create_task(rig.worker(grace_s=5.0).run())
        await asyncio.sleep(30)
        assert rig.metadata(ledger).last_entry == 4
        assert rig.faults(ledger) == []
        assert not rig.bookie(name).ledgers[ledger].limbo
        assert await rig.marked() == []
        working.cancel()
