"""Goal: a reader leaves a slow bookie soon, returns to it later, and never harms a healthy one.

Method: real readers on a calm simulated cluster, on virtual time; one bookie is slow by a factor,
or by a delay of its answers. Requests are counted at the port.
"""

import asyncio
from collections import Counter
from typing import NamedTuple

import pytest

from ledger.client.health import PROBES_AT_ONCE
from ledger.core.bookie_health import PROBE_EVERY, Reason, SlowDetection
from ledger.core.latency import SampleKind
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import cluster, written
from tests.ledger.reader_rig import add_one, grown, reader_of, settled, timed
from tests.sim.loop import simulate

ENTRIES = 60


async def ledger_of(world, count=ENTRIES, **shape):
    writer, _ = await written(world, count, **shape)
    await settled(world, writer.ledger, count)
    await writer.close()
    return writer.ledger


async def read_round(rig, count=ENTRIES):
    """Read each entry alone. Returns the latencies."""
    return [(await timed(rig.reader.read(entry, entry, 1)))[1] for entry in range(count)]


def slow_now(rig):
    return {each.found.bookie for each in rig.health.greylist() if each.found.reason is Reason.SLOW}


def quantile(latencies, share):
    return sorted(latencies)[int(share * len(latencies))]


# Leaving a slow bookie


@pytest.mark.parametrize("delay_s", [0.05, 0.09, 0.2])
async def test_a_reader_that_met_a_slow_bookie_leaves_it(delay_s):
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    healthy = [seconds for _ in range(10) for seconds in await read_round(rig)]
    slow = rig.reader._last_good
    rig.port.delays[slow] = delay_s
    rig.port.asked.clear()
    latencies = [seconds for _ in range(20) for seconds in await read_round(rig)]
    assert rig.port.count("read_many")[slow] <= 10
    assert slow_now(rig) == {slow}
    assert quantile(latencies, 0.5) <= 2 * quantile(healthy, 0.5)
    assert quantile(latencies[100:], 0.99) <= 2 * quantile(healthy, 0.99)


@pytest.mark.parametrize("seed", range(10))
async def test_one_of_six_that_is_20_times_slower_is_greylisted_within_ten_reads_of_it(seed):
    """Seed 002 L45."""
    world = cluster(bookies=6)
    for _ in range(seed):
        world.draw.random()
    ledger = await ledger_of(world, e=6, qw=3, qa=2)
    rig = await reader_of(world, ledger)
    slow = f"b{seed % 6}"
    world.network.slow["reader", slow] = 20
    asked, seen = 0, Counter()
    for number in range(20 * ENTRIES):
        entry = number % ENTRIES
        await rig.reader.read(entry, entry, 1)
        found = slow_now(rig)
        seen.update(found)
        if not found:
            asked = rig.port.count("read_many")[slow]
    assert set(seen) == {slow}, "the others never"
    assert asked <= 10


async def test_two_slow_bookies_of_a_write_set_leave_the_third_to_be_read():
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    first, second, third = world.metadata_of(rig.reader.metadata.ledger).bookies_of(0)
    rig.port.delays.update({first: 0.05, second: 0.08})
    for _ in range(10):
        await read_round(rig)
    assert slow_now(rig) == {first, second}
    rig.port.asked.clear()
    assert max(await read_round(rig)) < 0.05
    assert set(rig.port.count("read_many")) == {third}


async def test_when_only_slow_bookies_can_answer_they_are_read():
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    first, second, third = world.metadata_of(rig.reader.metadata.ledger).bookies_of(0)
    rig.port.delays.update({first: 0.05, second: 0.08})
    for _ in range(10):
        await read_round(rig)
    world.bookies[third].crash()
    rig.port.answers[third] = Status.UNREACHABLE
    for seconds in await read_round(rig):
        assert 0.05 < seconds < 0.15, "the slow ones answer, and nobody waits for the dead one"
    assert rig.health.speculative_reads == 0


async def test_a_healthy_cluster_has_no_slow_bookie_and_few_extra_requests():
    world = cluster(bookies=6)
    rig = await reader_of(world, await ledger_of(world, e=6, qw=3, qa=2))
    rig.port.asked.clear()
    for _ in range(50):
        await read_round(rig)
        assert not slow_now(rig)
    assert len(rig.port.asked) <= 1.05 * 50 * ENTRIES


async def test_a_bookie_alone_with_its_samples_is_not_slow():
    """One replica is read, the others of the cluster have no entry of this ledger."""
    world = cluster(bookies=6)
    rig = await reader_of(world, await ledger_of(world, e=1, qw=1, qa=1))
    [only] = world.metadata_of(rig.reader.metadata.ledger).last_fragment.ensemble
    rig.port.delays[only] = 0.05
    for _ in range(5):
        await read_round(rig)
    assert not slow_now(rig) and rig.health.probes == 0


