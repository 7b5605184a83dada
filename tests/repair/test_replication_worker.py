"""Goal: a marked ledger becomes whole again, share by share, and nothing is swapped in too early.

Method: real worker, model bookies and metadata on virtual time; afterwards every copy is looked at
in the bookies themselves.
"""

import asyncio
import copy
import itertools
from contextlib import asynccontextmanager
from dataclasses import replace

from ledger.core.ledger_metadata import Fragment
from ledger.errors import BadVersion
from ledger.ports.bookies import Status
from ledger.repair.replication_worker import RepairStatus
from tests.ledger.calm_cluster import refusing
from tests.repair.rig import Hanging, Rig, mend


@asynccontextmanager
async def new_rig(**how):
    rig = Rig(**how)
    yield rig


async def test_a_lost_bookies_copies_are_made_anew_and_the_list_drains_to_zero():
    async with new_rig() as rig:
        ledgers = [await rig.ledger(7, e=3, qw=2, qa=2) for _ in range(5)]
        rig.lose("b1")
        for ledger in ledgers:
            if "b1" in rig.members(ledger):
                await rig.underreplicated.mark(ledger, ["b1"])
        outcomes = await mend(rig.worker())
        assert len(outcomes) > 1
        assert {one.result for one in outcomes.values()} == {RepairStatus.REPAIRED}
        assert await rig.marked() == []
        for ledger in ledgers:
            assert rig.faults(ledger) == []
            assert "b1" not in rig.members(ledger)


async def test_each_fragment_that_names_the_lost_bookie_gets_another_one():
    async with new_rig() as rig:
        ledger = await rig.ledger(8)
        lost = rig.members(ledger)[0]
        kept = rig.members(ledger)

        def split(metadata):
            return replace(metadata, fragments=(Fragment(0, kept), Fragment(5, kept)))

        await rig.set_metadata(ledger, split)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert [one.first for one in rig.metadata(ledger).fragments] == [0, 5]


async def test_two_lost_bookies_of_one_ledger_are_both_replaced():
    async with new_rig(bookies=5) as rig:
        ledger = await rig.ledger(5)
        lost = rig.members(ledger)[:2]
        rig.lose(*lost)
        await rig.underreplicated.mark(ledger, lost)
        await mend(rig.worker())
        assert rig.faults(ledger) == []


async def test_an_empty_ledger_only_gets_another_member():
    async with new_rig() as rig:
        ledger = await rig.ledger(0)
        lost = rig.members(ledger)[1]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        worker = rig.worker()
        await mend(worker)
        assert lost not in rig.members(ledger)
        assert worker.progress.entries == 0
        assert await rig.marked() == []


async def test_copies_keep_the_writers_bytes():
    async with new_rig() as rig:
        ledger = await rig.ledger(4)
        lost, source = rig.members(ledger)[:2]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        (new,) = rig.outside(ledger)
        await mend(rig.worker())
        assert rig.bookie(new).durable_entries(ledger) == rig.bookie(source).durable_entries(ledger)


async def test_copies_missing_on_a_live_bookie_are_put_back_there_and_metadata_stay():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        before = rig.metadata(ledger)
        rig.forget(before.last_fragment.ensemble[2], ledger, 1, 4)
        await rig.underreplicated.mark(ledger, [])
        worker = rig.worker()
        await mend(worker)
        assert rig.faults(ledger) == []
        assert rig.metadata(ledger) == before
        assert worker.progress.entries == 2


async def test_a_bookie_that_forgot_the_whole_ledger_gets_it_back():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        del rig.bookie(rig.members(ledger)[0]).ledgers[ledger]
        await rig.underreplicated.mark(ledger, [])
        await mend(rig.worker())
        assert rig.faults(ledger) == []


