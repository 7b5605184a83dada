"""Goal: a reader of committed records at a replica gets all of them, none that was aborted, and
none before the replica has read its outcome.

Method: a leader and a replica over the same ledgers, on virtual time, and Fetch in Kafka's bytes.
A consumer drops aborted batches as Kafka's does, and is compared with how transactions ended.
"""

import asyncio
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from ledger.ports.bookies import Status
from tests.gateway.lossy_cluster import lost_range
from tests.gateway.replica_pair import HERE, RACK, THERE, replica_pair
from tests.gateway.stream_cluster import batch
from tests.gateway.test_fetch import one
from tests.gateway.test_read_committed import COLD, Producers, aborted, delivered, stored
from tests.gateway.test_transaction_path import marked, part, sent
from tests.ledger.cleaning_rig import clean
from tests.sim.seeds import first_at_commit

OK = ErrorCode.none
BOTH = pytest.mark.parametrize("limits", [None, COLD], ids=["warm", "cold"])


@BOTH
async def test_records_of_an_open_transaction_come_with_its_end(limits):
    async with replica_pair(limits) as pair:
        await pair.leader.sent(pair.partition, batch(records=1))
        await sent(pair.partition, part(0))
        await pair.leader.sent(pair.partition, batch(records=1))
        await pair.until(1)
        found = await pair.fetch(0)
        assert (found.high_watermark, found.last_stable_offset) == (3, 1)
        assert [header.base_offset for header, _ in stored(found)] == [0]
        assert await marked(pair.partition) is OK
        await pair.until(4)
        assert await pair.delivered(0, 4) == [0, 1, 2]


async def test_a_long_poll_ends_with_the_transaction_and_not_before():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await pair.fetch(0)
        waiting = asyncio.ensure_future(pair.fetch(0, wait_ms=30_000))
        await asyncio.sleep(1)
        await pair.leader.sent(pair.partition, batch(records=1))
        await asyncio.sleep(1)
        assert not waiting.done()
        await marked(pair.partition)
        async with asyncio.timeout(1):
            assert delivered(await waiting) == [0, 1]


async def test_a_long_poll_ends_when_the_first_snapshot_was_read():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition)
        async with asyncio.timeout(5):
            assert delivered(await pair.fetch(0, wait_ms=30_000)) == [0]


async def aborted_over_segments(pair):
    """Write a transaction of three segments that is aborted in the third, and a committed one."""
    await sent(pair.partition, part(0), part(0, producer=6))
    for sequence in (1, 2):
        pair.partition.stream.roll_soon()
        await asyncio.sleep(0.1)
        await sent(pair.partition, part(sequence))
    await marked(pair.partition, commit=False)
    await marked(pair.partition, producer=6)
    assert len(pair.partition.stream.segments) == 3
    return pair.partition.high_watermark


@BOTH
@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_an_aborted_transaction_is_named_in_each_of_its_segments(limits, when):
    async with replica_pair(limits) as pair:
        if when == "before":
            await pair.fetch(0)
        end = await aborted_over_segments(pair)
        if when == "between":
            await pair.until(end)
        for _ in range(2 if when == "after" else 0):
            pair.partition.stream.roll_soon()
            await asyncio.sleep(0.1)
            await pair.leader.sent(pair.partition, batch(records=1))
        written, end = end, pair.partition.high_watermark
        await pair.until(end)
        assert [aborted(await pair.fetch(at)) for at in (0, 2, 3, 4)] == [[(5, 0)]] * 4
        assert aborted(await pair.fetch(5)) == []
        assert await pair.delivered(0, end) == [1, *range(written, end)]


async def test_the_stable_offset_never_falls_while_the_replica_idles_or_after():
    async with replica_pair() as pair:
        shown = []
        for sequence in range(3):
            await sent(pair.partition, part(sequence, producer=9))
            await sent(pair.partition, part(0, producer=5 + sequence))
            await marked(pair.partition, producer=5 + sequence)
            await pair.fetch(0, wait_ms=500)
            shown.append((await pair.fetch(0)).last_stable_offset)
            await asyncio.sleep(121)
            assert not pair.replica.readable
            assert pair.replica._transactions._state is None
            shown.append(pair.replica.stable_offset)
            plain = await pair.fetch(0, isolation_level=0)
            shown.append(plain.last_stable_offset)
        assert shown == [0] * 9
        await marked(pair.partition, producer=9)
        await pair.until(pair.partition.high_watermark)


async def test_without_readers_of_committed_records_nothing_is_followed():
    async with replica_pair() as pair:
        for sequence in range(20):
            await sent(pair.partition, part(sequence))
            await pair.fetch(0, isolation_level=0)
        assert pair.replica._transactions._following is None
        await pair.fetch(0)
        assert pair.replica._transactions._following is not None
        for _ in range(12):
            await asyncio.sleep(20)
            await pair.fetch(0, isolation_level=0)
        assert pair.replica.readable
        assert pair.replica._transactions._following is None


async def test_the_first_reader_costs_a_snapshot_and_what_follows_it():
    limits = replace(COLD, snapshot_bytes=2000, index_stride_bytes=2000)
    async with replica_pair(limits) as pair:
        for epoch in range(200):
            await sent(pair.partition, part(0, epoch=epoch))
            await marked(pair.partition, epoch + 1)
        pair.near.port.reads = 0
        await pair.until(400)
        assert pair.near.port.reads < 100  # of about 400 entries


