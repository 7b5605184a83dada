"""Goal: the ledger client keeps its promises to those who create, write, read, recover and delete.

Method: the real client on virtual time over simulated bookies, links and metadata without chance:
each test arranges one situation. What chance finds is in tests/sim/test_ledger.py.
"""

import asyncio

import pytest

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.ledger_metadata import LedgerState
from ledger.errors import (
    AddFailed,
    EntryTooLarge,
    EntryUnknown,
    Fenced,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    StorageFull,
)
from ledger.world.bookies import Status
from tests.sim.cluster import Cluster
from tests.sim.loop import simulate
from tests.sim.metadata import SimMetadata
from tests.sim.network import Weather

CALM = {"tail_rate": 0.0, "timeout_s": 0.5}


def cluster(bookies=3, **config):
    settings = LedgerClientConfig(read_timeout_s=1.0, **config)
    return Cluster(1, bookies=bookies, weather=Weather(**CALM), config=settings)


async def create(world, e=3, qw=3, qa=2, host="writer"):
    client = world.client(host)
    return await client.create(ensemble_size=e, write_quorum=qw, ack_quorum=qa)


class Told:
    """Collects (entry, error) as the writer tells them."""

    def __init__(self, writer):
        self.writer = writer
        self.news = []

    def add(self, *payload):
        entry = self.writer.lap + 1
        return self.writer.add(payload, lambda error: self.news.append((entry, error)))

    async def wait(self, count):
        async with asyncio.timeout(60):
            while len(self.news) < count:
                await asyncio.sleep(0.001)

    @property
    def errors(self):
        return [type(error) for _, error in self.news]


async def written(world, count=5, **shape):
    """A writer with `count` confirmed entries `entry 0`, `entry 1` ..."""
    writer = await create(world, **shape)
    told = Told(writer)
    for number in range(count):
        await writer.room()
        told.add(b"entry ", b"%d" % number)
    await told.wait(count)
    return writer, told


def payloads(entries):
    return [(entry, bytes(payload)) for entry, payload in entries]


def expected(first, last):
    return [(n, b"entry %d" % n) for n in range(first, last + 1)]


# Creating


@pytest.mark.parametrize("wrong", [(3, 3, 0), (3, 2, 3), (2, 3, 1)])
def test_a_ledger_of_an_impossible_shape_is_refused(wrong):
    async def scenario():
        world = cluster()
        with pytest.raises(AssertionError):
            await create(world, *wrong)
        assert await world.client("x").list_ledgers() == []

    simulate(scenario())


def test_a_ledger_needs_as_many_live_bookies_as_its_ensemble():
    async def scenario():
        world = cluster()
        world.bookies["b1"].crash()
        with pytest.raises(NotEnoughBookies):
            await create(world, 3, 3, 2)
        writer = await create(world, 2, 2, 2)
        assert set(writer.metadata.last_fragment.ensemble) == {"b0", "b2"}

    simulate(scenario())


def test_ledgers_are_spread_over_the_bookies():
    async def scenario():
        world = cluster(bookies=4)
        writers = [await create(world, 2, 2, 1) for _ in range(4)]
        first = [writer.metadata.last_fragment.ensemble[0] for writer in writers]
        assert sorted(first) == ["b0", "b1", "b2", "b3"]

    simulate(scenario())


def test_metadata_tell_what_was_asked_for_and_when():
    async def scenario():
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

    simulate(scenario())


def test_a_lost_reply_to_a_create_leaves_one_ledger():
    async def scenario():
        world = cluster(metadata_attempts_max=50)
        world.metadata_faults.reply_lost = 0.5
        ledgers = [(await create(world)).ledger for _ in range(10)]
        world.metadata_faults.reply_lost = 0.0
        assert await world.client("x").list_ledgers() == sorted(set(ledgers)) == ledgers

    simulate(scenario())


