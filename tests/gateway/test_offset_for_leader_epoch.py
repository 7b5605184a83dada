"""Goal: a leader epoch ends where the next one begins, over takeovers, truncation and snapshots.

Method: OffsetForLeaderEpoch in Kafka's bytes on virtual time, over real streams on a simulated
disk; random owners are held against Kafka's class.
"""

import random

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.fetch_plan import FetchPlan
from gateway.core.fetch_session import FetchPartition
from gateway.handlers.k23_offset_for_leader_epoch import API
from ledger.errors import StreamUnavailable
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.test_fetch import offsets, one
from tests.gateway.test_replica import Leader, started_pair
from tests.ledger.test_epoch_table import KafkaCache

OK = ErrorCode.none
FENCED, AHEAD = ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch
UNKNOWN = (OK, -1, -1)


async def end_of(cluster, epoch, *, current=-1, index=0, topic="t", version=4):
    """Return (error, epoch, end offset)."""
    row = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
    answer = await cluster.answer(
        API.key, version, replica_id=-1, topics=[{"topic": topic, "partitions": [row]}]
    )
    (found,) = answer.topics[0].partitions
    assert (answer.topics[0].topic, found.partition) == (topic, index)
    return found.error_code, found.leader_epoch, found.end_offset


async def owners(cluster, *counts):
    """Let one owner after the other write this many batches of two records."""
    for at, count in enumerate(counts):
        if at:
            await cluster.crash()
        partition = await cluster.partition()
        await cluster.sent(partition, *(batch() for _ in range(count)))


@pytest.mark.parametrize("version", API.versions)
async def test_an_epoch_ends_where_the_next_one_begins(version):
    async with started_cluster() as cluster:
        await cluster.topic()
        await owners(cluster, 1, 2, 1)
        found = [await end_of(cluster, epoch, version=version) for epoch in (-2, -1, 0, 1, 2, 3)]
        assert found == [(OK, -2, 0), UNKNOWN, (OK, 0, 2), (OK, 1, 6), (OK, 2, 8), UNKNOWN]


async def test_a_partition_that_is_not_open_is_opened_for_the_answer():
    async with started_cluster() as cluster:
        await cluster.topic()
        await owners(cluster, 1, 1)
        await cluster.crash()
        assert await end_of(cluster, 0, current=2) == (OK, 0, 2)
        assert await end_of(cluster, 1, current=2) == (OK, 1, 4)
        assert await end_of(cluster, 2, current=2) == (OK, 2, 4)


async def test_the_epoch_of_the_leader_is_checked():
    async with started_cluster() as cluster:
        await cluster.topic()
        await owners(cluster, 1, 1)
        assert await end_of(cluster, 0, current=1) == (OK, 0, 2)
        assert await end_of(cluster, 0, current=0) == (FENCED, -1, -1)
        assert await end_of(cluster, 0, current=-2) == (FENCED, -1, -1)
        assert await end_of(cluster, 0, current=2) == (AHEAD, -1, -1)


async def test_a_log_without_older_epochs_answers_with_its_start():
    async with started_cluster() as cluster:
        await cluster.topic()
        await owners(cluster, 2, 2, 2)
        partition = await cluster.partition()
        await partition.truncate(5)
        for _ in range(2):
            assert await end_of(cluster, 0) == (OK, 0, 5)
            assert await end_of(cluster, 1) == (OK, 1, 8)
            assert await end_of(cluster, 2) == (OK, 2, 12)
            await cluster.crash()


async def test_the_newest_epoch_ends_at_the_high_watermark():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.hold()
        waiting = cluster.send(partition, batch())
        assert await end_of(cluster, 0) == (OK, 0, 2)
        cluster.port.release()
        await cluster.sent(partition, batch())
        assert waiting
        assert await end_of(cluster, 0) == (OK, 0, 6)


async def test_a_partition_that_is_not_led_here_is_refused():
    async with started_cluster() as cluster:
        await cluster.topic()
        error = ErrorCode.unknown_topic_or_partition
        assert await end_of(cluster, 0, index=1) == (error, -1, -1)
        assert await end_of(cluster, 0, topic="other") == (error, -1, -1)


async def test_many_partitions_are_answered_in_their_order():
    async with started_cluster() as cluster:
        await cluster.topic()
        rows = [
            {"partition": at % 3, "current_leader_epoch": -1, "leader_epoch": 0}
            for at in range(2_000)
        ]
        answer = await cluster.answer(
            API.key, 4, replica_id=-1, topics=[{"topic": "t", "partitions": rows}]
        )
        assert [each.partition for each in answer.topics[0].partitions] == [
            at % 3 for at in range(2_000)
        ]


