"""Goal: admin requests without a meaning here get the refusals of Apache Kafka 4.3, with its texts.

Method: each handler is called with real requests over a catalog in the simulator's store. The
expected codes and texts are answers of a broker 4.3. Long requests are asked for with the turns
that other tasks got.
"""

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.port import Leader
from gateway.handlers import (
    k29_describe_acls,
    k30_create_acls,
    k31_delete_acls,
    k38_create_delegation_token,
    k39_renew_delegation_token,
    k40_expire_delegation_token,
    k41_describe_delegation_token,
    k43_elect_leaders,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k55_describe_quorum,
)
from gateway.handlers.api import ConnectionEnds
from tests.gateway.handler_cluster import loaded_cluster
from tests.sim.turns import turns_during

NOT_ALLOWED = ErrorCode.delegation_token_request_not_allowed
UNKNOWN = ErrorCode.unknown_topic_or_partition
MANY = 100_000

# ACLs

ACL = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:ann",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
NO_AUTHORIZER = (ErrorCode.security_disabled, "No Authorizer is configured.")


@pytest.mark.parametrize("version", k29_describe_acls.API.versions)
async def test_acls_are_not_described(version):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k29_describe_acls, version, **FILTER)
    assert answer.error_code is ErrorCode.security_disabled
    assert answer.error_message == "No Authorizer is configured on the broker"
    assert answer.resources == ()


@pytest.mark.parametrize("version", k30_create_acls.API.versions)
async def test_each_acl_to_create_is_refused(version):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k30_create_acls, version, creations=[ACL, ACL | {"operation": 99, "principal": ""}]
        )
    assert [(row.error_code, row.error_message) for row in answer.results] == 2 * [NO_AUTHORIZER]


@pytest.mark.parametrize("version", k31_delete_acls.API.versions)
async def test_each_filter_of_acls_to_delete_is_refused(version):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k31_delete_acls, version, filters=[FILTER, FILTER])
    rows = [(row.error_code, row.error_message, row.matching_acls) for row in answer.filter_results]
    assert rows == 2 * [(*NO_AUTHORIZER, ())]


@pytest.mark.parametrize("field", ["resource_type", "operation", "permission_type"])
async def test_an_unknown_element_of_an_acl_ends_the_connection(field):
    asked = f"{field}_filter" if field == "resource_type" else field
    async with loaded_cluster() as cluster:
        with pytest.raises(ConnectionEnds):
            await cluster.ask(k29_describe_acls, 3, **(FILTER | {asked: 0}))
        with pytest.raises(ConnectionEnds):
            await cluster.ask(k30_create_acls, 3, creations=[ACL, ACL | {field: 0}])
        with pytest.raises(ConnectionEnds):
            await cluster.ask(k31_delete_acls, 3, filters=[FILTER | {asked: 0}])


async def test_a_pattern_type_that_the_client_did_not_know_ends_the_connection():
    async with loaded_cluster() as cluster:
        with pytest.raises(ConnectionEnds):
            await cluster.ask(k29_describe_acls, 1, **(FILTER | {"pattern_type_filter": 0}))
        with pytest.raises(ConnectionEnds):
            await cluster.ask(k30_create_acls, 1, creations=[ACL | {"resource_pattern_type": 0}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "rows", "field"),
    [
        (k30_create_acls, {"creations": MANY * [ACL]}, "results"),
        (k31_delete_acls, {"filters": MANY * [FILTER]}, "filter_results"),
    ],
)
async def test_other_tasks_run_while_very_many_acls_are_refused(module, rows, field):
    async with loaded_cluster() as cluster:
        answer, turns = await turns_during(cluster.ask(module, 3, **rows))
    assert len(getattr(answer, field)) == MANY
    assert turns >= MANY / 1_000


# delegation tokens


@pytest.mark.parametrize("version", k38_create_delegation_token.API.versions)
@pytest.mark.parametrize(
    ("owner", "principal", "code"),
    [
        ((None, None), ("User", "ANONYMOUS"), NOT_ALLOWED),
        (("User", ""), ("User", "ANONYMOUS"), NOT_ALLOWED),
        (("Team", "ann"), ("Team", "ann"), NOT_ALLOWED),
        ((None, "ann"), ("User", "ANONYMOUS"), ErrorCode.unknown_server_error),
    ],
)
async def test_no_delegation_token_is_created(version, owner, principal, code):
    kind, name = owner
    fields = {"owner_principal_type": kind, "owner_principal_name": name} if version >= 3 else {}
    request = {"renewers": [], "max_lifetime": -1} | fields
    async with loaded_cluster() as cluster:
        raw = await cluster.answered(k38_create_delegation_token, version, **request)
    anonymous = ("User", "ANONYMOUS")
    if version < 3:
        principal, code = anonymous, NOT_ALLOWED
    assert raw["error_code"] is code
    assert (raw["principal_type"], raw["principal_name"]) == principal
    fields = ("token_requester_principal_type", "token_requester_principal_name")
    assert tuple(raw[field] for field in fields) == anonymous
    assert {raw[f"{each}_timestamp"] for each in ("issue", "expiry", "max")} == {-1}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("module", "period"),
    [
        (k39_renew_delegation_token, "renew_period"),
        (k40_expire_delegation_token, "expiry_time_period"),
    ],
)
async def test_no_delegation_token_is_renewed_or_expired(module, period, version):
    async with loaded_cluster() as cluster:
        raw = await cluster.answered(module, version, hmac=b"token", **{period: 1_000})
    assert (raw["error_code"], raw["expiry_timestamp"]) == (NOT_ALLOWED, -1)