def test_a_store_that_never_answers_is_given_up():
    async def scenario():
        world = cluster()
        world.metadata_faults.unsent = 1.0
        with pytest.raises(MetadataUnavailable):
            await create(world)

    simulate(scenario())


# Writing


def test_entries_are_confirmed_in_order_and_never_inside_add():
    async def scenario():
        writer = await create(cluster())
        told = Told(writer)
        assert [told.add(b"x") for _ in range(5)] == [0, 1, 2, 3, 4]
        assert (told.news, writer.lap, writer.lac) == ([], 4, -1)
        await told.wait(5)
        assert told.news == [(entry, None) for entry in range(5)]
        assert (writer.lac, writer.length) == (4, 5)

    simulate(scenario())


def test_a_full_writer_has_room_again_when_entries_are_confirmed():
    async def scenario():
        writer = await create(cluster(pending_entries_max=2))
        told = Told(writer)
        told.add(b"a")
        told.add(b"b")
        assert writer.full
        with pytest.raises(AssertionError):
            told.add(b"c")
        await writer.room()
        assert not writer.full and told.news

    simulate(scenario())


def test_an_entry_above_the_limit_is_refused_and_the_writer_goes_on():
    async def scenario():
        writer = await create(cluster(entry_bytes_max=10))
        told = Told(writer)
        with pytest.raises(EntryTooLarge):
            told.add(b"12345", b"678901")
        assert told.add(b"12345", b"67890") == 0
        await told.wait(1)

    simulate(scenario())


def test_writing_goes_on_with_one_of_three_bookies_gone():
    async def scenario():
        world = cluster()
        writer, told = await written(world, 3)
        world.bookies["b1"].crash()
        for number in range(3, 20):
            told.add(b"entry %d" % number)
        await told.wait(20)
        assert set(told.errors) == {type(None)}
        assert await writer.close() == 19

    simulate(scenario())


def test_with_two_of_three_gone_everything_pending_fails_in_order_and_nothing_more_is_taken():
    async def scenario():
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

    simulate(scenario())


def test_whoever_waits_for_room_is_let_go_when_the_writer_fails():
    async def scenario():
        world = cluster(pending_entries_max=1)
        writer = await create(world, 1, 1, 1)
        world.bookies[writer.metadata.last_fragment.ensemble[0]].crash()
        Told(writer).add(b"x")
        async with asyncio.timeout(5):
            await writer.room()
        assert writer.failed is not None

    simulate(scenario())


def test_a_sole_bookie_without_room_is_told_as_full_storage():
    async def scenario():
        world = cluster(bookies=1)
        writer = await create(world, 1, 1, 1)
        refusing(world.bookies["b0"], Status.READ_ONLY, 1)
        told = Told(writer)
        told.add(b"x")
        await told.wait(1)
        assert told.errors == [StorageFull]

    simulate(scenario())


def refusing(bookie, status, times):
    """The bookie answers `times` adds so; then as it does."""
    left, real = [times], bookie.add

    def add(ledger, entry, key, body, on_added, *, recovery=False):
        if left[0] > 0:
            left[0] -= 1
            asyncio.get_running_loop().call_soon(on_added, status)
        else:
            real(ledger, entry, key, body, on_added, recovery=recovery)

    bookie.add = add


def test_an_overloaded_bookie_is_asked_again_and_order_is_kept():
    async def scenario():
        world = cluster(bookies=1)
        writer = await create(world, 1, 1, 1)
        refusing(world.bookies["b0"], Status.OVERLOADED, 7)
        told = Told(writer)
        for _ in range(5):
            told.add(b"x")
        await told.wait(5)
        assert told.news == [(entry, None) for entry in range(5)]

    simulate(scenario())


def test_a_bookie_overloaded_for_too_long_has_failed():
    async def scenario():
        world = cluster(bookies=1, overloaded_s_max=2.0)
        writer = await create(world, 1, 1, 1)
        refusing(world.bookies["b0"], Status.OVERLOADED, 10**9)
        told = Told(writer)
        told.add(b"x")
        await told.wait(1)
        assert told.errors == [AddFailed]
        assert asyncio.get_running_loop().time() > 2.0

    simulate(scenario())


