"""Goal: an embedded gateway shows one leader epoch everywhere: 0 at first, never -1, never lower.

Method: requests in Kafka's bytes on virtual time, over real streams on a simulated disk; and
literal metadata as an earlier release wrote them.
"""

import random
import struct

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.port import StreamKey
from ledger.streams.segment_store import log_root
from tests.gateway.stream_cluster import LIST_OFFSETS, batch, started_cluster, times_of
from tests.gateway.test_fetch import fetch, flat, one

OK, FENCED = ErrorCode.none, ErrorCode.fenced_leader_epoch
AHEAD = ErrorCode.unknown_leader_epoch
METADATA, DESCRIBE = 3, 75


async def shown(cluster, topic="t"):
    """Return the epochs in Metadata, which are also those in DescribeTopicPartitions."""
    listed = await cluster.answer(METADATA, 12, topics=[{"name": topic}])
    described = await cluster.answer(
        DESCRIBE, 0, topics=[{"name": topic}], response_partition_limit=2_000, cursor=None
    )
    epochs = [each.leader_epoch for each in listed.topics[0].partitions]
    assert [each.leader_epoch for each in described.topics[0].partitions] == epochs
    return epochs


async def listed(cluster, timestamp, epoch=-1, index=0):
    asked = times_of({"t": [(index, timestamp)]}, epoch)
    answer = await cluster.answer(LIST_OFFSETS, 8, **asked)
    (found,) = answer.topics[0].partitions
    return found


def stored_epochs(data):
    """Return the leader epochs in the headers of batches."""
    found, at = [], 0
    while at < len(data):
        length, epoch = struct.unpack_from(">ii", data, at + 8)
        found.append(epoch)
        at += 12 + length
    return found


async def fetched(cluster, offset=0, epoch=-1):
    (found, _) = await one(cluster, offset, settings={"current_leader_epoch": epoch}, wait_ms=0)
    return found


async def write(cluster, *, rolls):
    partition = await cluster.partition()
    await cluster.sent(partition, batch())
    if rolls:
        partition.stream.roll_soon()
        await cluster.sent(partition, batch())


async def test_the_first_epoch_is_0_in_every_answer():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        assert await shown(cluster) == [0]
        for special in (-1, -2, -4):
            assert (await listed(cluster, special, epoch=0)).leader_epoch == 0
        await cluster.sent(partition, batch())
        assert await shown(cluster) == [0]
        for special in (-1, -2, -4, -3, 1000):
            assert (await listed(cluster, special, epoch=0)).leader_epoch == 0
        found = await fetched(cluster, epoch=0)
        assert (found.error_code, stored_epochs(found.records)) == (OK, [0])


async def test_a_partition_that_was_never_opened_shows_0_and_stays_closed():
    async with started_cluster() as cluster:
        await cluster.catalog.create("t", 3, 1, {})
        assert await shown(cluster) == [0, 0, 0]
        await cluster.catalog.add_partitions("t", 5)
        assert await shown(cluster) == [0] * 5
        assert not cluster.partitions._by_key


@pytest.mark.parametrize("end", ["restart", "crash"])
async def test_after_a_restart_closed_partitions_show_the_epoch_with_which_they_open(end):
    async with started_cluster() as cluster:
        await cluster.catalog.create("t", 3, 1, {})
        for index, writes in enumerate((0, 1, 3)):
            partition = await cluster.partition("t", index)
            for _ in range(writes):
                await cluster.sent(partition, batch())
                partition.stream.roll_soon()
            await cluster.sent(partition, *[batch()] * bool(writes))
        await getattr(cluster, end)()
        epochs = await shown(cluster)
        assert not cluster.partitions._by_key, "Metadata opened a partition"
        assert epochs == [0, 2, 4]
        opened = [await cluster.partition("t", index) for index in range(3)]
        assert [each.leader_epoch for each in opened] == epochs
        assert await shown(cluster) == epochs


