"""Goal: each fetch is answered in time, with whole batches. Method: Fetch in Kafka's own bytes on
virtual time, over real streams on a simulated disk.
"""

import asyncio
import struct
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import FetchLimits
from ledger.ports.bookies import ReadReply, Status
from ledger.streams.config import StreamLimits
from tests.batches import blank_batch
from tests.gateway.stream_cluster import FETCH, started_cluster

OK = ErrorCode.none
COLD = StreamLimits(tail_cache_bytes=0, read_chunk_bytes=2000)
NEWEST = 18


def batch(records=2, size=0, **header):
    return blank_batch(records, size, **header)


def wanted(cluster, version, partitions):
    """Return the topics of a request for {topic: {index: (offset, settings)}}."""
    topics = []
    for name, asked in partitions.items():
        topic = {"topic": name}
        if version >= 13:
            known = cluster.catalog.by_name(name)
            topic = {"topic_id": known.topic_id if known else UUID(int=99)}
        topic["partitions"] = [
            {
                "partition": index,
                "fetch_offset": offset,
                "partition_max_bytes": 1 << 20,
                "current_leader_epoch": -1,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                **settings,
            }
            for index, (offset, settings) in asked.items()
        ]
        topics.append(topic)
    return topics


def request(cluster, partitions, version=NEWEST, wait_ms=500, min_bytes=1, **fields):
    body = {
        "max_wait": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 50 << 20,
        "session_id": 0,
        "session_epoch": -1,
        "topics": wanted(cluster, version, partitions),
        **fields,
    }
    if version < 15:
        body["replica_id"] = body.get("replica_id", -1)
    return body


async def fetch(cluster, partitions, version=NEWEST, **fields):
    fields = request(cluster, partitions, version, **fields)
    return await cluster.answer(FETCH, version, **fields)


def flat(answer):
    """Return {(place of the topic, partition): response}."""
    return {
        (at, partition.partition_index): partition
        for at, topic in enumerate(answer.responses)
        for partition in topic.partitions
    }


def offsets(partition):
    """Return the base offsets of the batches in a response."""
    found, at, data = [], 0, bytes(partition.records or b"")
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        found.append(base)
        at += 12 + length
    assert at == len(data), "a batch is cut"
    return found


async def one(cluster, offset, topic="t", index=0, settings=None, **fields):
    """Fetch one partition; return its response and how many seconds it took."""
    begun_s = asyncio.get_running_loop().time()
    answer = await fetch(cluster, {topic: {index: (offset, settings or {})}}, **fields)
    (partition,) = flat(answer).values()
    return partition, asyncio.get_running_loop().time() - begun_s


# -- what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
async def test_every_version_gives_the_batches_and_the_watermark(version):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch())
        found, took_s = await one(cluster, 0, version=version)
        assert found.error_code is OK
        assert offsets(found) == [0, 2]
        assert found.high_watermark == found.last_stable_offset == 4
        assert took_s == 0


async def test_an_offset_inside_a_batch_gives_the_whole_batch():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(5), batch(5), batch(5))
        assert [offsets((await one(cluster, at))[0]) for at in (4, 5, 9, 10, 14)] == [
            [0, 5, 10],
            [5, 10],
            [5, 10],
            [10],
            [10],
        ]


@pytest.mark.parametrize("limits", [StreamLimits(), COLD], ids=["warm", "cold"])
@pytest.mark.parametrize("most", [{"max_bytes": 1}, {"settings": {"partition_max_bytes": 1}}])
async def test_the_first_batch_comes_whole_whatever_the_limits_say(limits, most):
    async with started_cluster(limits=limits) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(size=5000), batch(size=5000))
        assert offsets((await one(cluster, 0, **most))[0]) == [0]
        assert offsets((await one(cluster, 2, **most))[0]) == [2]


@pytest.mark.parametrize("limits", [StreamLimits(), COLD], ids=["warm", "cold"])
async def test_later_partitions_share_what_the_answer_has_left(limits):
    async with started_cluster(limits=limits) as cluster:
        partition = await cluster.topic(partitions=3)
        for index in range(3):
            await cluster.sent(
                await cluster.partition("t", index), batch(size=900), batch(size=900)
            )
        asked = {"t": {index: (0, {}) for index in range(3)}}
        answer = flat(await fetch(cluster, asked, max_bytes=3500))
        assert [offsets(answer[0, index]) for index in range(3)] == [[0, 2], [0], []]
        assert partition.high_watermark == 4
        only_one = flat(await fetch(cluster, asked, max_bytes=0))
        assert [offsets(only_one[0, index]) for index in range(3)] == [[0], [], []]


