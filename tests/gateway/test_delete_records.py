"""Goal: records are deleted as Kafka deletes them: at once, durably, and for all readers.

Method: DeleteRecords in Kafka's own bytes on virtual time, over real streams on a simulated disk.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers.k21_delete_records import API
from gateway.topics.produced import Produced
from ledger.core.segments import Truncation
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster
from tests.gateway.test_list_offsets import list_offsets

OK = ErrorCode.none
EARLIEST, LATEST = -2, -1
MANY = 3_000


async def delete(cluster, *asked, version=2, topic="t", timeout=10_000):
    """Return (low watermark, error) for each (partition, offset)."""
    answer = await cluster.answer(
        API.key,
        version,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {"partition_index": index, "offset": offset} for index, offset in asked
                ],
            }
        ],
        timeout=timeout,
    )
    (found,) = answer.topics
    assert found.name == topic
    return [(each.low_watermark, each.error_code) for each in found.partitions]


async def six_records(cluster, **configs):
    partition = await cluster.topic(**configs)
    await cluster.sent(partition, batch(), batch(), batch())
    return partition


@pytest.mark.parametrize("version", API.versions)
async def test_the_log_starts_at_the_offset_asked_for(version):
    async with started_cluster() as cluster:
        partition = await six_records(cluster)
        assert await delete(cluster, (0, 3), version=version) == [(3, OK)]
        assert (await list_offsets(cluster, EARLIEST)).offset == 3
        assert base_offsets(await cluster.read_all(partition)) == [2, 4]


async def test_it_is_durable_when_the_answer_leaves():
    async with started_cluster() as cluster:
        await six_records(cluster)
        await delete(cluster, (0, 4))
        await cluster.crash()
        assert (await cluster.partition()).log_start_offset == 4


async def test_minus_one_is_the_high_watermark():
    async with started_cluster() as cluster:
        await six_records(cluster)
        assert await delete(cluster, (0, -1)) == [(6, OK)]
        assert (await list_offsets(cluster, EARLIEST)).offset == 6
        assert (await list_offsets(cluster, LATEST)).offset == 6


async def test_a_log_start_never_falls():
    async with started_cluster() as cluster:
        await six_records(cluster)
        await delete(cluster, (0, 5))
        assert await delete(cluster, (0, 2)) == [(5, OK)]


@pytest.mark.parametrize("offset", [7, -2, 2**63 - 1])
async def test_an_offset_that_does_not_exist_is_refused(offset):
    async with started_cluster() as cluster:
        partition = await six_records(cluster)
        assert await delete(cluster, (0, offset)) == [(-1, ErrorCode.offset_out_of_range)]
        assert partition.log_start_offset == 0


async def test_each_partition_is_answered_by_itself():
    async with started_cluster() as cluster:
        await six_records(cluster, partitions=2)
        assert await delete(cluster, (0, 1), (1, 9), (2, 0)) == [
            (1, OK),
            (-1, ErrorCode.offset_out_of_range),
            (-1, ErrorCode.unknown_topic_or_partition),
        ]
        (missing,) = await delete(cluster, (0, 0), topic="missing")
        assert missing == (-1, ErrorCode.unknown_topic_or_partition)


async def test_a_partition_that_is_named_again_is_answered_once_for_its_last_offset():
    async with started_cluster() as cluster:
        partition = await six_records(cluster, partitions=2)
        assert await delete(cluster, *[(0, 5), (1, 0)] * 2_000, (0, 2)) == [(2, OK), (0, OK)]
        assert partition.log_start_offset == 2
        topic = {"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}
        answer = await cluster.answer(API.key, 2, topics=[topic] * 3, timeout=1_000)
        (found,) = answer.topics
        assert [each.low_watermark for each in found.partitions] == [3]


async def test_partitions_that_do_not_exist_start_no_task_and_others_run_meanwhile():
    async with started_cluster() as cluster:
        await six_records(cluster)
        most, turns = 0, 0

        async def count():
            nonlocal most, turns
            while True:
                most = max(most, len(asyncio.all_tasks()))
                turns += 1
                await asyncio.sleep(0)

        before = len(asyncio.all_tasks())
        counting = asyncio.ensure_future(count())
        answers = await delete(cluster, *((n, 0) for n in range(1, MANY)))
        counting.cancel()
        assert answers == [(-1, ErrorCode.unknown_topic_or_partition)] * (MANY - 1)
        assert most <= before + 70
        assert turns >= MANY // 500


async def test_a_request_runs_a_bounded_number_of_deletions_also_after_its_time():
    async with started_cluster() as cluster, AsyncExitStack() as held:
        await cluster.topic(partitions=100)
        for index in range(100):
            partition = await cluster.partition(index=index)
            await held.enter_async_context(partition.stream._change_lock)
        before = len(asyncio.all_tasks())
        answers = await delete(cluster, *((n, 0) for n in range(100)), timeout=0)
        assert answers == [(-1, ErrorCode.request_timed_out)] * 100
        assert len(asyncio.all_tasks()) <= before + 64


async def test_a_topic_that_only_compacts_keeps_its_records():
    async with started_cluster() as cluster:
        await cluster.topic(cleanup_policy="compact")
        assert await delete(cluster, (0, 0)) == [(-1, ErrorCode.policy_violation)]


async def test_who_has_lost_the_lease_deletes_nothing():
    async with started_cluster() as cluster:
        partition = await six_records(cluster)
        partition._lease_held = lambda: False
        assert await delete(cluster, (0, 3)) == [(-1, ErrorCode.not_leader_or_follower)]
        assert partition.log_start_offset == 0


async def test_a_stream_that_another_broker_owns_is_not_truncated():
    async with started_cluster() as cluster:
        partition = await six_records(cluster)
        await cluster.crash()
        other = await cluster.partition()
        await cluster.sent(other, batch())
        partition.closed = False
        cluster.partitions._by_name["t", 0] = partition
        assert await delete(cluster, (0, 3)) == [(-1, ErrorCode.not_leader_or_follower)]
        assert other.log_start_offset == 0


async def test_a_deletion_that_takes_too_long_is_answered_and_continues():
    async with started_cluster() as cluster:
        partition = await six_records(cluster)
        async with partition.stream._change_lock:
            late = await delete(cluster, (0, 3), timeout=100)
        assert late == [(-1, ErrorCode.request_timed_out)]
        await asyncio.sleep(1)
        assert partition.log_start_offset == 3


async def test_whole_segments_give_their_room_back_after_a_minute():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for _ in range(3):
            await cluster.sent(partition, batch())
            partition.stream.roll_soon()
            await asyncio.sleep(1)
        await delete(cluster, (0, 5))
        truncated, partly = Truncation.TRUNCATED, Truncation.PARTIALLY_TRUNCATED
        states = [segment.truncation for segment in partition.stream.segments[:3]]
        assert states == [truncated, truncated, partly]
        assert len(await cluster.services.client.list_ledgers()) == 4
        await asyncio.sleep(61)
        await cluster.partitions.maintain_once()
        assert len(await cluster.services.client.list_ledgers()) == 2
        assert await cluster.sent(partition, batch()) == [Produced(OK, 6)]
        assert base_offsets(await cluster.read_all(partition)) == [4, 6]