@pytest.mark.parametrize("api", ["fetch", "list offsets"])
async def test_what_metadata_showed_of_a_closed_partition_is_accepted_and_others_are_not(api):
    async def code(cluster, epoch):
        if api == "fetch":
            return (await fetched(cluster, epoch=epoch)).error_code
        return (await listed(cluster, -1, epoch)).error_code

    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await cluster.crash()
        (epoch,) = await shown(cluster)
        assert await code(cluster, epoch) is OK  # opens the partition
        assert [await code(cluster, each) for each in (0, 1, 2)] == [FENCED, OK, AHEAD]
        partition = await cluster.partition()
        await cluster.sent(partition, batch())  # begins the segment of this epoch
        assert [await code(cluster, each) for each in (0, 1, 2)] == [FENCED, OK, AHEAD]


async def test_a_fenced_fetch_names_the_leader_with_the_epoch_of_metadata():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await cluster.restart()
        partition = await cluster.partition()
        settings = {"current_leader_epoch": 0}
        answer = await fetch(cluster, {"t": {0: (0, settings)}}, wait_ms=0)
        (found,) = flat(answer).values()
        assert found.error_code is FENCED
        assert [found.current_leader.leader_epoch] == await shown(cluster) == [1]


async def test_a_partition_that_opens_again_after_a_failed_write_shows_its_last_epoch():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.refuse()
        cluster.metadata.closed = True  # so that it does not open
        await cluster.sent(partition, batch())
        assert not partition.readable
        assert await shown(cluster) == [0]
        cluster.metadata.closed = False
        cluster.port.accept()
        await cluster.partition()
        assert await shown(cluster) == [1]


async def test_a_deleted_topic_is_forgotten_and_created_again_it_begins_with_0():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await cluster.restart()
        old = StreamKey(cluster.catalog.by_name("t").topic_id, 0)
        await cluster.catalog.delete("t")
        assert cluster.partitions.epoch_of(old) == -1
        await cluster.topic()
        assert await shown(cluster) == [0]


@pytest.mark.parametrize("epoch_base", [0, 1])
async def test_over_50_random_restarts_the_epoch_never_falls_and_rises_after_each_write(epoch_base):
    draw = random.Random(15 + epoch_base)
    async with started_cluster(epoch_base=epoch_base) as cluster:
        partition = await cluster.topic()
        before, written = 1 - epoch_base, False
        for _ in range(50):
            (epoch,) = await shown(cluster)
            assert (epoch > before) if written else (epoch == before)
            if draw.random() < 0.7:
                partition = await cluster.partition()
                assert partition.leader_epoch == epoch
            written = draw.random() < 0.5
            if written:
                await write(cluster, rolls=draw.random() < 0.5)
                assert await shown(cluster) == [epoch]
            before = epoch
            await (cluster.crash if draw.random() < 0.7 else cluster.restart)()
        found = await fetched(cluster)
        epochs = stored_epochs(found.records)
        assert epochs == sorted(epochs)
        assert epochs[0] == 1 - epoch_base


# -- streams of earlier releases ------------------------------------------------------------------


async def test_a_stream_of_an_earlier_release_keeps_its_epochs_and_its_form():
    async with started_cluster(epoch_base=0) as cluster:
        partition = await cluster.topic("t")
        root = log_root(partition.name)
        assert (await cluster.metadata.get(f"{root}/start")).data == b"0"  # as it wrote it
        await cluster.sent(partition, batch())
        assert await shown(cluster) == [1]
        cluster.epoch_base = 1
        await cluster.crash()
        assert await shown(cluster) == [2]
        partition = await cluster.partition("t")
        await cluster.sent(partition, batch())
        await partition.stream.truncate(1)
        assert (await cluster.metadata.get(f"{root}/start")).data == b"1"
        assert await shown(cluster) == [2]
        assert [partition.epoch_at(offset) for offset in (1, 2)] == [1, 2]


async def test_the_base_of_a_stream_outlives_truncation():
    async with started_cluster() as cluster:
        partition = await cluster.topic("t")
        await cluster.sent(partition, batch(), batch())
        await partition.stream.truncate(2)
        await cluster.crash()
        partition = await cluster.partition("t")
        assert (partition.log_start_offset, partition.leader_epoch) == (2, 1)
        assert [partition.epoch_at(offset) for offset in (2, 4)] == [0, 1]