async def test_nothing_above_the_high_watermark_leaves():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.hold()
        cluster.send(partition, batch())
        await asyncio.sleep(0.1)
        found, _ = await one(cluster, 0)
        assert (offsets(found), found.high_watermark) == ([0], 2)
        beyond, _ = await one(cluster, 3)
        assert beyond.error_code is ErrorCode.offset_out_of_range


async def test_cold_reads_give_the_same_as_warm_ones():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        sizes = [100, 3000, 50, 70_000, 10, 10, 10]
        await cluster.sent(partition, *(batch(size=size) for size in sizes))
        for offset in range(14):
            found, _ = await one(cluster, offset, settings={"partition_max_bytes": 1 << 20})
            assert offsets(found) == list(range(offset // 2 * 2, 14, 2))


# -- waiting --------------------------------------------------------------------------------------


async def test_at_the_end_it_waits_its_time_and_returns_nothing():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        found, took_s = await one(cluster, 2, wait_ms=700)
        assert (found.error_code, offsets(found), found.high_watermark) == (OK, [], 2)
        assert took_s == pytest.approx(0.7)


async def test_without_time_it_is_answered_at_once():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        _, took_s = await one(cluster, 2, wait_ms=0)
        assert took_s == 0


async def test_a_client_may_not_wait_longer_than_the_limit():
    async with started_cluster(fetch=FetchLimits(wait_ms_max=2000)) as cluster:
        await cluster.sent(await cluster.topic(), batch())
        _, took_s = await one(cluster, 2, wait_ms=2**31 - 1)
        assert took_s == pytest.approx(2.0)


async def test_the_first_byte_completes_a_fetch_that_waits_for_one():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        waiting = asyncio.create_task(one(cluster, 2, wait_ms=10_000))
        await asyncio.sleep(3)
        await cluster.sent(partition, batch())
        found, took_s = await waiting
        assert offsets(found) == [2]
        assert took_s < 3.1
        assert not partition._waiters


@pytest.mark.parametrize("limits", [StreamLimits(), COLD], ids=["warm", "cold"])
async def test_a_fetch_that_waits_for_more_bytes_completes_when_they_are_there(limits):
    async with started_cluster(limits=limits) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(size=1000))
        waiting = asyncio.create_task(one(cluster, 0, wait_ms=10_000, min_bytes=3000))
        for _ in range(2):
            await asyncio.sleep(1)
            assert not waiting.done()
            await cluster.sent(partition, batch(size=1000))
            await asyncio.sleep(0.1)
        found, took_s = await waiting
        assert offsets(found) == [0, 2, 4]
        assert took_s < 2.2


@pytest.mark.parametrize("limits", [StreamLimits(), COLD], ids=["warm", "cold"])
async def test_when_the_time_is_over_it_returns_what_there_is(limits):
    async with started_cluster(limits=limits) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(size=1000))
        found, took_s = await one(cluster, 0, wait_ms=800, min_bytes=1 << 20)
        assert offsets(found) == [0]
        assert took_s == pytest.approx(0.8, abs=0.1)


async def test_news_of_one_partition_while_another_is_read_from_disk_is_not_missed():
    async with started_cluster(limits=COLD) as cluster:
        first = await cluster.topic(partitions=2)
        second = await cluster.partition("t", 1)
        await cluster.sent(second, batch(size=100))
        cluster.port.read_delay_s = 0.05
        asked = {"t": {0: (0, {}), 1: (0, {})}}
        waiting = asyncio.create_task(fetch(cluster, asked, wait_ms=9000, min_bytes=500))
        await asyncio.sleep(0.01)
        await cluster.sent(first, batch(size=1000))
        begun_s = asyncio.get_running_loop().time()
        answer = flat(await waiting)
        assert offsets(answer[0, 0]) == [0]
        assert asyncio.get_running_loop().time() - begun_s < 1


async def test_a_time_that_ends_during_a_cold_read_is_answered_right_after_it():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(size=100))
        cluster.port.read_delay_s = 2.0
        found, took_s = await one(cluster, 0, wait_ms=100, min_bytes=1 << 20)
        assert offsets(found) == [0]
        assert took_s < 4.5


