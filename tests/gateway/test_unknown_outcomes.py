"""Goal: while a partition does not know its transactions, no aborted record is returned to a reader
of committed records, and none is left out.

Method: Fetch and ListOffsets in Kafka's bytes over real streams on virtual time. The bookie denies
or delays the snapshot from which a partition rebuilds its state, or the list of an older segment.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from ledger.errors import LedgerError, StreamUnavailable
from ledger.ports.bookies import Status
from tests.gateway.stream_cluster import batch, started_cluster, times_of
from tests.gateway.test_lost_partition import accept, lose
from tests.gateway.test_read_committed import COLD, committed, delivered, latest
from tests.gateway.test_transaction_path import Coordinator, marked, opened, part, sent
from tests.ledger.lost_stream_rig import lost_range

OK, STORAGE = ErrorCode.none, ErrorCode.kafka_storage_error
LIST_OFFSETS = 2


async def with_aborted(cluster):
    """Return a partition whose records 0 and 1 were aborted, and 3 was committed."""
    partition, _ = await opened(cluster)
    await sent(partition, part(0), part(1))
    await marked(partition, commit=False)
    await cluster.sent(partition, batch(records=1))
    assert partition.stable_offset == 4
    assert delivered(await committed(cluster, 0)) == [3]
    return partition


async def failed(partition):
    """Let the stream fail, and return once it is readable again."""
    partition.stream.fail(StreamUnavailable("a test"))
    await partition.ensure_readable()


async def read_or_refused(cluster, offset=0):
    """Return the offsets that a reader of committed records gets, or the error."""
    found = await committed(cluster, offset)
    return found.error_code if found.error_code is not OK else delivered(found)


@pytest.mark.parametrize("status", [Status.NO_ENTRY, Status.UNREACHABLE])
async def test_no_aborted_record_is_served_while_the_state_is_hidden(status):
    async with started_cluster(transactions=True) as cluster:
        partition = await with_aborted(cluster)
        ledger = partition.stream.segments[-1].ledger
        lost = lose(cluster.port, ledger, 0, status=status)
        await failed(partition)
        assert partition.stable_offset == 4, "it never falls"
        assert await read_or_refused(cluster) is STORAGE
        if status is Status.NO_ENTRY:
            [segment] = partition.stream.segments
            await accept(cluster, partition, lost_range(segment, 0, 0, 0, -1))
        lost.clear()
        await asyncio.sleep(10)
        assert await read_or_refused(cluster) == [3]


async def test_no_aborted_record_is_served_while_the_state_is_read_again():
    async with started_cluster(transactions=True) as cluster:
        partition = await with_aborted(cluster)
        ledger = partition.stream.segments[-1].ledger
        lost = lose(cluster.port, ledger, 0, status=Status.UNREACHABLE)
        await failed(partition)
        lost.clear()
        cluster.port.read_delay_s = 0.1
        answers = cluster.send(partition, batch(records=1))
        seen = []
        while not answers:
            seen.append(partition.aborted_cached(0, 4))
            await asyncio.sleep(0.01)
        assert None in seen
        assert all(each is None or [one[:3] for one in each] == [(5, 0, 2)] for each in seen)
        assert await read_or_refused(cluster) == [3, 4]


async def test_a_list_that_is_read_while_the_stream_fails_is_not_used():
    async with started_cluster(transactions=True, limits=COLD) as cluster:
        partition = await with_aborted(cluster)
        for _ in range(2):
            partition.stream.roll_soon()
            await asyncio.sleep(1)
            await cluster.sent(partition, batch(records=1))
        partition = await restarted(cluster)
        assert partition.aborted_cached(0, 4) is None
        cluster.port.read_delay_s = 1.0
        reading = asyncio.ensure_future(partition.aborted(0, 4))
        await asyncio.sleep(0.5)
        cluster.port.read_delay_s = 0.0
        partition.reopen()
        await partition.ensure_readable()
        with pytest.raises(LedgerError) as refused:
            await reading
        assert refused.value.retryable
        assert [one[:3] for one in await partition.aborted(0, 4)] == [(5, 0, 2)]


async def restarted(cluster):
    await cluster.restart()
    cluster.partitions.verifier = Coordinator()
    return await cluster.partition()


async def test_a_fetch_from_disk_during_a_failure_gets_no_aborted_record():
    """Let the records arrive at each moment at which the state is being rebuilt."""
    answers = []
    for moment in range(30):
        async with started_cluster(transactions=True, limits=COLD) as cluster:
            await with_aborted(cluster)
            partition = await restarted(cluster)
            cluster.port.read_delay_s = 0.04 + moment * 0.002
            reading = asyncio.ensure_future(read_or_refused(cluster))
            await asyncio.sleep(0.001)
            cluster.port.read_delay_s = 0.02
            partition.reopen()
            answers.append(await reading)
            await partition.ensure_readable()
            assert await read_or_refused(cluster) == [3]
    assert all(each in ([3], ErrorCode.not_leader_or_follower) for each in answers), answers
    assert ErrorCode.not_leader_or_follower in answers


async def listed(cluster, timestamp, isolation):
    fields = {**times_of({"t": [(0, timestamp)]}), "isolation_level": isolation}
    fields["timeout_ms"] = fields.pop("timeout")
    reply = await cluster.answer(LIST_OFFSETS, 10, **fields)
    return reply.topics[0].partitions[0].error_code


async def test_offsets_of_committed_readers_are_refused_while_the_state_is_hidden():
    """The last stable offset of before would send a new consumer back to old records."""
    async with started_cluster(transactions=True) as cluster:
        partition = await with_aborted(cluster)
        ledger = partition.stream.segments[-1].ledger
        await restarted(cluster)
        await cluster.partitions.stop()
        lose(cluster.port, ledger, 0)
        await cluster.start_gateway()
        cluster.partitions.verifier = Coordinator()
        await cluster.partition()
        for timestamp in (-1, 1000):
            assert await listed(cluster, timestamp, 1) is STORAGE
            assert await listed(cluster, timestamp, 0) is OK
        assert await latest(cluster, isolation=0) == 4
