"""Goal: whichever bookies fail and whoever else touches the ledger, a writer goes on or fails in
order, and what it acknowledged is on the bookies that metadata name.

Method: the real client on virtual time over simulated bookies, links and metadata without chance;
each test arranges one failure. The cluster's checks look at every acknowledgement as it comes.
"""

import asyncio

import pytest

from ledger.core.entry_format import DigestedBody
from ledger.errors import (
    AddFailed,
    StorageFull,
)
from ledger.events import EventKind, events
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import cluster, create, held_by
from tests.ledger.failing_cluster import (
    Answers,
    Sets,
    Unheard,
    Watched,
    ensemble_of,
    fragments_of,
    nothing_was_lost,
    now_s,
    spares_of,
    without_error,
    writing,
)

# A bookie fails


@pytest.mark.parametrize(
    "status", [Status.IO_ERROR, Status.READ_ONLY, Status.WRONG_INSTANCE, Status.UNREACHABLE]
)
async def test_a_bookie_that_refuses_is_replaced_at_once_and_nothing_is_lost(status):
    world, writer, told = await writing()
    old, spare = ensemble_of(world, writer), spares_of(world, writer)[0]
    Answers(world, old[1]).refuse(status)
    await told.add_all(5, pause_s=0.001)
    without_error(told, 8)
    assert fragments_of(world, writer) == ((0, old), (3, (old[0], spare, old[2])))
    assert writer.metadata == world.metadata_of(writer.ledger)
    assert await writer.close() == 7
    await nothing_was_lost(world, writer.ledger)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.READ_ONLY, "no-space"),
        (Status.IO_ERROR, "unhealthy"),
        (Status.UNREACHABLE, "unhealthy"),
        (Status.NO_LEDGER, "other"),
    ],
)
async def test_a_replaced_bookie_is_counted_by_its_reason_and_adds_by_their_time(status, reason):
    world, writer, told = await writing()
    before = dict(events.counts)
    Answers(world, ensemble_of(world, writer)[1]).refuse(status)
    await told.add_all(5, pause_s=0.001)
    found = {key: count - before.get(key, 0) for key, count in events.counts.items()}
    assert {key: count for key, count in found.items() if count} == {
        (EventKind.ENSEMBLE_CHANGE, reason): 1
    }
    assert sum(writer._added.counts) == 8


async def test_the_new_fragment_starts_at_the_first_entry_not_acknowledged():
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
    assert [held_by(world, writer.ledger, entry) != [] for entry in range(9)] == [True] * 9
    await nothing_was_lost(world, writer.ledger)


async def test_a_silent_bookie_is_replaced_when_its_time_is_up():
    world, writer, told = await writing()
    silent = ensemble_of(world, writer)[2]
    world.network.cut("writer", silent)
    await told.add_all(1)
    assert silent in ensemble_of(world, writer)
    await asyncio.sleep(0.6)
    assert silent not in ensemble_of(world, writer)
    await nothing_was_lost(world, writer.ledger)


async def test_an_overloaded_bookie_is_asked_again_for_a_while_and_then_replaced():
    world, writer, told = await writing(overloaded_s_max=2.0)
    loaded = ensemble_of(world, writer)[0]
    Answers(world, loaded).refuse(Status.OVERLOADED)
    await told.add_all(2)
    await asyncio.sleep(1.9)
    assert loaded in ensemble_of(world, writer)
    await asyncio.sleep(0.5)
    assert loaded not in ensemble_of(world, writer)
    await nothing_was_lost(world, writer.ledger)


async def test_two_bookies_that_fail_together_are_both_replaced_and_nothing_fails():
    world, writer, told = await writing(bookies=5)
    old = ensemble_of(world, writer)
    for name in old[:2]:
        world.bookies[name].crash()
    await told.add_all(6, pause_s=0.01)
    without_error(told, 9)
    assert set(ensemble_of(world, writer)) == set(world.bookies) - set(old[:2])
    await nothing_was_lost(world, writer.ledger)


async def test_a_spare_that_fails_too_is_replaced_in_turn():
    world, writer, told = await writing(bookies=6)
    old, spares = ensemble_of(world, writer), spares_of(world, writer)
    for name in (old[1], *spares[:2]):
        Answers(world, name).refuse()
    await told.add_all(3)
    await asyncio.sleep(0.5)
    assert set(ensemble_of(world, writer)) == {old[0], spares[2], old[2]}
    without_error(told, 6)
    await nothing_was_lost(world, writer.ledger)


async def test_a_sole_bookie_is_replaced_with_all_that_was_on_its_way():
    world, writer, told = await writing(bookies=2, shape=(1, 1, 1))
    [old], [spare] = ensemble_of(world, writer), spares_of(world, writer)
    world.bookies[old].crash()
    got = Answers(world, spare)
    await told.add_all(4)
    without_error(told, 7)
    assert fragments_of(world, writer) == ((0, (old,)), (3, (spare,)))
    assert got.got == [3, 4, 5, 6]
    world.bookies[old].restart()
    await nothing_was_lost(world, writer.ledger)


