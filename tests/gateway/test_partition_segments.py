"""Goal: segments roll, expire and are searched like Kafka's, and no record is lost.

Method: the real partition over streams, ledgers and a bookie on virtual time.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.topics.produced import Produced
from gateway.wire.batches import read_header, with_offset
from ledger.client.config import LedgerClientConfig
from ledger.core.segments import Truncation
from ledger.errors import LedgerError, Truncated
from ledger.streams.config import StreamLimits
from tests.batches import blank_batch, built_batch, plain_batch, raw_batch
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster

OK = ErrorCode.none
SMALL = StreamLimits(
    entry_bytes_max=64 * 1024,
    snapshot_bytes=2000,
    index_stride_bytes=300,
    tail_cache_bytes=0,
    read_chunk_bytes=500,
)


async def test_a_segment_rolls_by_size_and_nothing_is_lost_or_doubled():
    async with started_cluster() as cluster:
        partition = await cluster.topic(segment_bytes=1_048_576)
        big = blank_batch(1, 200_000)
        for number in range(0, 30, 3):
            answers = await cluster.sent(partition, *[big] * 3)
            assert [answer.base_offset - number for answer in answers] == [0, 1, 2]
        await asyncio.sleep(1)
        segments = partition.stream.segments
        assert 3 <= len(segments) <= 8
        assert [s.completed for s in segments] == [True] * (len(segments) - 1) + [False]
        assert base_offsets(await cluster.read_all(partition)) == list(range(30))


async def test_a_segment_rolls_by_time_only_when_it_has_records():
    async with started_cluster() as cluster:
        partition = await cluster.topic(segment_ms=60_000)
        await partition.stream.begin()
        await asyncio.sleep(100)
        await cluster.partitions.maintain_once()
        await asyncio.sleep(1)
        assert len(partition.stream.segments) == 1
        await cluster.sent(partition, batch())
        await cluster.partitions.maintain_once()
        await asyncio.sleep(1)
        assert [s.completed for s in partition.stream.segments] == [True, False]


async def test_idle_producers_are_forgotten_after_a_day_without_any_write():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for producer in range(5):
            await cluster.sent(partition, batch(0, producer=producer))
        await asyncio.sleep(80_000)
        await cluster.sent(partition, batch(2, producer=4))
        await asyncio.sleep(10_000)
        await cluster.partitions.maintain_once()
        assert len(partition._state.producers) == 1
        [answer] = await cluster.sent(partition, batch(9, producer=4))
        assert answer.error is ErrorCode.out_of_order_sequence_number


async def test_retention_removes_old_segments_and_moves_the_log_start():
    async with started_cluster() as cluster:
        partition = await cluster.topic(retention_ms=3_600_000)
        for _ in range(3):
            await cluster.sent(partition, batch())
            partition.stream.roll_soon()
            await asyncio.sleep(1800)
        assert len(await cluster.services.client.list_ledgers()) == 4
        await asyncio.sleep(1900)
        await cluster.partitions.maintain_once()
        assert partition.log_start_offset == 4
        assert base_offsets(await cluster.read_all(partition)) == [4]
        assert len(await cluster.services.client.list_ledgers()) == 2
        assert cluster.freed == 1
        with pytest.raises(Truncated):
            await partition.read(3, 1000)
        await cluster.crash()
        assert (await cluster.partition()).log_start_offset == 4


class Waiter:
    def __init__(self, partition):
        self.partition, self.starts = partition, []

    def on_data(self):
        self.starts.append(self.partition.log_start_offset)


async def test_a_waiting_fetch_is_told_that_retention_moved_the_log_start():
    async with started_cluster() as cluster:
        partition = await cluster.topic(retention_ms=3_600_000)
        await cluster.sent(partition, batch())
        partition.stream.roll_soon()
        await asyncio.sleep(3700)
        await cluster.sent(partition, batch())
        partition.stream.roll_soon()
        await asyncio.sleep(1)
        waiter = Waiter(partition)
        partition.add_waiter(waiter)
        await cluster.partitions.maintain_once()
        assert waiter.starts == [2]
        await cluster.partitions.maintain_once()
        assert waiter.starts == [2]


async def test_a_roll_and_a_recovery_leave_the_same_fields():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch(records=3))
        partition.stream.roll_soon()
        await asyncio.sleep(1)
        rolled = partition.stream.segments[0]
        await cluster.catalog.create("u", 1, 1, {})
        other = await cluster.partition("u")
        await cluster.sent(other, batch(), batch(records=3))
        await cluster.crash()
        recovered = (await cluster.partition("u")).stream.segments[0]
        for name in ("number", "first_txid", "last_txid", "record_count", "start_sequence_id"):
            assert getattr(rolled, name) == getattr(recovered, name)
        assert (rolled.last_entry, rolled.last_slot) == (recovered.last_entry, recovered.last_slot)


async def test_a_restart_that_only_reads_makes_no_segment():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        for _ in range(3):
            await cluster.restart()
            partition = await cluster.partition()
            await cluster.read_all(partition)
        assert len(partition.stream.segments) == 1
        assert partition.leader_epoch == 1


async def test_the_epoch_of_an_offset_is_that_of_the_ownership_that_wrote_it():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        partition.stream.roll_soon()  # the same ownership, the same epoch
        await cluster.sent(partition, batch())
        await cluster.crash()
        partition = await cluster.partition()
        await cluster.sent(partition, batch())
        assert [partition.epoch_at(offset) for offset in range(6)] == [0, 0, 0, 0, 2, 2]
        assert partition.leader_epoch == 2


async def test_deleted_records_are_unreadable_at_once_and_whole_segments_free_disk_space():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for _ in range(3):
            await cluster.sent(partition, batch(records=4))
            partition.stream.roll_soon()
            await asyncio.sleep(1)
        await partition.stream.truncate(6)
        assert partition.log_start_offset == 6
        gone, first, *_ = partition.stream.segments
        assert (gone.start_sequence_id, gone.truncation) == (0, Truncation.TRUNCATED)
        assert (first.start_sequence_id, first.truncation) == (4, Truncation.PARTIALLY_TRUNCATED)
        assert base_offsets(await cluster.read_all(partition)) == [4, 8]
        await partition.stream.truncate(12)
        assert partition.log_start_offset == partition.high_watermark == 12
        assert [s.truncation for s in partition.stream.segments[:3]] == [Truncation.TRUNCATED] * 3
        await asyncio.sleep(61)
        await cluster.partitions.maintain_once()
        assert [s.start_sequence_id for s in partition.stream.segments] == [8, 12]
        assert len(await cluster.services.client.list_ledgers()) == 2
        await partition.stream.truncate(3)
        assert partition.log_start_offset == 12
        with pytest.raises(Truncated):
            await partition.stream.truncate(13)
        await cluster.crash()
        partition = await cluster.partition()
        assert (partition.log_start_offset, partition.high_watermark) == (12, 12)


async def test_a_reader_at_the_end_of_a_segment_that_is_removed_reads_on():
    async with started_cluster(limits=SMALL) as cluster:
        partition = await cluster.topic()
        for _ in range(3):
            await cluster.sent(partition, batch())
            partition.stream.roll_soon()
            await asyncio.sleep(1)
        (first,) = await partition.read(0, 1)  # the cursor is at the end of the segment
        assert first.end_sequence_id == 2
        await partition.stream.truncate(2)
        (second,) = await partition.read(2, 1)
        assert second.sequence_id == 2


async def test_a_read_in_flight_while_its_segment_is_removed_fails_as_truncated():
    async with started_cluster(limits=SMALL) as cluster:
        partition = await cluster.topic()
        for _ in range(3):
            await cluster.sent(partition, batch())
            partition.stream.roll_soon()
            await asyncio.sleep(1)
        await cluster.crash()
        partition = await cluster.partition()
        cluster.port.read_delay_s = 0.1
        reading = asyncio.create_task(partition.read(0, 1000))
        await asyncio.sleep(0.05)
        await partition.stream.truncate(4)
        try:
            assert (await reading)[0].sequence_id == 0
        except Truncated:
            pass
        with pytest.raises(Truncated):
            await partition.read(0, 1000)


async def test_a_read_under_way_while_its_segment_is_completed_skips_nothing():
    async with started_cluster(limits=SMALL) as cluster:
        partition = await cluster.topic()
        for _ in range(20):
            await cluster.sent(partition, batch())
        cluster.port.read_delay_s = 0.1
        reading = asyncio.create_task(cluster.read_all(partition))
        for _ in range(5):
            await asyncio.sleep(0.05)
            partition.stream.roll_soon()
            await cluster.sent(partition, batch())
        assert base_offsets(await reading) == list(range(0, partition.high_watermark, 2))


async def test_a_read_under_way_while_its_stream_fails_fails_in_words_or_succeeds():
    async with started_cluster(limits=SMALL) as cluster:
        partition = await cluster.topic()
        for _ in range(20):
            await cluster.sent(partition, batch())
        for wait_s in (0.0, 0.0001, 0.0005, 0.001, 0.01, 0.05):
            cluster.port.read_delay_s = 0.0002
            reading = asyncio.create_task(cluster.read_all(partition))
            await asyncio.sleep(wait_s)
            cluster.port.refuse()
            cluster.send(partition, batch())
            try:
                assert base_offsets(await reading)[0] == 0
            except LedgerError as error:
                assert error.retryable
            cluster.port.accept()
            await cluster.sent(partition, batch())


async def test_a_segment_that_distributedlog_left_in_progress_starts_where_the_last_one_ends():
    """DistributedLog writes -1 for the start until the segment is completed."""
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for _ in range(2):
            await cluster.sent(partition, batch())
            partition.stream.roll_soon()
            await asyncio.sleep(1)
        await cluster.sent(partition, batch())
        segment = partition.stream.segments[-1]
        path = f"/streams/{partition.name}/<default>/ledgers/{segment.node_name}"
        foreign = replace(segment, start_sequence_id=-1)
        await cluster.metadata.set(path, foreign.encode(), -1)
        await cluster.crash()
        partition = await cluster.partition()
        assert base_offsets(await cluster.read_all(partition)) == [0, 2, 4]
        assert [s.start_sequence_id for s in partition.stream.segments] == [0, 2, 4]


async def test_a_cold_seek_reads_about_one_stride_of_the_live_segment_too():
    async with started_cluster(limits=SMALL) as cluster:
        partition = await cluster.topic()
        for _ in range(400):
            await cluster.sent(partition, blank_batch(1, 173))
        for _ in range(20):
            reads = cluster.port.reads
            (first, *_) = await partition.read(350, 1)
            assert first.sequence_id == 350
            assert cluster.port.reads - reads <= 6


@pytest.mark.slow
async def test_a_snapshot_larger_than_the_ledger_takes_at_once_waits_for_room():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        states = partition._state.producers
        now_ms = cluster.clock.now_ms()
        for producer in range(50_000):
            states.accept(producer, 0, 0, 1, -1, -1, now_ms, durable_offset=0)
        cluster.services.client._config = LedgerClientConfig(pending_bytes_max=1_000_000)
        answers = await cluster.sent(partition, batch(0, producer=10**6), batch(2, producer=10**6))
        assert answers == [Produced(OK, 0), Produced(OK, 2)]
        await cluster.crash()
        partition = await cluster.partition()
        assert len(partition._state.producers) == 50_001
        assert await cluster.sent(partition, batch(2, producer=10**6)) == [Produced(OK, 2)]


@pytest.mark.slow
async def test_a_large_snapshot_is_found_when_nothing_was_written_after_it():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        states = partition._state.producers
        now_ms = cluster.clock.now_ms()
        for producer in range(50_000):
            states.accept(producer, 0, 0, 1, -1, -1, now_ms, durable_offset=0)
        await partition.stream.begin()
        await asyncio.sleep(1)
        await cluster.crash()
        assert len((await cluster.partition())._state.producers) == 50_000


# -- times ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_timestamps_are_looked_up_as_a_plain_scan_would():
    """Timestamps are out of order, over segments, codecs, restarts and truncation."""

    async def story(cluster, draw):
        partition = await cluster.topic(
            f"t{draw.random()}", segment_bytes=1_048_576, message_timestamp_type="CreateTime"
        )
        name = next(iter(k for k, v in cluster.partitions._by_name.items() if v is partition))
        times = []
        for _ in range(draw.randint(1, 30)):
            inside = [draw.randint(0, 300) for _ in range(draw.randint(1, 6))]
            await cluster.sent(
                partition, built_batch(inside, codec=draw.choice([0, 0, 1, 2, 3, 4]))
            )
            times += inside
            if draw.random() < 0.1:
                partition.stream.roll_soon()
        start = draw.choice([0, draw.randint(0, len(times))])
        await partition.stream.truncate(start)
        if draw.random() < 0.5:
            await cluster.crash()
            partition = await cluster.partition(*name)
        visible = list(enumerate(times))[start:]
        for asked in [0, 301, *(draw.randint(0, 301) for _ in range(20))]:
            due = next(((at, offset) for offset, at in visible if at >= asked), None)
            assert await cluster.at_time(partition, asked) == due
        greatest = max((at for _, at in visible), default=None)
        due = next(((at, offset) for offset, at in visible if at == greatest), None)
        assert await cluster.at_time(partition, None) == due

    async with started_cluster(limits=SMALL) as one:
        for seed in range(25):
            await story(one, Random(seed))


async def test_the_greatest_timestamp_is_that_of_durable_records():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(at=500))
        cluster.port.hold()
        cluster.send(partition, batch(at=900))
        await asyncio.sleep(0.1)
        assert await cluster.at_time(partition, None) == (500, 0)
        assert await cluster.at_time(partition, 600) is None


async def store_liar(partition):
    """Store a batch whose header has a false timestamp, as versions without checks did."""
    liar = memoryview(raw_batch(plain_batch([5])[61:], base_timestamp=5, max_timestamp=1000))
    stored = asyncio.get_running_loop().create_future()
    await partition.ensure_readable()
    await partition.stream.begin()
    stream = partition.stream
    placed = with_offset(liar, read_header(liar), stream.next_sequence_id, stream.epoch)
    stream.append(placed, len(liar), 1, 1000, stored.set_result)
    assert await stored is None


async def test_a_header_that_promises_a_later_time_than_its_records_hold_is_passed_by():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await store_liar(partition)
        await cluster.sent(partition, batch(at=900))
        assert await cluster.at_time(partition, 800) == (900, 1)


async def test_headers_decide_once_the_budget_of_a_search_is_used_up():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for _ in range(3):
            await store_liar(partition)
        await cluster.sent(partition, batch(at=900))
        assert await cluster.at_time(partition, 800, parts=100) == (900, 3)
        assert await cluster.at_time(partition, 800, parts=3) == (1000, 1)
