"""Goal: the ledger client keeps its promises to those who create, write and close ledgers.

Method: the real client on virtual time over simulated bookies, links and metadata without chance:
each test arranges one situation. What chance finds is in tests/sim/test_ledger.py.
"""

import asyncio
from collections import Counter

import pytest

from ledger.client.client import WANTED_QUORUM
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.ledger_metadata import LedgerState
from ledger.errors import (
    AddFailed,
    EntryTooLarge,
    Fenced,
    LedgerClosed,
    MetadataUnavailable,
    NotEnoughBookies,
    StorageFull,
    WrongQuorum,
)
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import Told, cluster, create, refusing, written
from tests.ledger.failing_cluster import Unheard
from tests.sim.loop import simulate
from tests.sim.metadata import SimMetadata

# Creating


@pytest.mark.parametrize("wrong", [(3, 3, 0), (3, 2, 3), (2, 3, 1)])
async def test_a_ledger_of_an_impossible_shape_is_refused(wrong):
    world = cluster()
    with pytest.raises(WrongQuorum):
        await create(world, *wrong)
    assert await world.client("x").list_ledgers() == []


async def test_with_fewer_live_bookies_a_ledger_is_narrower_and_says_what_was_wanted():
    world = cluster()
    world.bookies["b1"].crash()
    narrow = (await create(world, 3, 3, 2)).metadata
    assert (narrow.ensemble_size, narrow.write_quorum, narrow.ack_quorum) == (2, 2, 2)
    assert set(narrow.last_fragment.ensemble) == {"b0", "b2"}
    assert narrow.custom == {WANTED_QUORUM: b"3,3,2"}
    assert world.metadata_of(narrow.ledger) == narrow
    whole = (await create(world, 2, 2, 2)).metadata
    assert WANTED_QUORUM not in whole.custom


async def test_a_narrower_ledger_has_no_more_copies_than_were_wanted():
    narrow = (await create(cluster(bookies=4), 5, 3, 2)).metadata
    assert (narrow.ensemble_size, narrow.write_quorum, narrow.ack_quorum) == (4, 3, 2)
    assert narrow.custom == {WANTED_QUORUM: b"5,3,2"}


async def test_a_ledger_needs_as_many_live_bookies_as_acknowledge():
    world = cluster()
    world.bookies["b0"].crash()
    world.bookies["b1"].crash()
    with pytest.raises(NotEnoughBookies):
        await create(world, 3, 3, 2)
    assert await world.client("x").list_ledgers() == []


async def test_ledgers_are_spread_over_the_bookies():
    world = cluster(bookies=4)
    client = world.client("writer")
    holds = Counter()
    for _ in range(8):
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=1)
        holds.update(writer.metadata.last_fragment.ensemble)
    assert holds == {"b0": 4, "b1": 4, "b2": 4, "b3": 4}


async def test_metadata_tell_what_was_asked_for_and_when():
    world = cluster(password=b"secret")
    client = world.client("writer")
    writer = await client.create(
        ensemble_size=3, write_quorum=3, ack_quorum=2, custom={"stream": b"7"}
    )
    metadata = await client.read_metadata(writer.ledger)
    assert metadata == writer.metadata
    assert (metadata.custom, metadata.password) == ({"stream": b"7"}, b"secret")
    assert metadata.state is LedgerState.OPEN
    assert metadata.created_ms >= 1_700_000_000_000


async def test_a_lost_reply_to_a_create_leaves_one_ledger():
    world = cluster(metadata_attempts_max=50)
    world.metadata_faults.reply_lost = 0.5
    ledgers = [(await create(world)).ledger for _ in range(10)]
    world.metadata_faults.reply_lost = 0.0
    assert await world.client("x").list_ledgers() == sorted(set(ledgers)) == ledgers


async def test_a_store_that_never_answers_is_given_up():
    world = cluster()
    world.metadata_faults.unsent = 1.0
    with pytest.raises(MetadataUnavailable):
        await create(world)