async def test_a_replica_goes_on_behind_a_start_that_passed_it():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await pair.until(0)
        await sent(pair.partition, part(0, producer=6))
        await marked(pair.partition, producer=6)
        await pair.partition.truncate(3)
        await asyncio.sleep(1)
        await pair.until(3)
        await marked(pair.partition)
        await pair.leader.sent(pair.partition, batch(records=1))
        await pair.until(5)
        assert await pair.delivered(3, 5) == [4]


@pytest.mark.parametrize("isolation", [0, 1])
async def test_the_leader_sends_readers_of_both_isolations_to_the_replica(isolation):
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        found, _ = await one(pair.leader, 0, isolation_level=isolation, rack_id=RACK)
        assert (found.error_code, found.preferred_read_replica) == (OK, THERE)
        assert found.last_stable_offset == 0


async def test_a_segment_that_lost_its_markers_to_the_cleaner_is_not_read_for_them():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await pair.until(0)
        await asyncio.sleep(130)  # it idles, and what it knew of the open transaction is gone
        await marked(pair.partition, commit=False)
        for _ in range(2):
            pair.partition.stream.roll_soon()
            await asyncio.sleep(0.1)
            await pair.leader.sent(pair.partition, batch(records=1))
        await clean(pair.partition.stream, 1, lambda _: False)
        await pair.until(4)
        assert await pair.delivered(2, 4) == [2, 3]


# -- losses ---------------------------------------------------------------------------------------


async def with_lost_end(pair, *, accepted):
    """Write an aborted transaction whose marker is lost, and a record behind it, in one segment.

    The leader knew the marker before, and has not begun another segment.
    """
    await sent(pair.partition, part(0))
    await marked(pair.partition, commit=False)
    await pair.leader.sent(pair.partition, batch(records=1))
    await pair.again(pair.leader.restart)
    [lost] = [each for each in await pair.leader.entries(pair.partition) if each.first == 1]
    pair.leader.port.missing[lost.ledger, lost.entry] = Status.NO_ENTRY
    if accepted:
        await pair.leader.store(pair.partition, lost_range([lost], 1, 1))
        await asyncio.sleep(1)


async def test_behind_a_lost_range_nothing_is_served_before_a_later_snapshot():
    async with replica_pair() as pair:
        await with_lost_end(pair, accepted=True)
        found = await pair.fetch(0, wait_ms=1000)
        for _ in range(3):
            found = await pair.fetch(0, wait_ms=1000)
            assert found.error_code is ErrorCode.not_leader_or_follower
            assert found.current_leader.leader_id == HERE
        plain = await pair.fetch(0, isolation_level=0)
        assert [header.base_offset for header, _ in stored(plain)][:1] == [0]
        await pair.partition.stream.begin()  # the leader stores its state behind the loss
        await pair.leader.sent(pair.partition, batch(records=1))
        await pair.until(4)
        assert await pair.delivered(0, 4) == [1, 2, 3]  # an empty batch stands for the marker


async def test_the_leader_keeps_readers_whom_the_replica_would_refuse():
    async with replica_pair() as pair:
        await with_lost_end(pair, accepted=True)
        asked = {"isolation_level": 1, "rack_id": RACK, "wait_ms": 0}
        found, _ = await one(pair.leader, 0, **asked)
        assert (found.preferred_read_replica, delivered(found)) == (-1, [1, 2])
        plain, _ = await one(pair.leader, 0, **{**asked, "isolation_level": 0})
        assert plain.preferred_read_replica == THERE
        await pair.partition.stream.begin()
        await pair.leader.sent(pair.partition, batch(records=1))
        found, _ = await one(pair.leader, 0, **asked)
        assert found.preferred_read_replica == THERE


async def test_a_loss_that_nobody_accepted_is_an_error_for_readers_of_committed_records():
    async with replica_pair() as pair:
        await with_lost_end(pair, accepted=False)
        await pair.fetch(0, wait_ms=1000)
        found = await pair.fetch(0, wait_ms=1000)
        assert found.error_code is ErrorCode.kafka_storage_error
        pair.leader.port.missing.clear()
        await pair.until(3)
        assert await pair.delivered(0, 3) == [2]


# -- at random ------------------------------------------------------------------------------------


async def judge(pair, producers):
    """Read all that the replica has, from a random place, and compare it with the outcomes."""
    end = pair.partition.stable_offset
    await pair.until(end)
    start = producers.draw.randrange(end + 1)
    ended = producers.outcomes.items()
    expected = sorted(at for at, kept in ended if kept and start <= at < end)
    assert await pair.delivered(start, end, producers.draw) == expected


async def looked_at(pair, draw, stable):
    """Sometimes fetch at the replica, and return its last stable offset, which never falls."""
    if draw.random() < 0.3:
        found = await pair.fetch(draw.randrange(stable + 1))
        assert found.error_code is OK
        assert stable <= found.last_stable_offset <= pair.partition.stable_offset
        stable = found.last_stable_offset
    return stable


async def play(seed):
    """Write transactions over segments, restarts and crashes of the leader, and idle times."""
    async with replica_pair(COLD if seed % 2 else None) as pair:
        producers, stable = Producers(seed), 0
        for _ in range(6):
            for _ in range(producers.draw.randrange(5, 25)):
                await producers.step(pair.partition)
                stable = await looked_at(pair, producers.draw, stable)
            await judge(pair, producers)
            how = producers.draw.choice(["nothing", "restart", "crash", "idle"])
            if how == "idle":
                await asyncio.sleep(130)
            elif how != "nothing":
                leader = pair.leader
                await pair.again(leader.restart if how == "restart" else leader.crash)


@pytest.mark.parametrize("seed", first_at_commit(range(20), 6))
async def test_random_transactions_are_read_as_they_ended(seed):
    await play(seed)
