"""Goal: a partition whose hand-over was cut short is led again by its next owner. No task of its
former life opens or fences the stream afterwards, and neither does a broker without the lease.

Method: `Partitions` gets the calls of a cluster, while a bookie that holds its responses keeps a
hand-over from ending; virtual time.
"""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.port import Leader, StreamKey
from gateway.topics.opening_turns import LISTS_AT_ONCE, RECOVERIES_AT_ONCE
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import StreamCluster, batch

HERE, OTHER = 0, 1
EPOCH = 7


class Owner:
    """A broker that owns partition 0 of topic `t`, with a write in flight; `draining` is stuck."""

    async def start(self):
        self.cluster = PaperCluster(
            HERE, [member(HERE), member(OTHER)], leader_of_others=Leader(HERE, EPOCH)
        )
        self.gateway = StreamCluster(cluster=self.cluster, node_id=HERE)
        await self.gateway.start()
        self.partitions = self.gateway.partitions
        before = await self.gateway.topic()
        await self.gateway.sent(before, batch())
        self.key = StreamKey(self.gateway.catalog.by_name("t").topic_id, 0)
        self.gateway.port.hold()
        self.gateway.send(before, batch())
        self.draining = asyncio.get_running_loop().create_task(self.partitions.hand_over(self.key))
        await asyncio.sleep(1)
        assert not self.draining.done()
        self.before = before
        return self

    async def gained(self):
        """Report the stream as gained."""
        self.partitions.gained(self.key)
        self.gateway.port.release()
        async with asyncio.timeout(60):
            return await self.gateway.partition()

    async def written(self, partition):
        [answer] = await self.gateway.sent(partition, batch())
        return answer.error


@asynccontextmanager
async def started_owner():
    yield await Owner().start()


async def test_a_stream_whose_hand_over_was_given_up_is_opened_again_when_it_stays():
    async with started_owner() as owner:
        owner.draining.cancel()  # it took too long
        with suppress(asyncio.CancelledError):
            await owner.draining
        partition = await owner.gained()
        assert await owner.written(partition) is ErrorCode.none


async def test_a_hand_over_that_ends_late_leaves_the_next_ownership_alone():
    async with started_owner() as owner:
        owner.partitions.lost(owner.key)  # the session ended meanwhile, and then
        partition = await owner.gained()
        await owner.draining
        assert owner.gateway.partitions.find("t", 0) is partition
        assert await owner.written(partition) is ErrorCode.none


@pytest.mark.parametrize(
    ("part", "turns"), [("lists", LISTS_AT_ONCE), ("recoveries", RECOVERIES_AT_ONCE)]
)
async def test_who_waited_for_room_opens_nothing_once_the_lease_is_over(part, turns):
    """Other partitions have all turns of one part of an opening, and end them after the lease."""
    cluster = PaperCluster(HERE, [member(HERE)], leader_of_others=Leader(HERE, EPOCH))
    gateway = StreamCluster(cluster=cluster, node_id=HERE)
    await gateway.start()
    await gateway.catalog.create("t", 1, 1, {})
    room = getattr(gateway.partitions._opening, part)
    async with AsyncExitStack() as others:
        for other in range(turns):
            await others.enter_async_context(room.turn(other, asked=False))
        partition = gateway.partitions.find("t", 0)
        await asyncio.sleep(1)
        assert not partition.readable
        cluster.lease = False
    await asyncio.sleep(1)
    assert not partition.readable  # another broker may own it, and would be fenced
    cluster.lease = True
    await partition.ensure_readable()
