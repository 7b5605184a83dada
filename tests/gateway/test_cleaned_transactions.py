"""Transactions of a compacted topic whose markers and records lie in several segments."""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from gateway.core.cleaning_transactions import CleanedTransactions
from gateway.core.partition_transactions import AbortedTransaction
from gateway.wire.batches import CONTROL, read_header
from tests.gateway.cleaning_log import keyed_batch
from tests.gateway.cleaning_rig import started_cleaning
from tests.gateway.test_transaction_path import marked, sent


async def test_what_a_producer_commits_after_its_aborted_transaction_stays():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(delete_retention_ms=60_000)

        async def transactional(producer, key, sequence=0):
            records = [(key, b"v")]
            batch = keyed_batch(records, producer=producer, transactional=True, sequence=sequence)
            assert await sent(partition, batch) == [ErrorCode.none]

        async def end(producer, *, commit=True):
            ended = await marked(partition, epoch=0, version=0, producer=producer, commit=commit)
            assert ended is ErrorCode.none

        await transactional(8, b"a")
        await transactional(7, b"aborted")
        await transactional(8, b"b", sequence=1)
        await cluster.roll(partition)
        await end(7, commit=False)
        await end(8)
        await transactional(7, b"c", sequence=1)
        await end(7)
        for at in range(5):
            await cluster.fill(partition, b"%d" % at)
            await cluster.clean()
            assert not cluster.report().error
            keys = {key for key, _ in (await cluster.read_records(partition)).values()}
            assert keys == {b"a", b"b", b"c", b"0", b"1", b"2"}
            named = await partition.aborted(0, partition.high_watermark)
            assert len(set(named)) == len(named), "librdkafka waits for a marker for each"
            # Only the marker tells consumers where an aborted transaction ends.
            assert {one.last_offset for one in named} <= set(await marker_offsets(partition))
            await asyncio.sleep(120)
        assert 3 not in await marker_offsets(partition)


async def test_a_transaction_that_ends_in_the_next_segment_is_named_once():
    """For each name, librdkafka waits for one more abort marker, and drops what comes before it."""
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for producer in (5, 6):
            batch = keyed_batch([(b"a", b"aborted")], producer=producer, transactional=True)
            assert await sent(partition, batch) == [ErrorCode.none]
        await cluster.roll(partition)
        for producer in (6, 5):
            ended = await marked(partition, epoch=0, version=0, producer=producer, commit=False)
            assert ended is ErrorCode.none
        for at in range(3):
            await cluster.clean()
            for start in range(partition.high_watermark):
                named = await partition.aborted(start, partition.high_watermark)
                assert len({(one.producer_id, one.first_offset) for one in named}) == len(named)
            await cluster.fill(partition, b"%d" % at)


def test_an_aborted_transaction_without_a_marker_does_not_hide_the_next_one():
    known = CleanedTransactions()
    first, second = (AbortedTransaction(7, at, at + 2, 0) for at in (10, 20))
    known.add([first, second])
    assert known.aborted_with(7, 11) == first
    assert known.aborted_with(7, 20) == second  # the marker at 12 was dropped earlier
    assert known.aborted_with(7, 21) == second
    assert not known.end(7, 22, commit=False)
    assert known.aborted_with(7, 30) is None


async def marker_offsets(partition):
    found, at = [], 0
    while at < partition.high_watermark:
        for stored in await partition.read(at, 100_000):
            header = read_header(b"".join(stored.data))
            if header.attributes & CONTROL:
                found.append(header.base_offset)
            at = stored.end_sequence_id
    return found
