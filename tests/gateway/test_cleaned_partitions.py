"""Goal: clients of a partition whose segments were cleaned get what Kafka's clients get.

Method: Fetch, ListOffsets and OffsetForLeaderEpoch in Kafka's bytes over real streams on virtual
time. The tests clean segments by hand, as the cleaner does.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.aborted_lists import SegmentAborted
from gateway.topics.orphans import Orphans
from gateway.topics.partition_state import aborted_before
from gateway.wire.batches import CONTROL, read_header, timestamp_max
from gateway.wire.lost_batches import empty_batches
from ledger.streams.segment_rewriter import CleanedRecord, SegmentRewriter
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.test_fetch import one
from tests.gateway.test_orphans import AGE_S
from tests.gateway.test_read_committed import (
    COLD,
    LATEST,
    aborted,
    committed,
    delivered,
    latest,
    stored,
)
from tests.gateway.test_transaction_path import marked, opened, part, reopened, sent
from tests.ledger.cleaning_rig import records_of

OK = ErrorCode.none
BOTH = pytest.mark.parametrize("limits", [None, COLD], ids=["cached", "cold"])


async def rolled(partition):
    """Roll the segment, and wait until the head of the next one is durable."""
    stream, number = partition.stream, partition.stream.segments[-1].number
    stream.roll_soon()
    async with asyncio.timeout(60):
        while stream.segments[-1].number == number or not stream.cleanable_segments():
            await asyncio.sleep(0.001)
        while stream.cleanable_segments()[-1].number < number:
            await asyncio.sleep(0.001)


async def rewrite(stream, segment, kept, ended=()):
    """Keep the batches for which `kept` is true. `ended` are the aborted transactions of it."""
    found, covered = [], segment.start_sequence_id
    for first, count, data in await records_of(stream, segment):
        end = first + count
        if kept(read_header(data)):
            found.append(CleanedRecord(end - covered, timestamp_max(data), data))
            covered = end
    if covered < segment.end_sequence_id:
        [filler], end = empty_batches(covered, segment.end_sequence_id - 1, covered, 0, 1)
        found.append(CleanedRecord(end - covered, -1, filler))
    rewriter = await SegmentRewriter.begin(stream, segment)
    await rewriter.add(found)
    bounds = segment.start_sequence_id, segment.end_sequence_id, segment.end_sequence_id
    return await rewriter.finish(SegmentAborted(*bounds, tuple(ended)).encode())


async def clean(partition, number, kept, ended=()):
    stream = partition.stream
    segment = next(each for each in stream.cleanable_segments() if each.number == number)
    await stream.replace(await rewrite(stream, segment, kept, ended))


def without_producer_5_before(offset):
    return lambda header: not (header.producer_id == 5 and header.base_offset < offset)


async def aborted_then_committed(cluster):
    """Return a partition: an aborted transaction of producer 5, its commit, and a later segment."""
    partition, _ = await opened(cluster)
    await sent(partition, part(0))
    await marked(partition, commit=False)  # offsets 0 and 1
    await cluster.sent(partition, batch(records=1))
    await rolled(partition)
    await sent(partition, part(0, epoch=1))
    await marked(partition, epoch=2)  # offsets 3 and 4
    await rolled(partition)
    return partition


@BOTH
async def test_an_aborted_transaction_without_a_marker_is_not_named_any_more(limits):
    async with started_cluster(limits=limits) as cluster:
        partition = await aborted_then_committed(cluster)
        found = await committed(cluster, 0)
        assert (aborted(found), delivered(found)) == ([(5, 0)], [2, 3])
        await clean(partition, 1, without_producer_5_before(2))
        found = await committed(cluster, 0)
        assert (aborted(found), delivered(found)) == ([], [2, 3])
        await clean(partition, 2, lambda header: True)
        assert delivered(await committed(cluster, 0)) == [2, 3]


@BOTH
@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_the_next_owner_reads_the_list_of_the_footer(limits, how):
    async with started_cluster(limits=limits) as cluster:
        partition = await aborted_then_committed(cluster)
        kept = partition._state.before.aborted
        await clean(partition, 1, without_producer_5_before(2))
        await clean(partition, 2, lambda header: True, kept)
        partition = await reopened(cluster, getattr(cluster, how))
        found = await committed(cluster, 0)
        assert (aborted(found), delivered(found)) == ([], [2, 3])
        assert [h.base_offset for h, _ in stored(found) if not h.attributes & CONTROL] == [2, 3]


async def test_a_list_of_the_head_does_not_count_for_a_cleaned_segment():
    async with started_cluster() as cluster:
        partition = await aborted_then_committed(cluster)
        _, end, state = await partition.stream.state_behind(0)
        assert [one.producer_id for one in aborted_before(state, end).aborted] == [5]
        await clean(partition, 1, without_producer_5_before(2))
        assert await partition.aborted(0, 3) == []


async def test_a_fetch_in_a_gap_gets_the_batch_behind_it():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, *(batch(records=2) for _ in range(6)))
        await rolled(partition)
        await clean(partition, 1, lambda header: header.base_offset in (4, 8))
        for at, expected in ((0, [4, 8, 10]), (3, [4, 8, 10]), (7, [8, 10]), (9, [8, 10])):
            found, _ = await one(cluster, at)
            assert [header.base_offset for header, _ in stored(found)] == expected
        found, _ = await one(cluster, 11)
        [(header, _)] = stored(found)
        assert (header.records, header.base_offset + header.last_offset_delta) == (0, 11)


async def test_a_timestamp_is_found_in_what_is_left():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, *(batch(records=2, at=1000 * n) for n in range(1, 6)))
        await rolled(partition)
        await cluster.sent(partition, batch(records=2, at=9000))
        await clean(partition, 1, lambda header: header.base_offset in (2, 8))
        for restarted in (False, True):
            for timestamp, expected in ((0, 2), (1000, 2), (2500, 8), (5000, 8), (6000, 10)):
                assert await latest(cluster, isolation=1, timestamp=timestamp) == expected
            assert await latest(cluster, isolation=1) == 12
            assert await latest(cluster, isolation=0, timestamp=LATEST - 2) == 10
            if not restarted:
                await reopened(cluster, cluster.crash)


@BOTH
async def test_readers_while_segments_are_cleaned_never_get_an_aborted_record(limits):
    async with started_cluster(limits=limits) as cluster:
        partition = await aborted_then_committed(cluster)
        seen, done = [], asyncio.Event()

        async def read():
            while not done.is_set():
                for at in range(4):
                    found = await committed(cluster, at)
                    seen.append((at, delivered(found)))
                    await asyncio.sleep(0.0005)

        reading = asyncio.ensure_future(read())
        await clean(partition, 1, without_producer_5_before(2))
        await clean(partition, 2, lambda header: True)
        done.set()
        await reading
        assert seen
        assert all(offsets == [each for each in (2, 3) if each >= at] for at, offsets in seen)


async def test_the_old_ledger_of_an_owner_that_crashed_is_collected():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, *(batch(records=2) for _ in range(4)))
        await rolled(partition)
        old = partition.stream.segments[0].ledger
        await clean(partition, 1, lambda header: header.base_offset == 4)
        unfinished = await SegmentRewriter.begin(partition.stream, partition.stream.segments[0])
        await unfinished.add([CleanedRecord(4, 1000, b"")])
        before = {old, max(await cluster.services.client.list_ledgers())}
        partition = await reopened(cluster, cluster.crash)
        assert before <= set(await cluster.services.client.list_ledgers())
        await asyncio.sleep(AGE_S)
        await Orphans(cluster.catalog, cluster.services).round(alone=True)
        assert not before & set(await cluster.services.client.list_ledgers())
        found, _ = await one(cluster, 0)
        assert [header.base_offset for header, _ in stored(found)][:1] == [4]
