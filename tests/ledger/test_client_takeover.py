"""Goal: a ledger is taken over whole, by one or many at once, and deleted ledgers stay gone.

Method: the real client on virtual time over simulated bookies, links and metadata without chance:
each test arranges one situation. What chance finds is in tests/sim/test_ledger.py.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.entry_format import DigestType, master_key
from ledger.core.ledger_metadata import LedgerState
from ledger.errors import AddFailed, EntryUnknown, Fenced
from ledger.ports.bookies import Status
from ledger.registry.layout import LEDGERS
from tests.ledger.calm_cluster import (
    cluster,
    create,
    expected,
    held_by,
    payloads,
    refusing,
    written,
)
from tests.sim.metadata import SimMetadata

# Recovering


async def test_recovery_takes_the_ledger_from_a_living_writer():
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


async def test_the_state_is_in_recovery_before_the_first_fence():
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


async def test_bookies_changed_by_others_meanwhile_are_kept():
    world = cluster()
    writer, _ = await written(world, 3)
    store = LedgerMetadataStore(SimMetadata(world.tree), world.config)
    bookie = world.bookies["b0"]
    real = bookie.read

    async def read(ledger, entry, fence_key=None):
        bookie.read = real
        stored = await store.read(ledger)
        await store.update(stored, lambda one: one.with_ensemble(0, ("b2", "b1", "b0")))
        return await real(ledger, entry, fence_key=fence_key)

    bookie.read = read
    reader = await world.client("other").recover(writer.ledger)
    assert reader.metadata == world.metadata_of(writer.ledger)
    assert reader.metadata.last_entry == 2
    assert reader.metadata.last_fragment.ensemble == ("b2", "b1", "b0")


async def test_a_fence_outlives_a_restart_of_the_bookie():
    world = cluster()
    writer, told = await written(world, 3)
    await world.client("other").recover(writer.ledger)
    for bookie in world.bookies.values():
        bookie.crash()
        bookie.restart()
    told.add(b"too late")
    await told.wait(4)
    assert told.errors[-1] is Fenced


async def test_recovered_entries_are_on_all_their_bookies():
    world = cluster()
    writer, told = await written(world, 3)
    for bookie in ("b0", "b1"):
        world.network.cut("writer", bookie)
        world.network.slow["other", bookie] = 20  # who has it answers first
    told.add(b"entry 3")  # reaches one bookie
    await told.wait(4)
    assert told.errors[-1] is AddFailed
    reader = await world.client("other").recover(writer.ledger)
    assert reader.last_add_confirmed == 3
    await asyncio.sleep(1)
    assert len(held_by(world, writer.ledger, 3)) == 3


async def test_recovery_works_with_one_of_three_gone_and_waits_with_two():
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


async def test_an_overloaded_bookie_delays_recovery_and_does_not_end_it():
    world = cluster(bookies=1)
    writer, _ = await written(world, 3, e=1, qw=1, qa=1)
    refusing(world.bookies["b0"], Status.OVERLOADED, 9)
    reader = await world.client("other").recover(writer.ledger)
    assert reader.last_add_confirmed == 2


async def test_a_recovery_that_ended_sends_an_overloaded_bookie_nothing_more():
    world = cluster()
    writer, _ = await written(world, 3)
    asked, bookie = [], world.bookies["b0"]

    def add(ledger, entry, key, body, on_added, *, recovery=False):
        asked.append(entry)
        asyncio.get_running_loop().call_soon(on_added, Status.OVERLOADED)

    bookie.add = add
    await world.client("other").recover(writer.ledger)
    assert asked
    await asyncio.sleep(0.1)  # what was on its way has come
    asked.clear()
    await asyncio.sleep(1)
    assert not asked


async def test_many_recoveries_agree_on_the_last_entry():
    world = cluster(bookies=5)
    writer, told = await written(world, 3)
    for number in range(3, 9):
        told.add(b"entry %d" % number)
    readers = await asyncio.gather(
        *(world.client(f"other{n}").recover(writer.ledger) for n in range(6))
    )
    assert len({reader.last_add_confirmed for reader in readers}) == 1


async def test_a_ledger_that_was_never_written_is_recovered_as_empty():
    world = cluster()
    writer = await create(world)
    reader = await world.client("other").recover(writer.ledger)
    assert (reader.last_add_confirmed, reader.metadata.length) == (-1, 0)


async def begin_fragment(world, ledger, first, ensemble):
    """As a writer does that changed its bookies, and died."""
    store = LedgerMetadataStore(SimMetadata(world.tree), LedgerClientConfig())
    known = await store.read(ledger)
    await store.update(known, lambda current: current.with_ensemble(first, ensemble))


async def test_the_length_is_read_from_the_last_entry_when_nothing_was_written_again():
    world = cluster(bookies=2)
    writer, _ = await written(world, 3, e=1, qw=1, qa=1)
    (first,) = writer.metadata.last_fragment.ensemble
    await begin_fragment(world, writer.ledger, 3, ("b1" if first == "b0" else "b0",))
    reader = await world.client("other").recover(writer.ledger)
    assert (reader.last_add_confirmed, reader.metadata.length) == (2, writer.length)


async def test_a_lac_counts_only_inside_an_entry_that_verifies():
    world = cluster()
    writer, told = await written(world, 0)
    for number in range(4):  # each says that nothing was confirmed when it was sent
        told.add(b"entry %d" % number)
    await told.wait(4)
    ledger = writer.ledger
    for bookie in world.bookies.values():  # as one damaged add would leave them
        await bookie.write_lac(ledger, master_key(b""), 3)
    rotten, poor, _ = world.metadata_of(ledger).last_fragment.ensemble
    body = bytearray(world.bookies[rotten].ledgers[ledger].entries[3])
    body[16:24] = (3).to_bytes(8, "big")
    world.bookies[rotten].ledgers[ledger].entries[3] = bytes(body)
    del world.bookies[poor].ledgers[ledger].entries[3]
    reader = await world.client("other").recover(ledger)
    assert reader.last_add_confirmed == 3
    await asyncio.sleep(1)
    assert poor in held_by(world, ledger, 3)


async def test_an_old_writer_may_leave_copies_on_a_bookie_that_missed_the_fence_and_no_more():
    """B24."""
    world = cluster()
    writer, told = await written(world, 3)
    missed = writer.metadata.last_fragment.ensemble[1]
    world.network.cut("other", missed)
    reader = await world.client("other").recover(writer.ledger)
    told.add(b"too late")
    await told.wait(4)
    assert told.errors[-1] is Fenced
    await asyncio.sleep(0.1)
    assert (await world.bookies[missed].read(writer.ledger, 3)).status is Status.OK
    assert reader.last_add_confirmed == 2


async def hang(world, names):
    """From now on these bookies answer no read; adds neither."""

    async def read(ledger, entry, fence_key=None):
        await asyncio.Event().wait()

    for name in names:
        world.bookies[name].read = read
        world.bookies[name].add = lambda *args, **more: None


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_hung_bookie_holds_up_no_recovery(place):
    """T14: fences, reads and adds are decided by those who answer."""
    world = cluster()
    writer, told = await written(world, 3)
    for number in range(3, 9):
        told.add(b"entry %d" % number)
    await told.wait(9)
    await hang(world, [writer.metadata.last_fragment.ensemble[place]])
    started_s = asyncio.get_running_loop().time()
    reader = await world.client("other").recover(writer.ledger)
    assert reader.last_add_confirmed == 8
    assert asyncio.get_running_loop().time() - started_s < 0.3


async def test_a_hung_bookie_does_not_hold_up_reading_the_length():
    world = cluster()
    writer, _ = await written(world, 3)
    await begin_fragment(world, writer.ledger, 3, ("b2", "b0", "b1"))
    await hang(world, [world.metadata_of(writer.ledger).bookies_of(2)[0]])
    started_s = asyncio.get_running_loop().time()
    reader = await world.client("other").recover(writer.ledger)
    assert (reader.last_add_confirmed, reader.metadata.length) == (2, writer.length)
    assert asyncio.get_running_loop().time() - started_s < 0.3


@pytest.mark.parametrize("digest", DigestType)
async def test_copies_are_written_again_whatever_the_digest(digest):
    """The bookies that hold one see that it is the same entry, also where they cannot check it."""
    world = cluster(digest_type=digest, password=b"secret")
    writer, told = await written(world, 0)
    for number in range(4):  # each says that nothing was confirmed when it was sent
        told.add(b"entry %d" % number)
    await told.wait(4)
    b0, b1, b2 = writer.metadata.last_fragment.ensemble
    await begin_fragment(world, writer.ledger, 2, (b1, b2, b0))  # so the copies say: 1 confirmed
    reader = await world.client("other").recover(writer.ledger)
    assert reader.last_add_confirmed == 3
    await asyncio.sleep(1)
    assert [bookie.conflicts for bookie in world.bookies.values()] == [0, 0, 0]
    assert payloads(await reader.read(0, 3, 1000)) == expected(0, 3)


async def test_what_re_replication_did_to_earlier_fragments_meanwhile_is_kept():
    """And nothing is read again because of it."""
    world = cluster(bookies=6)
    writer, _ = await written(world, 3)
    old, [*spares] = writer.metadata.last_fragment.ensemble, set(world.bookies)
    spares = sorted(set(spares) - set(old))
    store = LedgerMetadataStore(SimMetadata(world.tree), world.config)
    new = (spares[0], *old[1:])
    await store.update(await store.read(writer.ledger), lambda one: one.with_ensemble(3, new))

    def repaired(one):
        first = one.fragments[0]._replace(ensemble=(spares[1], *old[1:]))
        return replace(one, fragments=(first, *one.fragments[1:]))

    bookie, fences = world.bookies[new[0]], []
    real = bookie.read

    async def read(ledger, entry, fence_key=None):
        fences.append(entry)
        if len(fences) == 1:
            await store.update(await store.read(ledger), repaired)
        return await real(ledger, entry, fence_key=fence_key)

    bookie.read = read
    reader = await world.client("other").recover(writer.ledger)
    assert [one.ensemble for one in reader.metadata.fragments] == [(spares[1], *old[1:]), new]
    assert (reader.metadata, reader.last_add_confirmed) == (
        world.metadata_of(writer.ledger),
        2,
    )
    assert fences.count(-1) == 1


async def test_a_bookie_that_refuses_copies_is_replaced_by_one_in_another_rack():
    world = cluster(bookies=5)
    writer, _ = await written(world, 3)
    old = writer.metadata.last_fragment.ensemble
    near, far = sorted(set(world.bookies) - set(old))
    racks = dict.fromkeys([old[0], near], "/a") | {old[1]: "/b", old[2]: "/c", far: "/c"}
    world.network.racks.update(racks)
    refusing(world.bookies[old[0]], Status.IO_ERROR, 10**9)
    reader = await world.client("other").recover(writer.ledger)
    assert reader.metadata.last_fragment.ensemble == (near, *old[1:])
    assert reader.last_add_confirmed == 2


# Deleting and listing


async def test_a_deleted_ledger_is_gone_and_leaves_no_empty_nodes():
    world = cluster()
    first, second = await create(world), await create(world)
    client = world.client("other")
    await second.close()
    assert await client.list_ledgers() == [first.ledger, second.ledger]
    await client.delete(second.ledger)
    assert await client.list_ledgers() == [first.ledger]
    await client.delete(first.ledger)
    left = world.tree.below(LEDGERS)
    assert set(left) == {"/ledgers/idgen"}


async def test_a_deleted_ledger_acknowledges_nothing_more():
    world = cluster()
    writer, told = await written(world, 3)
    await world.client("other").delete(writer.ledger)
    told.add(b"too late")
    await told.wait(4)
    assert told.errors[-1] is Fenced


async def test_a_closed_ledger_is_deleted_without_any_of_its_bookies():
    world = cluster()
    writer, _ = await written(world, 3)
    await writer.close()
    for bookie in world.bookies.values():
        bookie.crash()
    await world.client("other").delete(writer.ledger)
    assert await world.client("other").list_ledgers() == []


async def test_an_open_ledger_whose_bookies_are_away_is_not_deleted():
    """Its writer might go on acknowledging."""
    world = cluster()
    writer, told = await written(world, 3)
    for name in ("b0", "b1"):
        world.network.cut("other", name)
    with pytest.raises(EntryUnknown):
        await world.client("other").delete(writer.ledger)
    told.add(b"entry 3")
    await told.wait(4)
    assert await world.client("other").list_ledgers() == [writer.ledger]


async def test_a_lost_reply_to_a_delete_is_a_success():
    world = cluster(metadata_attempts_max=50)
    writer = await create(world)
    await writer.close()
    world.metadata_faults.reply_lost = 0.6
    await world.client("other").delete(writer.ledger)
    world.metadata_faults.reply_lost = 0.0
    assert await world.client("other").list_ledgers() == []


async def test_an_id_is_never_given_twice():
    world = cluster()
    writer = await create(world)
    await writer.close()
    await world.client("other").delete(writer.ledger)
    assert (await create(world)).ledger > writer.ledger