async def test_what_is_sent_again_are_the_same_buffers_no_longer_marked_as_just_digested():
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
    assert len({tuple(map(id, body)) for _, _, body in sent}) == 1
    assert sent[0][2][1] is payload
    assert [type(body) for _, _, body in sent] == [*[DigestedBody] * 3, tuple]
    await nothing_was_lost(world, writer.ledger)


async def test_a_stripe_that_loses_a_bookie_is_sent_to_its_write_sets_only():
    world, writer, told = await writing(bookies=5, shape=(4, 2, 2))
    old, [spare] = ensemble_of(world, writer), spares_of(world, writer)
    got = Answers(world, spare)
    Answers(world, old[1]).refuse()
    for _ in range(8):
        told.add(b"x")
    await told.wait(11)
    await asyncio.sleep(0.1)
    assert sorted(got.got) == [4, 5, 8, 9]
    await nothing_was_lost(world, writer.ledger)


# While the change is under way


async def test_nothing_is_acknowledged_while_the_change_is_in_flight():
    """T12: two of three have the entry durably, and still nobody may hear of it."""
    world, writer, told = await writing()
    seen = []

    async def wait():
        await asyncio.sleep(5)
        seen.append((len(told.news), len(held_by(world, writer.ledger, 3))))

    Sets(writer, before=wait)
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    await told.add_all(3)
    assert seen == [(3, 2)]
    assert now_s() > 5
    without_error(told, 6)
    await nothing_was_lost(world, writer.ledger)


async def test_an_acknowledgement_of_a_replaced_bookie_is_void():
    """T10, B18: the entry was acknowledged there just before; it must be on who is there now."""
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
    assert spare in held_by(world, writer.ledger, 3)
    second.let_go()
    await nothing_was_lost(world, writer.ledger)


async def test_entries_that_the_others_have_confirmed_meanwhile_go_to_the_new_bookie_too():
    world, writer, told = await writing()
    new = Answers(world, spares_of(world, writer)[0])
    Sets(writer, before=lambda: asyncio.sleep(1))
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    await told.add_all(3)
    assert new.got == [3, 4, 5]
    await asyncio.sleep(0.1)
    assert [len(held_by(world, writer.ledger, entry)) for entry in (3, 4, 5)] == [3, 3, 3]
    await nothing_was_lost(world, writer.ledger)


async def test_late_answers_of_a_replaced_bookie_count_for_nothing():
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
    await nothing_was_lost(world, writer.ledger)


async def test_a_fence_of_a_replaced_bookie_does_not_end_the_writer():
    """A bookie that lost its disk fences what it held; it holds nothing of this any more."""
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
    await nothing_was_lost(world, writer.ledger)


async def test_bookies_that_fail_during_a_change_are_replaced_by_the_next():
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
    await nothing_was_lost(world, writer.ledger)


# No spare


async def test_without_a_spare_the_ensemble_stays_and_writing_goes_on():
    world, writer, told = await writing(bookies=3)
    old = ensemble_of(world, writer)
    world.bookies[old[1]].crash()
    sets = Sets(writer)
    await told.add_all(30, pause_s=0.05)
    without_error(told, 33)
    assert (sets.count, fragments_of(world, writer)) == (0, ((0, old),))
    assert await writer.close() == 32
    await nothing_was_lost(world, writer.ledger)


async def test_a_spare_that_comes_later_is_used():
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
    await nothing_was_lost(world, writer.ledger)


async def test_without_spares_what_loses_qa_fails_with_all_after_it():
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
    await nothing_was_lost(world, writer.ledger)


async def test_a_bookie_that_comes_back_is_asked_again_for_what_it_missed():
    """Three bookies restarted one after the other lose nothing."""
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
    await nothing_was_lost(world, writer.ledger)


async def test_a_bookie_that_failed_lately_is_no_spare():
    """Two dead ones that are still registered must not take turns."""
    world, writer, told = await writing(failed_bookie_pause_s=10.0)
    sets = Sets(writer)
    for name in (ensemble_of(world, writer)[1], *spares_of(world, writer)):
        Answers(world, name).refuse()
    await told.add_all(20, pause_s=0.2)
    without_error(told, 23)
    assert sets.count == 1
    await nothing_was_lost(world, writer.ledger)


async def test_a_full_disk_is_told_when_there_is_no_other():
    world, writer, told = await writing(bookies=1, shape=(1, 1, 1))
    Answers(world, "b0").refuse(Status.READ_ONLY)
    told.add(b"x")
    await told.wait(4)
    assert told.errors[3:] == [StorageFull]
    await nothing_was_lost(world, writer.ledger)


async def test_a_ledger_whose_bookies_die_right_after_it_was_made_fails_and_does_not_hang():
    world = cluster()
    writer = await create(world)
    for bookie in world.bookies.values():
        bookie.crash()
    told = Watched(world, writer)
    told.add(b"x")
    await told.wait(1)
    assert told.errors == [AddFailed]
    assert now_s() < 2