async def test_nothing_is_swapped_in_before_the_whole_share_is_durable():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        (new,) = rig.outside(ledger)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        held_when_swapped = []

        def on_set(path, data, version):
            if "/L" in path and version > 1:
                held_when_swapped.append(sorted(rig.bookie(new).durable_entries(ledger)))

        rig.world.tree.on_set = on_set
        await mend(rig.worker())
        assert held_when_swapped == [[0, 1, 2, 3, 4, 5]]


async def test_a_new_bookie_that_refuses_an_entry_is_not_swapped_in_and_another_one_is_tried():
    async with new_rig(bookies=5) as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        bad, good = rig.outside(ledger)
        refusing(rig.bookie(bad), Status.IO_ERROR, 1000)
        rig.crowd(good)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        await mend(rig.worker())
        assert good in rig.members(ledger)
        assert rig.faults(ledger) == []


def lying(bookie):
    """It says that every entry is durable, and keeps none."""

    def add(ledger, entry, key, body, on_added, *, recovery=False):
        asyncio.get_running_loop().call_soon(on_added, Status.OK)

    bookie.add = add


async def test_a_new_bookie_that_does_not_list_what_it_took_is_not_swapped_in():
    async with new_rig(bookies=5) as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        bad, good = rig.outside(ledger)
        lying(rig.bookie(bad))
        rig.crowd(good)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        named = set()
        rig.world.tree.on_set = lambda *change: named.update(rig.members(ledger))
        await mend(rig.worker())
        assert good in rig.members(ledger)
        assert bad not in named
        assert rig.faults(ledger) == []


async def test_a_bookie_that_takes_copies_and_does_not_show_them_is_replaced():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        name = rig.members(ledger)[0]
        rig.forget(name, ledger, 2)
        lying(rig.bookie(name))
        await rig.underreplicated.mark(ledger, [])
        await mend(rig.worker())
        assert name not in rig.members(ledger)
        assert rig.faults(ledger) == []


async def test_a_bookie_in_limbo_for_the_ledger_does_not_become_a_member():
    async with new_rig(bookies=5) as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        bad, good = rig.outside(ledger)
        rig.bookie(bad).begin_limbo(ledger + 1)
        rig.crowd(good)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        await mend(rig.worker())
        assert good in rig.members(ledger)
        assert ledger not in rig.bookie(bad).ledgers


