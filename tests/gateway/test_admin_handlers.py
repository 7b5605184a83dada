"""Goal: the other admin APIs of topics, configs and the cluster reply as Kafka does.

Method: each handler is called with real requests over a catalog in the simulator's store.
"""

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import GroupLimits, TopicDefaults
from gateway.handlers import (
    k22_init_producer_id,
    k32_describe_configs,
    k37_create_partitions,
    k60_describe_cluster,
    k75_describe_topic_partitions,
)
from gateway.topics.configs import TOPIC_KEYS
from gateway.topics.producer_ids import ProducerIds
from ledger.errors import MetadataUnavailable
from tests.gateway.handler_cluster import loaded_cluster

# InitProducerId


@pytest.mark.parametrize("version", k22_init_producer_id.API.versions)
async def test_each_idempotent_producer_gets_an_id_of_its_own(version):
    async with loaded_cluster() as cluster:
        answers = [
            await cluster.ask(k22_init_producer_id, version, transactional_id=None)
            for _ in range(3)
        ]
        assert {answer.error_code for answer in answers} == {ErrorCode.none}
        assert len({answer.producer_id for answer in answers}) == 3
        assert {answer.producer_epoch for answer in answers} == {0}


async def test_a_producer_that_sends_its_id_gets_a_new_one():
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k22_init_producer_id, 4, transactional_id=None, producer_id=7000, producer_epoch=3
        )
        assert answer.error_code is ErrorCode.none
        assert (answer.producer_id, answer.producer_epoch) != (7000, 3)
        assert answer.producer_epoch == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"transactional_id": ""},
        {"transactional_id": None, "producer_id": 5, "producer_epoch": -1},
        {"transactional_id": None, "producer_id": -1, "producer_epoch": 5},
    ],
)
async def test_an_empty_id_and_half_an_identity_are_refused(fields):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k22_init_producer_id, 4, **fields)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.invalid_request, -1)


async def test_without_metadata_a_producer_gets_a_retriable_error():
    class Down:
        async def get(self, path):
            raise MetadataUnavailable("down")

    async with loaded_cluster() as cluster:
        cluster.context.producer_ids = ProducerIds(Down())
        answer = await cluster.ask(k22_init_producer_id, 0, transactional_id=None)
        assert answer.error_code is ErrorCode.coordinator_load_in_progress


# DescribeConfigs


def resource(kind, name, keys=None):
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


@pytest.mark.parametrize("version", k32_describe_configs.API.versions)
async def test_every_setting_of_a_topic_is_described(version):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {"retention.ms": "5"})
        answer = await cluster.ask(
            k32_describe_configs,
            version,
            resources=[resource(2, "orders")],
            include_synonyms=True,
            include_documentation=True,
        )
        (result,) = answer.results
        assert result.error_code is ErrorCode.none
        configs = {config.name: config for config in result.configs}
        assert set(configs) == set(TOPIC_KEYS)
        retention = configs["retention.ms"]
        assert (retention.value, retention.config_source, retention.read_only) == ("5", 1, False)
        assert [s.name for s in retention.synonyms] == ["retention.ms"]
        assert configs["cleanup.policy"].value == "delete"
        assert configs["cleanup.policy"].config_source == 5
        if version >= 3:
            assert retention.config_type == 5
            assert retention.documentation


async def test_only_the_keys_asked_for_and_no_extras_unless_wanted():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        answer = await cluster.ask(
            k32_describe_configs, 3, resources=[resource(2, "orders", ["segment.ms", "foo"])]
        )
        (config,) = answer.results[0].configs
        assert (config.name, config.synonyms, config.documentation) == ("segment.ms", (), None)


async def test_the_brokers_settings_follow_this_process():
    groups = GroupLimits(session_timeout_ms_min=100)
    async with loaded_cluster(topics=TopicDefaults(partitions=12), groups=groups) as cluster:
        answer = await cluster.ask(k32_describe_configs, 4, resources=[resource(4, "3")])
        configs = {config.name: config for config in answer.results[0].configs}
        assert configs["node.id"].value == "3"
        assert configs["num.partitions"].value == "12"
        assert configs["num.partitions"].config_source == 4
        assert configs["log.retention.hours"].value == "168"
        bounds = [configs[f"group.{each}.session.timeout.ms"] for each in ("min", "max")]
        assert [(each.value, each.config_source) for each in bounds] == [("100", 4), ("1800000", 5)]
        assert configs["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:19092"
        assert configs["num.partitions"].read_only
        assert not configs["log.retention.ms"].read_only
        assert sorted(configs) == list(configs)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (2, "none", ErrorCode.unknown_topic_or_partition),
        (2, "a/b", ErrorCode.invalid_topic_exception),
        (4, "9", ErrorCode.invalid_request),
        (4, "x", ErrorCode.invalid_request),
        (4, "", ErrorCode.none),
        (8, "", ErrorCode.invalid_request),
        (16, "", ErrorCode.invalid_request),
        (32, "", ErrorCode.invalid_request),
        (99, "", ErrorCode.invalid_request),
    ],
)
async def test_other_resources_get_a_clear_answer(kind, name, code):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k32_describe_configs, 4, resources=[resource(kind, name)])
        (result,) = answer.results
        assert (result.error_code, result.configs) == (code, ())
        assert (result.resource_type, result.resource_name) == (kind, name)
        no_text = (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
        assert (result.error_message == "") == (code in no_text)


# CreatePartitions


@pytest.mark.parametrize("version", k37_create_partitions.API.versions)
async def test_partitions_are_added(version):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        answer = await cluster.ask(
            k37_create_partitions,
            version,
            topics=[{"name": "orders", "count": 5, "assignments": None}],
        )
        assert answer.results[0].error_code is ErrorCode.none
        assert cluster.catalog.by_name("orders").partitions == 5


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code", "message"),
    [
        ("none", 5, None, ErrorCode.unknown_topic_or_partition, ""),
        ("orders", 2, None, ErrorCode.invalid_partitions, "Topic already has 2 partition(s)."),
        ("orders", 1, None, ErrorCode.invalid_partitions, "1 would not be an increase"),
        ("orders", -1, None, ErrorCode.invalid_partitions, "-1 would not be an increase"),
        ("orders", 10**6, None, ErrorCode.invalid_partitions, "1000000 partitions"),
        ("orders", 4, [[3]], ErrorCode.invalid_replica_assignment, "but only 1 assignment(s)"),
        ("orders", 3, [[4]], ErrorCode.invalid_replica_assignment, "includes broker 4"),
    ],
)
async def test_partitions_that_cannot_be_added_are_refused(name, count, assignments, code, message):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        rows = assignments and [{"broker_ids": brokers} for brokers in assignments]
        answer = await cluster.ask(
            k37_create_partitions, 2, topics=[{"name": name, "count": count, "assignments": rows}]
        )
        (result,) = answer.results
        assert result.error_code is code
        assert message in (result.error_message or "")
        assert cluster.catalog.by_name("orders").partitions == 2


