"""Goal: segments of a cluster are read past its gateways: soon, whole, and without any of them.

Method: ZooKeeper, three bookies and a gateway as processes; a stock producer that knows what was
acknowledged; the gateway and then a bookie are killed.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.pipelines.shared.storage import open_storage, read_topic
from gateway.topics.partitions import stream_name
from gateway.wire import batches
from ledger.streams.scan import StreamScan
from ledger.streams.slice_read import read_slice
from tests.cluster.test_gateway import make_topic
from tests.cluster.world import World
from tests.gateway.test_ledger_port import Loader
from tests.peers.gateway import ClusterGateway

SEEN_S_MAX = 0.2
RECORDS = 10_000


async def scan_of(storage, topic):
    found = await read_topic(storage.store, topic)
    name = stream_name(found.topic_id, 0)
    return await StreamScan.open(name, storage.store, storage.client, batches.timestamp_max)


async def offsets_in(storage, slices):
    """Offsets of the stored batches, which follow each other."""
    at = slices[0].first
    for piece in slices:
        async for chunk in read_slice(storage.store, storage.client, piece):
            assert all(batches.read_header(r.data).base_offset == r.sequence_id for r in chunk)
            assert chunk[0].sequence_id <= at
            at = chunk[-1].end_sequence_id
    return at


async def seen_after_s(scan, end):
    began_s = time.monotonic()
    async with asyncio.timeout(10):
        while scan.end_sequence_id < end:
            await scan.refresh()
    return time.monotonic() - began_s


@pytest.mark.proof
@pytest.mark.real_loop
async def test_segments_are_read_soon_whole_and_without_any_gateway(tmp_path):
    world = World(tmp_path, 3)
    world.start()
    gateway = ClusterGateway(tmp_path / "gateway", world.zookeeper.servers).start()
    try:
        make_topic(gateway.bootstrap, "topic")
        loader = Loader(gateway)
        for _ in range(3):  # a segment each
            loader.send("topic", *[b"%d" % n * 50 for n in range(RECORDS)])

        async with open_storage(f"zk://{world.zookeeper.servers}") as storage:
            scan = await scan_of(storage, "topic")
            waited_s = []
            for _ in range(9):
                end = await asyncio.to_thread(loader.send, "topic", b"last") + 1
                waited_s.append(await seen_after_s(scan, end))
            assert sorted(waited_s)[4] < SEEN_S_MAX, waited_s
            assert len(scan.segments) > 2
            gateway.kill()
            slices = await scan.cut(0, end, 100_000)
            assert await offsets_in(storage, slices) == end
            world.bookies[1].kill()
            await scan.refresh()
            assert scan.end_sequence_id == end
            assert await offsets_in(storage, slices) == end
            scan.close()
    finally:
        if gateway.running:
            gateway.kill()
        world.stop()