async def write_and_truncate(cluster, draw):
    """Let the owner write up to four batches, roll, and perhaps move the start of the log."""
    partition = await cluster.partition()
    for _ in range(draw.randrange(3)):
        await cluster.sent(partition, batch())
        if draw.random() < 0.3:
            partition.stream.roll_soon()
            await cluster.sent(partition, batch())
    if draw.random() < 0.3:
        start = draw.randint(partition.log_start_offset, partition.high_watermark)
        await partition.truncate(start)
        await partition.expire()


@pytest.mark.parametrize("seed", range(4))
async def test_epochs_are_those_of_kafka_over_any_rolls_restarts_and_truncations(seed):
    draw = random.Random(seed)
    async with started_cluster() as cluster:
        await cluster.topic(file_delete_delay_ms=0)
        kafka = KafkaCache()
        for _ in range(25):
            partition = await cluster.partition()
            kafka.assign(partition.leader_epoch, partition.high_watermark)
            await write_and_truncate(cluster, draw)
            kafka.truncate_from_start(partition.log_start_offset)
            for asked in range(-2, partition.leader_epoch + 2):
                due = kafka.end_offset_for(asked, partition.high_watermark)
                assert await end_of(cluster, asked) == (UNKNOWN if due is None else (OK, *due))
            if draw.random() < 0.6:
                await (cluster.crash if draw.random() < 0.5 else cluster.restart)()


# -- the diverging epoch of Fetch -----------------------------------------------------------------


async def diverging(cluster, offset, last, **fields):
    """Fetch with the epoch of the last record. Return (error, epoch, end offset, offsets)."""
    settings = {"last_fetched_epoch": last, **fields}
    (found, took_s) = await one(cluster, offset, settings=settings, wait_ms=500)
    epoch = found.diverging_epoch
    assert took_s == 0 or epoch.epoch < 0
    return found.error_code, epoch.epoch, epoch.end_offset, offsets(found)


async def test_a_client_whose_log_goes_on_is_told_where_its_epoch_ended():
    async with started_cluster() as cluster:
        await cluster.topic()
        await owners(cluster, 2, 1)
        assert await diverging(cluster, 4, 0) == (OK, -1, -1, [4])
        assert await diverging(cluster, 6, 0) == (OK, 0, 4, [])
        assert await diverging(cluster, 6, 1) == (OK, -1, -1, [])
        assert await diverging(cluster, 4, -1) == (OK, -1, -1, [4])


async def test_an_epoch_without_records_diverges_to_the_one_before():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch())
        partition.stream.roll_soon()
        await owners(cluster, 1, 1)
        newest = (await cluster.partition()).leader_epoch
        assert newest > 1
        assert await diverging(cluster, 6, newest - 1) == (OK, 0, 6, [])


async def test_an_epoch_that_is_not_known_is_out_of_range():
    async with started_cluster() as cluster:
        await cluster.topic()
        await owners(cluster, 2, 1)
        refused = (ErrorCode.offset_out_of_range, -1, -1, [])
        assert await diverging(cluster, 4, 7) == refused
        assert (await diverging(cluster, 4, 7, current_leader_epoch=0))[0] is FENCED


async def test_a_replica_has_the_epochs_of_the_leader_and_reports_no_lag_as_divergence():
    async with started_pair() as pair:
        with pytest.raises(StreamUnavailable):
            pair.replica.epoch_end(0)  # its epochs are not loaded
        await pair.replica.ensure_readable()
        await pair.leader.produce(2)
        pair.leader.kill()
        second = await Leader(pair, "second").open()
        await second.produce(1)
        await pair.until(6)
        newest = second.partition.leader_epoch
        for epoch in range(-2, newest + 2):
            assert pair.replica.epoch_end(epoch) == second.partition.epoch_end(epoch)
        assert pair.replica.epoch_end(newest) == (newest, 6)
        ahead = FetchPlan([FetchPartition("t", 0, 9, 1, -1, newest)], 1, 1, 0.0)
        end = pair.replica.epoch_end(newest)
        assert not ahead.diverges(ahead.results[0], 0, end, is_follower=True)
        assert ahead.diverges(ahead.results[0], 0, end)