async def test_a_lost_connection_leaves_no_waiting_fetch():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        _, reply = cluster.ask(FETCH, NEWEST, **request(cluster, {"t": {0: (2, {})}}))
        assert len(partition._waiters) == 1
        reply.cancel()
        await asyncio.sleep(0)
        assert not partition._waiters


async def test_a_partition_that_is_being_opened_is_waited_for():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch(), batch())
        for wait_ms in (500, 0):
            await cluster.crash()
            found, _ = await one(cluster, 3, wait_ms=wait_ms)
            assert (found.error_code, offsets(found)) == (OK, [2])


async def test_partitions_that_cannot_be_opened_hold_up_an_answer_once_and_none_that_has_records():
    async with started_cluster() as cluster:
        await cluster.topic(partitions=5)
        partitions = [await cluster.partition("t", index) for index in range(5)]
        for partition in partitions:
            await cluster.sent(partition, batch())
        sound = partitions[0].stream.segments[-1].ledger
        await cluster.crash()
        recover = cluster.port.read

        async def read(bookie, ledger, entry, **how):
            if ledger != sound:
                await asyncio.Event().wait()
            return await recover(bookie, ledger, entry, **how)

        async def fence_many(bookie, ledgers):
            """The bookie does not reply about the others, so that they are recovered alone."""
            replies = [ReadReply(Status.UNREACHABLE)] * len(ledgers)
            for at, (ledger, key) in enumerate(ledgers):
                if ledger == sound:
                    replies[at] = await recover(bookie, ledger, -1, fence_key=key)
            return replies

        cluster.port.read, cluster.port.fence_many = read, fence_many
        for offset, longest_s in ((0, 0.6), (0, 0.1), (2, 0.6)):
            asked = {"t": {**{index: (0, {}) for index in range(1, 5)}, 0: (offset, {})}}
            begun_s = asyncio.get_running_loop().time()
            answer = flat(await fetch(cluster, asked))
            assert asyncio.get_running_loop().time() - begun_s < longest_s
            assert offsets(answer[0, 0]) == [0][offset:]
            refused = {answer[0, index].error_code for index in range(1, 5)}
            assert refused == {ErrorCode.not_leader_or_follower}


async def test_a_failed_stream_never_answers_out_of_range_while_it_is_opened_again():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, *[batch()] * 5)
        cluster.port.refuse()
        cluster.send(partition, batch())
        codes = set()
        for _ in range(40):
            found, _ = await one(cluster, 8, wait_ms=0)
            codes.add(found.error_code)
            await asyncio.sleep(0.001)
        assert codes <= {OK, ErrorCode.not_leader_or_follower}


async def test_a_topic_deleted_while_a_fetch_waits_answers_it():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        waiting = [
            asyncio.create_task(one(cluster, 2, wait_ms=9000, version=version))
            for version in (12, NEWEST)
        ]
        await asyncio.sleep(1)
        await cluster.catalog.delete("t")
        answers = [await each for each in waiting]
        assert [found.error_code for found, _ in answers] == [
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_id,
        ]
        assert all(took_s < 2 for _, took_s in answers)


async def test_a_process_that_stops_answers_waiting_fetches():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        waiting = asyncio.create_task(one(cluster, 2, wait_ms=9000))
        await asyncio.sleep(1)
        await cluster.partitions.stop()
        found, took_s = await waiting
        assert found.error_code is ErrorCode.not_leader_or_follower
        assert took_s < 2


# -- refusals -------------------------------------------------------------------------------------


async def test_offsets_outside_the_log_are_out_of_range_and_no_offset_is_returned():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, *[batch()] * 3)
        await partition.stream.truncate(4)
        for offset in (-1, 0, 3, 7, 2**62):
            found, took_s = await one(cluster, offset)
            assert found.error_code is ErrorCode.offset_out_of_range
            assert found.log_start_offset == found.high_watermark == -1
            assert took_s == 0
        assert offsets((await one(cluster, 4))[0]) == [4]
        assert offsets((await one(cluster, 5))[0]) == [4]


async def test_epochs_are_compared_with_the_current_one():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await cluster.crash()
        partition = await cluster.partition()
        epoch = partition.leader_epoch
        codes = [
            (await one(cluster, 0, settings={"current_leader_epoch": asked}))[0].error_code
            for asked in (-1, epoch - 1, epoch, epoch + 1)
        ]
        assert codes == [
            OK,
            ErrorCode.fenced_leader_epoch,
            OK,
            ErrorCode.unknown_leader_epoch,
        ]


