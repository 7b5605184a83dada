"""Goal: a crash between any two steps of opening, rolling, truncating or closing loses nothing.

Method: exhaustive: the n-th metadata call and all after it never reach the store, or take effect
without a reply. Then the process ends, and the next one must find every acknowledged batch.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.topics.produced import Produced
from ledger.errors import LedgerError, MetadataUnavailable
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster

OK = ErrorCode.none
CALLS_MAX = 40


class Cut:
    """The `calls`-th call from now on is the last to reach the store, or the last but one."""

    def __init__(self, cluster, calls, *, answered):
        self.metadata = cluster.metadata
        self.calls = calls
        self.answered = answered
        self.reached = 0
        self.real = self.metadata._call
        self.metadata._call = self.call

    async def call(self, step, *args):
        self.reached += 1
        if self.reached > self.calls:
            raise MetadataUnavailable("the process is as good as dead")
        result = await self.real(step, *args)
        if self.reached == self.calls and not self.answered:
            raise MetadataUnavailable("and never heard of it")
        return result

    def mend(self):
        del self.metadata._call


async def quietly(work):
    try:
        await work
    except LedgerError:
        pass


async def roll(cluster, partition):
    partition.stream.roll_soon()
    await asyncio.sleep(0)


async def truncate(cluster, partition):
    await quietly(partition.stream.truncate(7))


async def close(cluster, partition):
    await quietly(partition.close())


async def write_after_restart(cluster, partition):
    """The last segment is left in progress: opening recovers it, and the batch begins another."""
    await quietly(cluster.crash())


CHANGES = [roll, truncate, close, write_after_restart]


@pytest.mark.slow
@pytest.mark.parametrize("answered", [True, False], ids=["cut", "not answered"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_whichever_call_is_the_last_nothing_is_lost(change, answered):
    async def reached_by_story(cluster, name, calls):
        partition = await cluster.topic(name)
        for number in range(3):
            await cluster.sent(partition, batch(number * 2), batch(producer=-1))
            if number < 2:
                partition.stream.roll_soon()
                await asyncio.sleep(1)
        cut = Cut(cluster, calls, answered=answered)
        await change(cluster, partition)
        partition = cluster.partitions.find(name, 0)
        answers = cluster.send(partition, batch(6))
        await asyncio.sleep(20)
        cut.mend()
        await cluster.crash()
        partition = await cluster.partition(name)
        retried = await cluster.sent(partition, batch(6), batch(8))
        # A duplicate is answered with the time of its batch, as in Kafka; a new batch is not.
        assert [(each.error, each.base_offset) for each in retried] == [(OK, 12), (OK, 14)]
        assert answers in ([], [Produced(OK, 12)]) or answers[0].error is not OK
        start = partition.log_start_offset
        assert start in ((0, 7) if change is truncate else (0,))
        due = [offset for offset in range(0, 16, 2) if offset + 2 > start]
        assert base_offsets(await cluster.read_all(partition)) == due
        return cut.reached

    for last in range(CALLS_MAX):
        # A start reads something of every topic, so each story has a cluster of its own.
        async with started_cluster() as started:
            if await reached_by_story(started, f"t{last}", last) <= last:
                return
    raise AssertionError("the story has more calls than this test tries")
