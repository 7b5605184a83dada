"""Goal: starts, ends and times are returned as by Kafka, and soon. Method: ListOffsets in Kafka's
own bytes on virtual time, over real streams on a simulated disk.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers.api import Peer
from gateway.wire.messages import encode_request
from ledger.streams.config import StreamLimits
from ledger.streams.read_turns import READER
from tests.batches import blank_batch, plain_batch
from tests.gateway.stream_cluster import LIST_OFFSETS, started_cluster, times_of
from tests.sim.turns import turns_during

OK = ErrorCode.none


def batch():
    return blank_batch(2)


async def list_offsets(cluster, timestamp, version=8, topic="t", index=0, epoch=-1):
    (found,) = await many_offsets(cluster, {topic: [(index, timestamp)]}, version, epoch)
    return found


async def many_offsets(cluster, named, version=8, epoch=-1):
    """Return the partitions of the reply to {topic: [(partition, timestamp)]}."""
    answer = await cluster.answer(LIST_OFFSETS, version, **times_of(named, epoch))
    return [each for topic in answer.topics for each in topic.partitions]


@pytest.mark.parametrize("version", range(1, 12))
async def test_start_end_and_times_are_returned(version):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, plain_batch([5, 9, 7]), plain_batch([6, 20]))
        await partition.stream.truncate(1)
        due = {-2: (-1, 1), -1: (-1, 5), 6: (9, 1), 10: (20, 4), 21: (-1, -1)}
        if version >= 7:
            due[-3] = (20, 4)
        if version >= 8:
            due[-4] = (-1, 1)
        for asked, answer in due.items():
            found = await list_offsets(cluster, asked, version)
            assert (found.error_code, (found.timestamp, found.offset)) == (OK, answer)


@pytest.mark.parametrize(("special", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10)])
async def test_a_special_time_before_its_version_is_refused(special, version):
    async with started_cluster() as cluster:
        await cluster.topic()
        found = await list_offsets(cluster, special, version)
        assert found.error_code is ErrorCode.unsupported_version


@pytest.mark.parametrize(("special", "version"), [(-3, 6), (-4, 7), (-7, 11)])
async def test_a_time_that_a_version_lacks_is_refused_before_the_partition_is_looked_up(
    special, version
):
    async with started_cluster() as cluster:
        await cluster.topic()
        for topic, index in (("t", 9), ("missing", 0)):
            found = await list_offsets(cluster, special, version, topic, index)
            assert found.error_code is ErrorCode.unsupported_version
        twice = await many_offsets(cluster, {"t": [(9, special), (9, special)]}, version)
        assert [each.error_code for each in twice] == [ErrorCode.invalid_request]


async def test_start_and_end_are_answered_within_one_turn():
    async with started_cluster() as cluster:
        await cluster.topic()
        for special in (-1, -2):
            _, result = cluster.ask(LIST_OFFSETS, 4, **times_of({"t": [(0, special)]}))
            assert isinstance(result, list)


async def test_a_partition_that_does_not_open_does_not_hold_up_the_connection():
    async with started_cluster() as cluster:
        await cluster.topic()
        await cluster.crash()
        cluster.metadata.closed = True
        begun_s = asyncio.get_running_loop().time()
        found = await list_offsets(cluster, -1)
        assert found.error_code is ErrorCode.not_leader_or_follower
        assert asyncio.get_running_loop().time() - begun_s < 11


async def test_epochs_and_unknown_partitions_are_refused():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        await cluster.crash()
        epoch = (await cluster.partition()).leader_epoch
        codes = [
            (await list_offsets(cluster, -1, epoch=asked)).error_code
            for asked in (-2, epoch - 1, epoch, epoch + 1)
        ]
        older = [ErrorCode.fenced_leader_epoch] * 2
        assert codes == [*older, OK, ErrorCode.unknown_leader_epoch]
        found = await list_offsets(cluster, -1, index=9)
        assert found.error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("count", [2, 10_000])
async def test_a_partition_that_is_named_twice_is_refused_once(count):
    async with started_cluster() as cluster:
        partition = await cluster.topic(partitions=2)
        await cluster.sent(partition, plain_batch([5, 9]))
        found = await many_offsets(cluster, {"t": [*[(0, 7)] * count, (1, -1), (0, -1)]})
        assert [(each.partition_index, each.error_code) for each in found] == [
            (0, ErrorCode.invalid_request),
            (1, OK),
        ]


async def test_partitions_that_do_not_open_are_waited_for_together():
    async with started_cluster() as cluster:
        await cluster.topic(partitions=20)
        await cluster.crash()
        cluster.metadata.closed = True
        begun_s = asyncio.get_running_loop().time()
        found = await many_offsets(cluster, {"t": [(at, 7) for at in range(20)]})
        assert {each.error_code for each in found} == {ErrorCode.not_leader_or_follower}
        assert asyncio.get_running_loop().time() - begun_s < 11


async def test_a_request_of_many_partitions_lets_others_have_their_turns():
    async with started_cluster() as cluster:
        await cluster.topic()
        asking = many_offsets(cluster, {"t": [(at, 7) for at in range(20_000)]})
        found, turns = await turns_during(asking)
        assert turns >= 155, "40 each to sort, to look up, to group by topic and to encode"
        assert len(found) == 20_000


async def test_a_search_that_nobody_waits_for_any_more_ends():
    """The connection cancels the future when its client is gone."""
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, plain_batch([5, 9]))
        await cluster.crash()
        cluster.metadata.closed = True
        _, searching = cluster.ask(LIST_OFFSETS, 8, **times_of({"t": [(0, 7)]}))
        await asyncio.sleep(1)
        assert searching.cancel()
        await asyncio.wait([searching])
        assert searching.cancelled()


async def test_a_time_is_not_answered_once_the_lease_ended_during_the_search():
    async with started_cluster(limits=StreamLimits(tail_cache_bytes=0)) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, plain_batch([5, 9, 7]), plain_batch([6, 20]))
        cluster.port.read_delay_s = 1.0
        searching = asyncio.ensure_future(list_offsets(cluster, 6))
        await asyncio.sleep(0.5)
        assert not searching.done()
        partition.abandon()  # another broker may have taken over and appended
        assert (await searching).error_code is ErrorCode.not_leader_or_follower


async def offset_at_7(cluster, peer):
    """Return the offset, or the error, that this connection gets for a timestamp."""
    frame = encode_request(LIST_OFFSETS, 8, 7, "c", times_of({"t": [(0, 7)]}, -1))
    asked, handle = cluster.dispatcher.open(frame, peer)
    reply = cluster.decoded(asked, await cluster.dispatcher.start(asked, handle))
    found = reply.topics[0].partitions[0]
    return found.error_code if found.error_code is not OK else found.offset


async def test_searches_read_in_the_turns_of_their_address():
    async with started_cluster(limits=StreamLimits(tail_cache_bytes=0)) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, plain_batch([5, 9, 7]), plain_batch([6, 20]))
        turns = partition.stream._reads._cursor_limit.turns
        sound, seen = turns.take, set()

        async def noted():
            seen.add(READER.get())
            await sound()

        turns.take = noted
        assert await offset_at_7(cluster, Peer("2001:db8::7", 50_000, "::1", 9_092)) == 1
        assert seen == {"2001:db8::/64"}


async def test_one_connection_searches_by_timestamp_once_at_a_time():
    async with started_cluster(limits=StreamLimits(tail_cache_bytes=0)) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, plain_batch([5, 9, 7]), plain_batch([6, 20]))
        cluster.port.read_delay_s = 1.0
        before = cluster.port.reads
        greedy = Peer("10.6.6.6", 50_000, "127.0.0.1", 9_092)
        many = [asyncio.ensure_future(offset_at_7(cluster, greedy)) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert cluster.port.reads - before == 1
        other = Peer("10.9.9.9", 50_000, "127.0.0.1", 9_092)
        found = asyncio.ensure_future(offset_at_7(cluster, other))
        await asyncio.sleep(0.1)
        assert cluster.port.reads - before == 2, "another connection searches beside"
        assert await found == 1
        assert [await each for each in many] == [1] * 5


async def test_a_search_that_waits_too_long_for_others_of_its_connection_is_timed_out():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, plain_batch([5, 9, 7]))
        peer = Peer("10.6.6.6", 50_000, "127.0.0.1", 9_092)
        async with peer.searching:
            assert await offset_at_7(cluster, peer) is ErrorCode.request_timed_out
        assert await offset_at_7(cluster, peer) == 1


@pytest.mark.parametrize("plain", [-1, -2])
async def test_a_start_or_end_waits_for_no_search_of_its_connection(plain):
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), plain_batch([5, 9, 7]))
        await cluster.crash()  # so that the partition must be opened, in a task
        peer = Peer("10.6.6.6", 50_000, "127.0.0.1", 9_092)
        async with peer.searching:
            frame = encode_request(LIST_OFFSETS, 8, 7, "c", times_of({"t": [(0, plain)]}, -1))
            asked, handle = cluster.dispatcher.open(frame, peer)
            answering = cluster.dispatcher.start(asked, handle)
            assert asyncio.isfuture(answering)
            async with asyncio.timeout(5):
                reply = cluster.decoded(asked, await answering)
        found = reply.topics[0].partitions[0]
        assert (found.error_code, found.offset) == (OK, 3 if plain == -1 else 0)
