"""Goal: a reader that is behind has more read ahead as it takes more, and less once it stays away;
all that is read ahead keeps to one bound, least recently used first; and what bookies sent goes to
the client as views of their messages.

Method: Fetch in Kafka's own bytes on virtual time, over real streams without a tail cache; what the
bookie is asked for and returns is recorded.
"""

import asyncio
from dataclasses import replace

from ledger.core.accepted_losses import NO_LOSSES
from ledger.ids import pinned_bytes
from ledger.streams.config import StreamLimits
from ledger.streams.read_cursor import PINNED_MAX, Cursor
from tests.gateway.stream_cluster import FETCH, started_cluster
from tests.gateway.test_fetch import NEWEST, OK, batch, fetch, flat, offsets, request

CHUNK = 20_000
LIMITS = StreamLimits(
    tail_cache_bytes=0,
    read_chunk_bytes=CHUNK,
    read_window_bytes=4 * CHUNK,
    read_ahead_bytes=40 * CHUNK,
)
BATCH = batch(size=2_000)
TAKEN = {"partition_max_bytes": CHUNK}


async def filled(cluster, partitions=1, batches=200):
    await cluster.topic(partitions=partitions)
    for index in range(partitions):
        partition = await cluster.partition("t", index)
        for _ in range(batches // 2):  # so many in one entry
            await cluster.sent(partition, BATCH, BATCH)


def recorded(cluster):
    """Return lists of the bytes that are asked for, and of the messages that come."""
    asked, messages = [], []
    sound = cluster.port.read_many

    async def read_many(bookie, ledger, first, last, max_bytes):
        asked.append(max_bytes)
        reply = await sound(bookie, ledger, first, last, max_bytes)
        messages.extend(each.obj if isinstance(each, memoryview) else each for each in reply.bodies)
        return reply

    cluster.port.read_many = read_many
    return asked, messages


async def take(cluster, at, index=0):
    """Fetch from `at` on. Returns the next offset."""
    partition = flat(await fetch(cluster, {"t": {index: (at, TAKEN)}}))[0, index]
    assert partition.error_code is OK
    found = offsets(partition)
    assert found == list(range(at, at + 2 * len(found), 2))
    return found[-1] + 2


async def test_more_is_read_at_once_for_a_reader_that_takes_all_and_less_after_a_pause():
    async with started_cluster(limits=LIMITS) as cluster:
        await filled(cluster)
        asked, _ = recorded(cluster)
        at = 0
        for _ in range(8):
            at = await take(cluster, at)
        await asyncio.sleep(0.1)
        assert max(asked) > 2 * CHUNK
        assert max(asked) <= 4 * CHUNK
        before = len(asked)
        while len(asked) == before:
            await asyncio.sleep(2)
            at = await take(cluster, at)
        await asyncio.sleep(0.1)
        assert max(asked[before:]) <= CHUNK


async def test_a_reader_that_takes_all_does_not_wait_for_a_bookie_that_is_as_fast_as_it():
    """Each chunk is read while the one before it is taken, not once that is used up."""
    pause_s = 0.1
    async with started_cluster(limits=replace(LIMITS, read_window_bytes=2 * CHUNK)) as cluster:
        await filled(cluster)
        sound = cluster.port.read_many

        async def slow(*asked):
            await asyncio.sleep(1.5 * pause_s)
            return await sound(*asked)

        cluster.port.read_many = slow
        loop = asyncio.get_running_loop()
        at, waited_s = 0, []
        for _ in range(12):
            began_s = loop.time()
            at = await take(cluster, at)
            waited_s.append(loop.time() - began_s)
            await asyncio.sleep(pause_s)
        assert waited_s[0] > pause_s
        assert max(waited_s[-6:]) < pause_s / 10


async def test_a_reader_that_takes_little_has_one_chunk_read_for_it():
    async with started_cluster(limits=LIMITS) as cluster:
        await filled(cluster)
        asked, _ = recorded(cluster)
        at = 0
        for _ in range(60):
            partition = flat(
                await fetch(cluster, {"t": {0: (at, {"partition_max_bytes": 2_500})}})
            )[0, 0]
            at = offsets(partition)[-1] + 2
        assert max(asked) <= CHUNK


async def test_all_that_is_read_ahead_keeps_to_one_bound():
    limits = replace(LIMITS, read_ahead_bytes=5 * CHUNK)
    async with started_cluster(limits=limits) as cluster:
        await filled(cluster, partitions=8, batches=60)
        cursors = cluster.services.cursors
        at = [0] * 8
        for _ in range(3):
            for index in range(8):
                at[index] = await take(cluster, at[index], index)
                await asyncio.sleep(0.05)
                assert cursors.bytes_held <= cursors.bytes_max + CHUNK
        held = list(cursors._used)
        newest = (await cluster.partition("t", 7)).stream._reads
        assert held[-1] == (newest, at[7]), "the reader that came last"
        assert 1 <= len(held) < 8
        for index in range(8):
            (await cluster.partition("t", index)).stream._reads.clear()
        assert cursors.bytes_held == 0


def test_a_reader_for_whom_there_is_little_room_reads_less_at_once_again():
    cursor = Cursor(1, 0, NO_LOSSES, 0)
    for now_s in (0.0, 0.1, 0.2):
        cursor.adapt(CHUNK, now_s, CHUNK, 4 * CHUNK)
    assert cursor.chunk_bytes == 4 * CHUNK
    cursor.ready_bytes = 3 * CHUNK
    cursor.adapt(CHUNK, 0.3, CHUNK, 2 * CHUNK)
    assert cursor.chunk_bytes == 2 * CHUNK
    cursor.adapt(CHUNK, 0.4, CHUNK, 0)
    assert cursor.chunk_bytes == CHUNK


async def test_a_reader_that_leaves_holds_nothing_once_others_need_the_room():
    async with started_cluster(limits=replace(LIMITS, read_ahead_bytes=4 * CHUNK)) as cluster:
        await filled(cluster, partitions=4, batches=60)
        gone = await take(cluster, 0, 0)
        stays = [0, 0, 0, 0]
        for _ in range(3):
            for index in (1, 2, 3):
                stays[index] = await take(cluster, stays[index], index)
                await asyncio.sleep(0.05)
        reads = (await cluster.partition("t", 0)).stream._reads
        assert gone not in reads._cursors


async def test_the_batches_of_a_fetch_are_views_of_what_the_bookie_sent():
    async with started_cluster(limits=LIMITS) as cluster:
        await filled(cluster, partitions=2)
        _, messages = recorded(cluster)
        asked = {"t": dict.fromkeys(range(2), (0, TAKEN))}
        _, result = cluster.ask(FETCH, NEWEST, **request(cluster, asked))
        reply = await result
        views = [part for part in reply if isinstance(part, memoryview) and len(part) >= 1_900]
        assert len(views) >= 16
        wholes = {id(message) for message in messages}
        assert all(id(view.obj) in wholes for view in views)
        assert sum(map(len, views)) > 0.95 * sum(map(len, reply))


async def test_a_small_part_of_what_was_read_ahead_keeps_no_message_in_memory():
    """The response may wait for its client long after the reader's chunks were dropped."""
    async with started_cluster(limits=LIMITS) as cluster:
        await filled(cluster)
        small = {"partition_max_bytes": 2_500}
        await fetch(cluster, {"t": {0: (0, small)}})
        reads = cluster.port.reads
        _, reply = cluster.ask(FETCH, NEWEST, **request(cluster, {"t": {0: (2, small)}}))
        assert isinstance(reply, list), "memory had it"
        assert cluster.port.reads == reads
        assert sum(map(len, reply)) > 2_000
        assert pinned_bytes(reply) <= PINNED_MAX * sum(map(len, reply))


async def test_nothing_that_was_read_ahead_is_served_once_the_partition_is_lost():
    async with started_cluster(limits=LIMITS) as cluster:
        await filled(cluster)
        at = await take(cluster, 0)
        await asyncio.sleep(0.1)
        partition = await cluster.partition("t")
        assert partition.stream._reads._cursors, "the next chunk is here"
        partition.abandon()
        lost = flat(await fetch(cluster, {"t": {0: (at, TAKEN)}}, wait_ms=10))[0, 0]
        assert lost.error_code is not OK
        assert offsets(lost) == []
