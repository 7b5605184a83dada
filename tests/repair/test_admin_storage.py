"""Goal: what the storage commands show is what is there. Method: over a simulated cluster."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.admin.bookies import decommission, keep, list_bookies
from gateway.admin.client import AdminError
from gateway.admin.ledgers import list_ledgers, show_ledger, verify, why
from gateway.admin.storage import Storage
from ledger.registry.cookie import cookie_path
from ledger.repair.election import AuditorElection
from tests.repair.rig import Rig
from tests.sim.loop import SimClock


@asynccontextmanager
async def rig_and_storage(**how):
    rig = Rig(**how)
    storage = Storage(rig.session("admin"), rig.bookies("admin"), SimClock(), "admin")
    yield rig, storage


async def test_ledgers_are_listed_by_id_and_filtered_by_state_and_by_lack_of_copies():
    async with rig_and_storage() as (rig, storage):
        closed = await rig.ledger(3)
        writer, _ = await rig.ledger(2, close=False)
        await rig.underreplicated.mark(closed, [])
        rows = await list_ledgers(storage)
        assert [(row["ledger"], row["state"], row["entries"]) for row in rows] == [
            (closed, "CLOSED", 3),
            (writer.metadata.ledger, "OPEN", None),
        ]
        assert [r["ledger"] for r in await list_ledgers(storage, marked_only=True)] == [closed]
        opened = await list_ledgers(storage, state="OPEN")
        assert [row["ledger"] for row in opened] == [writer.metadata.ledger]


async def test_show_says_who_holds_how_much():
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(5)
        one, other, third = rig.members(ledger)
        rig.forget(one, ledger, 1, 2)
        rig.bookie(other).begin_limbo(ledger + 1)
        rig.lose(third)
        found = await show_ledger(storage, ledger)
        rows = {row["bookie"]: row for row in found["copies"]}
        assert (rows[one]["holds"], rows[one]["missing"]) == (3, "1-2")
        assert (rows[other]["status"], rows[other]["holds"]) == ("rw,limbo", None)
        assert rows[third]["status"] == "away"


async def test_verify_of_sound_copies_is_clean_and_counts_them():
    async with rig_and_storage() as (rig, storage):
        for _ in range(3):
            await rig.ledger(4)
        seen = []
        found = await verify(
            storage, None, mark=False, on_progress=lambda done, whole: seen.append((done, whole))
        )
        assert (found["clean"], found["ledgers"], found["copies_read"]) == (True, 3, 36)
        assert seen[-1] == (36, 36)


async def test_verify_finds_missing_and_damaged_copies_and_can_put_them_on_the_list():
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(4)
        one, other, _ = rig.members(ledger)
        rig.forget(one, ledger, 3)
        rig.spoil(other, ledger, 0)
        found = await verify(storage, [ledger], mark=False, on_progress=None)
        rows = {row["bookie"]: row for row in found["damage"]}
        assert (rows[one]["missing"], rows[other]["damaged"]) == ("3", "0")
        assert await rig.marked() == []
        await verify(storage, [ledger], mark=True, on_progress=None)
        assert (await rig.underreplicated.note(ledger)).suspects == {one, other}


async def test_verify_calls_an_entry_lost_once_no_bookie_can_hold_it():
    """The rule is that of readers: a silent bookie may have what two others deny."""
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(4)
        *others, last = rig.members(ledger)
        for name in (*others, last):
            rig.forget(name, ledger, 3)
        rig.lose(last)

        async def lost():
            found = await verify(storage, [ledger], mark=False, on_progress=None)
            return {row["lost"] for row in found["damage"] if row["no_readable_copy"] == "3"}

        assert await lost() == {""}
        rig.bookie(last).begin_limbo(ledger + 1)
        rig.bookie(last).restart()
        assert await lost() == {"3"}


async def test_verify_of_a_ledger_that_does_not_exist_says_so():
    async with rig_and_storage() as (_rig, storage):
        with pytest.raises(AdminError, match="does not exist"):
            await verify(storage, [77], mark=False, on_progress=None)


async def test_why_tells_of_one_entry_what_each_bookie_says():
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(5)
        rig.spoil(rig.metadata(ledger).bookies_of(2)[0], ledger, 2)
        rig.forget(rig.metadata(ledger).bookies_of(2)[1], ledger, 2)
        found = await why(storage, ledger, 2)
        assert [row["says"] for row in found["bookies"]] == ["damaged", "denies", "shows"]
        assert "Entry 2 can be read." in found["because"]
        assert "not on the repair list" in " ".join((await why(storage, ledger, None))["because"])


async def test_bookies_are_listed_also_those_that_are_only_named_or_have_a_cookie():
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(3)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await storage.store.create(cookie_path("old"), b"", parents=True)
        (free,) = rig.outside(ledger)
        rig.bookie(free).read_only = True
        rows = {row["bookie"]: row for row in await list_bookies(storage)}
        assert (rows[lost]["status"], rows[lost]["ledgers"]) == ("away", 1)
        assert (rows["old"]["status"], rows["old"]["ledgers"]) == ("away", 0)
        assert rows[free]["status"] == "ro"
        assert rows[free]["disk_bytes"] > 0


async def serve(rig):
    """An elected auditor and a worker, as `bookie audit` runs them."""
    auditor, worker = rig.auditor("audit"), rig.worker("worker", grace_s=1.0)
    election = AuditorElection(rig.session("voter"), "audit")
    tasks = [asyncio.create_task(election.run(auditor.run)), asyncio.create_task(worker.run())]
    await asyncio.sleep(1)
    return tasks


def taken_out(storage, bookie, **how):
    how = {"even_if_writable": False, "timeout_s": 100.0, "on_drained": None} | how
    return decommission(storage, bookie, **how)


async def test_a_bookie_that_is_away_is_emptied_and_its_cookie_removed():
    async with rig_and_storage() as (rig, storage):
        tasks = await serve(rig)
        ledgers = [await rig.ledger(3) for _ in range(6)]
        await storage.store.create(cookie_path("b1"), b"", parents=True)
        rig.lose("b1")
        seen = []
        found = await taken_out(storage, "b1", on_drained=lambda *moved: seen.append(moved))
        assert found["cookie_removed"]
        assert not await storage.store.exists(cookie_path("b1"))
        assert await rig.underreplicated.draining() == frozenset()
        assert all("b1" not in rig.members(ledger) for ledger in ledgers)
        assert [rig.faults(ledger) for ledger in ledgers] == [[]] * 6
        assert seen[-1] == (found["moved_ledgers"], 0)
        for task in tasks:
            task.cancel()


async def test_a_read_only_bookie_is_emptied_while_it_is_there():
    async with rig_and_storage() as (rig, storage):
        tasks = await serve(rig)
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[0]
        rig.bookie(name).read_only = True
        await taken_out(storage, name)
        assert name not in rig.members(ledger)
        assert rig.faults(ledger) == []
        for task in tasks:
            task.cancel()


async def test_a_writable_bookie_is_emptied_only_when_told_and_keeps_its_cookie_until_it_stops():
    async with rig_and_storage() as (rig, storage):
        tasks = await serve(rig)
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[0]
        await storage.store.create(cookie_path(name), b"", parents=True)
        with pytest.raises(AdminError, match="even-if-writable"):
            await taken_out(storage, name)
        assert await rig.underreplicated.draining() == frozenset()
        with pytest.raises(
            AdminError,
            match="all copies moved off bookie",
        ):
            await taken_out(storage, name, even_if_writable=True)
        assert name not in rig.members(ledger)
        assert await storage.store.exists(cookie_path(name))
        rig.lose(name)
        assert (await taken_out(storage, name))["cookie_removed"]
        for task in tasks:
            task.cancel()


async def test_without_a_repairer_and_beyond_the_time_limit_it_says_why_nothing_moves():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger = await rig.ledger(3)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        with pytest.raises(AdminError, match="start `bookie audit`"):
            await taken_out(storage, lost)
        tasks = await serve(rig)
        with pytest.raises(AdminError, match="no other bookie can replace") as failure:
            await taken_out(storage, lost, timeout_s=20.0)
        assert failure.value.code == "TIMEOUT"
        assert await rig.underreplicated.draining() == {lost}
        await keep(storage, lost)
        assert await rig.underreplicated.draining() == frozenset()
        for task in tasks:
            task.cancel()


async def test_an_unknown_bookie_is_refused():
    async with rig_and_storage() as (_rig, storage):
        with pytest.raises(AdminError, match="no bookie b77"):
            await taken_out(storage, "b77")
