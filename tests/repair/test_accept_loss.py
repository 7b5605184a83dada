"""Goal: what is lost is given up only when asked, no more than that, and it is said exactly.

Method: the storage commands' own code over a simulated cluster that lost bookies or entries.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.admin.client import AdminError
from gateway.admin.ledgers import recover
from gateway.admin.storage import Storage
from ledger.errors import Fenced, LedgerClosed
from ledger.losses.acceptance import LossAcceptor
from ledger.ports.bookies import Status
from tests.repair.rig import Hanging, Rig, mend
from tests.sim.loop import SimClock


@asynccontextmanager
async def rig_and_storage(**how):
    rig = Rig(**how)
    storage = Storage(rig.session("admin"), rig.bookies("admin"), SimClock(), "admin")
    yield rig, storage


async def open_ledger(rig, count=6):
    writer, told = await rig.ledger(count, close=False)
    return writer.metadata.ledger, writer, told


async def test_without_accepting_losses_a_ledger_that_cannot_be_recovered_stays_as_it_is():
    async with rig_and_storage() as (rig, storage):
        ledger, writer, _ = await open_ledger(rig)
        rig.lose(*writer.metadata.last_fragment.ensemble[:2])
        with pytest.raises(AdminError, match="gateway ledger why"):
            await recover(storage, ledger, accept_loss=False)
        assert not rig.metadata(ledger).closed


async def test_recovering_closes_at_the_last_entry_and_fences_the_writer():
    async with rig_and_storage() as (rig, storage):
        ledger, _, told = await open_ledger(rig)
        found = await recover(storage, ledger, accept_loss=False)
        assert (found["state"], found["last_entry"]) == ("CLOSED", 5)
        told.add(b"late")
        await told.wait(7)
        assert isinstance(told.news[6][1], Fenced | LedgerClosed)


async def test_a_ledger_with_one_bookie_left_is_closed_at_the_last_entry_that_it_shows():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger, writer, _ = await open_ledger(rig)
        left, *lost = writer.metadata.last_fragment.ensemble
        rig.lose(*lost)
        rig.forget(left, ledger, 4, 5)
        found = await recover(storage, ledger, accept_loss=True)
        assert (found["last_entry"], found["forced"]) == (3, True)
        assert rig.metadata(ledger).length == len(b"entry 0") * 4
        assert await rig.marked() == [ledger]


async def test_entries_known_to_be_confirmed_and_lost_are_named():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger, writer, told = await open_ledger(rig)
        told.add(b"entry 6")  # carries the LAC 5 to the bookies
        await told.wait(7)
        await asyncio.sleep(1)
        left, *lost = writer.metadata.last_fragment.ensemble
        rig.lose(*lost)
        rig.forget(left, ledger, 3, 6)
        found = await recover(storage, ledger, accept_loss=True)
        assert found["last_entry"] == 2
        assert (found["given_up"], found["given_up_entries"]) == ("3-5", 3)


async def test_what_was_left_can_be_spread_to_new_bookies_and_read():
    async with rig_and_storage(bookies=5) as (rig, storage):
        ledger, writer, _ = await open_ledger(rig)
        left, *lost = writer.metadata.last_fragment.ensemble
        rig.lose(*lost)
        await recover(storage, ledger, accept_loss=True)
        await rig.underreplicated.mark(ledger, lost)
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert left in rig.members(ledger)


async def test_limbo_ends_and_what_the_bookie_lost_is_then_said_to_be_gone():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger = await rig.ledger(6)
        for name in rig.members(ledger):
            rig.forget(name, ledger, 2)
            rig.bookie(name).begin_limbo(ledger + 1)
        found = await recover(storage, ledger, accept_loss=True)
        assert sorted(found["limbo_ended"]) == sorted(rig.members(ledger))
        assert (found["given_up"], found["last_entry"], found["forced"]) == ("2", 5, False)
        for name in rig.members(ledger):
            assert (await rig.bookie(name).read(ledger, 2)).status is Status.NO_ENTRY
            assert (await rig.bookie(name).read(ledger, 3)).status is Status.OK


async def test_a_limbo_that_began_again_after_the_copies_were_examined_does_not_end(monkeypatch):
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger = await rig.ledger(6)
        name, store = rig.members(ledger)[0], LossAcceptor.store
        bookie = rig.bookie(name)
        bookie.begin_limbo(ledger + 1)

        async def then_lose(self, *losses):
            await store(self, *losses)
            bookie.crash()
            rig.forget(name, ledger, 2)
            bookie.begin_limbo(ledger + 1)
            bookie.restart()

        monkeypatch.setattr(LossAcceptor, "store", then_lose)
        assert (await recover(storage, ledger, accept_loss=True))["limbo_ended"] == []
        assert (await bookie.read(ledger, 2)).status is Status.UNKNOWN_LEDGER_STATE


async def test_an_open_ledger_whose_bookies_are_all_in_limbo_is_closed_by_force():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger, writer, _ = await open_ledger(rig)
        for name in writer.metadata.last_fragment.ensemble:
            rig.forget(name, ledger, 5)
            rig.bookie(name).begin_limbo(ledger + 1)
        with pytest.raises(AdminError):
            await recover(storage, ledger, accept_loss=False)
        found = await recover(storage, ledger, accept_loss=True)
        assert found["last_entry"] == 4
        assert len(found["limbo_ended"]) == 3


async def test_when_nobody_answers_nothing_is_closed():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger, writer, _ = await open_ledger(rig)
        rig.lose(*writer.metadata.last_fragment.ensemble)
        with pytest.raises(AdminError, match="none of"):
            await recover(storage, ledger, accept_loss=True)
        assert not rig.metadata(ledger).closed


async def test_the_bookie_that_was_left_fences_the_writer_of_a_ledger_closed_by_force():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger, writer, told = await open_ledger(rig)
        lost = writer.metadata.last_fragment.ensemble[1:]
        rig.lose(*lost)
        await recover(storage, ledger, accept_loss=True)
        rig.bookie(lost[0]).restart()  # with both, they could acknowledge without the fenced one
        told.add(b"zombie")
        await told.wait(7)
        assert isinstance(told.news[6][1], Fenced | LedgerClosed)


async def test_entries_beyond_a_gap_are_named_though_a_bookie_has_them():
    async with rig_and_storage(bookies=3) as (rig, storage):
        ledger, writer, _ = await open_ledger(rig)
        left, *lost = writer.metadata.last_fragment.ensemble
        rig.lose(*lost)
        rig.forget(left, ledger, 3)
        found = await recover(storage, ledger, accept_loss=True)
        assert found["last_entry"] == 2
        assert found["given_up"] == "3-5", "5 was acknowledged, and no LAC tells"


@asynccontextmanager
async def hanging_rig(*methods):
    rig = Rig(bookies=3)
    port = Hanging(rig.bookies("admin"), *methods)
    yield rig, port, Storage(rig.session("admin"), port, SimClock(), "admin")


async def test_a_registered_bookie_that_hangs_is_named_and_given_up_only_once_it_was_stopped():
    async with hanging_rig("read", "read_many", "read_lac", "list_entries") as (rig, port, storage):
        ledger, writer, _ = await open_ledger(rig)
        _, hanging, lost = writer.metadata.last_fragment.ensemble
        port.names.add(hanging)
        rig.lose(lost)
        with pytest.raises(AdminError, match=f"not fenced at {hanging}: registered"):
            await recover(storage, ledger, accept_loss=True)
        assert not rig.metadata(ledger).closed
        rig.lose(hanging)
        found = await recover(storage, ledger, accept_loss=True)
        assert (found["last_entry"], found["forced"]) == (5, True)
        assert rig.metadata(ledger).length == len(b"entry 0") * 6


async def test_nothing_is_cut_off_because_a_bookie_falls_silent():
    async with hanging_rig("read_many") as (rig, port, storage):
        ledger, writer, _ = await open_ledger(rig)
        one, silent, lost = writer.metadata.last_fragment.ensemble
        rig.lose(lost)
        rig.forget(one, ledger, 3)
        rig.spoil(silent, ledger, 5)  # so that no recovery succeeds
        rig.spoil(one, ledger, 5)
        port.names.add(silent)
        with pytest.raises(AdminError, match="stopped answering"):
            await recover(storage, ledger, accept_loss=True)
        assert not rig.metadata(ledger).closed
        port.names.clear()
        assert (await recover(storage, ledger, accept_loss=True))["last_entry"] == 4
