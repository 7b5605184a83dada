"""Goal: the topic APIs answer as Kafka does, in every version that they serve.

Method: requests are encoded and decoded, handlers called with a catalog over the simulator's
store, replies encoded and decoded again; so a field that a version lacks or wants is noticed.
"""

import inspect
import uuid

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import GatewayConfig, TopicDefaults
from gateway.handlers import (
    k03_metadata,
    k19_create_topics,
    k20_delete_topics,
    k22_init_producer_id,
    k32_describe_configs,
    k37_create_partitions,
    k60_describe_cluster,
    k75_describe_topic_partitions,
)
from gateway.handlers.api import Context, Peer, Request
from gateway.topics.catalog import Catalog
from gateway.topics.configs import TOPIC_KEYS
from gateway.topics.producer_ids import ProducerIds
from gateway.wire.messages import decode_request, decode_response, encode_request, encode_response
from ledger.errors import MetadataUnavailable, StreamUnavailable
from tests.sim.loop import SimClock, simulate
from tests.sim.metadata import SimMetadata

PEER = Peer("127.0.0.1", 50000, "127.0.0.1", 19092)
HEADER = 10  # key, version, correlation id, client id of null


class Epochs:
    """Partition 0 of each topic is open, in epoch 7; the others are not."""

    def leader_epoch(self, topic, index):
        return 7 if index == 0 else -1


class Cluster:
    def __init__(self, **settings):
        self.config = GatewayConfig(node_id=3, **settings)
        self.store = SimMetadata()
        self.catalog = Catalog(self.store, self.config.topics, bookies=self.config.bookies)
        self.context = Context(
            config=self.config,
            clock=SimClock(),
            cluster_id="cluster-1",
            catalog=self.catalog,
            partitions=Epochs(),
            groups=None,
            producer_ids=ProducerIds(self.store),
            fetch_sessions=None,
        )

    async def ask(self, module, version, **fields):
        """The decoded answer to one request."""
        api = module.API
        frame = encode_request(api.key, version, 1, None, fields)
        flexible = 1 if frame[HEADER : HEADER + 1] == b"\0" and _flexible(api.key, version) else 0
        body = decode_request(api.key, version, frame, HEADER + flexible)
        reply = api.handle(Request(api.key, version, 1, None, PEER, body), self.context)
        if inspect.isawaitable(reply):
            reply = await reply
        out = b"".join(encode_response(api.key, version, 1, reply))
        return decode_response(api.key, version, out).body


def _flexible(key, version):
    from gateway.wire.schema import request_class

    return request_class(key, version).__header_schema__.__flexible__


def run(scenario, **settings):
    async def main():
        cluster = Cluster(**settings)
        await cluster.catalog.load()
        return await scenario(cluster)

    return simulate(main())


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
def test_metadata_names_the_node_at_the_address_that_the_client_reached(version):
    async def scenario(cluster):
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

    run(scenario)


@pytest.mark.parametrize("version", k03_metadata.API.versions)
def test_metadata_of_all_topics_is_asked_for_by_null_or_in_v0_by_an_empty_list(version):
    async def scenario(cluster):
        for name in ("b", "a"):
            await cluster.catalog.create(name, 1, 1, {})
        everything = [] if version == 0 else None
        answer = await cluster.ask(k03_metadata, version, topics=everything)
        assert [topic.name for topic in answer.topics] == ["a", "b"]
        if version:
            assert (await cluster.ask(k03_metadata, version, topics=[])).topics == ()

    run(scenario)


@pytest.mark.parametrize("version", k03_metadata.API.versions)
def test_asking_for_an_unknown_topic_creates_it_ready_to_use(version):
    async def scenario(cluster):
        answer = await cluster.ask(
            k03_metadata, version, topics=[{"name": "new"}], allow_auto_topic_creation=True
        )
        (topic,) = answer.topics
        assert (topic.error_code, len(topic.partitions)) == (ErrorCode.none, 4)
        assert cluster.catalog.by_name("new").replication_factor == 1

    run(scenario, topics=TopicDefaults(partitions=4))


def test_nothing_is_created_when_the_client_or_the_server_forbids_it():
    async def scenario(cluster):
        answer = await cluster.ask(
            k03_metadata, 12, topics=[{"name": "new"}], allow_auto_topic_creation=False
        )
        assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert cluster.catalog.all() == []

    async def forbidden(cluster):
        answer = await cluster.ask(k03_metadata, 1, topics=[{"name": "new"}])
        assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert cluster.catalog.all() == []

    run(scenario)
    run(forbidden, topics=TopicDefaults(auto_create=False))