async def test_without_another_bookie_the_ledger_stays_marked_and_says_why():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        before, lost = rig.metadata(ledger), rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        outcome = (await mend(rig.worker()))[ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        assert outcome.reasons == (f"no other bookie can replace {lost}",)
        assert (await rig.underreplicated.note(ledger)).reasons == outcome.reasons
        assert rig.metadata(ledger) == before


async def test_an_overloaded_bookie_is_asked_again():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        (new,) = rig.outside(ledger)
        refusing(rig.bookie(new), Status.OVERLOADED, 5)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        await mend(rig.worker())
        assert rig.faults(ledger) == []


async def test_a_source_with_a_bad_copy_is_passed_over_and_mended_in_place_or_replaced():
    async with new_rig(bookies=6) as rig:
        ledger = await rig.ledger(6)
        lost, spoilt = rig.members(ledger)[:2]
        rig.lose(lost)
        for entry in range(6):
            rig.spoil(spoilt, ledger, entry)
        await rig.underreplicated.mark(ledger, [lost])
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert await rig.marked() == []


async def test_a_suspects_copies_are_read_through_though_its_list_is_complete():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        report_corrupt = rig.members(ledger)[0]
        rig.spoil(report_corrupt, ledger, 3)
        await rig.underreplicated.report_corrupt(ledger, [report_corrupt])
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert await rig.marked() == []
        assert (await rig.underreplicated.note(ledger)).suspects == frozenset()


async def test_a_bookie_in_limbo_answers_plainly_once_its_share_is_complete_again():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        name = rig.members(ledger)[0]
        rig.forget(name, ledger, 2, 5)
        rig.bookie(name).begin_limbo(ledger + 1)
        assert (await rig.bookie(name).read(ledger, 2)).status is Status.UNKNOWN_LEDGER_STATE
        await rig.underreplicated.mark(ledger, [name])
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert (await rig.bookie(name).read(ledger, 99)).status is Status.NO_ENTRY
        assert await rig.marked() == []


async def test_a_bookie_that_restarted_with_another_loss_stays_in_limbo_until_it_is_examined():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        name = rig.members(ledger)[0]
        bookie, statuses = rig.bookie(name), []
        end_limbo = bookie.end_limbo
        bookie.begin_limbo(ledger + 1)

        async def reaches_the_next_start(*request):
            bookie.end_limbo = end_limbo
            bookie.crash()
            rig.forget(name, ledger, 2)
            bookie.begin_limbo(ledger + 1)
            bookie.restart()
            statuses.append(await end_limbo(*request))

        bookie.end_limbo = reaches_the_next_start
        await rig.underreplicated.mark(ledger, [name])
        await mend(rig.worker())
        assert statuses == [Status.WRONG_INSTANCE]
        await mend(rig.worker())
        assert rig.faults(ledger) == []
        assert (await bookie.read(ledger, 99)).status is Status.NO_ENTRY


async def test_a_ledger_deleted_meanwhile_leaves_the_list():
    async with new_rig() as rig:
        ledger = await rig.ledger(2)
        await rig.world.client("deleter").delete(ledger)
        await rig.underreplicated.mark(ledger, ["b0"])
        outcome = (await mend(rig.worker()))[ledger]
        assert outcome.result is RepairStatus.REPAIRED
        assert await rig.marked() == []


async def test_a_mark_set_during_the_repair_is_not_lost():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        worker = rig.worker()

        def on_set(path, data, version):
            if "/L" in path and version > 1:  # the swap: now somebody marks it again
                rig.world.tree.on_set = None
                asyncio.get_running_loop().create_task(rig.underreplicated.mark(ledger, ["b9"]))

        rig.world.tree.on_set = on_set
        outcome = (await mend(worker))[ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        assert outcome.reasons == ("it was marked again meanwhile",)
        assert await rig.marked() == [ledger]
        await mend(worker)
        assert await rig.marked() == []


async def test_two_workers_do_not_mend_one_ledger_at_the_same_time():
    async with new_rig(bookies=6) as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        first, second = rig.worker("first"), rig.worker("second")
        outcomes = await asyncio.gather(first.repair(ledger), second.repair(ledger))
        assert sorted(one.result.name for one in outcomes) == ["LOCKED", "REPAIRED"]
        assert rig.faults(ledger) == []


async def test_workers_that_lost_their_locks_do_no_harm():
    async with new_rig(bookies=8) as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])

        async def no_lock(ledger):
            return True

        workers = [rig.worker(f"worker {number}") for number in range(4)]
        for worker in workers:
            worker.underreplicated.lock = no_lock
        await asyncio.gather(*[worker.repair(ledger) for worker in workers])
        assert rig.faults(ledger) == []
        assert await rig.marked() == []


async def test_a_rivals_change_of_metadata_is_kept():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        store = rig.session("worker")
        real, times = store.set, []

        async def set_after_a_rival(path, data, version):
            if "/L" in path and not times:
                times.append(path)
                await rig.set_metadata(
                    ledger, lambda metadata: replace(metadata, custom={"rival": b"1"})
                )
                raise BadVersion(path)
            return await real(path, data, version)

        store.set = set_after_a_rival
        await mend(rig.worker(store=store))
        assert rig.metadata(ledger).custom == {"rival": b"1"}
        assert rig.faults(ledger) == []


async def test_a_ledger_made_narrower_is_widened_to_what_was_wanted():
    async with new_rig(bookies=4) as rig:
        rig.lose("b0", "b1")
        ledger = await rig.ledger(6)
        assert rig.metadata(ledger).write_quorum == 2
        rig.bookie("b0").restart()
        rig.bookie("b1").restart()
        await rig.underreplicated.mark(ledger, [])
        await mend(rig.worker())
        metadata = rig.metadata(ledger)
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
        assert rig.faults(ledger) == []
        assert await rig.marked() == []