@pytest.mark.parametrize("version", k41_describe_delegation_token.API.versions)
@pytest.mark.parametrize(
    "owners", [None, [], [{"principal_type": "User", "principal_name": "ann"}]]
)
async def test_no_delegation_token_is_described(version, owners):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k41_describe_delegation_token, version, owners=owners)
    assert (answer.error_code, answer.tokens) == (NOT_ALLOWED, ())


@pytest.mark.parametrize(
    ("module", "fields"),
    [
        (k38_create_delegation_token, {"renewers": [], "max_lifetime": -1}),
        (k39_renew_delegation_token, {"hmac": b"token", "renew_period": 1_000}),
        (k40_expire_delegation_token, {"hmac": b"token", "expiry_time_period": 1_000}),
        (k41_describe_delegation_token, {"owners": None}),
    ],
)
async def test_a_client_that_has_logged_in_gets_no_token_either(module, fields):
    async with loaded_cluster() as cluster:
        cluster.peer = replace(cluster.peer, principal="User:ann")
        raw = await cluster.answered(module, 2, **fields)
    assert raw["error_code"] is ErrorCode.delegation_token_auth_disabled
    assert raw.get("expiry_timestamp", 0) == 0
    assert raw.get("principal_name", "ann") == "ann"
    assert raw.get("token_requester_principal_name", "ann") == "ann"


# ElectLeaders


def elect_fields(version, election_type=0, **more):
    kind = {"election_type": election_type} if version >= 1 else {}
    return {"timeout": 1_000} | kind | more


@pytest.mark.parametrize("version", k43_elect_leaders.API.versions)
@pytest.mark.parametrize("election_type", [0, 1])
async def test_no_election_is_needed(version, election_type):
    asked = [
        {"topic": "orders", "partitions": [1, 9, 0]},
        {"topic": "nope", "partitions": [0]},
        {"topic": "orders", "partitions": []},
    ]
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        fields = elect_fields(version, election_type, topic_partitions=asked)
        answer = await cluster.ask(k43_elect_leaders, version, **fields)
    needless = (ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
    found = [
        (
            row.topic,
            [
                (each.partition_id, each.error_code, each.error_message)
                for each in row.partition_result
            ],
        )
        for row in answer.replica_election_results
    ]
    assert found == [
        (
            "orders",
            [(1, *needless), (9, UNKNOWN, "No such partition as orders-9"), (0, *needless)],
        ),
        ("nope", [(0, UNKNOWN, "No such topic as nope")]),
        ("orders", []),
    ]


@pytest.mark.parametrize("version", k43_elect_leaders.API.versions)
async def test_an_election_of_all_partitions_names_the_topics(version):
    async with loaded_cluster() as cluster:
        for name in ("a", "b"):
            await cluster.catalog.create(name, 2, 1, {})
        fields = elect_fields(version, topic_partitions=None)
        answer = await cluster.ask(k43_elect_leaders, version, **fields)
    rows = [(row.topic, row.partition_result) for row in answer.replica_election_results]
    assert rows == [("a", ()), ("b", ())]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (None, ErrorCode.invalid_request),
        ([], ErrorCode.none),
        ([{"topic": "a", "partitions": [0]}], ErrorCode.invalid_request),
    ],
)
async def test_an_unknown_kind_of_election_is_refused(asked, code):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("a", 1, 1, {})
        fields = elect_fields(2, election_type=7, topic_partitions=asked)
        answer = await cluster.ask(k43_elect_leaders, 2, **fields)
    assert answer.error_code is code
    texts = [
        each.error_message
        for row in answer.replica_election_results
        for each in row.partition_result
    ]
    assert texts == (["Unknown election type 7"] if asked else [])


@pytest.mark.parametrize(
    ("election_type", "code"),
    [
        (0, ErrorCode.preferred_leader_not_available),
        (1, ErrorCode.eligible_leaders_not_available),
    ],
)
async def test_a_partition_between_two_owners_gets_no_leader_by_request(election_type, code):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("a", 1, 1, {})
        cluster.context.cluster.leader = lambda key: Leader()
        fields = elect_fields(
            2, election_type, topic_partitions=[{"topic": "a", "partitions": [0]}]
        )
        answer = await cluster.ask(k43_elect_leaders, 2, **fields)
    assert answer.replica_election_results[0].partition_result[0].error_code is code


# reassignments


