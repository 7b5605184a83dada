"""Goal: Metadata, CreateTopics and DeleteTopics reply as Kafka does, in every version served.

Method: each handler is called with real requests over a catalog in the simulator's store.
"""

import asyncio
import uuid

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import TopicDefaults
from gateway.handlers import k03_metadata, k19_create_topics, k20_delete_topics
from gateway.topics.configs import TOPIC_KEYS
from ledger.errors import StreamUnavailable
from tests.gateway.handler_cluster import loaded_cluster
from tests.peers.processes import until


def new_topic(name, partitions=-1, replication_factor=-1, configs=None, assignments=()):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [{"partition_index": i, "broker_ids": b} for i, b in assignments],
        "configs": [{"name": k, "value": v} for k, v in (configs or {}).items()],
    }


# Metadata


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_metadata_names_the_node_at_the_address_that_the_client_reached(version):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        answer = await cluster.ask(k03_metadata, version, topics=[{"name": "orders"}])
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (3, "127.0.0.1", 19092)
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (ErrorCode.none, "orders")
        for index, partition in enumerate(topic.partitions):
            assert partition.error_code is ErrorCode.none
            assert partition.partition_index == index
            assert partition.leader_id == 3
            assert partition.replica_nodes == partition.isr_nodes == (3,)
        if version >= 1:
            assert answer.controller_id == 3
        if version >= 2:
            assert answer.cluster_id == "cluster-1"
        if version >= 7:
            assert [p.leader_epoch for p in topic.partitions] == [7, -1]
        if version >= 10:
            assert topic.topic_id == cluster.catalog.by_name("orders").topic_id


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_metadata_of_all_topics_is_asked_for_by_null_or_in_v0_by_an_empty_list(version):
    async with loaded_cluster() as cluster:
        for name in ("b", "a"):
            await cluster.catalog.create(name, 1, 1, {})
        everything = [] if version == 0 else None
        answer = await cluster.ask(k03_metadata, version, topics=everything)
        assert [topic.name for topic in answer.topics] == ["a", "b"]
        if version:
            assert (await cluster.ask(k03_metadata, version, topics=[])).topics == ()


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_an_unknown_topic_is_created_behind_the_reply(version):
    async with loaded_cluster(topics=TopicDefaults(partitions=4)) as cluster:
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        [topic] = (await cluster.ask(k03_metadata, version, **asked)).topics
        assert topic.error_code is ErrorCode.unknown_topic_or_partition
        assert topic.partitions == ()
        await until(lambda: cluster.catalog.by_name("new"), "the topic")
        [topic] = (await cluster.ask(k03_metadata, version, **asked)).topics
        assert (topic.error_code, len(topic.partitions)) == (ErrorCode.none, 4)
        assert cluster.catalog.by_name("new").replication_factor == 1


async def test_a_topic_that_many_ask_for_is_created_once():
    async with loaded_cluster() as cluster:
        created = []
        cluster.catalog.on_created.append(created.append)
        for _ in range(3):
            await cluster.ask(k03_metadata, 1, topics=[{"name": "new"}])
        await until(lambda: cluster.catalog.by_name("new"), "the topic")
        assert len(created) == 1


async def test_a_bounded_number_of_topics_is_created_at_the_same_time():
    async with loaded_cluster() as cluster:
        held, running = asyncio.Event(), []

        async def hold(topic):
            running.append(topic.name)
            await held.wait()

        cluster.catalog.on_created.append(hold)
        names = [f"t{number}" for number in range(100)]
        await cluster.ask(k03_metadata, 1, topics=[{"name": name} for name in names])
        await asyncio.sleep(1)
        assert 0 < len(running) < 20
        held.set()
        await until(lambda: len(cluster.catalog.all()) == 100, "all topics")


async def test_nothing_is_created_when_the_client_or_the_server_forbids_it():
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k03_metadata, 12, topics=[{"name": "new"}], allow_auto_topic_creation=False
        )
        assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert cluster.catalog.all() == []

    async with loaded_cluster(topics=TopicDefaults(auto_create=False)) as cluster:
        answer = await cluster.ask(k03_metadata, 1, topics=[{"name": "new"}])
        assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert cluster.catalog.all() == []


async def test_an_illegal_name_and_kafkas_own_are_not_created_on_the_way():
    async with loaded_cluster() as cluster:
        names = ["a/b", "", "__share_group_state", "fine", "fi.ne", "fi_ne"]
        answer = await cluster.ask(
            k03_metadata,
            9,
            topics=[{"name": name} for name in names],
            allow_auto_topic_creation=True,
        )
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "a/b": ErrorCode.invalid_topic_exception,
            "": ErrorCode.invalid_topic_exception,
            "__share_group_state": ErrorCode.unknown_topic_or_partition,
            "fine": ErrorCode.unknown_topic_or_partition,
            "fi.ne": ErrorCode.unknown_topic_or_partition,
            "fi_ne": ErrorCode.unknown_topic_or_partition,
        }
        await until(lambda: cluster.catalog.by_name("fi.ne"), "the last topic")
        assert [topic.name for topic in cluster.catalog.all()] == ["fi.ne", "fine"]


