"""Goal: a reader sees what is confirmed, from any replica, and is never told a guess.

Method: the real client on virtual time over simulated bookies, links and metadata without chance:
each test arranges one situation. What chance finds is in tests/sim/test_ledger.py.
"""

import pytest

from ledger.core.loss import CopyAnswer, EntryLost
from ledger.errors import (
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
)
from tests.ledger.calm_cluster import Told, cluster, create, expected, payloads, written


async def test_a_reader_sees_what_is_confirmed_and_does_not_disturb_the_writer():
    world = cluster()
    writer, told = await written(world, 5)
    told.add(b"entry 5")
    await told.wait(6)
    reader = await world.client("reader").open(writer.ledger)
    assert reader.last_add_confirmed == 4
    assert payloads(await reader.read(0, 9, 1000)) == expected(0, 4)
    told.add(b"entry 6")
    await told.wait(7)
    assert told.errors == [type(None)] * 7


async def test_the_lac_rides_along_with_the_next_entry():
    world = cluster(bookies=1)
    writer = await create(world, 1, 1, 1)
    reader = await world.client("reader").open(writer.ledger)
    told = Told(writer)
    for number in range(3):
        told.add(b"entry %d" % number)
        await told.wait(number + 1)
        assert await reader.read_lac() == number - 1


async def test_nothing_above_the_last_add_confirmed_is_shown():
    world = cluster(bookies=1)
    writer, _ = await written(world, 3, e=1, qw=1, qa=1)
    reader = await world.client("reader").open(writer.ledger)
    lac = reader.last_add_confirmed
    assert lac < 2
    with pytest.raises(EntryUnknown):
        await reader.read(2, 2, 1000)
    reader.last_add_confirmed = writer.lac
    assert payloads(await reader.read(2, 9, 1000)) == expected(2, 2)


async def test_reading_stops_at_the_byte_limit_but_gives_at_least_one_entry():
    world = cluster()
    writer, _ = await written(world, 10)
    await writer.close()
    reader = await world.client("reader").open(writer.ledger)
    assert payloads(await reader.read(2, 9, 1)) == expected(2, 2)
    some = payloads(await reader.read(2, 9, 15))
    assert some == expected(2, 1 + len(some)) and 1 < len(some) < 8


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2), (4, 2, 1), (5, 3, 2), (3, 1, 1)])
async def test_striped_ledgers_are_read_in_order(shape):
    world = cluster(bookies=5)
    e, qw, qa = shape
    writer, _ = await written(world, 23, e=e, qw=qw, qa=qa)
    await writer.close()
    reader = await world.client("reader").open(writer.ledger)
    assert payloads(await reader.read(0, 22, 10_000)) == expected(0, 22)
    assert payloads(await reader.read(7, 30, 10_000)) == expected(7, 22)


async def test_a_flipped_byte_on_one_replica_is_read_from_another():
    world = cluster()
    writer, _ = await written(world, 5)
    await writer.close()
    damaged = world.bookies[world.metadata_of(writer.ledger).bookies_of(2)[0]]
    entries = damaged.durable_entries(writer.ledger)
    entries[2] = entries[2][:-1] + b"?"
    reader = await world.client("reader").open(writer.ledger)
    assert payloads(await reader.read(2, 2, 1000)) == expected(2, 2)
    assert payloads(await reader.read(0, 4, 1000)) == expected(0, 4)


async def test_any_qa_minus_one_lost_bookies_leave_everything_readable():
    for lost in ("b0", "b1", "b2"):
        world = cluster()
        writer, _ = await written(world, 9)
        await writer.close()
        world.bookies[lost].crash()
        reader = await world.client("reader").open(writer.ledger)
        assert payloads(await reader.read(0, 8, 10_000)) == expected(0, 8)


async def test_an_entry_that_cannot_be_reached_is_unknown_and_never_absent():
    world = cluster()
    writer, _ = await written(world, 3)
    await writer.close()
    del world.bookies["b0"].durable_entries(writer.ledger)[1]
    world.bookies["b1"].crash()
    world.bookies["b2"].crash()
    reader = await world.client("reader").open(writer.ledger)
    with pytest.raises(EntryUnknown):
        await reader.read(1, 1, 1000)


async def test_an_entry_is_lost_only_once_every_bookie_that_may_hold_it_has_denied_it():
    """Seed 002, L17 and L22: one silent bookie is waited for, however many deny the entry."""
    world = cluster()
    writer, _ = await written(world, 3)
    await writer.close()
    for bookie in ("b0", "b1", "b2"):
        del world.bookies[bookie].durable_entries(writer.ledger)[1]
    world.bookies["b2"].crash()
    reader = await world.client("reader").open(writer.ledger)
    with pytest.raises(EntryUnknown, match="b2 may have it"):
        await reader.read(1, 1, 1000)
    world.bookies["b2"].restart()
    with pytest.raises(EntryLost) as lost:
        await reader.read(1, 1, 1000)
    assert (lost.value.ledger, lost.value.entry) == (writer.ledger, 1)
    assert {copy.answer for copy in lost.value.copies} == {CopyAnswer.DENIED}


async def test_what_lies_after_the_end_of_a_closed_ledger_does_not_exist():
    world = cluster()
    writer, _ = await written(world, 3)
    reader = await world.client("reader").open(writer.ledger)
    await writer.close()
    with pytest.raises(NoSuchEntry):
        await reader.read(3, 3, 1000)
    assert reader.metadata.closed and reader.last_add_confirmed == 2


async def test_too_few_answers_leave_the_lac_unknown_and_opening_possible():
    world = cluster()
    writer, _ = await written(world, 3)
    world.bookies["b0"].crash()
    world.bookies["b1"].crash()
    reader = await world.client("reader").open(writer.ledger)
    with pytest.raises(EntryUnknown):
        await reader.read_lac()


async def test_a_ledger_that_does_not_exist_cannot_be_opened():
    client = cluster().client("reader")
    for call in (client.open, client.recover, client.delete, client.read_metadata):
        with pytest.raises(NoSuchLedger):
            await call(12)
