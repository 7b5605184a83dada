"""Goal: a reader at the tail hears of an entry when it is confirmed, whoever stalls, and is cheap.

Method: as test_reader.py. Then all at once: bad weather, crashes and a rival's recovery by seed,
where what a follower saw must be the ledger, entry by entry.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from ledger.core.ledger_metadata import Fragment
from ledger.errors import EntryUnknown, NoSuchLedger
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import Told, cluster, create, expected
from tests.ledger.reader_rig import (
    SICK,
    add_one,
    change_metadata,
    grown,
    reader_of,
    settled,
    timed,
)
from tests.sim.cluster import Cluster
from tests.sim.disk_bookie import DiskBookie
from tests.sim.network import Weather

LONG_POLL_S, LATE_S = 1.0, 1.5  # the defaults


def waiting_for(rig, wanted, timeout_s=30.0):
    """(result or error, seconds until then), later."""
    return asyncio.ensure_future(timed(rig.tail.read_next(wanted, timeout_s)))


# Long polls


async def test_a_confirmed_entry_comes_at_once_with_the_latest_lac():
    world = cluster()
    writer, _ = await grown(world, 6)
    rig = await reader_of(world, writer.ledger)
    tail, seconds = await timed(rig.tail.read_next(1, 30.0))
    assert (bytes(tail.payload), tail.lac, tail.ended) == (b"entry 1", 4, False)
    assert seconds < 0.05 and len(rig.port.asked) == 1, "the entry came with the LAC"
    tail, seconds = await timed(rig.tail.read_next(3, 30.0))
    assert (bytes(tail.payload), tail.lac) == (b"entry 3", 4)
    assert seconds < 0.05 and len(rig.port.asked) == 2


async def test_an_entry_not_yet_confirmed_comes_when_it_is():
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 2)
    await asyncio.sleep(0.7)
    assert not waiting.done()
    await add_one(world, told, 3)
    tail, seconds = await waiting
    assert (bytes(tail.payload), tail.lac) == (b"entry 2", 2)
    assert 0.7 < seconds < 0.75 and len(rig.port.asked) == 1


@pytest.mark.parametrize("timeout_s", [0.0, 0.3, 3.7])
async def test_when_time_is_up_the_lac_is_all_that_comes(timeout_s):
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    tail, seconds = await timed(rig.tail.read_next(2, timeout_s))
    assert (tail.payload, tail.lac, tail.ended) == (None, 1, False)
    assert timeout_s <= seconds < timeout_s + 0.05


async def test_waiting_for_the_lac_alone_brings_the_lac():
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    assert await rig.tail.wait_lac(0, 30.0) == 1
    waiting = asyncio.ensure_future(timed(rig.tail.wait_lac(1, 30.0)))
    await asyncio.sleep(0.2)
    await add_one(world, told, 3)
    lac, seconds = await waiting
    assert lac == 2 and seconds < 0.25


async def test_an_explicit_lac_wakes_the_reader():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 2)
    await asyncio.sleep(0.2)
    for bookie in world.bookies:
        key = world.bookies[bookie].ledgers[writer.ledger].key
        await rig.port.write_lac(bookie, writer.ledger, key, 2)
    tail, seconds = await waiting
    assert bytes(tail.payload) == b"entry 2" and seconds < 0.25


async def test_an_idle_reader_asks_about_once_a_period_and_a_new_entry_still_wakes_it():
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 2, timeout_s=120.0)
    await asyncio.sleep(60 * LONG_POLL_S)
    asked = rig.port.count("wait_lac")
    assert 55 <= asked.total() <= 61
    assert max(asked.values()) <= 21, "in turn: one may be cut off from the writer"
    assert len(rig.port.asked) == asked.total() and rig.health.speculative_lac_reads == 0
    await add_one(world, told, 3)
    tail, seconds = await waiting
    assert bytes(tail.payload) == b"entry 2" and seconds < 60.05


async def test_a_longer_period_costs_fewer_questions():
    world = cluster(long_poll_s=10.0, speculative_lac_s=15.0, speculative_lac_s_max=50.0)
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    await rig.tail.read_next(2, 60.0)
    assert len(rig.port.asked) <= 7


async def test_a_striped_ledger_is_followed_with_one_question_per_entry():
    world = cluster(bookies=5)
    for shape in ((5, 3, 2), (4, 2, 2), (3, 2, 1)):
        writer, told = await grown(world, 1, e=shape[0], qw=shape[1], qa=shape[2])
        rig = await reader_of(world, writer.ledger)
        for number in range(10):
            waiting = waiting_for(rig, number)
            await asyncio.sleep(0.1)
            await add_one(world, told, number + 1)
            tail, seconds = await waiting
            assert bytes(tail.payload) == b"entry %d" % number and seconds < 0.15
        assert len(rig.port.asked) == 10


# Whoever stalls


@pytest.mark.parametrize("stalled", [1, 2])
async def test_when_the_bookie_asked_stalls_another_one_answers(stalled):
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 2)
    while not rig.port.asked:
        await asyncio.sleep(0.001)
    first = rig.port.asked[0][1]
    others = [bookie for bookie in ("b0", "b1", "b2") if bookie != first]
    world.network.cut("reader", first)
    if stalled == 2:
        rig.port.stalled.add(others[0])
    await add_one(world, told, 3)
    tail, seconds = await waiting
    assert bytes(tail.payload) == b"entry 2"
    assert seconds < LATE_S + (stalled - 1) * 2 * LATE_S + 0.05
    assert rig.health.speculative_lac_reads <= stalled


async def test_a_stalled_bookie_holds_up_one_poll_and_not_the_next():
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    rig.port.stalled.add(world.metadata_of(writer.ledger).bookies_of(3)[0])
    took = []
    for number in range(2, 12):
        waiting = waiting_for(rig, number)
        await asyncio.sleep(0.01)
        await add_one(world, told, number + 1)
        took.append((await waiting)[1])
    assert len([seconds for seconds in took if seconds >= LATE_S]) == 1
    assert rig.health.speculative_lac_reads == 1


@pytest.mark.parametrize("status", SICK)
async def test_when_the_bookie_asked_errs_the_next_one_is_asked_at_once(status):
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    rig.port.answers = {"b0": status, "b1": status}
    waiting = waiting_for(rig, 2)
    await asyncio.sleep(0.1)
    await add_one(world, told, 3)
    tail, seconds = await waiting
    assert bytes(tail.payload) == b"entry 2" and seconds < 0.15


async def test_a_bookie_cut_off_from_the_writer_delays_news_by_one_period():
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 2)
    while not rig.port.asked:
        await asyncio.sleep(0.001)
    world.network.cut("writer", rig.port.asked[0][1])
    told.add(b"entry 3")
    tail, seconds = await waiting
    assert bytes(tail.payload) == b"entry 2" and seconds < LONG_POLL_S + 0.05


@pytest.mark.parametrize("timeout_s", [0.0, 0.5, 5.0])
async def test_nobody_answering_is_an_error_and_not_the_lac(timeout_s):
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    rig.port.answers = dict.fromkeys(world.bookies, Status.UNREACHABLE)
    error, seconds = await timed(rig.tail.read_next(2, timeout_s))
    assert isinstance(error, EntryUnknown) and seconds < timeout_s + 0.05
    assert len(rig.port.asked) <= 3 * (6 + timeout_s)
    rig.port.answers = {}
    rig.port.stalled.update(world.bookies)
    error, seconds = await timed(rig.tail.read_next(2, timeout_s))
    assert isinstance(error, EntryUnknown) and seconds < timeout_s + 1.0
    rig.port.stalled.clear()
    assert (await rig.tail.read_next(1, 1.0)).lac == 1


async def test_a_bookie_that_lags_does_not_lower_the_lac():
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    world.network.cut("writer", world.metadata_of(writer.ledger).last_fragment.ensemble[0])
    told.add(b"entry 3")
    lacs = [(await rig.tail.read_next(2, 30.0)).lac]
    for _ in range(6):  # each asks another bookie
        lacs.append(await rig.tail.wait_lac(9, LONG_POLL_S))
    assert lacs[0] >= 2 and lacs == sorted(lacs)


async def test_a_rotten_copy_that_came_along_is_read_elsewhere():
    world = cluster()
    writer, _ = await grown(world, 4)
    first = world.metadata_of(writer.ledger).bookies_of(3)[0]
    world.bookies[first].durable_entries(writer.ledger)[2] = b"rot"
    rig = await reader_of(world, writer.ledger)
    tail = await rig.tail.read_next(2, 30.0)
    assert bytes(tail.payload) == b"entry 2" and rig.health.corrupt_entries >= 1


async def test_what_bookies_hold_above_the_lac_is_not_shown():
    world = cluster()
    writer, _ = await grown(world, 4)
    rig = await reader_of(world, writer.ledger)
    for wanted in (3, 4, 100):
        tail = await rig.tail.read_next(wanted, 1.2)
        assert tail.payload is None and tail.lac <= 2


# What metadata tell


async def test_the_end_of_the_ledger_is_noticed_at_once_and_without_asking():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    last = waiting_for(rig, 2)
    await asyncio.sleep(0.4)
    await writer.close()
    tail, seconds = await last
    assert (bytes(tail.payload), tail.lac) == (b"entry 2", 2) and 0.4 < seconds < 0.45
    asked = len(rig.port.asked)
    tail = await rig.tail.read_next(3, 30.0)
    assert (tail.payload, tail.lac, tail.ended) == (None, 2, True)
    assert len(rig.port.asked) == asked


async def test_the_end_of_an_empty_ledger_is_noticed():
    world = cluster()
    writer = await create(world)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 0)
    await asyncio.sleep(0.4)
    await writer.close()
    tail, seconds = await waiting
    assert tail.ended and tail.lac == -1 and seconds < 0.45


async def test_the_first_entries_of_an_empty_ledger_wake_its_reader():
    world = cluster()
    writer = await create(world)
    told = Told(writer)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 0)
    await asyncio.sleep(3.4)
    await add_one(world, told, 0)
    await add_one(world, told, 1)
    tail, seconds = await waiting
    assert bytes(tail.payload) == b"entry 0" and seconds < 3.5


async def test_a_recovery_by_someone_else_is_waited_out_and_its_end_noticed():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 3)
    await asyncio.sleep(0.2)
    await world.client("rival").recover(writer.ledger)
    tail, seconds = await waiting
    assert tail.ended and tail.lac == 2 and seconds < 0.3


async def test_bookies_that_were_fenced_are_not_asked_in_a_tight_loop():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    for bookie in world.bookies:
        key = world.bookies[bookie].ledgers[writer.ledger].key
        await rig.port.read(bookie, writer.ledger, -1, fence_key=key)
    tail, seconds = await timed(rig.tail.read_next(2, 10.0))
    assert (tail.payload, tail.lac) == (None, 1) and 10.0 <= seconds < 10.05
    assert len(rig.port.asked) < 45


async def test_a_new_fragment_on_other_bookies_is_noticed_without_asking_the_old_ones():
    world = cluster(bookies=6)
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    old = world.metadata_of(writer.ledger).last_fragment.ensemble
    new = tuple(sorted(set(world.bookies) - set(old)))
    waiting = waiting_for(rig, 3)
    await asyncio.sleep(0.1)

    def change(current):
        return replace(current, fragments=(*current.fragments, Fragment(2, new)))

    await change_metadata(world, writer.ledger, change)
    await asyncio.sleep(0.05)
    asked = [bookie for what, bookie, _ in rig.port.asked if what == "wait_lac"]
    assert asked[-1] in new and len(asked) == 2
    assert rig.reader.last_add_confirmed == 1
    waiting.cancel()


async def test_a_deleted_ledger_is_noticed():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    waiting = waiting_for(rig, 7)
    await asyncio.sleep(0.1)
    await world.client("owner").delete(writer.ledger)
    result, seconds = await waiting
    assert seconds < 0.2
    # Deleting closes first, and whichever of the two is seen first, the wait is over.
    assert isinstance(result, NoSuchLedger) or result.ended


async def test_bookies_answer_while_the_metadata_store_does_not():
    world = cluster(metadata_attempts_max=2)
    writer, told = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    world.metadata_faults.unsent = 1.0
    waiting = waiting_for(rig, 2)
    await asyncio.sleep(0.2)
    await add_one(world, told, 3)
    tail, _ = await waiting
    assert bytes(tail.payload) == b"entry 2"


async def test_an_end_that_the_metadata_store_did_not_tell_is_noticed_once_it_answers():
    world = cluster(metadata_attempts_max=2)
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    await writer.close()
    world.metadata_faults.unsent = 1.0
    waiting = waiting_for(rig, 3)
    await asyncio.sleep(5)
    assert not waiting.done()
    world.metadata_faults.unsent = 0.0
    tail, seconds = await waiting
    assert tail.ended and tail.lac == 2 and seconds < 10


async def test_a_closed_tail_leaves_no_watch_behind():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    before = sum(map(len, world.tree.watches.values()))
    await rig.tail.read_next(2, 0.1)
    assert sum(map(len, world.tree.watches.values())) == before + 1
    rig.tail.close()
    rig.tail.close()
    assert sum(map(len, world.tree.watches.values())) == before


# Following


async def followed(rig, first=0):
    """What a follower sees until the ledger ends; it goes on after every error it may retry."""
    seen = []
    while not await follow_on(rig, first, seen):
        await asyncio.sleep(0.1)
    return seen


async def follow_on(rig, first, seen):
    try:
        async with aclosing(rig.tail.follow(first + len(seen))) as entries:
            async for entry, payload in entries:
                seen.append((entry, bytes(payload)))
    except EntryUnknown:
        return False
    return True


async def test_a_follower_sees_what_was_there_and_what_comes_until_the_end():
    world = cluster()
    writer, told = await grown(world, 5)
    rig = await reader_of(world, writer.ledger)
    following = asyncio.ensure_future(followed(rig, 2))
    for number in range(5, 40):
        told.add(b"entry %d" % number)
        if number % 5 == 0:
            await settled(world, writer.ledger, number + 1)
            await asyncio.sleep(0.3)
    await told.wait(40)
    assert not following.done()
    await writer.close()
    assert await following == expected(2, 39)


async def test_a_client_gives_readers_and_their_tails():
    world = cluster()
    writer, told = await grown(world, 3)
    client = world.client("reader")
    tail = client.tail(await client.open(writer.ledger))
    waiting = asyncio.ensure_future(tail.read_next(2, 30.0))
    await add_one(world, told, 3)
    assert bytes((await waiting).payload) == b"entry 2"
    tail.close()


async def test_a_follower_that_is_far_behind_catches_up_in_pieces():
    world = cluster()
    writer = await create(world)
    told = Told(writer)
    payloads = [bytes([number]) * 700_000 for number in range(7)]
    for payload in payloads:
        told.add(payload)
    await told.wait(7)
    await writer.close()
    rig = await reader_of(world, writer.ledger)
    assert await followed(rig) == list(enumerate(payloads))
    assert rig.port.count("read_many").total() <= 5


@pytest.mark.parametrize("bookie", [None, DiskBookie], ids=["model bookie", "real bookie"])
@pytest.mark.parametrize("seed", range(8))
async def test_in_bad_weather_a_follower_sees_every_entry_once_and_in_order(seed, bookie):
    weather = Weather(tail_rate=0.1, loss=0.03, timeout_s=0.5)
    world = Cluster(seed, bookies=5, weather=weather, bookie=bookie)
    await world.start()
    await world.all_up()
    writer = await create(world, 5, 3, 2)
    rig = await reader_of(world, writer.ledger)
    following = asyncio.ensure_future(followed(rig))
    told = Told(writer)
    for number in range(60):
        if writer.failed is not None:
            break
        await writer.room()
        told.add(b"entry %d" % number)
        await asyncio.sleep(world.draw.expovariate(10))
        if number % 20 == 10:
            victim = world.bookies[world.draw.choice(sorted(world.bookies))]
            victim.crash()
            asyncio.get_running_loop().call_later(0.5, victim.restart)
    world.heal()
    closed = await world.client("rival").recover(writer.ledger)
    seen = await following
    assert seen == expected(0, closed.last_add_confirmed)
    assert len(seen) >= len([error for error in told.errors if error is type(None)])
