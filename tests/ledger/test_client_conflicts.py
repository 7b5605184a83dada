"""Goal: a writer whose metadata others change, or whose metadata store is away, goes on only where
that is safe; and closing beside all this ends at the last entry acknowledged.

Method: the real client on virtual time over simulated bookies, links and metadata without chance;
each test arranges one conflict. The cluster's checks look at every acknowledgement as it comes.
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
)
from ledger.ids import EntryId
from ledger.ports.bookies import Status
from tests.ledger.failing_cluster import (
    Answers,
    Sets,
    Unheard,
    ensemble_of,
    fragments_of,
    nothing_was_lost,
    now_s,
    spares_of,
    store,
    without_error,
    writing,
)

# Others change the metadata


async def repair(world, writer, entries):
    """Re-replication puts a spare into the first fragment, after it has given it all copies."""
    metadata = world.metadata_of(writer.ledger)
    first = metadata.fragments[0]
    spare = next(one for one in spares_of(world, writer) if one not in first.ensemble)
    world.client("repair")
    for entry in range(entries):
        body = (await world.bookies[first.ensemble[1]].read(writer.ledger, entry)).body
        world.ports["repair"].add(
            spare, writer.ledger, entry, writer._key, (body,), lambda _: None, recovery=True
        )
    await asyncio.sleep(0.1)
    changed = first._replace(ensemble=(*first.ensemble[:2], spare))
    fragments = (changed, *metadata.fragments[1:])
    store(world, writer, lambda one: replace(one, fragments=fragments))
    return changed


async def test_a_conflict_while_the_ledger_is_open_is_tried_again():
    """B16, B32: re-replication changed an earlier fragment; that is kept, and writing goes on."""
    world, writer, told = await writing(bookies=6)
    Answers(world, ensemble_of(world, writer)[0]).refuse()
    await told.add_all(2)
    await asyncio.sleep(0.1)
    changed = []

    async def conflict():
        changed.append(await repair(world, writer, 3))

    sets = Sets(writer, before=conflict)
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    await told.add_all(2)
    assert sets.count == 2
    first, *others = fragments_of(world, writer)
    assert [first] == changed
    assert [one.first for one in others] == [3, 5]
    assert writer.metadata == world.metadata_of(writer.ledger)
    without_error(told, 7)
    assert await writer.close() == 6
    await nothing_was_lost(world, writer.ledger)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda metadata: metadata.in_recovery(), Fenced),
        (lambda metadata: metadata.close(EntryId(2), 21), LedgerClosed),
    ],
    ids=["in recovery", "closed"],
)
async def test_a_conflict_with_who_took_the_ledger_fails_everything_that_is_on_its_way(
    change, error
):
    """B17, T11: the version that was read belongs to a state in which nothing may be written."""
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
    await nothing_was_lost(world, writer.ledger)


async def test_the_change_of_a_writer_that_is_being_taken_over_fails():
    """B25, B24: the fence reached one bookie only, the change would have gone round it."""
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
    await nothing_was_lost(world, writer.ledger)


async def test_a_deleted_ledger_acknowledges_nothing_even_through_new_bookies():
    """T15: every bookie has forgotten the ledger, its fence too."""
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


async def test_a_ledger_deleted_just_before_the_change_is_never_acknowledged_again():
    world, writer, told = await writing()
    Sets(writer, before=lambda: world.tree.delete(ledger_path(writer.ledger)))
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    told.add(b"too late")
    await told.wait(4)
    assert told.errors[3:] == [NoSuchLedger]


async def test_a_lost_reply_to_ones_own_change_is_no_defeat():
    """T17."""
    world, writer, told = await writing()
    sets = Sets(writer, lost=1)
    old = ensemble_of(world, writer)
    Answers(world, old[1]).refuse()
    await told.add_all(3)
    assert sets.count == 1
    assert len(fragments_of(world, writer)) == 2
    without_error(told, 6)
    await nothing_was_lost(world, writer.ledger)


async def test_a_request_that_never_arrived_is_sent_again():
    world, writer, told = await writing()
    sets = Sets(writer, unsent=3)
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    await told.add_all(3)
    assert sets.count == 4
    without_error(told, 6)
    await nothing_was_lost(world, writer.ledger)


# The metadata store is away


async def test_without_the_metadata_store_writing_goes_on_while_qa_answer():
    """Nothing was proposed, so the committed ensemble is the only one there can be."""
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
    await nothing_was_lost(world, writer.ledger)


async def test_without_the_metadata_store_and_qa_entries_wait_for_it():
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
    await nothing_was_lost(world, writer.ledger)


async def test_a_store_that_stays_away_fails_what_needs_it_in_order():
    world, writer, told = await writing(bookies=5, ensemble_change_s_max=10.0)
    world.metadata_faults.unsent = 1.0
    for name in ensemble_of(world, writer)[:2]:
        world.bookies[name].crash()
    for _ in range(3):
        told.add(b"patient")
    await told.wait(6)
    assert told.errors == [type(None)] * 3 + [MetadataUnavailable] * 3
    assert 10 < now_s() < 20
    await nothing_was_lost(world, writer.ledger)


async def test_what_loses_qa_in_the_moment_a_change_is_given_up_fails_too():
    """It is older than the entry that the change was given up for, and nobody else looks."""
    world, writer, told = await writing(ensemble_change_s_max=0.01)
    unheard = [Unheard(world, name) for name in ensemble_of(world, writer)]
    given_up = asyncio.Event()

    async def read(ledger):
        await given_up.wait()
        for bookie in unheard[:2]:
            asyncio.get_running_loop().call_soon(bookie.tell, 3, Status.IO_ERROR)
        raise MetadataUnavailable("the store is away")

    writer._metadata_store.read = read
    told.add(b"older")
    told.add(b"younger")
    for bookie in unheard[:2]:
        bookie.tell(4, Status.IO_ERROR)
    await asyncio.sleep(0.1)
    given_up.set()
    async with asyncio.timeout(60):
        await told.wait(5)
    assert told.errors == [type(None)] * 3 + [MetadataUnavailable] * 2
    del writer._metadata_store.read
    await nothing_was_lost(world, writer.ledger)


async def test_a_change_whose_outcome_stays_unknown_lets_nothing_be_acknowledged():
    """It may still happen, long after it was given up: then its fragment names other bookies."""
    world, writer, told = await writing(ensemble_change_s_max=10.0)
    Sets(writer, unsent=10**6)
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    for _ in range(3):
        told.add(b"in doubt")
    await told.wait(6)
    assert told.errors == [type(None)] * 3 + [MetadataUnavailable] * 3
    assert now_s() > 10
    await nothing_was_lost(world, writer.ledger)


@pytest.mark.parametrize("step", ["read", "update"])
async def test_a_cancelled_exchange_with_the_metadata_store_fails_the_writer(step):
    """Otherwise its entries are never answered, and `close` waits for them forever."""
    world, writer, told = await writing()

    async def never(*args):
        await asyncio.Event().wait()

    setattr(writer._metadata_store, step, never)
    for name in ensemble_of(world, writer)[:2]:
        Answers(world, name).refuse()
    told.add(b"x")
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(1)
    assert len(told.news) == 3
    writer._exchange.cancel()
    async with asyncio.timeout(5):
        await told.wait(4)
        with pytest.raises(AddFailed):
            await closing
    assert told.errors == [type(None)] * 3 + [AddFailed]


# Closing


async def test_closing_waits_for_a_change_and_keeps_its_fragment():
    world, writer, told = await writing()
    Answers(world, ensemble_of(world, writer)[1]).refuse()
    told.add(b"x")
    closing = asyncio.create_task(writer.close())
    assert await closing == 3
    metadata = world.metadata_of(writer.ledger)
    assert metadata == writer.metadata and metadata.last_entry == 3
    without_error(told, 4)
    await nothing_was_lost(world, writer.ledger)


async def test_closing_does_not_wait_for_a_copy_that_nobody_needs():
    world, writer, told = await writing()
    world.bookies[ensemble_of(world, writer)[1]].crash()
    told.add(b"x")
    assert await writer.close() == 3
    assert now_s() < 0.4
    await asyncio.sleep(1)
    assert len(fragments_of(world, writer)) == 1
    await nothing_was_lost(world, writer.ledger)


async def test_who_fails_while_the_ledger_is_being_closed_is_replaced_only_if_needed():
    world, writer, told = await writing()
    sets = Sets(writer)
    silent = Unheard(world, ensemble_of(world, writer)[1])
    told.add(b"x")
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    silent.tell(3, Status.UNREACHABLE)
    assert await closing == 3
    assert (sets.count, len(fragments_of(world, writer))) == (1, 1)
    await nothing_was_lost(world, writer.ledger)


async def test_closing_waits_for_a_change_under_way_even_when_nothing_is_pending():
    """Else the change would find the ledger closed, and call that a defeat."""
    world, writer, told = await writing()
    silent = Unheard(world, ensemble_of(world, writer)[1])
    await told.add_all(1)
    Sets(writer, before=lambda: asyncio.sleep(1))
    silent.tell(3, Status.UNREACHABLE)
    await asyncio.sleep(0.01)
    assert await writer.close() == 3
    await asyncio.sleep(2)
    assert (writer.failed, len(fragments_of(world, writer))) == (None, 2)
    await nothing_was_lost(world, writer.ledger)


async def test_closing_while_qa_are_out_of_reach_replaces_bookies_first():
    world, writer, told = await writing(bookies=5)
    for name in ensemble_of(world, writer)[:2]:
        world.bookies[name].crash()
    told.add(b"x")
    assert await writer.close() == 3
    without_error(told, 4)
    await nothing_was_lost(world, writer.ledger)


async def test_after_a_failed_add_closing_is_refused_and_recovery_keeps_what_was_acknowledged():
    """T15."""
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
    await nothing_was_lost(world, writer.ledger)
