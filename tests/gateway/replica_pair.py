"""A leader, and a replica in another rack, over the same ledgers: for read_committed."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.cluster.port import Leader
from tests.gateway.lossy_cluster import LossyCluster
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.test_fetch import one
from tests.gateway.test_read_committed import delivered, stored
from tests.gateway.test_transaction_path import Coordinator

HERE, THERE, EPOCH = 0, 1, 7
RACK = "r1"


class ReplicaPair:
    """`leader` leads the topic `t` as node 0 in rack r0. `near` is node 1 in rack r1."""

    def __init__(self, limits=None):
        self.limits = limits

    async def start(self):
        alive = [member(HERE, "r0"), member(THERE, RACK)]
        papers = [PaperCluster(n, alive, leader_of_others=Leader(HERE, EPOCH)) for n in (0, 1)]
        settings = {"limits": self.limits}
        self.leader = LossyCluster(cluster=papers[0], node_id=HERE, rack="r0", **settings)
        await self.leader.start()
        self.leader.partitions.verifier = Coordinator()
        self.leader.catalog._bookies = lambda: 2
        await self.leader.catalog.create("t", 1, 2, {"control.record.policy": "immediate"})
        # One bookie is enough: the replication factor here is the number of possible leaders.
        self.leader.partitions._stream_config = _one_copy(self.leader.partitions._stream_config)
        self.near = await self.leader.beside(papers[1], node_id=THERE, rack=RACK)
        self.near.partitions.verifier = Coordinator()
        self.partition = await self.leader.partition()
        await self.partition.stream.begin()
        self.replica = self.near.partitions.replica("t", 0)
        return self

    async def again(self, how):
        """Restart or crash the leader, which opens the partition again."""
        await how()
        self.leader.partitions.verifier = Coordinator()
        self.leader.partitions._stream_config = _one_copy(self.leader.partitions._stream_config)
        self.partition = await self.leader.partition()

    async def fetch(self, offset, **fields):
        """Return what a reader of committed records in the replica's rack gets there."""
        settings = {"isolation_level": 1, "rack_id": RACK, "wait_ms": 0, **fields}
        found, _ = await one(self.near, offset, **settings)
        return found

    async def until(self, offset):
        """Ask as a reader does, until the replica has all outcomes below `offset`."""
        async with asyncio.timeout(120):
            while (found := await self.fetch(offset)).last_stable_offset < offset:
                await asyncio.sleep(0.01)
        return found

    async def delivered(self, start, end, draw=None):
        """Return the offsets of batches that a consumer at the replica delivers."""
        at, offsets = start, []
        async with asyncio.timeout(120):
            while at < end:
                most = 100_000 if draw is None else draw.choice([1, 200, 1000, 100_000])
                settings = {"partition_max_bytes": most}
                found = await self.fetch(at, settings=settings, wait_ms=1000)
                assert not found.error_code, found.error_code
                batches = list(stored(found))
                if batches:
                    offsets += [each for each in delivered(found) if each >= start]
                    at = batches[-1][0].base_offset + batches[-1][0].records
        assert at == end
        return offsets


def _one_copy(config):
    def changed(topic):
        return replace(config(topic), ensemble_size=1, write_quorum=1, ack_quorum=1)

    return changed


@asynccontextmanager
async def replica_pair(limits=None):
    yield await ReplicaPair(limits).start()