# Closing


def test_a_closed_ledger_ends_at_its_last_confirmed_entry():
    async def scenario():
        world = cluster()
        writer, told = await written(world, 3)
        told.add(b"still pending")
        assert await writer.close() == 3
        metadata = world.metadata_of(writer.ledger)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 3)
        assert metadata.length == writer.length == len(b"entry 0") * 3 + 13
        with pytest.raises(LedgerClosed):
            told.add(b"late")

    simulate(scenario())


def test_an_empty_ledger_is_closed_at_minus_one():
    async def scenario():
        world = cluster()
        writer = await create(world)
        assert await writer.close() == -1
        assert world.metadata_of(writer.ledger).last_entry == -1

    simulate(scenario())


async def closing_after(change):
    """Metadata were changed behind the writer's back; what does its close say?"""
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


def test_a_lost_reply_to_a_close_is_no_defeat():
    async def scenario():
        world = cluster(metadata_attempts_max=50)
        writer, _ = await written(world, 3)
        world.metadata_faults.reply_lost = 0.6
        assert await writer.close() == 2
        assert await writer.close() == 2

    simulate(scenario())


# Reading


def test_a_reader_sees_what_is_confirmed_and_does_not_disturb_the_writer():
    async def scenario():
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

    simulate(scenario())


def test_the_lac_rides_along_with_the_next_entry():
    async def scenario():
        world = cluster(bookies=1)
        writer = await create(world, 1, 1, 1)
        reader = await world.client("reader").open(writer.ledger)
        told = Told(writer)
        for number in range(3):
            told.add(b"entry %d" % number)
            await told.wait(number + 1)
            assert await reader.read_lac() == number - 1

    simulate(scenario())


def test_nothing_above_the_last_add_confirmed_is_shown():
    async def scenario():
        world = cluster(bookies=1)
        writer, _ = await written(world, 3, e=1, qw=1, qa=1)
        reader = await world.client("reader").open(writer.ledger)
        lac = reader.last_add_confirmed
        assert lac < 2
        with pytest.raises(EntryUnknown):
            await reader.read(2, 2, 1000)
        reader.last_add_confirmed = writer.lac
        assert payloads(await reader.read(2, 9, 1000)) == expected(2, 2)

    simulate(scenario())


def test_reading_stops_at_the_byte_limit_but_gives_at_least_one_entry():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 10)
        await writer.close()
        reader = await world.client("reader").open(writer.ledger)
        assert payloads(await reader.read(2, 9, 1)) == expected(2, 2)
        some = payloads(await reader.read(2, 9, 15))
        assert some == expected(2, 1 + len(some)) and 1 < len(some) < 8

    simulate(scenario())


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2), (4, 2, 1), (5, 3, 2), (3, 1, 1)])
def test_striped_ledgers_are_read_in_order(shape):
    async def scenario():
        world = cluster(bookies=5)
        e, qw, qa = shape
        writer, _ = await written(world, 23, e=e, qw=qw, qa=qa)
        await writer.close()
        reader = await world.client("reader").open(writer.ledger)
        assert payloads(await reader.read(0, 22, 10_000)) == expected(0, 22)
        assert payloads(await reader.read(7, 30, 10_000)) == expected(7, 22)

    simulate(scenario())


def test_a_flipped_byte_on_one_replica_is_read_from_another():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 5)
        await writer.close()
        damaged = world.bookies[world.metadata_of(writer.ledger).bookies_of(2)[0]]
        entries = damaged.durable_entries(writer.ledger)
        entries[2] = entries[2][:-1] + b"?"
        reader = await world.client("reader").open(writer.ledger)
        assert payloads(await reader.read(2, 2, 1000)) == expected(2, 2)
        assert payloads(await reader.read(0, 4, 1000)) == expected(0, 4)

    simulate(scenario())


