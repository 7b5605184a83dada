"""Goal: a partition with lost entries reads what it can, refuses writes until the loss is accepted,
and then takes no batch that may be in the log already.

Method: the real partition over streams, ledgers and a bookie on virtual time; the bookie denies
chosen entries. The loss is accepted as a command stores it.
"""

import asyncio

from kio.schema.errors import ErrorCode

from gateway.topics import producer_ids
from gateway.topics.producer_ids import ProducerIds
from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from ledger.streams.accepted_losses import accept_losses
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster
from tests.gateway.test_produce import produce
from tests.ledger.lost_stream_rig import lost_range, reserved

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_producer_id


def lose(port, ledger, *entries, status=Status.NO_ENTRY):
    """The bookie denies these entries, like one that never had them. Returns those that it lacks.

    With another status it does not return them.
    """
    lost = {(ledger, entry) for entry in entries}
    read, read_many = port.read, port.read_many

    async def denying_read(bookie, ledger, entry, *, fence_key=None):
        if (ledger, entry) in lost:
            return ReadReply(status)
        return await read(bookie, ledger, entry, fence_key=fence_key)

    async def denying_read_many(bookie, ledger, first, last, max_bytes):
        if (ledger, first) in lost:
            return ReadManyReply(status)
        last = min([last, *(entry - 1 for of, entry in lost if of == ledger and entry > first)])
        return await read_many(bookie, ledger, first, last, max_bytes)

    port.read, port.read_many = denying_read, denying_read_many
    return lost


async def accept(cluster, partition, *ranges):
    await accept_losses(cluster.metadata, partition.name, ranges)


async def test_a_lost_head_snapshot_blocks_writes_only_and_until_it_is_given_up(capsys):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch(), batch())
        await cluster.restart()
        partition = await cluster.partition()
        [segment] = partition.stream.segments
        await cluster.partitions.stop()
        lose(cluster.port, segment.ledger, 0)
        await cluster.start_gateway()
        partition = await cluster.partition()
        assert base_offsets(await cluster.read_all(partition)) == [0, 2, 4]
        [refused] = await cluster.sent(partition, batch())
        assert refused.error is ErrorCode.kafka_storage_error
        assert partition.readable
        assert "takes no records until its loss is accepted" in capsys.readouterr().err
        await accept(cluster, partition, lost_range(segment, 0, 0, 0, -1))
        await asyncio.sleep(1)
        [answer] = await cluster.sent(partition, batch())
        assert (answer.error, answer.base_offset) == (OK, 6)


async def test_a_state_that_no_bookie_returns_now_blocks_writes_only_and_until_it_does(capsys):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0), batch(2), batch(4))
        await cluster.restart()
        partition = await cluster.partition()
        [segment] = partition.stream.segments
        await cluster.partitions.stop()
        lost = lose(cluster.port, segment.ledger, 0, status=Status.UNREACHABLE)
        await cluster.start_gateway()
        async with asyncio.timeout(10):
            partition = await cluster.partition()
        assert base_offsets(await cluster.read_all(partition)) == [0, 2, 4]
        for _ in range(2):
            [refused] = await cluster.sent(partition, batch(6))
            assert refused.error is ErrorCode.kafka_storage_error
        assert partition.readable
        assert "takes no records while its state is unreadable" in capsys.readouterr().err
        lost.clear()
        [known, answer] = await cluster.sent(partition, batch(4), batch(6))
        assert (known.error, known.base_offset) == (OK, 4)
        assert (answer.error, answer.base_offset) == (OK, 6)


async def test_a_short_silence_of_bookies_refuses_no_producer():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0))
        await cluster.restart()
        [segment] = (await cluster.partition()).stream.segments
        await cluster.partitions.stop()
        lost = lose(cluster.port, segment.ledger, 0, status=Status.UNREACHABLE)
        await cluster.start_gateway()
        partition = cluster.partitions.find("t", 0)
        answers = cluster.send(partition, batch(2))
        await asyncio.sleep(0.3)
        lost.clear()
        async with asyncio.timeout(10):
            while not answers:
                await asyncio.sleep(0.1)
        assert (answers[0].error, answers[0].base_offset) == (OK, 2)


async def after_a_forced_close(cluster):
    """Producer 1 wrote offsets 0 to 3 and perhaps more, when its segment was closed by force."""
    partition = await cluster.topic()
    await cluster.sent(partition, batch(0), batch(2))
    [segment] = partition.stream.segments
    await accept(cluster, partition, reserved(segment, partition.stream._writer.last_entry + 1, 4))
    await cluster.crash()
    return await cluster.partition()


async def test_a_retry_after_a_forced_close_is_refused_until_the_producer_begins_again():
    async with started_cluster() as cluster:
        partition = await after_a_forced_close(cluster)
        end = partition.high_watermark
        assert end > 2**31
        [known, unknown] = await cluster.sent(partition, batch(2), batch(4))
        assert (known.error, known.base_offset) == (OK, 2)
        assert unknown.error is UNKNOWN
        assert partition.high_watermark == end
        [again] = await cluster.sent(partition, batch(0, epoch=1))
        assert (again.error, again.base_offset) == (OK, end)
        assert [each.error for each in await cluster.sent(partition, batch(2, epoch=1))] == [OK]


async def test_the_doubt_survives_the_next_owner():
    async with started_cluster() as cluster:
        partition = await after_a_forced_close(cluster)
        await cluster.sent(partition, batch())
        await cluster.crash()
        partition = await cluster.partition()
        [answer] = await cluster.sent(partition, batch(4))
        assert answer.error is UNKNOWN


async def test_a_producer_that_begins_later_is_trusted_by_its_id():
    async with started_cluster() as cluster:
        ids = ProducerIds(cluster.metadata)
        early = await ids.next()
        partition = await after_a_forced_close(cluster)
        await asyncio.sleep(producer_ids.BLOCK_S + 1)
        late = await ids.next()
        answers = await cluster.sent(partition, batch(0, producer=early), batch(0, producer=late))
        assert [answer.error for answer in answers] == [UNKNOWN, OK]


async def test_the_refusal_names_the_log_start_without_which_java_does_not_go_on():
    async with started_cluster() as cluster:
        await after_a_forced_close(cluster)
        answer = await produce(cluster, {"t": {0: batch(4)}})
        [[refused]] = [topic.partition_responses for topic in answer.responses]
        assert refused.error_code is UNKNOWN
        assert refused.log_start_offset == 0
