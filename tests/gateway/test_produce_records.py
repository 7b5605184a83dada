"""Goal: a batch with malformed records is refused as by Kafka, and a long check holds up nobody.

Method: Produce in Kafka's own bytes on virtual time, over real streams on a simulated disk. Turns
of the event loop are counted instead of time.
"""

import asyncio

import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode

from gateway.wire.batches import HEADER_BYTES
from tests.batches import blank_batch, built_batch, plain_batch, raw_batch, record
from tests.gateway.stream_cluster import started_cluster
from tests.gateway.test_produce import produce

OK, INVALID = ErrorCode.none, ErrorCode.invalid_record
LONG = 20_000
GARBAGE = raw_batch(b"\xff" * 20)
WRONG_COUNT = raw_batch(record(0, 0, None, b"one") + bytes(20), 3)


def irregular(count):
    """Return a batch whose records form no runs."""
    values = (b"x" * (at * 7 % 5) for at in range(count))
    records = b"".join(record(at, 0, None, value) for at, value in enumerate(values))
    return raw_batch(records, count)


def partitions_of(answer):
    return [each for topic in answer.responses for each in topic.partition_responses]


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("bad", [GARBAGE, WRONG_COUNT], ids=["garbage", "count"])
async def test_malformed_records_are_refused_and_nothing_of_them_is_stored(version, bad):
    async with started_cluster() as cluster:
        partition = await cluster.topic(partitions=2)
        found = partitions_of(await produce(cluster, {"t": {0: bad, 1: blank_batch()}}, version))
        assert [each.error_code for each in found] == [INVALID, OK]
        assert partition.high_watermark == 0
        assert [each.base_offset for each in found] == [-1, 0]


@pytest.mark.parametrize("version", [7, 8, 9, 12])
async def test_the_answer_names_the_records_without_a_key(version):
    async with started_cluster() as cluster:
        await cluster.topic(cleanup_policy="compact")
        records = [record(at, 0, None if at in (1, 4) else b"k", b"v") for at in range(6)]
        answer = await produce(cluster, {"t": {0: raw_batch(b"".join(records), 6)}}, version)
        [found] = partitions_of(answer)
        assert found.error_code is INVALID
        if version >= 8:
            assert [each.batch_index for each in found.record_errors] == [1, 4]
            assert "key" in found.record_errors[0].batch_index_error_message
            assert "2 record errors" in found.error_message


async def test_a_false_greatest_timestamp_is_corrected_under_a_new_checksum():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for codec in range(5):
            sound = bytearray(built_batch([5, 900, 7], codec=codec, size=40))
            await cluster.sent(partition, false_time(sound, 1_000))
            await cluster.sent(partition, false_time(sound, 5))
        stored = await cluster.read_all(partition)
        readers = [DefaultRecordBatch(each) for each in stored]
        assert [reader.max_timestamp for reader in readers] == [900] * 10
        assert all(reader.validate_crc() for reader in readers)
        assert [reader.base_offset for reader in readers] == list(range(0, 30, 3))
        assert await cluster.at_time(partition, 950) is None


def false_time(batch, timestamp):
    codec = batch[22]
    base = int.from_bytes(batch[27:35], "big")
    body = bytes(batch[HEADER_BYTES:])
    return raw_batch(body, 3, base_timestamp=base, max_timestamp=timestamp, attributes=codec)


async def test_a_sound_batch_is_stored_byte_for_byte():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        sent = [plain_batch([5, 3, 9]), irregular(100), built_batch([1, 2], codec=4)]
        await cluster.sent(partition, *sent)
        stored = await cluster.read_all(partition)
        assert [each[16:] for each in stored] == [each[16:] for each in sent]


# -- checks that take long ------------------------------------------------------------------------


async def test_batches_wait_behind_a_long_check_and_other_partitions_do_not():
    async with started_cluster() as cluster:
        one = await cluster.topic(partitions=2)
        other = await cluster.partition("t", 1)
        await cluster.sent(one, blank_batch())
        await cluster.sent(other, blank_batch())
        long, behind = cluster.send(one, irregular(LONG)), cluster.send(one, blank_batch())
        beside = cluster.send(other, blank_batch())
        assert (one.accepted_end, other.accepted_end) == (1, 2)
        while not (long and behind and beside):
            await asyncio.sleep(0.001)
        assert [long[0].base_offset, behind[0].base_offset] == [1, 1 + LONG]


BOMBS = {
    # Offset deltas that do not count: found at the second record.
    "zeros": (b"\x0c\0\0\0\x01\x01\0" * 500_000, 500_000, INVALID),
    "no run": (irregular(50_000)[HEADER_BYTES:], 50_000, OK),
    # Few records, so that only their sizes show that the check takes long.
    "large": (b"".join(record(at, 0, None, bytes(4 << 20)) for at in range(3)), 3, OK),
    "no end": (irregular(50_000)[HEADER_BYTES:], 50_001, INVALID),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("codec", [0, 4])
async def test_a_long_check_lets_others_have_their_turns(name, codec):
    records, count, due = BOMBS[name]
    body = zstandard.compress(records) if codec else records
    batch = raw_batch(body, count, attributes=codec)
    async with started_cluster() as cluster:
        partition = await cluster.topic(max_message_bytes=16 << 20)
        await cluster.sent(partition, blank_batch())
        answers, turns = cluster.send(partition, batch), 0
        while not answers and partition.accepted_end == 1:
            await asyncio.sleep(0)
            turns += 1
        while not answers:
            await asyncio.sleep(0.001)
        assert answers[0].error is due
        if codec or name not in ("zeros", "large"):
            assert turns >= 10


async def test_a_partition_that_is_lost_during_a_long_check_answers_once_and_stores_nothing():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, blank_batch())
        answers = cluster.send(partition, irregular(LONG))
        await asyncio.sleep(0)
        partition.abandon()
        await partition.wait_abandoned()
        await asyncio.sleep(1)
        assert [answer.error for answer in answers] == [ErrorCode.not_leader_or_follower]
        assert partition.high_watermark == 1


async def test_a_refused_long_batch_is_answered_once_and_later_ones_go_on():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, blank_batch())
        bad = bytearray(irregular(LONG))
        records = bytes(bad[HEADER_BYTES:-8]) + b"\xff" * 8
        refused = cluster.send(partition, raw_batch(records, LONG))
        later = cluster.send(partition, blank_batch())
        while not later:
            await asyncio.sleep(0.001)
        assert [answer.error for answer in refused] == [INVALID]
        assert later[0].base_offset == 1


async def test_a_produce_with_a_long_batch_gets_its_reply():
    async with started_cluster() as cluster:
        await cluster.topic()
        [found] = partitions_of(await produce(cluster, {"t": {0: irregular(LONG)}}))
        assert (found.error_code, found.base_offset) == (OK, 0)
