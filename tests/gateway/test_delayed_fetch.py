"""Goal: a fetch that must wait looks each partition up once, has a task only while it reads, and
gives everything back when it ends, however it ends.

Method: `FetchReader` and `DelayedFetch` without the wire, over real streams on virtual time;
lookups are counted.
"""

import asyncio
import gc
import weakref

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.fetch_plan import FetchPlan
from gateway.core.fetch_session import FetchPartition, FetchSession
from gateway.topics.delayed_fetch import DelayedFetch
from gateway.topics.fetch_reader import FetchReader
from ledger.streams.config import StreamLimits
from tests.gateway.stream_cluster import started_cluster
from tests.gateway.test_fetch import COLD, batch

OK = ErrorCode.none
NOT_LEADER = ErrorCode.not_leader_or_follower


def planned(*offsets, min_bytes=1, wait_s=10.0, topic="t"):
    asked = [FetchPartition(topic, index, offset, 1 << 20) for index, offset in enumerate(offsets)]
    session = FetchSession(asked, uses_ids=False)
    return FetchPlan(session.due(), min_bytes, 1 << 20, wait_s)


def waiting(cluster, plan, wait_s=10.0, encode=None):
    """Return a fetch after a first pass that did not complete it."""
    session = plan.results[0].asked.session
    reader = FetchReader(cluster.partitions, cluster.context.reply_memory, session, plan, "")
    assert not (reader.plan_from_memory() and (plan.complete or plan.timed_out))
    return DelayedFetch(session, reader, encode or (lambda: sent(plan)), wait_s)


def sent(plan):
    """Return {partition: base offsets, or an error}."""
    return {
        each.asked.partition: plan.error_of(each) or [one.sequence_id for one in each.records]
        for each in plan.decided
    }


def count_lookups(cluster):
    """Return a list to which the partition of each further lookup is appended."""
    found = []
    find = cluster.partitions.find_for_fetch

    def find_for_fetch(topic, index, rack):
        found.append(index)
        return find(topic, index, rack)

    cluster.partitions.find_for_fetch = find_for_fetch
    return found


@pytest.mark.parametrize("limits", [StreamLimits(), COLD], ids=["warm", "cold"])
async def test_each_partition_is_looked_up_once_however_long_the_fetch_waits(limits):
    async with started_cluster(limits=limits) as cluster:
        await cluster.topic(partitions=2)
        partitions = [await cluster.partition("t", index) for index in range(2)]
        for partition in partitions:
            await cluster.sent(partition, batch(size=500))
        lookups = count_lookups(cluster)
        fetch = waiting(cluster, planned(0, 0, min_bytes=3000))
        for _ in range(3):
            await cluster.sent(partitions[1], batch(size=500))
            await asyncio.sleep(1)
        assert await fetch.reply == {0: [0], 1: [0, 2, 4, 6]}
        assert lookups == [0, 1]


async def test_a_partition_that_must_be_opened_is_looked_up_once():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        await cluster.crash()
        lookups = count_lookups(cluster)
        fetch = waiting(cluster, planned(0))
        assert await fetch.reply == {0: [0]}
        assert lookups == [0]


async def test_a_partition_that_was_closed_is_looked_up_again_and_its_successor_watched():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        fetch = waiting(cluster, planned(2))
        lookups = count_lookups(cluster)
        known = cluster.catalog.by_name("t")
        cluster.partitions.lost((known.topic_id, 0))
        await asyncio.sleep(1)
        successor = await cluster.partition()
        await cluster.sent(successor, batch())
        assert fetch.reply.done(), "long before the client's time is over"
        assert await fetch.reply == {0: [2]}
        assert lookups == [0]
        assert not partition._waiters
        assert not successor._waiters


async def test_there_is_a_task_only_while_it_reads_from_disk():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(size=500))
        await asyncio.sleep(1)
        before = len(asyncio.all_tasks())
        cluster.port.read_delay_s = 1.0
        fetch = waiting(cluster, planned(0, min_bytes=5000))
        assert len(asyncio.all_tasks()) == before + 1
        await asyncio.sleep(2)
        assert len(asyncio.all_tasks()) == before
        fetch.reply.cancel()


async def test_a_cancelled_fetch_stops_reading_and_waiting():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(size=500))
        await asyncio.sleep(1)
        before = len(asyncio.all_tasks())
        cluster.port.read_delay_s = 1.0
        encoded = []
        fetch = waiting(cluster, planned(0), encode=lambda: encoded.append(1))
        await asyncio.sleep(0.1)
        fetch.reply.cancel()
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == before
        assert not partition._waiters
        await asyncio.sleep(20)
        assert not encoded


async def test_an_answered_fetch_is_released_long_before_its_time_is_over():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        plan = planned(0, wait_s=3600.0)

        def encode():
            return sent(plan)

        fetch = waiting(cluster, plan, wait_s=3600.0, encode=encode)
        released = weakref.ref(encode)
        await cluster.sent(partition, batch())
        assert await fetch.reply == {0: [0]}
        del fetch, encode
        gc.collect()
        assert released() is None


async def test_an_error_of_ours_while_reading_fails_the_reply_and_leaves_no_client_waiting():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())

        def encode():
            raise ZeroDivisionError

        fetch = waiting(cluster, planned(0), encode=encode)
        with pytest.raises(ZeroDivisionError):
            await fetch.reply


async def test_a_partition_lost_while_another_was_read_is_not_answered():
    async with started_cluster(limits=COLD) as cluster:
        await cluster.topic(partitions=2)
        for index in range(2):
            await cluster.sent(await cluster.partition("t", index), batch())
        known = cluster.catalog.by_name("t")
        cluster.port.read_delay_s = 1.0
        fetch = waiting(cluster, planned(0, 0))
        await asyncio.sleep(1.5)
        cluster.partitions._handed_over.add((known.topic_id, 0))  # so that it is not opened again
        cluster.partitions._abandon((known.topic_id, 0))
        assert await fetch.reply == {0: NOT_LEADER, 1: [0]}
