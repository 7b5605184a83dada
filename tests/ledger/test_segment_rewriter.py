"""Goal: a rewriting holds a bounded amount of memory, and what took too long is not listed.

Method: real streams over one bookie, or a simulated cluster, on virtual time.
"""

import asyncio

import pytest

from ledger.errors import StreamUnavailable
from ledger.streams.segment_rewriter import (
    IN_FLIGHT_BYTES_MAX,
    REWRITE_S_MAX,
    CleanedRecord,
    SegmentRewriter,
)
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.test_cleaned_partitions import rolled as rolled_partition
from tests.gateway.test_transaction_path import opened
from tests.ledger.cleaning_rig import rewrite
from tests.ledger.life_rig import has_ledger, listed, watched_rig
from tests.ledger.test_cleaned_segments import even, rolled

RECORD = 100_000


async def test_a_rewriting_waits_while_too_many_bytes_are_not_confirmed():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, *(batch(records=1) for _ in range(100)))
        await rolled_partition(partition)
        [segment] = partition.stream.cleanable_segments()
        rewriter = await SegmentRewriter.begin(partition.stream, segment)
        before = cluster.port.bytes_added
        cluster.port.hold()
        records = [CleanedRecord(1, 1, bytes(RECORD))] * segment.record_count
        adding = asyncio.ensure_future(rewriter.add(records))
        await asyncio.sleep(60)
        assert not adding.done()
        in_flight = cluster.port.bytes_added - before
        entry = partition.stream.services.limits.entry_bytes_max
        assert IN_FLIGHT_BYTES_MAX < in_flight <= IN_FLIGHT_BYTES_MAX + 2 * entry
        cluster.port.release()
        await adding
        rewritten = await rewriter.finish(b"")
        assert rewritten.size_bytes > segment.record_count * RECORD
        await partition.stream.services.delete_unlisted(rewritten.after.ledger)


@pytest.mark.parametrize("late_s", [-1, 1])
async def test_a_segment_that_was_rewritten_for_too_long_is_not_replaced(late_s):
    async with watched_rig() as rig:
        owner = await rolled(rig)
        before = listed(rig)
        rewritten = await rewrite(owner.stream, owner.stream.segments[0], even)
        await asyncio.sleep(REWRITE_S_MAX + late_s)
        if late_s < 0:
            await owner.stream.replace(rewritten)
            assert listed(rig)[0] == rewritten.after
            return
        with pytest.raises(StreamUnavailable, match="taken for an orphan"):
            await owner.stream.replace(rewritten)
        assert listed(rig) == before
        assert not has_ledger(rig, rewritten.after.ledger)