async def reassigned(cluster, *replicas, name="orders", index=0, version=1, **fields):
    rows = [{"partition_index": index, "replicas": each} for each in replicas]
    answer = await cluster.ask(
        k45_alter_partition_reassignments,
        version,
        timeout=1_000,
        topics=[{"name": name, "partitions": rows}],
        **fields,
    )
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    return [(row.error_code, row.error_message) for row in answer.responses[0].partitions]


BEGIN = "The manual partition assignment includes"
BAD = ErrorCode.invalid_replica_assignment


async def test_an_assignment_to_the_present_replicas_succeeds():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        assert await reassigned(cluster, [3], version=0) == [(ErrorCode.none, None)]
        assert await reassigned(cluster, [3], None) == [
            (ErrorCode.none, None),
            (ErrorCode.no_reassignment_in_progress, None),
        ]


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        ([], f"{BEGIN} an empty replica list."),
        ([3, 3], f"{BEGIN} the broker 3 more than once."),
        ([3, 3, 4], f"{BEGIN} the broker 3 more than once."),
        ([4, 4], f"{BEGIN} broker 4, but no such broker is registered."),
        ([4, -1], f"{BEGIN} broker -1, but no such broker is registered."),
    ],
)
async def test_an_impossible_assignment_is_refused_with_kafkas_text(replicas, text):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        assert await reassigned(cluster, replicas) == [(BAD, text)]


async def test_a_move_that_cannot_be_carried_out_is_refused():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        cluster.context.cluster.replicas = lambda key, count: [5]
        ((code, text),) = await reassigned(cluster, [3])
    assert code is BAD
    assert text == (
        "Brokers cannot be assigned to a partition: its replicas are [5], the leader and the next "
        "brokers of the ring, and its records are on bookies."
    )


async def test_a_fixed_number_of_replicas_does_not_change():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        cluster.context.cluster.replicas = lambda key, count: [3, 5]
        answer = await reassigned(cluster, [3], allow_replication_factor_change=False)
    text = "The replication factor is changed from 2 to 1"
    assert answer == [(ErrorCode.invalid_replication_factor, text)]


@pytest.mark.parametrize("replicas", [[3], None, [], [9]])
async def test_an_unknown_partition_cannot_be_reassigned(replicas):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("orders", 1, 1, {})
        assert await reassigned(cluster, replicas, index=7) == [
            (UNKNOWN, "Unable to find partition orders:7.")
        ]
        assert await reassigned(cluster, replicas, name="nope") == [
            (UNKNOWN, "Unable to find a topic named nope.")
        ]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_request_without_topics_gets_an_empty_text(version):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k45_alter_partition_reassignments, version, timeout=-1, topics=[]
        )
    assert (answer.error_message, answer.responses) == ("", ())


@pytest.mark.parametrize("topics", [None, [], [{"name": "nope", "partition_indexes": [0]}]])
async def test_no_reassignment_is_ever_in_progress(topics):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k46_list_partition_reassignments, 0, timeout=1_000, topics=topics
        )
    assert (answer.error_code, answer.error_message, answer.topics) == (ErrorCode.none, None, ())


# DescribeQuorum


def quorum_topic(name, *indexes):
    return {"topic_name": name, "partitions": [{"partition_index": each} for each in indexes]}


@pytest.mark.parametrize("version", k55_describe_quorum.API.versions)
async def test_live_gateways_are_the_voters(version):
    async with loaded_cluster() as cluster:
        topics = [quorum_topic("__cluster_metadata", 0)]
        answer = await cluster.ask(k55_describe_quorum, version, topics=topics)
        now_ms = cluster.context.clock.now_ms()
    (partition,) = answer.topics[0].partitions
    (voter,) = partition.current_voters
    assert (partition.error_code, partition.leader_id) == (ErrorCode.none, 3)
    assert (voter.replica_id, voter.log_end_offset, partition.high_watermark) == (3, 0, 0)
    if version >= 1:
        assert {voter.last_fetch_timestamp, voter.last_caught_up_timestamp} == {now_ms}
    if version >= 2:
        (node,) = answer.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.host, listener.port) == (3, "127.0.0.1", 19092)


@pytest.mark.parametrize(
    "topics",
    [
        [quorum_topic("orders", 0)],
        [quorum_topic("__cluster_metadata", 1)],
        [quorum_topic("__cluster_metadata", 0, 1)],
        [quorum_topic("__cluster_metadata", 0), quorum_topic("orders", 0)],
    ],
)
async def test_no_other_partition_has_a_quorum(topics):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(k55_describe_quorum, 2, topics=topics)
    rows = [row for topic in answer.topics for row in topic.partitions]
    assert len(rows) == sum(len(topic["partitions"]) for topic in topics)
    assert {row.error_code for row in rows} == {UNKNOWN}
    assert {row.error_message for row in rows} == {
        "This server does not host this topic-partition."
    }
    assert answer.nodes == ()


async def test_a_quorum_of_nothing_is_empty():
    async with loaded_cluster() as cluster:
        assert (await cluster.ask(k55_describe_quorum, 2, topics=[])).topics == ()