# Writing


async def test_entries_are_confirmed_in_order_and_never_inside_add():
    writer = await create(cluster())
    told = Told(writer)
    assert [told.add(b"x") for _ in range(5)] == [0, 1, 2, 3, 4]
    assert (told.news, writer.lap, writer.lac) == ([], 4, -1)
    await told.wait(5)
    assert told.news == [(entry, None) for entry in range(5)]
    assert (writer.lac, writer.length) == (4, 5)


async def test_a_caller_that_raises_takes_no_confirmation_from_the_others():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: reported.append(each))

    def raises(_):
        raise RuntimeError("a mistake")

    world = cluster()
    writer = await create(world)
    told = Told(writer)
    for name in ("b0", "b1"):  # the first entry is stored last, and confirmed with the others
        refusing(world.bookies[name], Status.OVERLOADED, 1)
    told.add(b"first")
    writer.add((b"second",), raises)
    told.add(b"third")
    await told.wait(2)
    assert told.news == [(0, None), (2, None)]
    assert [str(each["exception"]) for each in reported] == ["a mistake"]
    assert await writer.close() == 2


async def test_a_full_writer_has_room_again_when_entries_are_confirmed():
    writer = await create(cluster(pending_entries_max=2))
    told = Told(writer)
    told.add(b"a")
    told.add(b"b")
    assert writer.full
    with pytest.raises(AssertionError):
        told.add(b"c")
    await writer.room()
    assert not writer.full and told.news


async def test_there_is_room_as_soon_as_one_entry_is_confirmed():
    world = cluster(bookies=1, pending_entries_max=2)
    writer = await create(world, 1, 1, 1)
    bookie = Unheard(world, "b0")
    told = Told(writer)
    told.add(b"a")
    told.add(b"b")
    waiting = asyncio.create_task(writer.room())
    await asyncio.sleep(0)
    bookie.tell(0, Status.OK)
    async with asyncio.timeout(5):
        await waiting
    assert told.news == [(0, None)], "the other entry is pending"


async def test_an_entry_above_the_limit_is_refused_and_the_writer_goes_on():
    writer = await create(cluster(entry_bytes_max=10))
    told = Told(writer)
    with pytest.raises(EntryTooLarge):
        told.add(b"12345", b"678901")
    assert told.add(b"12345", b"67890") == 0
    await told.wait(1)


async def test_writing_goes_on_with_one_of_three_bookies_gone():
    world = cluster()
    writer, told = await written(world, 3)
    world.bookies["b1"].crash()
    for number in range(3, 20):
        told.add(b"entry %d" % number)
    await told.wait(20)
    assert set(told.errors) == {type(None)}
    assert await writer.close() == 19


async def test_with_two_of_three_gone_everything_pending_fails_in_order_and_nothing_more_is_taken():
    world = cluster()
    writer, told = await written(world, 3)
    heard = []
    writer.on_failed = heard.append
    world.bookies["b0"].crash()
    world.bookies["b1"].crash()
    for _ in range(4):
        told.add(b"lost")
    await told.wait(7)
    assert [entry for entry, _ in told.news] == list(range(7))
    assert told.errors[3:] == [AddFailed] * 4
    assert isinstance(writer.failed, AddFailed) and heard == [writer.failed]
    assert not writer.full
    with pytest.raises(AddFailed):
        told.add(b"more")
    with pytest.raises(AddFailed):
        await writer.close()
    assert writer.lac == 2


async def test_whoever_waits_for_room_is_let_go_when_the_writer_fails():
    world = cluster(bookies=1, pending_entries_max=1)
    writer = await create(world, 1, 1, 1)
    world.bookies[writer.metadata.last_fragment.ensemble[0]].crash()
    Told(writer).add(b"x")
    async with asyncio.timeout(5):
        await writer.room()
    assert writer.failed is not None


