"""Goal: each partition of a Produce gets its own result, and acks=0 is bounded too.

Method: Produce in Kafka's own bytes on virtual time, over real streams on a simulated disk.
"""

import asyncio
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers.api import ConnectionEnds
from tests.batches import blank_batch
from tests.gateway.stream_cluster import PRODUCE, started_cluster

OK = ErrorCode.none


def batch(records=2, size=0, **header):
    return blank_batch(records, size, **header)


async def produce(cluster, data, version=12, acks=-1, **fields):
    """Produce {topic: {index: records}}."""
    topics = [
        {
            "name": name,
            "partition_data": [{"index": i, "records": r} for i, r in partitions.items()],
        }
        for name, partitions in data.items()
    ]
    return await cluster.answer(
        PRODUCE,
        version,
        **{
            "transactional_id": None,
            "acks": acks,
            "timeout": 1000,
            "topic_data": topics,
            **fields,
        },
    )


def produced(answer):
    return {
        (topic.name, each.index): (each.error_code, each.base_offset)
        for topic in answer.responses
        for each in topic.partition_responses
    }


@pytest.mark.parametrize("version", range(3, 13))
async def test_one_bad_batch_does_not_keep_the_others_from_being_stored(version):
    async with started_cluster() as cluster:
        await cluster.topic(partitions=2)
        data = {"t": {0: batch(), 1: batch()[:-1]}, "nobody": {0: batch()}}
        assert produced(await produce(cluster, data, version)) == {
            ("t", 0): (OK, 0),
            ("t", 1): (ErrorCode.corrupt_message, -1),
            ("nobody", 0): (ErrorCode.unknown_topic_or_partition, -1),
        }


@pytest.mark.parametrize("records", [b"", None, batch() + batch()])
async def test_anything_but_one_batch_is_an_invalid_record(records):
    async with started_cluster() as cluster:
        await cluster.topic()
        answer = produced(await produce(cluster, {"t": {0: records}}))
        assert answer == {("t", 0): (ErrorCode.invalid_record, -1)}


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_other_acks_are_refused_and_nothing_is_stored(acks):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        answer = produced(await produce(cluster, {"t": {0: batch()}}, acks=acks))
        assert answer == {("t", 0): (ErrorCode.invalid_required_acks, -1)}
        assert partition.high_watermark == 0


async def test_topics_are_named_by_id_from_version_13_on():
    async with started_cluster() as cluster:
        await cluster.topic()
        topic_id = cluster.catalog.by_name("t").topic_id
        for asked, due in ((topic_id, OK), (UUID(int=5), ErrorCode.unknown_topic_id)):
            answer = await cluster.answer(
                PRODUCE,
                13,
                transactional_id=None,
                acks=-1,
                timeout=1000,
                topic_data=[
                    {"topic_id": asked, "partition_data": [{"index": 0, "records": batch()}]}
                ],
            )
            (topic,) = answer.responses
            assert topic.partition_responses[0].error_code is due


async def test_without_acks_there_is_no_reply_but_the_request_lasts_until_it_is_stored():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.hold()
        waiting = asyncio.create_task(produce(cluster, {"t": {0: batch()}}, acks=0))
        await asyncio.sleep(1)
        assert not waiting.done(), "or a fast client would fill the memory"
        cluster.port.release()
        assert await waiting is None
        assert partition.high_watermark == 4


REFUSED_WITHOUT_ACKS = [
    {"t": {0: b"x"}},
    {"nobody": {0: b""}},
    {"t": {0: batch()}, "nobody": {0: batch()}},
]


@pytest.mark.parametrize("batches", REFUSED_WITHOUT_ACKS)
async def test_without_acks_an_error_ends_the_connection(batches):
    async with started_cluster() as cluster:
        await cluster.topic()
        with pytest.raises(ConnectionEnds):
            await produce(cluster, batches, acks=0)


async def test_requests_of_one_turn_are_stored_in_their_order():
    async with started_cluster() as cluster:
        await cluster.topic()
        asked = [produce(cluster, {"t": {0: batch(records=n)}}) for n in range(1, 6)]
        answers = await asyncio.gather(*asked)
        assert [produced(a)["t", 0][1] for a in answers] == [0, 1, 3, 6, 10]


@pytest.mark.parametrize("version", [3, 12])
async def test_acks_all_is_refused_where_a_record_has_fewer_copies_than_asked_for(version):
    async with started_cluster() as cluster:
        await cluster.topic("t", min_insync_replicas=2)
        await cluster.topic("u", min_insync_replicas=1)
        reply = await produce(cluster, {"t": {0: batch()}, "u": {0: batch()}}, version)
        found = {topic.name: topic.partition_responses[0] for topic in reply.responses}
        assert found["t"].error_code is ErrorCode.not_enough_replicas
        assert found["t"].base_offset == -1
        assert found["u"].error_code is OK
        (alone,) = (await produce(cluster, {"t": {0: batch()}}, version)).responses
        assert alone.partition_responses[0].error_code is ErrorCode.not_enough_replicas
        (one,) = (await produce(cluster, {"t": {0: batch()}}, version, acks=1)).responses
        assert one.partition_responses[0].error_code is OK
        assert one.partition_responses[0].base_offset == 0
        await cluster.catalog.change_configs("t", lambda now: {})
        (after,) = (await produce(cluster, {"t": {0: batch()}}, version)).responses
        assert after.partition_responses[0].error_code is OK


async def test_who_leads_no_more_says_so_and_nothing_about_copies():
    async with started_cluster() as cluster:
        held = [True]
        cluster.partitions.cluster.lease_held = lambda: held[0]
        await cluster.topic("t", min_insync_replicas=2)
        held[0] = False
        (alone,) = (await produce(cluster, {"t": {0: batch()}})).responses
        assert alone.partition_responses[0].error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize(("asked", "lacks"), [(1, False), (2, False), (3, True)])
async def test_copies_are_counted_by_the_replication_factor_of_the_topic(asked, lacks):
    async with started_cluster(bookies=3) as cluster:
        cluster.catalog._bookies = lambda: 3
        await cluster.catalog.create("t", 1, 2, {"min.insync.replicas": str(asked)})
        assert cluster.partitions.find("t", 0).lacks_copies is lacks
