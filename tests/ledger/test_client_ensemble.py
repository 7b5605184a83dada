"""Goal: whichever bookies fail and whoever else touches the ledger, a writer goes on or fails in
order, and what it acknowledged is on the bookies that metadata name.

Method: the real client on virtual time over simulated bookies, links and metadata without chance;
each test arranges one failure. The cluster's checks look at every acknowledgement as it comes.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client.metadata_format import ledger_path
from ledger.core.ledger_metadata import LedgerState
from ledger.errors import (
    AddFailed,
    Fenced,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchLedger,
    StorageFull,
)
from ledger.ids import EntryId
from ledger.world.bookies import Status
from tests.ledger.calm_cluster import cluster, create
from tests.ledger.failing_cluster import (
    Answers,
    Sets,
    Unheard,
    Watched,
    ensemble_of,
    fragments_of,
    spares_of,
    store,
    writing,
)
from tests.sim.loop import simulate


def run(scenario):
    """The scenario returns its world; nothing was wrong in it."""

    async def whole():
        world, ledger = await scenario
        assert world.checks.violations == []
        world.heal()
        await world.all_up()
        await world.client("last").recover(ledger)
        await world.checks.final(ledger)
        assert world.checks.violations == []

    simulate(whole())


def now_s():
    return asyncio.get_running_loop().time()


def without_error(told, count):
    assert told.news == [(entry, None) for entry in range(count)]


# A bookie fails


@pytest.mark.parametrize(
    "status", [Status.IO_ERROR, Status.READ_ONLY, Status.WRONG_INSTANCE, Status.UNREACHABLE]
)
def test_a_bookie_that_refuses_is_replaced_at_once_and_nothing_is_lost(status):
    async def scenario():
        world, writer, told = await writing()
        old, spare = ensemble_of(world, writer), spares_of(world, writer)[0]
        Answers(world, old[1]).refuse(status)
        await told.add_all(5, pause_s=0.001)
        without_error(told, 8)
        assert fragments_of(world, writer) == ((0, old), (3, (old[0], spare, old[2])))
        assert writer.metadata == world.metadata_of(writer.ledger)
        assert await writer.close() == 7
        return world, writer.ledger

    run(scenario())


def test_the_new_fragment_starts_at_the_first_entry_not_acknowledged():
    async def scenario():
        world, writer, told = await writing()
        old = ensemble_of(world, writer)
        world.bookies[old[0]].crash()
        for _ in range(4):
            told.add(b"on its way")
        await told.wait(7)
        await asyncio.sleep(0.6)  # the dead one's silence is noticed, all is acknowledged long ago
        last = fragments_of(world, writer)[-1]
        assert last.first == 7 and old[0] not in last.ensemble
        await told.add_all(2)
        assert [world.holders(writer.ledger, entry) != [] for entry in range(9)] == [True] * 9
        return world, writer.ledger

    run(scenario())


def test_a_silent_bookie_is_replaced_when_its_time_is_up():
    async def scenario():
        world, writer, told = await writing()
        silent = ensemble_of(world, writer)[2]
        world.network.cut("writer", silent)
        await told.add_all(1)
        assert silent in ensemble_of(world, writer)
        await asyncio.sleep(0.6)
        assert silent not in ensemble_of(world, writer)
        return world, writer.ledger

    run(scenario())


def test_an_overloaded_bookie_is_asked_again_for_a_while_and_then_replaced():
    async def scenario():
        world, writer, told = await writing(overloaded_s_max=2.0)
        loaded = ensemble_of(world, writer)[0]
        Answers(world, loaded).refuse(Status.OVERLOADED)
        await told.add_all(2)
        await asyncio.sleep(1.9)
        assert loaded in ensemble_of(world, writer)
        await asyncio.sleep(0.5)
        assert loaded not in ensemble_of(world, writer)
        return world, writer.ledger

    run(scenario())


def test_two_bookies_that_fail_together_are_both_replaced_and_nothing_fails():
    async def scenario():
        world, writer, told = await writing(bookies=5)
        old = ensemble_of(world, writer)
        for name in old[:2]:
            world.bookies[name].crash()
        await told.add_all(6, pause_s=0.01)
        without_error(told, 9)
        assert set(ensemble_of(world, writer)) == set(world.bookies) - set(old[:2])
        return world, writer.ledger

    run(scenario())


def test_a_spare_that_fails_too_is_replaced_in_turn():
    async def scenario():
        world, writer, told = await writing(bookies=6)
        old, spares = ensemble_of(world, writer), spares_of(world, writer)
        for name in (old[1], *spares[:2]):
            Answers(world, name).refuse()
        await told.add_all(3)
        await asyncio.sleep(0.5)
        assert set(ensemble_of(world, writer)) == {old[0], spares[2], old[2]}
        without_error(told, 6)
        return world, writer.ledger

    run(scenario())


def test_a_sole_bookie_is_replaced_with_all_that_was_on_its_way():
    async def scenario():
        world, writer, told = await writing(bookies=2, shape=(1, 1, 1))
        [old], [spare] = ensemble_of(world, writer), spares_of(world, writer)
        world.bookies[old].crash()
        got = Answers(world, spare)
        await told.add_all(4)
        without_error(told, 7)
        assert fragments_of(world, writer) == ((0, (old,)), (3, (spare,)))
        assert got.got == [3, 4, 5, 6]
        world.bookies[old].restart()
        return world, writer.ledger

    run(scenario())


def test_what_is_sent_again_are_the_same_buffers():
    async def scenario():
        world, writer, told = await writing()
        port, sent = world.ports["writer"], []

        def add(bookie, ledger, entry, key, body, on_added, *, recovery=False):
            sent.append((bookie, entry, body))
            real(bookie, ledger, entry, key, body, on_added, recovery=recovery)

        Answers(world, ensemble_of(world, writer)[0]).refuse()
        real, port.add = port.add, add
        payload = bytearray(b"large")
        told.add(payload)
        await told.wait(4)
        await asyncio.sleep(0.1)
        assert len({bookie for bookie, _, _ in sent}) == 4, "the spare too"
        assert len({id(body) for _, _, body in sent}) == 1
        assert sent[0][2][1] is payload
        return world, writer.ledger

    run(scenario())


def test_a_stripe_that_loses_a_bookie_is_sent_to_its_write_sets_only():
    async def scenario():
        world, writer, told = await writing(bookies=5, shape=(4, 2, 2))
        old, [spare] = ensemble_of(world, writer), spares_of(world, writer)
        got = Answers(world, spare)
        Answers(world, old[1]).refuse()
        for _ in range(8):
            told.add(b"x")
        await told.wait(11)
        await asyncio.sleep(0.1)
        assert sorted(got.got) == [4, 5, 8, 9]
        return world, writer.ledger

    run(scenario())


# While the change is under way


def test_nothing_is_acknowledged_while_the_change_is_in_flight():
    """T12: two of three have the entry durably, and still nobody may hear of it."""

    async def scenario():
        world, writer, told = await writing()
        seen = []

        async def wait():
            await asyncio.sleep(5)
            seen.append((len(told.news), len(world.checks.said[writer.ledger, 3])))

        Sets(writer, before=wait)
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        await told.add_all(3)
        assert seen == [(3, 2)]
        assert now_s() > 5
        without_error(told, 6)
        return world, writer.ledger

    run(scenario())


def test_an_acknowledgement_of_a_replaced_bookie_is_void():
    """T10, B18: the entry was acknowledged there just before; it must be on who is there now."""

    async def scenario():
        world, writer, told = await writing()
        old, [spare] = ensemble_of(world, writer), spares_of(world, writer)
        first, second = Answers(world, old[0]), Answers(world, old[2])
        new = Answers(world, spare)
        first.hold()
        second.hold()
        new.hold()
        told.add(b"entry 3")
        await asyncio.sleep(0.05)  # the bookie at 1 has acknowledged it, and now it fails
        Answers(world, old[1]).refuse()
        told.add(b"entry 4")
        await asyncio.sleep(0.1)
        assert ensemble_of(world, writer) == (old[0], spare, old[2])
        first.let_go()
        await asyncio.sleep(0.05)
        assert len(told.news) == 3  # on one bookie of the new ensemble
        new.let_go()
        await told.wait(5)
        assert spare in world.holders(writer.ledger, 3)
        second.let_go()
        return world, writer.ledger

    run(scenario())


def test_entries_that_the_others_have_confirmed_meanwhile_go_to_the_new_bookie_too():
    async def scenario():
        world, writer, told = await writing()
        new = Answers(world, spares_of(world, writer)[0])
        Sets(writer, before=lambda: asyncio.sleep(1))
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        await told.add_all(3)
        assert new.got == [3, 4, 5]
        await asyncio.sleep(0.1)
        assert [len(world.holders(writer.ledger, entry)) for entry in (3, 4, 5)] == [3, 3, 3]
        return world, writer.ledger

    run(scenario())


def test_late_answers_of_a_replaced_bookie_count_for_nothing():
    async def scenario():
        world, writer, told = await writing()
        old, [spare] = ensemble_of(world, writer), spares_of(world, writer)
        late = Unheard(world, old[1])
        others = [Answers(world, name).hold() for name in (old[2], spare)]
        told.add(b"entry 3")
        told.add(b"entry 4")
        late.tell(4, Status.UNREACHABLE)
        await asyncio.sleep(0.1)
        assert ensemble_of(world, writer) == (old[0], spare, old[2])
        late.tell(3, Status.OK)
        await asyncio.sleep(0.1)
        assert len(told.news) == 3, "only one of those who are there now has entry 3"
        for one in others:
            one.let_go()
        await told.wait(5)
        return world, writer.ledger

    run(scenario())


def test_a_fence_of_a_replaced_bookie_does_not_end_the_writer():
    """A bookie that lost its disk fences what it held; it holds nothing of this any more."""

    async def scenario():
        world, writer, told = await writing()
        old = ensemble_of(world, writer)
        late = Unheard(world, old[1])
        told.add(b"entry 3")
        told.add(b"entry 4")
        late.tell(3, Status.UNREACHABLE)
        await told.wait(5)
        await asyncio.sleep(0.1)
        assert old[1] not in ensemble_of(world, writer)
        late.tell(4, Status.FENCED)
        await told.add_all(2)
        without_error(told, 7)
        return world, writer.ledger

    run(scenario())


def test_bookies_that_fail_during_a_change_are_replaced_by_the_next():
    async def scenario():
        world, writer, told = await writing(bookies=5)
        old = ensemble_of(world, writer)

        async def fail_another():
            Answers(world, old[2]).refuse()
            told.add(b"entry 4")
            await asyncio.sleep(0.1)

        Sets(writer, before=fail_another)
        Answers(world, old[1]).refuse()
        told.add(b"entry 3")
        await told.wait(5)
        await asyncio.sleep(0.1)
        first, second, third = fragments_of(world, writer)
        assert (first.first, second.first, third.first) == (0, 3, 4)
        assert old[2] in second.ensemble
        assert set(old[1:]).isdisjoint(third.ensemble)
        return world, writer.ledger

    run(scenario())


# Others change the metadata


def repaired(metadata):
    """Re-replication has put b9 into the first fragment."""
    first = metadata.fragments[0]
    ensemble = (*first.ensemble[:2], "b9")
    return replace(metadata, fragments=(first._replace(ensemble=ensemble), *metadata.fragments[1:]))


def test_a_conflict_while_the_ledger_is_open_is_tried_again():
    """B16, B32: re-replication changed an earlier fragment; that is kept, and writing goes on."""

    async def scenario():
        world, writer, told = await writing(bookies=6)
        Answers(world, ensemble_of(world, writer)[0]).refuse()
        await told.add_all(2)
        await asyncio.sleep(0.1)
        sets = Sets(writer, before=lambda: store(world, writer, repaired))
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        await told.add_all(2)
        await asyncio.sleep(0.1)
        assert sets.count == 2
        fragments = fragments_of(world, writer)
        assert len(fragments) == 3
        assert fragments[0].ensemble[2] == "b9"
        assert writer.metadata == world.metadata_of(writer.ledger)
        without_error(told, 7)
        assert await writer.close() == 6
        return world, writer.ledger

    async def unchecked():
        world, _ = await scenario()
        found = world.checks.violations
        assert all(one.startswith("fragments") for one in found), "said of re-replication alone"

    simulate(unchecked())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda metadata: metadata.in_recovery(), Fenced),
        (lambda metadata: metadata.close(EntryId(2), 21), LedgerClosed),
    ],
    ids=["in recovery", "closed"],
)
def test_a_conflict_with_who_took_the_ledger_fails_everything_that_is_on_its_way(change, error):
    """B17, T11: the version that was read belongs to a state in which nothing may be written."""

    async def scenario():
        world, writer, told = await writing()
        Sets(writer, before=lambda: store(world, writer, change))
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        for _ in range(4):
            told.add(b"too late")
        await told.wait(7)
        assert told.errors == [type(None)] * 3 + [error] * 4
        assert [entry for entry, _ in told.news] == list(range(7))
        assert isinstance(writer.failed, error)
        assert len(fragments_of(world, writer)) == 1
        with pytest.raises(error):
            await writer.close()
        return world, writer.ledger

    run(scenario())


def test_the_change_of_a_writer_that_is_being_taken_over_fails():
    """B25, B24: the fence reached one bookie only, the change would have gone round it."""

    async def scenario():
        world, writer, told = await writing()
        world.network.cut("other", ensemble_of(world, writer)[0])
        recovering = asyncio.create_task(world.client("other").recover(writer.ledger))
        await asyncio.sleep(0.006)
        assert world.metadata_of(writer.ledger).state is LedgerState.IN_RECOVERY
        world.bookies[ensemble_of(world, writer)[1]].crash()
        for _ in range(3):
            told.add(b"too late")
        await told.wait(6)
        assert told.errors[3:] == [Fenced] * 3
        reader = await recovering
        assert reader.last_add_confirmed >= 2
        return world, writer.ledger

    run(scenario())


def test_a_deleted_ledger_acknowledges_nothing_even_through_new_bookies():
    """T15: every bookie has forgotten the ledger, its fence too."""

    async def scenario():
        world, writer, told = await writing()
        client = world.client("other")
        await client.delete(writer.ledger)
        for bookie in world.bookies.values():
            bookie.ledgers.clear()
            bookie.keys.clear()
            bookie.fencing.clear()
        Answers(world, writer.metadata.last_fragment.ensemble[0]).refuse()
        Answers(world, writer.metadata.last_fragment.ensemble[1]).refuse()
        told.add(b"too late")
        told.add(b"too late")
        await told.wait(5)
        assert told.errors[3:] == [NoSuchLedger] * 2

    simulate(scenario())


def test_a_ledger_deleted_just_before_the_change_is_never_acknowledged_again():
    async def scenario():
        world, writer, told = await writing()
        Sets(writer, before=lambda: world.tree.delete(ledger_path(writer.ledger)))
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        told.add(b"too late")
        await told.wait(4)
        assert told.errors[3:] == [NoSuchLedger]

    simulate(scenario())


def test_a_lost_reply_to_ones_own_change_is_no_defeat():
    """T17"""

    async def scenario():
        world, writer, told = await writing()
        sets = Sets(writer, lost=1)
        old = ensemble_of(world, writer)
        Answers(world, old[1]).refuse()
        await told.add_all(3)
        assert sets.count == 1
        assert len(fragments_of(world, writer)) == 2
        without_error(told, 6)
        return world, writer.ledger

    run(scenario())


def test_a_request_that_never_arrived_is_sent_again():
    async def scenario():
        world, writer, told = await writing()
        sets = Sets(writer, unsent=3)
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        await told.add_all(3)
        assert sets.count == 4
        without_error(told, 6)
        return world, writer.ledger

    run(scenario())


# The metadata store is away


def test_without_the_metadata_store_writing_goes_on_while_qa_answer():
    """Nothing was proposed, so the committed ensemble is the only one there can be."""

    async def scenario():
        world, writer, told = await writing()
        world.metadata_faults.unsent = 1.0
        dead = ensemble_of(world, writer)[1]
        world.bookies[dead].crash()
        started_s = now_s()
        await told.add_all(20, pause_s=0.1)
        assert now_s() - started_s < 3
        await asyncio.sleep(20)
        await told.add_all(20, pause_s=0.1)
        without_error(told, 43)
        assert dead in ensemble_of(world, writer)
        world.metadata_faults.unsent = 0.0
        await told.add_all(50, pause_s=0.1)
        assert dead not in ensemble_of(world, writer)
        return world, writer.ledger

    run(scenario())


def test_without_the_metadata_store_and_qa_entries_wait_for_it():
    async def scenario():
        world, writer, told = await writing(bookies=5)
        world.metadata_faults.unsent = 1.0
        for name in ensemble_of(world, writer)[:2]:
            world.bookies[name].crash()
        for _ in range(3):
            told.add(b"patient")
        await asyncio.sleep(15)
        assert len(told.news) == 3
        world.metadata_faults.unsent = 0.0
        await told.wait(6)
        without_error(told, 6)
        return world, writer.ledger

    run(scenario())


def test_a_store_that_stays_away_fails_what_needs_it_in_order():
    async def scenario():
        world, writer, told = await writing(bookies=5, ensemble_change_s_max=10.0)
        world.metadata_faults.unsent = 1.0
        for name in ensemble_of(world, writer)[:2]:
            world.bookies[name].crash()
        for _ in range(3):
            told.add(b"patient")
        await told.wait(6)
        assert told.errors == [type(None)] * 3 + [MetadataUnavailable] * 3
        assert 10 < now_s() < 20
        return world, writer.ledger

    run(scenario())


def test_a_change_whose_outcome_stays_unknown_lets_nothing_be_acknowledged():
    """It may still happen, long after it was given up: then its fragment names other bookies."""

    async def scenario():
        world, writer, told = await writing(ensemble_change_s_max=10.0)
        Sets(writer, unsent=10**6)
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        for _ in range(3):
            told.add(b"in doubt")
        await told.wait(6)
        assert told.errors == [type(None)] * 3 + [MetadataUnavailable] * 3
        assert now_s() > 10
        return world, writer.ledger

    run(scenario())


# No spare


def test_without_a_spare_the_ensemble_stays_and_writing_goes_on():
    async def scenario():
        world, writer, told = await writing(bookies=3)
        old = ensemble_of(world, writer)
        world.bookies[old[1]].crash()
        sets = Sets(writer)
        await told.add_all(30, pause_s=0.05)
        without_error(told, 33)
        assert (sets.count, fragments_of(world, writer)) == (0, ((0, old),))
        assert await writer.close() == 32
        return world, writer.ledger

    run(scenario())


def test_a_spare_that_comes_later_is_used():
    async def scenario():
        world, writer, told = await writing()
        [spare] = spares_of(world, writer)
        world.bookies[spare].crash()
        dead = ensemble_of(world, writer)[1]
        world.bookies[dead].crash()
        await told.add_all(20, pause_s=0.1)
        assert dead in ensemble_of(world, writer)
        world.bookies[spare].restart()
        await told.add_all(40, pause_s=0.1)
        assert (dead in ensemble_of(world, writer), spares_of(world, writer)) == (False, [dead])
        without_error(told, 63)
        return world, writer.ledger

    run(scenario())


def test_without_spares_what_loses_qa_fails_with_all_after_it():
    async def scenario():
        world, writer, told = await writing(bookies=3)
        old = ensemble_of(world, writer)
        heard = []
        writer.on_failed = heard.append
        world.bookies[old[1]].crash()
        await told.add_all(3)
        Answers(world, old[2]).refuse()
        for _ in range(3):
            told.add(b"lost")
        await told.wait(9)
        assert told.errors == [type(None)] * 6 + [AddFailed] * 3
        assert heard == [writer.failed]
        return world, writer.ledger

    run(scenario())


def test_a_bookie_that_comes_back_is_asked_again_for_what_it_missed():
    """Three bookies restarted one after the other lose nothing."""

    async def scenario():
        world, writer, told = await writing(bookies=3)
        late = [Answers(world, name) for name in ensemble_of(world, writer)]
        late[0].hold()
        late[1].hold()
        late[2].refuse(Status.UNREACHABLE)
        told.add(b"entry 3")
        await asyncio.sleep(0.05)
        late[2].status = None
        late[0].let_go()
        await told.wait(4)
        assert late[2].got == [3, 3]
        late[1].let_go()
        return world, writer.ledger

    run(scenario())


def test_a_bookie_that_failed_lately_is_no_spare():
    """Two dead ones that are still registered must not take turns."""

    async def scenario():
        world, writer, told = await writing(failed_bookie_pause_s=10.0)
        sets = Sets(writer)
        for name in (ensemble_of(world, writer)[1], *spares_of(world, writer)):
            Answers(world, name).refuse()
        await told.add_all(20, pause_s=0.2)
        without_error(told, 23)
        assert sets.count == 1
        return world, writer.ledger

    run(scenario())


def test_a_full_disk_is_told_when_there_is_no_other():
    async def scenario():
        world, writer, told = await writing(bookies=1, shape=(1, 1, 1))
        Answers(world, "b0").refuse(Status.READ_ONLY)
        told.add(b"x")
        await told.wait(4)
        assert told.errors[3:] == [StorageFull]
        return world, writer.ledger

    run(scenario())


def test_a_ledger_whose_bookies_die_right_after_it_was_made_fails_and_does_not_hang():
    async def scenario():
        world = cluster()
        writer = await create(world)
        for bookie in world.bookies.values():
            bookie.crash()
        told = Watched(world, writer)
        told.add(b"x")
        await told.wait(1)
        assert told.errors == [AddFailed]
        assert now_s() < 2

    simulate(scenario())


# Closing


def test_closing_waits_for_a_change_and_keeps_its_fragment():
    async def scenario():
        world, writer, told = await writing()
        Answers(world, ensemble_of(world, writer)[1]).refuse()
        told.add(b"x")
        closing = asyncio.create_task(writer.close())
        assert await closing == 3
        metadata = world.metadata_of(writer.ledger)
        assert metadata == writer.metadata and metadata.last_entry == 3
        without_error(told, 4)
        return world, writer.ledger

    run(scenario())


def test_closing_does_not_wait_for_a_copy_that_nobody_needs():
    async def scenario():
        world, writer, told = await writing()
        world.bookies[ensemble_of(world, writer)[1]].crash()
        told.add(b"x")
        assert await writer.close() == 3
        assert now_s() < 0.4
        await asyncio.sleep(1)
        assert len(fragments_of(world, writer)) == 1
        return world, writer.ledger

    run(scenario())


def test_who_fails_while_the_ledger_is_being_closed_is_replaced_only_if_needed():
    async def scenario():
        world, writer, told = await writing()
        sets = Sets(writer)
        silent = Unheard(world, ensemble_of(world, writer)[1])
        told.add(b"x")
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        silent.tell(3, Status.UNREACHABLE)
        assert await closing == 3
        assert (sets.count, len(fragments_of(world, writer))) == (1, 1)
        return world, writer.ledger

    run(scenario())


def test_closing_waits_for_a_change_under_way_even_when_nothing_is_pending():
    """Else the change would find the ledger closed, and call that a defeat."""

    async def scenario():
        world, writer, told = await writing()
        silent = Unheard(world, ensemble_of(world, writer)[1])
        await told.add_all(1)
        Sets(writer, before=lambda: asyncio.sleep(1))
        silent.tell(3, Status.UNREACHABLE)
        await asyncio.sleep(0.01)
        assert await writer.close() == 3
        await asyncio.sleep(2)
        assert (writer.failed, len(fragments_of(world, writer))) == (None, 2)
        return world, writer.ledger

    run(scenario())


def test_closing_while_qa_are_out_of_reach_replaces_bookies_first():
    async def scenario():
        world, writer, told = await writing(bookies=5)
        for name in ensemble_of(world, writer)[:2]:
            world.bookies[name].crash()
        told.add(b"x")
        assert await writer.close() == 3
        without_error(told, 4)
        return world, writer.ledger

    run(scenario())


def test_after_a_failed_add_closing_is_refused_and_recovery_keeps_what_was_acknowledged():
    """T15"""

    async def scenario():
        world, writer, told = await writing(bookies=3)
        old = ensemble_of(world, writer)
        told.add(b"entry 3")
        Answers(world, old[0]).refuse()
        Answers(world, old[1]).refuse()
        told.add(b"entry 4")
        await told.wait(5)
        assert told.errors == [type(None)] * 4 + [AddFailed]
        with pytest.raises(AddFailed):
            await writer.close()
        assert world.metadata_of(writer.ledger).state is LedgerState.OPEN
        reader = await world.client("other").recover(writer.ledger)
        assert reader.last_add_confirmed >= 3
        return world, writer.ledger

    run(scenario())