def test_any_qa_minus_one_lost_bookies_leave_everything_readable():
    async def scenario():
        for lost in ("b0", "b1", "b2"):
            world = cluster()
            writer, _ = await written(world, 9)
            await writer.close()
            world.bookies[lost].crash()
            reader = await world.client("reader").open(writer.ledger)
            assert payloads(await reader.read(0, 8, 10_000)) == expected(0, 8)

    simulate(scenario())


def test_an_entry_that_cannot_be_reached_is_unknown_and_never_absent():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 3)
        await writer.close()
        del world.bookies["b0"].durable_entries(writer.ledger)[1]
        world.bookies["b1"].crash()
        world.bookies["b2"].crash()
        reader = await world.client("reader").open(writer.ledger)
        with pytest.raises(EntryUnknown):
            await reader.read(1, 1, 1000)

    simulate(scenario())


def test_an_entry_is_absent_when_so_many_say_so_that_it_cannot_have_been_acknowledged():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 3)
        await writer.close()
        for bookie in ("b0", "b1"):
            del world.bookies[bookie].durable_entries(writer.ledger)[1]
        world.bookies["b2"].crash()
        reader = await world.client("reader").open(writer.ledger)
        with pytest.raises(NoSuchEntry):
            await reader.read(1, 1, 1000)

    simulate(scenario())


def test_what_lies_after_the_end_of_a_closed_ledger_does_not_exist():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 3)
        reader = await world.client("reader").open(writer.ledger)
        await writer.close()
        with pytest.raises(NoSuchEntry):
            await reader.read(3, 3, 1000)
        assert reader.metadata.closed and reader.last_add_confirmed == 2

    simulate(scenario())


def test_too_few_answers_leave_the_lac_unknown_and_opening_possible():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 3)
        world.bookies["b0"].crash()
        world.bookies["b1"].crash()
        reader = await world.client("reader").open(writer.ledger)
        with pytest.raises(EntryUnknown):
            await reader.read_lac()

    simulate(scenario())


def test_a_ledger_that_does_not_exist_cannot_be_opened():
    async def scenario():
        client = cluster().client("reader")
        for call in (client.open, client.recover, client.delete, client.read_metadata):
            with pytest.raises(NoSuchLedger):
                await call(12)

    simulate(scenario())


# Recovering


def test_recovery_takes_the_ledger_from_a_living_writer():
    async def scenario():
        world = cluster()
        writer, told = await written(world, 5)
        reader = await world.client("other").recover(writer.ledger)
        assert reader.metadata.closed and reader.last_add_confirmed == 4
        assert reader.metadata.length == writer.length
        assert payloads(await reader.read(0, 4, 1000)) == expected(0, 4)
        told.add(b"too late")
        await told.wait(6)
        assert told.errors[-1] is Fenced and isinstance(writer.failed, Fenced)
        with pytest.raises(Fenced):
            await writer.close()

    simulate(scenario())


def test_the_state_is_in_recovery_before_the_first_fence():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 3)
        seen = []
        for bookie in world.bookies.values():

            async def read(ledger, entry, fence_key=None, *, real=bookie.read):
                seen.append(world.metadata_of(ledger).state)
                return await real(ledger, entry, fence_key=fence_key)

            bookie.read = read
        await world.client("other").recover(writer.ledger)
        assert seen and seen[0] is LedgerState.IN_RECOVERY

    simulate(scenario())


def test_a_fence_outlives_a_restart_of_the_bookie():
    async def scenario():
        world = cluster()
        writer, told = await written(world, 3)
        await world.client("other").recover(writer.ledger)
        for bookie in world.bookies.values():
            bookie.crash()
            bookie.restart()
        told.add(b"too late")
        await told.wait(4)
        assert told.errors[-1] is Fenced

    simulate(scenario())