def test_an_illegal_name_and_kafkas_own_are_not_created_on_the_way():
    async def scenario(cluster):
        names = ["a/b", "", "__consumer_offsets", "fine", "fi.ne", "fi_ne"]
        answer = await cluster.ask(
            k03_metadata,
            9,
            topics=[{"name": name} for name in names],
            allow_auto_topic_creation=True,
        )
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "a/b": ErrorCode.invalid_topic_exception,
            "": ErrorCode.invalid_topic_exception,
            "__consumer_offsets": ErrorCode.unknown_topic_or_partition,
            "fine": ErrorCode.none,
            "fi.ne": ErrorCode.none,
            "fi_ne": ErrorCode.invalid_topic_exception,
        }

    run(scenario)


def test_a_topic_is_found_by_id_and_an_old_id_is_not():
    async def scenario(cluster):
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

    run(scenario)


def test_a_topic_asked_for_twice_is_answered_once():
    async def scenario(cluster):
        answer = await cluster.ask(
            k03_metadata, 8, topics=[{"name": "a"}, {"name": "a"}], allow_auto_topic_creation=True
        )
        assert len(answer.topics) == 1

    run(scenario)


def test_operations_are_told_when_asked_for():
    async def scenario(cluster):
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

    run(scenario)


def test_a_topic_whose_creation_fails_for_now_makes_clients_ask_again():
    async def scenario(cluster):
        def refuse(topic):
            raise StreamUnavailable("not now")

        cluster.catalog.on_created.append(refuse)
        answer = await cluster.ask(k03_metadata, 1, topics=[{"name": "new"}])
        assert answer.topics[0].error_code is ErrorCode.leader_not_available

    run(scenario)


# CreateTopics


@pytest.mark.parametrize("version", k19_create_topics.API.versions)
def test_create_topics_answers_what_was_made(version):
    async def scenario(cluster):
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

    run(scenario)


def test_minus_one_takes_the_servers_defaults():
    async def scenario(cluster):
        await cluster.ask(k19_create_topics, 5, topics=[new_topic("orders")])
        made = cluster.catalog.by_name("orders")
        assert (made.partitions, made.replication_factor) == (12, 3)

    run(scenario, bookies=3, topics=TopicDefaults(partitions=12, replication_factor=3))


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
            "Replication factor was set to an invalid non-positive value.",
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
            "replicationFactor was not set to -1",
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
def test_a_refused_topic_is_told_why_and_the_others_are_made(topic, code, message, validate_only):
    async def scenario(cluster):
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

    run(scenario)


def test_a_manual_assignment_to_this_node_is_taken():
    async def scenario(cluster):
        topic = new_topic("orders", assignments=[(1, [3]), (0, [3]), (2, [3])])
        answer = await cluster.ask(k19_create_topics, 4, topics=[topic])
        assert answer.topics[0].error_code is ErrorCode.none
        assert cluster.catalog.by_name("orders").partitions == 3

    run(scenario)


def test_a_name_given_twice_is_refused_once_and_not_made():
    async def scenario(cluster):
        answer = await cluster.ask(
            k19_create_topics, 5, topics=[new_topic("a"), new_topic("a", 2), new_topic("b")]
        )
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "a": ErrorCode.invalid_request,
            "b": ErrorCode.none,
        }
        assert len(answer.topics) == 2
        assert cluster.catalog.by_name("a") is None

    run(scenario)


# DeleteTopics


@pytest.mark.parametrize("version", k20_delete_topics.API.versions)
def test_delete_topics_by_name(version):
    async def scenario(cluster):
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

    run(scenario)


def test_delete_topics_by_id_deletes_that_life_only():
    async def scenario(cluster):
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

    run(scenario)


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
def test_an_unclear_deletion_is_refused(topics, message):
    async def scenario(cluster):
        await cluster.catalog.create("a", 1, 1, {})
        answer = await cluster.ask(k20_delete_topics, 6, topics=topics)
        (refused,) = answer.responses
        assert (refused.error_code, refused.error_message) == (ErrorCode.invalid_request, message)
        assert cluster.catalog.by_name("a") is not None

    run(scenario)


# InitProducerId


@pytest.mark.parametrize("version", k22_init_producer_id.API.versions)
def test_each_idempotent_producer_gets_an_id_of_its_own(version):
    async def scenario(cluster):
        answers = [
            await cluster.ask(k22_init_producer_id, version, transactional_id=None)
            for _ in range(3)
        ]
        assert {answer.error_code for answer in answers} == {ErrorCode.none}
        assert len({answer.producer_id for answer in answers}) == 3
        assert {answer.producer_epoch for answer in answers} == {0}

    run(scenario)


