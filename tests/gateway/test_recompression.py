"""Goal: a stored batch has the codec of its topic, and nothing else of it changes.

Method: batches of every codec in topics of every codec, over real streams on a simulated disk; the
records are read back. Long work runs in a thread on a loop of the system, and is called directly
on virtual time.
"""

import asyncio
import struct
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.topics.long_work import Growth, LongWork
from gateway.wire.batches import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchRefused,
    Compression,
    check_batch,
    read_header,
)
from gateway.wire.decompress import decompress
from gateway.wire.recompress import at_once_bytes, compress, recompressed_now
from ledger.crc32c import crc32c
from tests.batches import plain_batch, raw_batch, record
from tests.gateway.stream_cluster import started_cluster

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
LEVELS = {
    "gzip": (-1, 1, 9),
    "lz4": (1, 9, 17),
    "zstd": (-131072, -5, 1, 3, 22),
    "snappy": (0,),
    "uncompressed": (0,),
}
ROOM = 64 * 1024 * 1024
OK = ErrorCode.none


def targets():
    return [Compression(CODECS.index(name), level) for name in CODECS for level in LEVELS[name]]


def records_of(count, size=10):
    draw = Random(count)
    return b"".join(
        record(at, at * 3, b"key-%d" % at, draw.randbytes(size // 2) + b"x" * (size // 2))
        for at in range(count)
    )


def batch_of(codec, records, count, **header):
    """Return a batch whose records are compressed with the codec of this number."""
    inside = compress(Compression(codec, {1: 6, 3: 1, 4: 3}.get(codec, 0)), records)
    return raw_batch(inside, count, attributes=codec, **header)


def inside(batch):
    """Return the decompressed records of a stored batch, whose CRC is checked."""
    header = read_header(batch)
    assert crc32c(batch[21:]) == header.crc
    assert header.length == len(batch) - 12
    codec = header.attributes & CODEC_MASK
    return batch[HEADER_BYTES:] if not codec else decompress(codec, batch[HEADER_BYTES:], ROOM)


# -- the codecs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", targets(), ids=str)
@given(data=st.one_of(st.binary(max_size=3000), st.integers(0, 200_000).map(bytes)))
def test_what_is_compressed_can_be_read(target, data):
    compressed = compress(target, data)
    found = decompress(target.codec, compressed, ROOM) if target.codec else compressed
    assert found == data


def test_java_reads_these_frames():
    """Java's lz4 reader wants independent blocks; its snappy reader wants the header of xerial."""
    lz4 = compress(Compression(3, 9), bytes(200_000))
    assert lz4[:4] == b"\x04\x22\x4d\x18"
    version, independent, reserved = lz4[4] >> 6, lz4[4] >> 5 & 1, lz4[4] & 3
    assert (version, independent, reserved) == (1, 1, 0)
    snappy = compress(Compression(2), bytes(70_000))
    assert snappy.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert struct.unpack_from(">i", snappy, 16)[0] < 40_000


@pytest.mark.parametrize("target", targets(), ids=str)
@pytest.mark.parametrize("codec", range(5))
def test_only_codec_length_and_checksum_of_a_small_batch_change(codec, target):
    records = records_of(3)
    batch = batch_of(codec, records, 3, producer=7, epoch=2, sequence=5)
    found = recompressed_now(batch, read_header(batch), target)
    assert found is not None
    before, after = read_header(batch), read_header(found)
    assert after.attributes == target.codec
    assert inside(found) == records
    same = ("base_offset", "leader_epoch", "magic", "last_offset_delta", "base_timestamp")
    same += ("max_timestamp", "producer_id", "producer_epoch", "base_sequence", "records")
    assert [getattr(after, each) for each in same] == [getattr(before, each) for each in same]
    check_batch(memoryview(found), 13, 1 << 20)


@pytest.mark.parametrize("target", targets(), ids=str)
@pytest.mark.parametrize("codec", range(5))
def test_what_takes_long_is_not_done_at_once(codec, target):
    room = at_once_bytes(target)
    batch = batch_of(codec, records_of(1, room), 1)
    assert recompressed_now(batch, read_header(batch), target) is None


# -- in a partition -------------------------------------------------------------------------------


def at_once(function, *arguments):
    """Call the function on the event loop, because virtual time has no threads."""

    async def call():
        await asyncio.sleep(0.01)
        return function(*arguments)

    return call()


async def partition_with(cluster, **configs):
    cluster.partitions._long_work = LongWork(at_once)
    return await cluster.topic(**configs)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("name", CODECS)
async def test_batches_keep_their_order_offsets_and_records(name, codec):
    """Long batches between short ones, all sent at once."""
    async with started_cluster() as cluster:
        partition = await partition_with(cluster, compression_type=name)
        counts = (2, 3_000, 1, 2, 4_000, 5)
        sent = [records_of(count, 30) for count in counts]
        answers = await cluster.sent(
            partition,
            *(batch_of(codec, each, count) for each, count in zip(sent, counts, strict=True)),
        )
        bases = [sum(counts[:at]) for at in range(len(counts))]
        assert [(each.error, each.base_offset) for each in answers] == [(OK, at) for at in bases]
        stored = await cluster.read_all(partition)
        assert [inside(each) for each in stored] == sent
        headers = [read_header(each) for each in stored]
        assert {each.attributes & CODEC_MASK for each in headers} == {CODECS.index(name)}
        assert [each.base_offset for each in headers] == bases
        assert [each.max_timestamp for each in headers] == [
            each.base_timestamp + 3 * (count - 1)
            for each, count in zip(headers, counts, strict=True)
        ]


async def test_a_retry_gets_the_offset_of_the_first_attempt():
    async with started_cluster() as cluster:
        partition = await partition_with(cluster, compression_type="zstd")
        long, small = records_of(5_000, 40), records_of(2)
        first = batch_of(0, long, 5_000, producer=1, epoch=0, sequence=0)
        second = batch_of(1, small, 2, producer=1, epoch=0, sequence=5_000)
        answers = await cluster.sent(partition, first, second, first, second)
        assert [(each.error, each.base_offset) for each in answers] == [
            *((OK, 0), (OK, 5_000), (OK, 0), (OK, 5_000))
        ]
        assert partition.high_watermark == 5_002


async def test_the_log_append_time_is_set_too():
    async with started_cluster() as cluster:
        partition = await partition_with(
            cluster, compression_type="gzip", message_timestamp_type="LogAppendTime"
        )
        for count in (2, 5_000):
            (answer,) = await cluster.sent(partition, batch_of(0, records_of(count, 30), count))
            stored = (await cluster.read_all(partition))[-1]
            header = read_header(stored)
            assert header.attributes == 1 | 8
            assert header.max_timestamp == answer.append_time_ms > 0
            inside(stored)


async def test_a_batch_that_grows_beyond_the_limit_is_refused_and_the_next_is_not():
    async with started_cluster() as cluster:
        partition = await partition_with(
            cluster, compression_type="uncompressed", max_message_bytes=20_000
        )
        for size in (40_000, 400_000):
            refused, written = await cluster.sent(
                partition,
                batch_of(4, record(0, 0, None, bytes(size)), 1),
                plain_batch([1000]),
            )
            assert refused.error is ErrorCode.message_too_large
            assert written.error is OK


async def test_another_codec_of_the_topic_acts_on_the_next_batch():
    async with started_cluster() as cluster:
        partition = await partition_with(cluster)
        for name in (None, "lz4", "zstd", "producer"):
            if name is not None:
                await cluster.catalog.change_configs(
                    "t", lambda _, to=name: {"compression.type": to}
                )
            await cluster.sent(partition, batch_of(2, records_of(2), 2))
        stored = [read_header(each) for each in await cluster.read_all(partition)]
        assert [each.attributes for each in stored] == [2, 3, 4, 2]


async def test_an_old_producer_may_write_to_a_topic_in_zstd():
    async with started_cluster() as cluster:
        partition = await partition_with(cluster, compression_type="zstd")
        for count in (2, 5_000):
            answers = cluster.send(partition, batch_of(0, records_of(count, 30), count), 3)
            while not answers:
                await asyncio.sleep(0.001)
            assert answers[0].error is OK


async def test_a_batch_that_expands_beyond_the_bound_is_refused():
    work = LongWork(at_once)
    batch = batch_of(1, bytes(1 << 20), 1)
    with pytest.raises(BatchRefused, match="decompresses to more"):
        await work.recompress(batch, read_header(batch), Compression(4, 3), 1 << 19)


async def test_batches_that_grow_wait_for_room_until_earlier_ones_are_durable():
    async with started_cluster() as cluster:
        cluster.partitions._long_work = LongWork(at_once)
        growth = cluster.partitions._long_work.growth = Growth(300_000)
        partition = await cluster.topic(compression_type="uncompressed")
        cluster.port.hold()
        small = batch_of(4, records_of(4, 50_000), 4)
        answers = [cluster.send(partition, small) for _ in range(5)]
        await asyncio.sleep(1)
        assert not any(answers)
        assert 0 < growth._bytes <= 300_000
        cluster.port.release()
        await asyncio.sleep(5)
        assert [each.error for told in answers for each in told] == [OK] * 5
        assert growth._bytes == 0


async def test_a_compression_that_raises_takes_only_its_own_batch_along():
    async with started_cluster() as cluster:
        failing = [True]

        async def run(function, *arguments):
            if failing.pop() if failing else False:
                raise MemoryError("no memory")
            return function(*arguments)

        cluster.partitions._long_work = LongWork(run)
        partition = await cluster.topic(compression_type="gzip")
        many = batch_of(0, records_of(5_000, 30), 5_000)
        answers = [cluster.send(partition, many) for _ in range(2)]
        await asyncio.sleep(30)
        assert [each.error for told in answers for each in told] == [
            ErrorCode.not_leader_or_follower,
            OK,
        ]
        assert answers[0][0].message is None


@pytest.mark.real_loop
async def test_long_compression_leaves_the_event_loop():
    callers = []

    async def run(function, *arguments):
        return await asyncio.to_thread(noted, function, *arguments)

    def noted(function, *arguments):
        callers.append(threading.current_thread())
        return function(*arguments)

    work = LongWork(run)
    records = records_of(20_000, 40)
    batch = batch_of(0, records, 20_000)
    found = await work.recompress(batch, read_header(batch), Compression(1, 9), ROOM)
    assert inside(found) == records
    assert callers and threading.main_thread() not in callers
