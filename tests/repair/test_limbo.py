"""Goal: the ledgers of a bookie in limbo, closed ones too, are repaired soon, whoever saw it come.

Method: as test_auditor.py. The daily full check was just made, so nothing here waits for it. An old
directory is a copy of a model bookie's disk that is put back.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from ledger.registry.limbo_bookies import LIMBO, announce_limbo, announced_limbo, settle_limbo
from tests.ledger.calm_cluster import expected, payloads
from tests.ledger.reader_rig import reader_of
from tests.repair.rig import Rig

ENTRIES = 4
SOON_S = 5


async def back_from_an_old_directory(rig, name, kept=None):
    """As a node starts: what may be lost is in limbo, announced, and only then registered."""
    bookie = rig.bookie(name)
    if kept is None:
        bookie.wipe()
    else:
        bookie.put_back(kept)
    bookie.begin_limbo(rig.next_ledger)
    await announce_limbo(rig.session(f"{name} itself"), name)
    bookie.restart()


@asynccontextmanager
async def checked_cluster(ledgers=3):
    """A rig with closed ledgers of four bookies, just after a full check."""
    rig = Rig()
    made = [await rig.ledger(ENTRIES) for _ in range(ledgers)]
    rig.next_ledger = max(made) + 1
    await rig.auditor("first").full_check()
    assert await rig.marked() == []
    yield rig, made


@asynccontextmanager
async def running(rig, auditor, worker=None):
    """An elected auditor, woken as a process wakes it, and maybe a worker."""

    async def poll():
        known = None
        while True:
            now = auditor._bookies.registered()
            if now != known:
                auditor.on_bookies_changed()
            known = now
            await asyncio.sleep(0.1)

    unwatch = auditor._store.watch(LIMBO, auditor.on_bookies_changed)
    tasks = [asyncio.create_task(auditor.run()), asyncio.create_task(poll())]
    if worker is not None:
        tasks.append(asyncio.create_task(worker.run()))
    await asyncio.sleep(1)
    yield
    unwatch()
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def named_by(rig, ledgers, name):
    return [one for one in ledgers if name in rig.members(one)]


async def test_an_auditor_that_comes_after_the_bookie_finds_its_closed_ledgers():
    async with checked_cluster() as (rig, ledgers):
        await back_from_an_old_directory(rig, "b1")
        auditor = rig.auditor("second")
        async with running(rig, auditor):
            await asyncio.sleep(SOON_S)
            assert await rig.marked() == named_by(rig, ledgers, "b1") != []
            assert await announced_limbo(rig.session("test")) == {}, "it is not examined again"


async def test_a_start_between_two_looks_of_the_auditor_is_noticed():
    async with checked_cluster() as (rig, ledgers):
        auditor = rig.auditor("second")
        async with running(rig, auditor):
            await back_from_an_old_directory(rig, "b1")  # within one look at the registry
            await asyncio.sleep(SOON_S)
            assert await rig.marked() == named_by(rig, ledgers, "b1") != []


async def test_a_bookie_that_does_not_list_its_entries_is_asked_until_it_does():
    async with checked_cluster() as (rig, ledgers):
        rig.world.network.cut("second", "b1")
        await back_from_an_old_directory(rig, "b1")
        auditor = rig.auditor("second")
        async with running(rig, auditor):
            await asyncio.sleep(SOON_S)
            assert await rig.marked() == []
            assert list(await announced_limbo(rig.session("test"))) == ["b1"]
            rig.world.network.heal()
            await asyncio.sleep(100)
            assert await rig.marked() == named_by(rig, ledgers, "b1")
            auditor.on_bookies_changed()
            await asyncio.sleep(1)
            assert await announced_limbo(rig.session("test")) == {}


async def test_an_auditor_that_dies_amid_its_work_leaves_the_request_to_the_next():
    async with checked_cluster() as (rig, ledgers):
        await back_from_an_old_directory(rig, "b1")
        dying = asyncio.create_task(rig.auditor("second").run())
        async with asyncio.timeout(60):
            while not await rig.marked():
                await asyncio.sleep(0.0005)
        dying.cancel()
        for ledger in await rig.marked():
            await rig.underreplicated.mark_replicated(await rig.underreplicated.get(ledger))
        async with running(rig, rig.auditor("third")):
            await asyncio.sleep(SOON_S)
            assert await rig.marked() == named_by(rig, ledgers, "b1")


async def test_a_request_that_was_renewed_meanwhile_is_not_settled():
    rig = Rig()
    store = rig.session("bookie")
    await announce_limbo(store, "b1")
    ((bookie, version),) = (await announced_limbo(store)).items()
    await announce_limbo(store, "b1")
    await settle_limbo(store, bookie, version)
    assert list(await announced_limbo(store)) == ["b1"]
    await settle_limbo(store, bookie, version + 1)
    await settle_limbo(store, bookie, version + 1)
    assert await announced_limbo(store) == {}


@pytest.mark.parametrize("directory", ["empty", "of before the last ledger", "of before the rest"])
async def test_an_old_directory_serves_what_it_has_and_its_limbo_ends_per_ledger(directory):
    """A reader meets no false "no such entry", before, during and after the repair."""
    rig = Rig(bookies=3)
    first = await rig.ledger(ENTRIES)
    kept = None if directory == "empty" else rig.bookie("b1").keep()
    second = await rig.ledger(ENTRIES)
    if directory == "of before the last ledger":
        kept = rig.bookie("b1").keep()
    ledgers = [first, second, await rig.ledger(ENTRIES)]
    rig.next_ledger = max(ledgers) + 1
    await rig.auditor("first").full_check()
    readers = [(await reader_of(rig.world, one, f"reader{one}")).reader for one in ledgers]

    async def read_all():
        for reader in readers:
            found = []
            while len(found) < ENTRIES:
                found += await reader.read(len(found), ENTRIES - 1, 100)
            assert payloads(found) == expected(0, ENTRIES - 1)

    await back_from_an_old_directory(rig, "b1", kept)
    await read_all()
    worker = rig.worker()
    async with running(rig, rig.auditor("second"), worker):
        for _ in range(20):
            await read_all()
            await asyncio.sleep(1)
    assert [rig.faults(ledger) for ledger in ledgers] == [[], [], []]
    assert worker.progress.limbos_ended == 3
    assert not any(stored.limbo for stored in rig.bookie("b1").ledgers.values())
    assert await rig.marked() == []
