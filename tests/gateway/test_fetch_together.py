"""Goal: the partitions of one Fetch are read at the same time, and the response is the one that
reads in turn give: its order, its limits, and nothing of a partition that was lost meanwhile.

Method: Fetch in Kafka's own bytes on virtual time, over real streams without a tail cache whose
reads take a second each, beside the same requests with one read at a time.
"""

import asyncio
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.topics import reads_ahead
from ledger.ports.bookies import ReadManyReply, Status
from tests.gateway.stream_cluster import started_cluster
from tests.gateway.test_fetch import COLD, OK, batch, fetch, flat, offsets
from tests.gateway.test_fetch_kept import Lease

WIDTH = 6


async def filled(cluster, sizes):
    """Send batches of these sizes to each partition of a topic."""
    await cluster.topic(partitions=len(sizes))
    for index, of_partition in enumerate(sizes):
        partition = await cluster.partition("t", index)
        for size in of_partition:
            await cluster.sent(partition, batch(size=size))


async def test_the_partitions_of_a_fetch_are_waited_for_together():
    async with started_cluster(limits=COLD) as cluster:
        await filled(cluster, [[900, 900]] * WIDTH)
        cluster.port.read_delay_s = 1.0
        before_s = asyncio.get_running_loop().time()
        answer = flat(await fetch(cluster, {"t": {at: (0, {}) for at in range(WIDTH)}}))
        assert [offsets(answer[0, at]) for at in range(WIDTH)] == [[0, 2]] * WIDTH
        assert asyncio.get_running_loop().time() - before_s < 3.0, "opening a ledger, and one read"


async def test_the_response_is_that_of_reads_in_turn(monkeypatch):
    draw = Random(7)
    sizes = [[draw.randrange(200, 1800) for _ in range(4)] for _ in range(WIDTH)]
    bounds = [(draw.randrange(1, 9000), draw.randrange(1, 4000)) for _ in range(40)]
    found = []
    for together in (0, reads_ahead.READS_MAX):
        monkeypatch.setattr(reads_ahead, "READS_MAX", together)
        async with started_cluster(limits=COLD) as cluster:
            await filled(cluster, sizes)
            draw = Random(8)
            for bytes_max, of_partition in bounds:
                order = draw.sample(range(WIDTH), WIDTH)
                settings = {"partition_max_bytes": of_partition}
                asked = {"t": {at: (2 * draw.randrange(5), settings) for at in order}}
                answer = await fetch(cluster, asked, max_bytes=bytes_max)
                found.append(
                    [
                        (at.partition_index, at.error_code, offsets(at))
                        for at in answer.responses[0].partitions
                    ]
                )
    assert found[: len(bounds)] == found[len(bounds) :]
    assert any(offsets for answer in found for _, _, offsets in answer[1:])


async def test_what_was_read_at_the_same_time_is_cut_to_the_room_that_a_large_batch_left():
    async with started_cluster(limits=COLD) as cluster:
        await filled(cluster, [[1200], [250, 250, 250]])
        settings = {"partition_max_bytes": 1000}
        asked = {"t": dict.fromkeys(range(2), (0, settings))}
        answer = flat(await fetch(cluster, asked, max_bytes=2000))
        assert [offsets(answer[0, at]) for at in range(2)] == [[0], [0, 2]]
        assert sum(len(answer[0, at].records) for at in range(2)) <= 2000


async def test_a_failed_read_refuses_its_own_partition_only():
    async with started_cluster(limits=COLD) as cluster:
        await filled(cluster, [[900]] * 3)
        failing = (await cluster.partition("t", 1)).stream.segments[-1].ledger
        sound = cluster.port.read_many

        async def reading(bookie, ledger, *rest):
            if ledger == failing:
                return ReadManyReply(Status.IO_ERROR)
            return await sound(bookie, ledger, *rest)

        cluster.port.read_many = reading
        answer = flat(await fetch(cluster, {"t": {at: (0, {}) for at in range(3)}}))
        assert [offsets(answer[0, at]) for at in (0, 2)] == [[0], [0]]
        assert answer[0, 1].error_code is not OK


@pytest.mark.parametrize("what", ["lease", "partition"])
async def test_nothing_is_served_of_what_was_lost_while_it_was_read(what):
    async with started_cluster(limits=COLD) as cluster:
        lease = Lease(cluster)
        await filled(cluster, [[900]] * 3)
        cluster.port.read_delay_s = 1.0
        asked = {"t": {at: (0, {}) for at in range(3)}}
        waiting = asyncio.ensure_future(fetch(cluster, asked, wait_ms=10_000))
        await asyncio.sleep(0.5)
        if what == "lease":
            lease.held = False
        else:
            (await cluster.partition("t", 2)).abandon()
        answer = flat(await waiting)
        lost = range(3) if what == "lease" else [2]
        for at in lost:
            assert answer[0, at].error_code is ErrorCode.not_leader_or_follower
            assert offsets(answer[0, at]) == []
        kept = set(range(3)) - set(lost)
        assert all(offsets(answer[0, at]) == [0] for at in kept)


async def test_nothing_that_was_read_of_a_deleted_topic_is_served_under_its_name():
    """The new topic of the name has other records at the same offsets."""
    async with started_cluster(limits=COLD) as cluster:
        slow = await cluster.topic("a")
        await cluster.sent(slow, batch(size=900))
        await cluster.sent(await cluster.topic("b"), batch(size=900))
        slow_ledger, sound = slow.stream.segments[-1].ledger, cluster.port.read_many

        async def reading(bookie, ledger, *rest):
            await asyncio.sleep(3.0 if ledger == slow_ledger else 0.1)
            return await sound(bookie, ledger, *rest)

        cluster.port.read_many = reading
        asked = {"a": {0: (0, {})}, "b": {0: (0, {})}}
        waiting = asyncio.ensure_future(fetch(cluster, asked, version=12, wait_ms=30_000))
        await asyncio.sleep(1.0)
        await cluster.catalog.delete("b")
        anew = batch(size=300)
        await cluster.sent(await cluster.topic("b"), anew)
        assert not waiting.done(), "a is still being read"
        answer = flat(await waiting)
        assert offsets(answer[0, 0]) == [0]
        assert len(answer[1, 0].records or b"") in (0, len(anew))


async def test_a_client_that_leaves_ends_the_reads_of_all_partitions():
    async with started_cluster(limits=COLD) as cluster:
        await filled(cluster, [[900]] * WIDTH)
        cluster.port.read_delay_s = 1.0
        waiting = asyncio.ensure_future(
            fetch(cluster, {"t": {at: (0, {}) for at in range(WIDTH)}}, wait_ms=10_000)
        )
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.sleep(0.1)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "a read of one partition of a fetch" not in names
        assert cluster.context.reply_memory.used_bytes == 0