async def test_a_trial_adds_nothing():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        topic = {"name": "orders", "count": 3, "assignments": [{"broker_ids": [3]}]}
        answer = await cluster.ask(k37_create_partitions, 1, topics=[topic], validate_only=True)
        assert answer.results[0].error_code is ErrorCode.none
        assert cluster.catalog.by_name("orders").partitions == 2
        await cluster.ask(k37_create_partitions, 1, topics=[topic])
        assert cluster.catalog.by_name("orders").partitions == 3


# DescribeCluster


@pytest.mark.parametrize("version", k60_describe_cluster.API.versions)
async def test_the_cluster_is_this_node(version):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k60_describe_cluster, version, include_cluster_authorized_operations=True
        )
        assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, "cluster-1")
        assert answer.controller_id == 3
        (broker,) = answer.brokers
        assert (broker.broker_id, broker.host, broker.port) == (3, "127.0.0.1", 19092)
        assert answer.cluster_authorized_operations == 8096


async def test_controllers_are_not_found_here():
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k60_describe_cluster, 1, endpoint_type=2)
        assert answer.error_code is ErrorCode.mismatched_endpoint_type
        answer = await cluster.ask(k60_describe_cluster, 1, endpoint_type=9)
        assert answer.error_code is ErrorCode.unsupported_endpoint_type


# DescribeTopicPartitions


async def test_pages_together_show_every_partition_once():
    sizes = {"a": 3, "b": 1, "c": 5, "d": 2}

    async with loaded_cluster() as cluster:
        for name, partitions in sizes.items():
            await cluster.catalog.create(name, partitions, 1, {})
        for limit in range(-1, 13):
            pages = [page async for page in pages_of(cluster, limit)]
            assert all(1 <= len(page) <= max(1, limit) for page in pages)
            seen = [each for page in pages for each in page]
            assert seen == [(name, i) for name, size in sizes.items() for i in range(size)]
            assert len(pages) == -(-11 // max(1, limit))


async def pages_of(cluster, limit):
    cursor = None
    while True:
        asked = {"topics": [], "response_partition_limit": limit, "cursor": cursor}
        answer = await cluster.ask(k75_describe_topic_partitions, 0, **asked)
        yield [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
        ]
        if answer.next_cursor is None:
            return
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


async def test_named_topics_are_described_sorted_and_unknown_ones_are_errors():
    async with loaded_cluster() as cluster:
        topic = await cluster.catalog.create("b", 1, 1, {})
        answer = await cluster.ask(
            k75_describe_topic_partitions, 0, topics=[{"name": n} for n in ("c", "b", "a/")]
        )
        assert [(t.name, t.error_code) for t in answer.topics] == [
            ("a/", ErrorCode.invalid_topic_exception),
            ("b", ErrorCode.none),
            ("c", ErrorCode.unknown_topic_or_partition),
        ]
        found = answer.topics[1]
        assert (found.topic_id, found.topic_authorized_operations) == (topic.topic_id, 3576)
        (partition,) = found.partitions
        assert (partition.leader_id, partition.leader_epoch) == (3, 7)
        assert answer.next_cursor is None


@pytest.mark.parametrize("cursor", [("z", 0), ("a", -1)])
async def test_a_cursor_that_fits_nothing_is_refused(cursor):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("a", 1, 1, {})
        answer = await cluster.ask(
            k75_describe_topic_partitions,
            0,
            topics=[{"name": "a"}],
            cursor={"topic_name": cursor[0], "partition_index": cursor[1]},
        )
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]


async def test_a_cursor_whose_topic_was_deleted_continues_with_the_next():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("c", 2, 1, {})
        answer = await cluster.ask(
            k75_describe_topic_partitions,
            0,
            topics=[],
            cursor={"topic_name": "b", "partition_index": 1},
        )
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("c", 2)]