def test_a_producer_that_tells_its_id_gets_a_new_one():
    async def scenario(cluster):
        answer = await cluster.ask(
            k22_init_producer_id, 4, transactional_id=None, producer_id=7000, producer_epoch=3
        )
        assert answer.error_code is ErrorCode.none
        assert (answer.producer_id, answer.producer_epoch) != (7000, 3)
        assert answer.producer_epoch == 0

    run(scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {"transactional_id": "mine"},
        {"transactional_id": ""},
        {"transactional_id": None, "producer_id": 5, "producer_epoch": -1},
        {"transactional_id": None, "producer_id": -1, "producer_epoch": 5},
    ],
)
def test_transactions_and_half_an_identity_are_refused(fields):
    async def scenario(cluster):
        answer = await cluster.ask(k22_init_producer_id, 4, **fields)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.invalid_request, -1)

    run(scenario)


def test_without_metadata_a_producer_is_told_to_ask_again():
    class Down:
        async def get(self, path):
            raise MetadataUnavailable("down")

    async def scenario(cluster):
        cluster.context.producer_ids = ProducerIds(Down())
        answer = await cluster.ask(k22_init_producer_id, 0, transactional_id=None)
        assert answer.error_code is ErrorCode.coordinator_load_in_progress

    run(scenario)


# DescribeConfigs


def resource(kind, name, keys=None):
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


@pytest.mark.parametrize("version", k32_describe_configs.API.versions)
def test_every_setting_of_a_topic_is_described(version):
    async def scenario(cluster):
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
        assert [s.name for s in retention.synonyms] == ["retention.ms", "log.retention.hours"]
        assert configs["cleanup.policy"].value == "delete"
        assert configs["cleanup.policy"].config_source == 5
        if version >= 3:
            assert retention.config_type == 5
            assert retention.documentation

    run(scenario)


def test_only_the_keys_asked_for_and_no_extras_unless_wanted():
    async def scenario(cluster):
        await cluster.catalog.create("orders", 1, 1, {})
        answer = await cluster.ask(
            k32_describe_configs, 3, resources=[resource(2, "orders", ["segment.ms", "foo"])]
        )
        (config,) = answer.results[0].configs
        assert (config.name, config.synonyms, config.documentation) == ("segment.ms", (), None)

    run(scenario)


def test_the_brokers_settings_follow_this_process():
    async def scenario(cluster):
        answer = await cluster.ask(k32_describe_configs, 4, resources=[resource(4, "3")])
        configs = {config.name: config for config in answer.results[0].configs}
        assert configs["node.id"].value == "3"
        assert configs["num.partitions"].value == "12"
        assert configs["num.partitions"].config_source == 4
        assert configs["log.retention.hours"].value == "168"
        assert configs["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:19092"
        assert all(config.read_only for config in configs.values())
        assert sorted(configs) == list(configs)

    run(scenario, topics=TopicDefaults(partitions=12))


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (2, "none", ErrorCode.unknown_topic_or_partition),
        (2, "a/b", ErrorCode.invalid_topic_exception),
        (4, "9", ErrorCode.invalid_request),
        (4, "x", ErrorCode.invalid_request),
        (4, "", ErrorCode.none),
        (8, "3", ErrorCode.none),
        (16, "metrics", ErrorCode.none),
        (32, "group", ErrorCode.none),
        (99, "", ErrorCode.invalid_request),
    ],
)
def test_other_resources_get_a_clear_answer(kind, name, code):
    async def scenario(cluster):
        answer = await cluster.ask(k32_describe_configs, 4, resources=[resource(kind, name)])
        (result,) = answer.results
        assert (result.error_code, result.configs) == (code, ())
        assert (result.resource_type, result.resource_name) == (kind, name)
        assert (result.error_message is None) == (code is ErrorCode.none)

    run(scenario)


# CreatePartitions


