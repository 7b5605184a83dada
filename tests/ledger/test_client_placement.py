"""Goal: what the client has stored lies across racks, shares the load and leaves sick bookies out.

Method: the real client on a calm simulated cluster; what is looked at is the stored metadata.
"""

import asyncio
from collections import Counter

import pytest

from tests.ledger.calm_cluster import Told, cluster, create
from tests.ledger.reader_rig import reader_of

SHAPE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


def ensembles(world, ledger):
    return [fragment.ensemble for fragment in world.metadata_of(ledger).fragments]


def racks_of(world, ensemble):
    return {world.network.racks[bookie] for bookie in ensemble}


async def wait_until(fact):
    async with asyncio.timeout(60):
        while not fact():
            await asyncio.sleep(0.01)


async def test_the_segments_of_two_streams_are_spread_over_five_bookies_and_so_are_reads():
    world = cluster(bookies=5)
    copies, reads = Counter(), Counter()
    for stream in range(2):
        client = world.client(f"gateway-{stream}")
        for _ in range(100):
            writer = await client.create(**SHAPE)
            told = Told(writer)
            told.add(b"entry 0")
            await told.wait(1)
            await writer.close()
            copies.update(world.metadata_of(writer.ledger).last_fragment.ensemble)
            rig = await reader_of(world, writer.ledger)
            await rig.reader.read(0, 0, 1)
            reads.update(rig.port.count("read_many"))
    assert sum(copies.values()) == 600 and len(copies) == 5
    assert max(copies.values()) <= 1.1 * min(copies.values())
    assert sum(reads.values()) == 200
    assert max(reads.values()) <= 2 * min(reads.values())


@pytest.mark.parametrize("seed", range(5))
async def test_every_fragment_spans_all_racks_also_after_ensemble_changes(seed):
    world = cluster(bookies=9, failed_bookie_pause_s=0.1)
    world.network.racks = {name: f"/rack-{n % 3}" for n, name in enumerate(world.bookies)}
    for _ in range(seed):
        world.draw.random()  # another ensemble to begin with
    writer = await create(world)
    told = Told(writer)
    for number in range(8):
        told.add(b"entry")
        await told.wait(2 * number + 1)
        victim = world.draw.choice(ensembles(world, writer.ledger)[-1])
        world.bookies[victim].crash()
        told.add(b"entry")
        await told.wait(2 * number + 2)
        await wait_until(lambda gone=victim: gone not in ensembles(world, writer.ledger)[-1])
        world.bookies[victim].restart()
    assert all(len(racks_of(world, one)) == 3 for one in ensembles(world, writer.ledger))
    assert told.errors == [type(None)] * 16


async def test_the_rack_of_a_bookie_that_is_gone_is_remembered():
    world = cluster(bookies=8)
    world.network.racks = {name: f"/{'abcd'[n % 4]}" for n, name in enumerate(world.bookies)}
    writer = await create(world)
    told = Told(writer)
    [before] = ensembles(world, writer.ledger)
    world.bookies[before[1]].crash()
    told.add(b"entry")
    await told.wait(1)
    await wait_until(lambda: before[1] not in ensembles(world, writer.ledger)[-1])
    after = ensembles(world, writer.ledger)[-1]
    assert racks_of(world, after[1:2]) == racks_of(world, before[1:2])


async def test_a_bookie_that_has_much_to_do_gets_no_new_ledger():
    world = cluster(bookies=5)
    client = world.client("writer")
    writer = await client.create(**SHAPE)
    told = Told(writer)
    for _ in range(20):
        told.add(bytes(1_000_000))
    await told.wait(20)
    await writer.close()
    busy = set(ensembles(world, writer.ledger)[0])
    for _ in range(5):
        writer = await client.create(**SHAPE)
        assert len(busy.intersection(ensembles(world, writer.ledger)[0])) == 1


async def test_ledgers_and_spares_count_as_load_before_anything_is_written():
    world = cluster(bookies=5)
    client = world.client("writer")
    copies = Counter()
    for _ in range(100):
        writer = await client.create(**SHAPE)
        copies.update(ensembles(world, writer.ledger)[0])
    assert max(copies.values()) <= 1.1 * min(copies.values())
    before = client.health.load()
    spare = client.health.choose_replacement(("b0", "b1", "b2"), 0, write_quorum=3, failed=("b3",))
    assert spare == "b4" and client.health.load()["b4"] > before["b4"]


async def test_when_a_whole_rack_is_gone_writing_goes_on_in_the_others():
    world = cluster(bookies=4)
    world.network.racks = {"b0": "/a", "b1": "/a", "b2": "/b", "b3": "/b"}
    writer = await create(world, 2, 2, 1)
    told = Told(writer)
    told.add(b"entry")
    await told.wait(1)
    for bookie in ("b0", "b1"):
        world.bookies[bookie].crash()
    told.add(b"entry")
    await told.wait(2)
    await wait_until(lambda: len(ensembles(world, writer.ledger)) == 2)
    first, second = ensembles(world, writer.ledger)
    assert racks_of(world, first) == {"/a", "/b"} and set(second) == {"b2", "b3"}


async def test_a_bookie_that_keeps_failing_gets_no_new_ledger_for_a_while():
    world = cluster(bookies=5)
    client = world.client("writer")
    for _ in range(3):
        client.health.on_result("b2", ok=False)
    for _ in range(20):
        writer = await client.create(**SHAPE)
        assert "b2" not in ensembles(world, writer.ledger)[0]
    await asyncio.sleep(world.config.failing_s)
    writer = await client.create(**SHAPE)
    assert "b2" in ensembles(world, writer.ledger)[0], "it has least to do by now"


async def test_a_bookie_that_keeps_failing_is_used_when_there_are_no_others():
    world = cluster(bookies=3)
    client = world.client("writer")
    for _ in range(3):
        client.health.on_result("b2", ok=False)
    writer = await client.create(**SHAPE)
    assert set(ensembles(world, writer.ledger)[0]) == {"b0", "b1", "b2"}


async def test_the_first_copy_is_in_the_rack_of_the_writer():
    world = cluster(bookies=6, rack="/b")
    world.network.racks = {name: f"/{'abc'[n % 3]}" for n, name in enumerate(world.bookies)}
    client = world.client("writer")
    for _ in range(10):
        writer = await client.create(**SHAPE)
        [ensemble] = ensembles(world, writer.ledger)
        assert world.network.racks[ensemble[0]] == "/b"