async def test_tails_without_news_keep_no_other_bookie_from_being_compared():
    """A poll of an idle ledger takes its whole period, and so does its probe."""
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    replicas = world.metadata_of(rig.reader.metadata.ledger).bookies_of(0)
    waiting, cancelled = [], []

    async def wait_for_news(bookie):
        waiting.append(bookie)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(bookie)
            raise

    for _ in range(10 * PROBE_EVERY):
        rig.health.start_probe(replicas[0], SampleKind.TAIL, replicas, wait_for_news)
        await asyncio.sleep(0.001)
    assert len(waiting) == 10
    assert len(waiting) - len(cancelled) == PROBES_AT_ONCE
    await read_round(rig)
    slow = rig.reader._last_good
    rig.port.delays[slow] = 0.05
    for _ in range(3):
        await read_round(rig)
    assert slow_now(rig) == {slow}
    assert not {each.found.reason for each in rig.health.greylist()} - {Reason.SLOW}


# Coming back


async def test_a_bookie_is_reinstated_and_measured_anew():
    """Seed 002 L46: it is asked again, and caught again for twice as long."""
    world = cluster(bookies=6)
    ledger = await ledger_of(world, e=6, qw=3, qa=2)
    rig = await reader_of(world, ledger)
    loop = asyncio.get_running_loop()
    rig.port.delays["b2"] = 0.05
    times = []
    for _ in range(3):
        rig.port.asked.clear()
        async with asyncio.timeout(600):
            while not slow_now(rig):
                await read_round(rig)
        assert 0 < rig.port.count("read_many")["b2"] <= 20
        [entry] = rig.health.greylist()
        times.append(round(entry.since_s + entry.left_s))
        await asyncio.sleep(entry.left_s)
    assert times == [60, 120, 240]
    del rig.port.delays["b2"]
    rig.port.asked.clear()
    until_s = loop.time() + 30
    while loop.time() < until_s:
        await read_round(rig)
        assert not slow_now(rig)
    assert rig.port.count("read_many")["b2"] > 50, "it is used like any other"


@pytest.mark.parametrize("shape", [{"e": 3, "qw": 3, "qa": 2}, {"e": 6, "qw": 3, "qa": 2}])
async def test_no_read_waits_for_a_bookie_that_is_measured_anew(shape):
    world = cluster(bookies=6)
    rig = await reader_of(world, await ledger_of(world, **shape))
    slow = rig.reader.metadata.bookies_of(0)[0]
    rig.port.delays[slow] = 0.05
    while not slow_now(rig):
        await read_round(rig)
    for _ in range(3):
        [entry] = rig.health.greylist()
        await asyncio.sleep(entry.left_s)
        latencies = []
        async with asyncio.timeout(60):
            while not slow_now(rig):
                latencies += await read_round(rig)
        assert max(latencies) < 0.05


# Modes


class Trace(NamedTuple):
    """All requests of a reader: what, to whom, when; and what it made of a slow bookie."""

    asked: list
    slow: set
    avoided: set
    count: int  # reads of the slow one


async def trace(mode, delay_s=0.05):
    world = cluster(bookies=6, reader_slow_shards_detection=mode)
    rig = await reader_of(world, await ledger_of(world, e=6, qw=3, qa=2))
    rig.port.delays["b2"] = delay_s
    for _ in range(10):
        await read_round(rig)
    await rig.tail.read_next(ENTRIES + 1, 100.0)
    count = rig.port.count("read_many")["b2"]
    return Trace(rig.port.asked, slow_now(rig), set(rig.health.suspects()), count)


def test_observe_only_changes_nothing_on_the_wire():
    """Seed 002 L47: the requests, and their times, are those of a reader without detection."""
    found = {mode: simulate(trace(mode)) for mode in SlowDetection}
    disabled, observing, enabled = (found[mode] for mode in SlowDetection)
    assert disabled.asked == observing.asked != enabled.asked
    assert (disabled.slow, observing.slow, enabled.slow) == (set(), {"b2"}, {"b2"})
    assert (observing.avoided, enabled.avoided) == (set(), {"b2"})
    assert disabled.count == observing.count > 50 and enabled.count <= 10


# The tail


async def follow(world, rig, told, count, pause_s=0.01):
    """New entries one by one. Returns how long after each the reader had the one before it."""
    waits = []
    for _ in range(count):
        number = told.writer.lap + 1
        waiting = asyncio.ensure_future(timed(rig.tail.read_next(number - 1, 60.0)))
        await asyncio.sleep(pause_s)
        began_s = asyncio.get_running_loop().time()
        await add_one(world, told, number)
        await waiting
        waits.append(asyncio.get_running_loop().time() - began_s)
    return waits