@pytest.mark.parametrize("version", k37_create_partitions.API.versions)
def test_partitions_are_added(version):
    async def scenario(cluster):
        await cluster.catalog.create("orders", 2, 1, {})
        answer = await cluster.ask(
            k37_create_partitions,
            version,
            topics=[{"name": "orders", "count": 5, "assignments": None}],
        )
        assert answer.results[0].error_code is ErrorCode.none
        assert cluster.catalog.by_name("orders").partitions == 5

    run(scenario)


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code", "message"),
    [
        ("none", 5, None, ErrorCode.unknown_topic_or_partition, "does not host"),
        ("orders", 2, None, ErrorCode.invalid_partitions, "Topic already has 2 partition(s)."),
        ("orders", 1, None, ErrorCode.invalid_partitions, "1 would not be an increase"),
        ("orders", -1, None, ErrorCode.invalid_partitions, "-1 would not be an increase"),
        ("orders", 10**6, None, ErrorCode.invalid_partitions, "1000000 partitions"),
        ("orders", 4, [[3]], ErrorCode.invalid_replica_assignment, "but only 1 assignment(s)"),
        ("orders", 3, [[4]], ErrorCode.invalid_replica_assignment, "includes broker 4"),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(name, count, assignments, code, message):
    async def scenario(cluster):
        await cluster.catalog.create("orders", 2, 1, {})
        rows = assignments and [{"broker_ids": brokers} for brokers in assignments]
        answer = await cluster.ask(
            k37_create_partitions, 2, topics=[{"name": name, "count": count, "assignments": rows}]
        )
        (result,) = answer.results
        assert result.error_code is code
        assert message in result.error_message
        assert cluster.catalog.by_name("orders").partitions == 2

    run(scenario)


def test_a_trial_adds_nothing():
    async def scenario(cluster):
        await cluster.catalog.create("orders", 2, 1, {})
        topic = {"name": "orders", "count": 3, "assignments": [{"broker_ids": [3]}]}
        answer = await cluster.ask(k37_create_partitions, 1, topics=[topic], validate_only=True)
        assert answer.results[0].error_code is ErrorCode.none
        assert cluster.catalog.by_name("orders").partitions == 2
        await cluster.ask(k37_create_partitions, 1, topics=[topic])
        assert cluster.catalog.by_name("orders").partitions == 3

    run(scenario)


# DescribeCluster


@pytest.mark.parametrize("version", k60_describe_cluster.API.versions)
def test_the_cluster_is_this_node(version):
    async def scenario(cluster):
        answer = await cluster.ask(
            k60_describe_cluster, version, include_cluster_authorized_operations=True
        )
        assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, "cluster-1")
        assert answer.controller_id == 3
        (broker,) = answer.brokers
        assert (broker.broker_id, broker.host, broker.port) == (3, "127.0.0.1", 19092)
        assert answer.cluster_authorized_operations == 8096

    run(scenario)


def test_controllers_are_not_found_here():
    async def scenario(cluster):
        answer = await cluster.ask(k60_describe_cluster, 1, endpoint_type=2)
        assert answer.error_code is ErrorCode.mismatched_endpoint_type
        answer = await cluster.ask(k60_describe_cluster, 1, endpoint_type=9)
        assert answer.error_code is ErrorCode.unsupported_endpoint_type

    run(scenario)


# DescribeTopicPartitions


def test_pages_together_show_every_partition_once():
    sizes = {"a": 3, "b": 1, "c": 5, "d": 2}

    async def scenario(cluster):
        for name, partitions in sizes.items():
            await cluster.catalog.create(name, partitions, 1, {})
        for limit in range(-1, 13):
            seen, cursor, pages = [], None, 0
            while True:
                answer = await cluster.ask(
                    k75_describe_topic_partitions,
                    0,
                    topics=[],
                    response_partition_limit=limit,
                    cursor=cursor,
                )
                page = [
                    (topic.name, partition.partition_index)
                    for topic in answer.topics
                    for partition in topic.partitions
                ]
                assert 1 <= len(page) <= max(1, limit)
                seen += page
                pages += 1
                if answer.next_cursor is None:
                    break
                cursor = {
                    "topic_name": answer.next_cursor.topic_name,
                    "partition_index": answer.next_cursor.partition_index,
                }
            assert seen == [(name, i) for name, size in sizes.items() for i in range(size)]
            assert pages == -(-11 // max(1, limit))

    run(scenario)


def test_named_topics_are_described_sorted_and_unknown_ones_told():
    async def scenario(cluster):
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

    run(scenario)


@pytest.mark.parametrize("cursor", [("z", 0), ("a", -1)])
def test_a_cursor_that_fits_nothing_is_refused(cursor):
    async def scenario(cluster):
        await cluster.catalog.create("a", 1, 1, {})
        answer = await cluster.ask(
            k75_describe_topic_partitions,
            0,
            topics=[{"name": "a"}],
            cursor={"topic_name": cursor[0], "partition_index": cursor[1]},
        )
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]

    run(scenario)


def test_a_cursor_whose_topic_was_deleted_goes_on_with_the_next():
    async def scenario(cluster):
        await cluster.catalog.create("c", 2, 1, {})
        answer = await cluster.ask(
            k75_describe_topic_partitions,
            0,
            topics=[],
            cursor={"topic_name": "b", "partition_index": 1},
        )
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("c", 2)]

    run(scenario)