def test_recovered_entries_are_on_all_their_bookies():
    async def scenario():
        world = cluster()
        writer, told = await written(world, 3)
        for bookie in ("b0", "b1"):
            world.network.cut("writer", bookie)
        told.add(b"entry 3")  # reaches one bookie
        await told.wait(4)
        assert told.errors[-1] is AddFailed
        reader = await world.client("other").recover(writer.ledger)
        assert reader.last_add_confirmed == 3
        await asyncio.sleep(1)
        assert len(world.holders(writer.ledger, 3)) == 3

    simulate(scenario())


def test_recovery_works_with_one_of_three_gone_and_waits_with_two():
    async def scenario():
        world = cluster()
        writer, _ = await written(world, 5)
        world.bookies["b0"].crash()
        world.bookies["b1"].crash()
        with pytest.raises(EntryUnknown):
            await world.client("other").recover(writer.ledger)
        assert world.metadata_of(writer.ledger).state is LedgerState.IN_RECOVERY
        world.bookies["b1"].restart()
        reader = await world.client("other").recover(writer.ledger)
        assert reader.last_add_confirmed == 4

    simulate(scenario())


def test_many_recoveries_agree_on_the_last_entry():
    async def scenario():
        world = cluster(bookies=5)
        writer, told = await written(world, 3)
        for number in range(3, 9):
            told.add(b"entry %d" % number)
        readers = await asyncio.gather(
            *(world.client(f"other{n}").recover(writer.ledger) for n in range(6))
        )
        assert len({reader.last_add_confirmed for reader in readers}) == 1

    simulate(scenario())


def test_a_ledger_that_was_never_written_is_recovered_as_empty():
    async def scenario():
        world = cluster()
        writer = await create(world)
        reader = await world.client("other").recover(writer.ledger)
        assert (reader.last_add_confirmed, reader.metadata.length) == (-1, 0)

    simulate(scenario())


def test_the_length_is_read_from_the_last_entry_when_nothing_was_written_again():
    async def scenario():
        world = cluster(bookies=1)
        writer, _ = await written(world, 3, e=1, qw=1, qa=1)
        port = world.ports["writer"]
        await port.write_lac("b0", writer.ledger, bytes(20), 2)
        reader = await world.client("other").recover(writer.ledger)
        assert (reader.last_add_confirmed, reader.metadata.length) == (2, writer.length)

    simulate(scenario())


# Deleting and listing


def test_a_deleted_ledger_is_gone_and_leaves_no_empty_nodes():
    async def scenario():
        world = cluster()
        first, second = await create(world), await create(world)
        client = world.client("other")
        await second.close()
        assert await client.list_ledgers() == [first.ledger, second.ledger]
        await client.delete(second.ledger)
        assert await client.list_ledgers() == [first.ledger]
        await client.delete(first.ledger)
        left = world.tree.below(metadata_format.LEDGERS)
        assert set(left) == {"/ledgers/idgen"}

    simulate(scenario())


def test_a_deleted_ledger_acknowledges_nothing_more():
    async def scenario():
        world = cluster()
        writer, told = await written(world, 3)
        await world.client("other").delete(writer.ledger)
        told.add(b"too late")
        await told.wait(4)
        assert told.errors[-1] is Fenced

    simulate(scenario())


def test_a_lost_reply_to_a_delete_is_a_success():
    async def scenario():
        world = cluster(metadata_attempts_max=50)
        writer = await create(world)
        await writer.close()
        world.metadata_faults.reply_lost = 0.6
        await world.client("other").delete(writer.ledger)
        world.metadata_faults.reply_lost = 0.0
        assert await world.client("other").list_ledgers() == []

    simulate(scenario())


def test_an_id_is_never_given_twice():
    async def scenario():
        world = cluster()
        writer = await create(world)
        await writer.close()
        await world.client("other").delete(writer.ledger)
        assert (await create(world)).ledger > writer.ledger

    simulate(scenario())