async def test_callers_of_room_and_close_return_also_if_on_failed_raises():
    world = cluster(bookies=1, pending_entries_max=1)
    writer = await create(world, 1, 1, 1)
    bookie = Unheard(world, "b0")

    def on_failed(error):
        raise ZeroDivisionError

    writer.on_failed = on_failed
    Told(writer).add(b"x")
    waiting = asyncio.create_task(writer.room())
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        bookie.tell(0, Status.FENCED)
    async with asyncio.timeout(5):
        await waiting
        with pytest.raises(Fenced):
            await closing


async def test_a_sole_bookie_without_room_is_told_as_full_storage():
    world = cluster(bookies=1)
    writer = await create(world, 1, 1, 1)
    refusing(world.bookies["b0"], Status.READ_ONLY, 1)
    told = Told(writer)
    told.add(b"x")
    await told.wait(1)
    assert told.errors == [StorageFull]


async def test_an_overloaded_bookie_is_asked_again_and_order_is_kept():
    world = cluster(bookies=1)
    writer = await create(world, 1, 1, 1)
    refusing(world.bookies["b0"], Status.OVERLOADED, 7)
    told = Told(writer)
    for _ in range(5):
        told.add(b"x")
    await told.wait(5)
    assert told.news == [(entry, None) for entry in range(5)]


async def test_a_bookie_overloaded_for_too_long_has_failed():
    world = cluster(bookies=1, overloaded_s_max=2.0)
    writer = await create(world, 1, 1, 1)
    refusing(world.bookies["b0"], Status.OVERLOADED, 10**9)
    told = Told(writer)
    told.add(b"x")
    await told.wait(1)
    assert told.errors == [AddFailed]
    assert asyncio.get_running_loop().time() > 2.0


# Closing


async def test_a_closed_ledger_ends_at_its_last_confirmed_entry():
    world = cluster()
    writer, told = await written(world, 3)
    told.add(b"still pending")
    assert await writer.close() == 3
    metadata = world.metadata_of(writer.ledger)
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 3)
    assert metadata.length == writer.length == len(b"entry 0") * 3 + 13
    with pytest.raises(LedgerClosed):
        told.add(b"late")


async def test_an_empty_ledger_is_closed_at_minus_one():
    world = cluster()
    writer = await create(world)
    assert await writer.close() == -1
    assert world.metadata_of(writer.ledger).last_entry == -1


async def closing_after(change):
    """Close a writer after its metadata were changed behind its back."""
    world = cluster()
    writer, _ = await written(world, 3)
    store = LedgerMetadataStore(SimMetadata(world.tree), world.config)
    await store.update(await store.read(writer.ledger), change)
    return world, writer, await writer.close()


def test_closing_tries_again_when_an_open_ledger_was_changed():
    def touch(metadata):
        return metadata.with_ensemble(0, ("b2", "b1", "b0"))

    world, writer, last = simulate(closing_after(touch))
    metadata = world.metadata_of(writer.ledger)
    assert (last, metadata.last_entry) == (2, 2)
    assert metadata.last_fragment.ensemble == ("b2", "b1", "b0")


def test_closing_a_ledger_that_a_reader_recovers_is_an_error():
    with pytest.raises(Fenced):
        simulate(closing_after(lambda metadata: metadata.in_recovery()))


def test_closing_succeeds_when_it_was_closed_at_the_same_entry():
    assert simulate(closing_after(lambda metadata: metadata.close(2, 21)))[2] == 2


def test_closing_fails_when_it_was_closed_at_another_entry():
    with pytest.raises(LedgerClosed):
        simulate(closing_after(lambda metadata: metadata.close(1, 14)))


async def test_a_lost_reply_to_a_close_is_no_defeat():
    world = cluster(metadata_attempts_max=50)
    writer, _ = await written(world, 3)
    world.metadata_faults.reply_lost = 0.6
    assert await writer.close() == 2
    assert await writer.close() == 2
