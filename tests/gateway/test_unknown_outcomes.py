"""Goal: while a partition does not know its transactions, no aborted record is returned to a reader
of committed records, and none is left out.

Method: Fetch and ListOffsets in Kafka's bytes over real streams on virtual time. The bookie denies
or delays the snapshot from which a partition rebuilds its state, or the list of an older segment.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.transactions.local_markers import LocalMarkers
from ledger.errors import LedgerError, StreamUnavailable
from ledger.ports.bookies import Status
from tests.gateway.lossy_cluster import lossy_cluster
from tests.gateway.stream_cluster import batch, started_cluster, times_of
from tests.gateway.test_lost_partition import accept, lose
from tests.gateway.test_read_committed import COLD, committed, delivered, latest
from tests.gateway.test_transaction_path import Coordinator, marked, opened, part, sent
from tests.ledger.lost_stream_rig import lost_range

OK, STORAGE = ErrorCode.none, ErrorCode.kafka_storage_error
LIST_OFFSETS, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 2, 27, 61
HANGING = "the end of an open transaction may be lost"


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
    async with started_cluster() as cluster:
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
    async with started_cluster() as cluster:
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
    async with started_cluster(limits=COLD) as cluster:
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
        async with started_cluster(limits=COLD) as cluster:
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
    async with started_cluster() as cluster:
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


@pytest.mark.parametrize("possible", [False, True])
async def test_a_hidden_state_hides_nothing_while_no_log_can_have_a_transaction(possible):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for _ in range(3):
            await cluster.sent(partition, batch(records=1))
        [segment] = partition.stream.segments
        await cluster.crash()
        lose(cluster.port, segment.ledger, 2)
        cluster.partitions.verifier = Coordinator()
        may_exist = [possible]
        cluster.partitions.transactions_may_exist = lambda: may_exist[0]
        partition = await cluster.partition()
        found = await committed(cluster, 0)
        assert (found.error_code, found.high_watermark) == (OK, 3)
        if possible:
            assert (found.last_stable_offset, delivered(found)) == (0, [])
            return
        assert (found.last_stable_offset, found.aborted_transactions) == (3, ())
        assert delivered(found) == [0]
        assert await read_or_refused(cluster, 1) is STORAGE
        assert await listed(cluster, -1, 1) is OK
        may_exist[0] = True
        assert partition.stable_offset == 3, "it never falls"


# -- losses that an operator accepted ----------------------------------------------------------


async def past_a_lost_marker(cluster, *, commit=True):
    """Return a partition whose transaction at offset 1 lost its marker at offset 2, accepted."""
    partition, _ = await opened(cluster)
    await cluster.sent(partition, batch(records=1))
    await sent(partition, part(0))
    await marked(partition, 1, commit=commit, coordinator=3)
    await sent(partition, part(0, producer=6))
    await cluster.accept(partition, 2, 2)
    partition = await restarted(cluster)
    cluster.context.markers = LocalMarkers(cluster.partitions)
    return partition


async def open_transactions(cluster):
    topics = [{"name": "t", "partition_indexes": [0]}]
    reply = await cluster.answer(DESCRIBE_PRODUCERS, 0, topics=topics)
    ((partition,),) = (topic.partitions for topic in reply.topics)
    return {
        each.producer_id: each
        for each in partition.active_producers
        if each.current_txn_start_offset >= 0
    }


async def aborted_by_admin(cluster, found):
    """End a transaction as `kafka-transactions.sh abort` does; return the error."""
    marker = {
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        "coordinator_epoch": max(found.coordinator_epoch, 0),
    }
    reply = await cluster.answer(WRITE_TXN_MARKERS, 1, markers=[marker])
    return reply.markers[0].topics[0].partitions[0].error_code


async def test_a_transaction_whose_marker_was_lost_hangs_until_an_admin_aborts_it(capsys):
    async with lossy_cluster() as cluster:
        partition = await past_a_lost_marker(cluster)
        assert (partition.stable_offset, partition.high_watermark) == (1, 4)
        [line] = [line for line in capsys.readouterr().err.splitlines() if HANGING in line]
        assert "topic=t partition=0 producer_id=5 producer_epoch=0 start_offset=1" in line
        found = await open_transactions(cluster)
        assert {each: row.current_txn_start_offset for each, row in found.items()} == {5: 1, 6: 3}
        assert await aborted_by_admin(cluster, found[5]) is OK
        assert partition.stable_offset == 3
        assert await marked(partition, 1, producer=6) is OK
        assert partition.stable_offset == partition.high_watermark == 6
        assert delivered(await committed(cluster, 0)) == [0, 2, 3]  # 2 is lost, an empty batch
        assert not await open_transactions(cluster)
        partition = await restarted(cluster)
        assert partition.stable_offset == 6
        assert HANGING not in capsys.readouterr().err


async def test_the_abort_of_a_refused_producer_ends_its_hanging_transaction():
    async with lossy_cluster() as cluster:
        partition = await past_a_lost_marker(cluster)
        assert await marked(partition, 1, producer=6) is OK
        assert await sent(partition, part(0, epoch=1)) == [ErrorCode.unknown_producer_id]
        assert partition.stable_offset == 1
        assert await marked(partition, 2, commit=False) is OK
        assert partition.stable_offset == partition.high_watermark
        assert delivered(await committed(cluster, 0)) == [0, 2, 3]


async def test_a_transaction_that_began_between_a_loss_and_its_acceptance_ends_both():
    async with lossy_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        await marked(partition, 1)
        await sent(partition, part(0, epoch=1))
        await cluster.accept(partition, 1, 1)
        partition = await restarted(cluster)
        assert partition.stable_offset == 0
        assert await marked(partition, 2, commit=False) is OK
        assert partition.stable_offset == partition.high_watermark == 4
        assert delivered(await committed(cluster, 0)) == [1]  # the lost marker


async def test_a_transaction_that_began_behind_a_loss_is_not_logged_as_hanging(capsys):
    async with lossy_cluster() as cluster:
        partition, _ = await opened(cluster)
        for sequence in (0, 1):
            await cluster.sent(partition, batch(sequence, records=1))
        await sent(partition, part(0))
        await cluster.accept(partition, 1, 1)
        partition = await restarted(cluster)
        assert partition.stable_offset == 2
        assert HANGING not in capsys.readouterr().err


async def test_many_hanging_transactions_fill_no_log(capsys):
    async with lossy_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, *(part(0, producer=number) for number in range(100, 150)))
        at = partition.high_watermark
        await cluster.sent(partition, batch(records=1))
        await cluster.accept(partition, at, at)
        await restarted(cluster)
        lines = [line for line in capsys.readouterr().err.splitlines() if HANGING in line]
        assert len(lines) == 10
        assert "others=40" in lines[-1]


async def test_a_waiting_reader_gets_its_records_once_the_state_can_be_read_again():
    async with started_cluster() as cluster:
        partition = await with_aborted(cluster)
        ledger = partition.stream.segments[-1].ledger
        await cluster.partitions.stop()
        lost = lose(cluster.port, ledger, 0, status=Status.UNREACHABLE)
        await cluster.start_gateway()
        cluster.partitions.verifier = Coordinator()
        partition = await cluster.partition()
        assert partition.stable_offset == 0
        waiting = asyncio.ensure_future(committed(cluster, 0, wait_ms=60_000))
        await asyncio.sleep(5)
        assert not waiting.done()
        lost.clear()
        async with asyncio.timeout(5):
            assert delivered(await waiting) == [3]