async def test_a_topic_is_found_by_id_and_an_old_id_is_not():
    async with loaded_cluster() as cluster:
        old = await cluster.catalog.create("orders", 1, 1, {})
        await cluster.catalog.delete("orders")
        new = await cluster.catalog.create("orders", 1, 1, {})
        answer = await cluster.ask(
            k03_metadata,
            12,
            topics=[
                {"name": None, "topic_id": old.topic_id},
                {"name": None, "topic_id": new.topic_id},
            ],
        )
        assert [(t.error_code, t.name, t.topic_id) for t in answer.topics] == [
            (ErrorCode.unknown_topic_id, None, old.topic_id),
            (ErrorCode.none, "orders", new.topic_id),
        ]


@pytest.mark.parametrize("version", [10, 11])
async def test_versions_before_12_refuse_a_request_with_an_id(version):
    async with loaded_cluster() as cluster:
        topic = await cluster.catalog.create("orders", 1, 1, {})
        named = [{"name": None, "topic_id": topic.topic_id}]
        [found] = (await cluster.ask(k03_metadata, version, topics=named)).topics
        assert (found.error_code, found.name) == (ErrorCode.invalid_request, "")


async def test_a_topic_asked_for_twice_is_answered_once():
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k03_metadata, 8, topics=[{"name": "a"}, {"name": "a"}], allow_auto_topic_creation=True
        )
        assert len(answer.topics) == 1


async def test_operations_are_returned_when_requested():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        plain = await cluster.ask(k03_metadata, 8, topics=None)
        asked = await cluster.ask(
            k03_metadata,
            8,
            topics=None,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        assert plain.topics[0].topic_authorized_operations == -(2**31)
        assert plain.cluster_authorized_operations == -(2**31)
        assert asked.topics[0].topic_authorized_operations == 3576
        assert asked.cluster_authorized_operations == 8096


async def test_a_topic_whose_creation_failed_is_created_when_clients_ask_again():
    async with loaded_cluster() as cluster:
        failed = []

        def refuse_once(topic):
            if not failed:
                failed.append(topic.name)
                raise StreamUnavailable("not now")

        cluster.catalog.on_created.append(refuse_once)
        await cluster.ask(k03_metadata, 1, topics=[{"name": "new"}])
        await until(lambda: failed, "the failure")
        await asyncio.sleep(1)
        answer = await cluster.ask(k03_metadata, 1, topics=[{"name": "new"}])
        assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        await until(lambda: cluster.catalog.by_name("new"), "the topic")


# CreateTopics


@pytest.mark.parametrize("version", k19_create_topics.API.versions)
async def test_create_topics_answers_what_was_made(version):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k19_create_topics, version, topics=[new_topic("orders", 6, 1, {"retention.ms": "5"})]
        )
        (topic,) = answer.topics
        assert (topic.error_code, topic.error_message) == (ErrorCode.none, None)
        made = cluster.catalog.by_name("orders")
        assert (made.partitions, made.configs) == (6, {"retention.ms": "5"})
        if version >= 5:
            assert (topic.num_partitions, topic.replication_factor) == (6, 1)
            values = {config.name: config.value for config in topic.configs}
            assert len(values) == len(TOPIC_KEYS)
            assert values["retention.ms"] == "5"
        if version >= 7:
            assert topic.topic_id == made.topic_id