async def tail_trace(mode):
    """All requests of a follower whose first bookie is slow."""
    world = cluster(reader_slow_shards_detection=mode)
    writer, told = await grown(world, 2)
    rig = await reader_of(world, writer.ledger)
    rig.port.delays[world.metadata_of(writer.ledger).last_fragment.ensemble[0]] = 0.05
    await follow(world, rig, told, 100)
    return rig.port.asked, rig.health.probes


def test_observe_only_changes_nothing_on_the_wire_at_the_tail():
    """Seed 002 L47."""
    found = {mode: simulate(tail_trace(mode)) for mode in SlowDetection}
    disabled, observing, enabled = (found[mode] for mode in SlowDetection)
    assert disabled == observing and observing[1] == 0 < enabled[1]


async def test_a_follower_leaves_a_slow_bookie():
    world = cluster()
    writer, told = await grown(world, 2)
    rig = await reader_of(world, writer.ledger)
    healthy = await follow(world, rig, told, 100)
    first = world.metadata_of(writer.ledger).last_fragment.ensemble[0]
    rig.port.delays[first] = 0.05
    waits = await follow(world, rig, told, 100)
    assert slow_now(rig) == {first}
    after = await follow(world, rig, told, 100)
    assert quantile(waits[-20:], 0.99) <= 2 * quantile(healthy, 0.99)
    assert quantile(after, 0.99) <= 2 * quantile(healthy, 0.99)


async def test_the_wait_for_news_is_no_sample():
    world = cluster()
    writer, told = await grown(world, 2)
    rig = await reader_of(world, writer.ledger)
    await follow(world, rig, told, 150, pause_s=0.9)
    assert rig.health.probes >= 2 and not slow_now(rig)


async def test_an_idle_follower_waits_at_bookies_that_are_not_slow():
    world = cluster()
    writer, told = await grown(world, 2)
    rig = await reader_of(world, writer.ledger)
    first = world.metadata_of(writer.ledger).last_fragment.ensemble[0]
    rig.port.delays[first] = 0.05
    async with asyncio.timeout(600):
        while not slow_now(rig):
            await follow(world, rig, told, 1)
    rig.port.asked.clear()
    await rig.tail.read_next(told.writer.lap, 20.0)
    asked = rig.port.count("wait_lac")
    assert first not in asked and len(asked) == 2
    assert min(asked.values()) >= 8, "in turn: one of them may be cut off from the writer"


# What is no failure


async def test_reads_that_their_callers_cancel_put_no_bookie_on_the_greylist():
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    rig.port.delays.update(dict.fromkeys(world.bookies, 0.8))
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await rig.reader.read(0, 0, 1)
    assert rig.health.greylist() == []


@pytest.mark.parametrize("delay_s", [0.3, 0.6, 0.8])
async def test_equally_slow_bookies_of_a_write_set_put_none_on_the_greylist(delay_s):
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    rig.port.delays.update(dict.fromkeys(world.bookies, delay_s))
    for _ in range(40):
        await rig.reader.read(0, 0, 1)
        assert rig.health.greylist() == []


async def test_polls_at_the_tail_that_their_callers_cancel_put_no_bookie_on_the_greylist():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    rig.port.delays.update(dict.fromkeys(world.bookies, 3.0))
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.8):  # a poll is late after 1.5 s, and given up after 2 s
                await rig.tail.read_next(3, 30.0)
    assert rig.health.greylist() == []


async def test_polls_at_the_tail_that_are_never_answered_put_their_bookie_on_the_greylist():
    world = cluster()
    writer, _ = await grown(world, 3)
    rig = await reader_of(world, writer.ledger)
    silent = rig.reader.metadata.last_fragment.ensemble[0]
    rig.port.stalled.add(silent)
    for _ in range(30):
        await rig.tail.read_next(3, 30.0)
    [found] = rig.health.greylist()
    assert (found.found.bookie, found.found.reason) == (silent, Reason.FAILING)


# Bookies that are gone


async def test_records_of_bookies_that_are_gone_are_dropped():
    world = cluster()
    rig = await reader_of(world, await ledger_of(world))
    for number in range(200):
        rig.health.on_result(f"old{number}", ok=False)
    await read_round(rig)
    known = rig.health._greylist._failing
    assert len(known) > 200
    for _ in range(4):
        await asyncio.sleep(600)
        await read_round(rig)
    assert set(known) <= set(world.bookies)
    assert known