async def test_an_unknown_partition_does_not_keep_the_others_from_their_records():
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        asked = {"t": {0: (0, {}), 7: (0, {})}, "nobody": {0: (0, {})}}
        answer = flat(await fetch(cluster, asked, version=12, wait_ms=9000))
        assert offsets(answer[0, 0]) == [0]
        assert answer[0, 7].error_code is ErrorCode.unknown_topic_or_partition
        assert answer[1, 0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", [4, 6, 7, 14, 15, NEWEST])
async def test_a_client_with_a_replica_id_is_refused(version):
    async with started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch())
        replica = {"replica_id": 1}
        if version >= 15:
            replica = {"replica_state": {"replica_id": 1, "replica_epoch": 0}}
        answer = await fetch(cluster, {"t": {0: (0, {})}}, version=version, **replica)
        refused = ErrorCode.cluster_authorization_failed
        if version >= 7:
            assert answer.error_code is refused
            assert answer.responses == ()
        else:
            assert flat(answer)[0, 0].error_code is refused


# -- sessions -------------------------------------------------------------------------------------


async def test_a_session_returns_only_partitions_that_changed():
    async with started_cluster() as cluster:
        await cluster.topic(partitions=3)
        for index in range(3):
            await cluster.sent(await cluster.partition("t", index), batch())
        asked = {"t": {index: (0, {}) for index in range(3)}}
        full = await fetch(cluster, asked, session_epoch=0)
        assert full.session_id > 0
        assert len(flat(full)) == 3
        moved = {"t": {index: (2, {}) for index in range(3)}}
        session = {"session_id": full.session_id}
        quiet = await fetch(cluster, moved, session_epoch=1, wait_ms=0, **session)
        assert (quiet.session_id, flat(quiet)) == (full.session_id, {})
        await cluster.sent(await cluster.partition("t", 1), batch())
        news = await fetch(cluster, {}, session_epoch=2, **session)
        assert {key: offsets(each) for key, each in flat(news).items()} == {(0, 1): [2]}


async def test_a_waiting_session_is_woken_by_any_of_its_partitions():
    async with started_cluster() as cluster:
        await cluster.topic(partitions=3)
        asked = {"t": {index: (0, {}) for index in range(3)}}
        full = await fetch(cluster, asked, session_epoch=0, wait_ms=0)
        waiting = asyncio.create_task(
            fetch(cluster, {}, session_id=full.session_id, session_epoch=1, wait_ms=9000)
        )
        await asyncio.sleep(1)
        await cluster.sent(await cluster.partition("t", 2), batch())
        assert list(flat(await waiting)) == [(0, 2)]


async def test_unknown_sessions_and_wrong_epochs_are_refused_whole():
    async with started_cluster() as cluster:
        await cluster.topic()
        unknown = await fetch(cluster, {}, session_id=5, session_epoch=1)
        assert unknown.error_code is ErrorCode.fetch_session_id_not_found
        full = await fetch(cluster, {"t": {0: (0, {})}}, session_epoch=0, wait_ms=0)
        wrong = await fetch(cluster, {}, session_id=full.session_id, session_epoch=7)
        assert wrong.error_code is ErrorCode.invalid_fetch_session_epoch


class LeaseRaisesOnce:
    """The cluster; the next look at the lease raises an exception that nobody planned."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.raises = True

    def __getattr__(self, name):
        return getattr(self.cluster, name)

    def lease_held(self):
        if self.raises:
            self.raises = False
            raise RuntimeError("nobody planned it")
        return self.cluster.lease_held()


async def test_a_session_ends_with_a_request_that_failed():
    """The client does not know how much of the request the broker has applied."""
    async with started_cluster() as cluster:
        await cluster.topic(partitions=3)
        asked = {"t": {index: (0, {}) for index in range(3)}}
        full = await fetch(cluster, asked, session_epoch=0, wait_ms=0)
        cluster.context.cluster = LeaseRaisesOnce(cluster.context.cluster)
        session = {"session_id": full.session_id, "wait_ms": 0}
        with pytest.raises(RuntimeError):
            await fetch(cluster, {"t": {0: (7, {})}}, session_epoch=1, **session)
        assert len(cluster.context.fetch_sessions) == 0
        assert cluster.context.fetch_sessions.partitions_held == 0
        refused = await fetch(cluster, {}, session_epoch=2, **session)
        assert refused.error_code is ErrorCode.fetch_session_id_not_found