async def test_minus_one_takes_the_servers_defaults():
    async with loaded_cluster(
        bookies=3, topics=TopicDefaults(partitions=12, replication_factor=3)
    ) as cluster:
        await cluster.ask(k19_create_topics, 5, topics=[new_topic("orders")])
        made = cluster.catalog.by_name("orders")
        assert (made.partitions, made.replication_factor) == (12, 3)


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (new_topic("there"), ErrorCode.topic_already_exists, "Topic 'there' already exists."),
        (new_topic("a/b"), ErrorCode.invalid_topic_exception, "Topic name is invalid: 'a/b'"),
        (new_topic("new", 0), ErrorCode.invalid_partitions, "Number of partitions was set to"),
        (new_topic("new", 10**6), ErrorCode.invalid_partitions, "1000000 partitions"),
        (
            new_topic("new", 1, 0),
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0",
        ),
        (
            new_topic("new", 1, 3),
            ErrorCode.invalid_replication_factor,
            "The target replication factor of 3 cannot be reached because only 1 broker(s)",
        ),
        (
            new_topic("new", 1, 1, {"foo": "1"}),
            ErrorCode.invalid_config,
            "Unknown topic config name: foo",
        ),
        (new_topic("new", 1, 1, {"retention.ms": None}), ErrorCode.invalid_config, "Null value"),
        (
            new_topic("new", 1, -1, assignments=[(0, [3])]),
            ErrorCode.invalid_request,
            "numPartitions was not set to -1",
        ),
        (
            new_topic("new", -1, 1, assignments=[(0, [3])]),
            ErrorCode.invalid_request,
            "replication factor was not set to -1",
        ),
        (
            new_topic("new", assignments=[(0, [3]), (2, [3])]),
            ErrorCode.invalid_replica_assignment,
            "consecutive 0-based",
        ),
        (
            new_topic("new", assignments=[(0, [4])]),
            ErrorCode.invalid_replica_assignment,
            "includes broker 4, but no such broker is registered",
        ),
        (
            new_topic("new", assignments=[(0, [])]),
            ErrorCode.invalid_replica_assignment,
            "empty replica list",
        ),
        (
            new_topic("new", assignments=[(0, [3, 3])]),
            ErrorCode.invalid_replica_assignment,
            "more than once",
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_refused_topic_gets_the_reason_and_the_others_are_created(
    topic, code, message, validate_only
):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("there", 1, 1, {})
        answer = await cluster.ask(
            k19_create_topics,
            7,
            topics=[topic, new_topic("good")],
            validate_only=validate_only,
        )
        refused, good = answer.topics
        assert (refused.error_code, refused.name) == (code, topic["name"])
        assert message in refused.error_message
        assert good.error_code is ErrorCode.none
        assert (cluster.catalog.by_name("good") is None) == validate_only
        assert cluster.catalog.by_name("new") is None


async def test_a_manual_assignment_to_this_node_is_taken():
    async with loaded_cluster() as cluster:
        topic = new_topic("orders", assignments=[(1, [3]), (0, [3]), (2, [3])])
        answer = await cluster.ask(k19_create_topics, 4, topics=[topic])
        assert answer.topics[0].error_code is ErrorCode.none
        assert cluster.catalog.by_name("orders").partitions == 3


async def test_a_name_given_twice_is_refused_once_and_not_made():
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k19_create_topics, 5, topics=[new_topic("a"), new_topic("a", 2), new_topic("b")]
        )
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "a": ErrorCode.invalid_request,
            "b": ErrorCode.none,
        }
        assert len(answer.topics) == 2
        assert cluster.catalog.by_name("a") is None


# DeleteTopics


@pytest.mark.parametrize("version", k20_delete_topics.API.versions)
async def test_delete_topics_by_name(version):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        names = ["orders", "none"]
        fields = (
            {"topic_names": names}
            if version < 6
            else {"topics": [{"name": name, "topic_id": None} for name in names]}
        )
        answer = await cluster.ask(k20_delete_topics, version, **fields)
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("orders", ErrorCode.none),
            ("none", ErrorCode.unknown_topic_or_partition),
        ]
        assert cluster.catalog.all() == []


async def test_delete_topics_by_id_deletes_that_life_only():
    async with loaded_cluster() as cluster:
        old = await cluster.catalog.create("orders", 1, 1, {})
        await cluster.catalog.delete("orders")
        new = await cluster.catalog.create("orders", 1, 1, {})

        async def delete(topic_id):
            answer = await cluster.ask(
                k20_delete_topics, 6, topics=[{"name": None, "topic_id": topic_id}]
            )
            return answer.responses[0]

        refused = await delete(old.topic_id)
        assert (refused.error_code, refused.topic_id) == (ErrorCode.unknown_topic_id, old.topic_id)
        done = await delete(new.topic_id)
        assert (done.error_code, done.name) == (ErrorCode.none, "orders")
        assert cluster.catalog.all() == []


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ([{"name": None, "topic_id": None}], "Neither topic name nor id were specified."),
        (
            [{"name": "a", "topic_id": uuid.UUID(int=5)}],
            "You may not specify both topic name and topic id.",
        ),
        ([{"name": "a", "topic_id": None}] * 2, "Duplicate topic name."),
        ([{"name": None, "topic_id": uuid.UUID(int=5)}] * 2, "Duplicate topic id."),
    ],
)
async def test_an_unclear_deletion_is_refused(topics, message):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("a", 1, 1, {})
        answer = await cluster.ask(k20_delete_topics, 6, topics=topics)
        (refused,) = answer.responses
        assert (refused.error_code, refused.error_message) == (ErrorCode.invalid_request, message)
        assert cluster.catalog.by_name("a") is not None