async def test_a_narrow_ledger_stays_marked_until_a_bookie_can_take_more_copies():
    async with new_rig(bookies=3) as rig:
        rig.lose("b0")
        ledger = await rig.ledger(6)
        await rig.underreplicated.mark(ledger, [])
        outcome = (await mend(rig.worker()))[ledger]
        assert outcome.reasons == ("no further bookie is available for more copies",)
        rig.bookie("b0").restart()
        await mend(rig.worker())
        assert rig.metadata(ledger).write_quorum == 3
        assert rig.faults(ledger) == []


async def test_a_read_only_bookie_keeps_what_it_has_and_gets_nothing_more():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        name = rig.members(ledger)[0]
        rig.bookie(name).read_only = True
        await rig.underreplicated.mark(ledger, [name])
        worker = rig.worker()
        await mend(worker)
        assert name in rig.members(ledger)
        assert (worker.progress.entries, await rig.marked()) == (0, [])
        rig.forget(name, ledger, 3)
        await rig.underreplicated.mark(ledger, [name])
        await mend(worker)
        assert name not in rig.members(ledger)
        assert rig.faults(ledger) == []


async def test_a_bookie_being_emptied_is_left_though_it_is_alive():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        name = rig.members(ledger)[0]
        await rig.underreplicated.drain(name)
        await rig.underreplicated.mark(ledger, [name])
        await mend(rig.worker())
        assert name not in rig.members(ledger)
        assert rig.faults(ledger) == []


async def test_the_disable_switch_stops_a_running_worker_and_enable_lets_it_go_on():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.disable()
        await rig.underreplicated.mark(ledger, [lost])
        running = asyncio.create_task(rig.worker().run())
        await asyncio.sleep(60)
        assert await rig.marked() == [ledger]
        await rig.underreplicated.enable()
        await asyncio.sleep(10)
        assert await rig.marked() == []
        running.cancel()


async def test_what_cannot_be_mended_is_tried_ever_less_often_but_at_once_when_a_bookie_joins():
    async with new_rig(bookies=3) as rig:
        ledger = await rig.ledger(6)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        worker = rig.worker(poll_s=0.5)
        tries = []
        real = worker.repair

        async def repair(ledger):
            tries.append(asyncio.get_running_loop().time())
            return await real(ledger)

        worker.repair = repair
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(3600)
        gaps = [after - before for before, after in itertools.pairwise(tries)]
        assert gaps[-1] > 250
        assert max(gaps) < 310
        assert len(tries) < 25
        rig.bookie(lost).restart()
        worker.on_bookies_changed()
        await asyncio.sleep(2)
        assert await rig.marked() == []
        running.cancel()


async def test_a_bookie_where_a_copy_lies_rotten_is_not_swapped_in_with_it():
    async with new_rig() as rig:
        ledger = await rig.ledger(6)
        lost, kept, _ = rig.members(ledger)
        (candidate,) = rig.outside(ledger)  # it was a member once, and another took its place
        rig.bookie(candidate).ledgers[ledger] = copy.deepcopy(rig.bookie(kept).ledgers[ledger])
        rig.spoil(candidate, ledger, 3)
        rig.lose(lost)
        await rig.underreplicated.mark(ledger, [lost])
        await mend(rig.worker())
        assert candidate not in rig.members(ledger), "the model mends no rot in its place"


async def test_a_bookie_that_hangs_while_it_is_read_costs_one_timeout_and_not_one_per_entry():
    async with new_rig() as rig:
        ledger = await rig.ledger(50)
        hanging = rig.members(ledger)[0]
        port = Hanging(rig.bookies("worker"), "read_many")
        port.names.add(hanging)
        await rig.underreplicated.report_corrupt(ledger, [hanging])
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        outcomes = await mend(rig.worker(bookies=port))
        assert outcomes[ledger].result is RepairStatus.UNFINISHED
        assert loop.time() - began_s < 10
