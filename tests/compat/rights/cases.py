"""Requests about records, topics, groups and transactions."""

from __future__ import annotations

from typing import Any

from tests.batches import plain_batch
from tests.compat.rights.language import (
    DOOMED,
    GROUP,
    ID,
    NOTE,
    OTHER,
    TOPIC,
    UNKNOWN,
    Facts,
    case,
    named,
    on_cluster,
    on_group,
    on_id,
    on_topic,
    transactional,
)

# Produce and Fetch


@case(0, on_topic("WRITE"), since=3)
def produce(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"index": 0, "records": plain_batch([1000])}]
    topics = [named(facts, TOPIC, partition_data=rows)]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}


@case(0, on_topic("WRITE"), since=3)
def produce_to_two_topics(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"index": 9, "records": plain_batch([1000])}]
    topics = [named(facts, name, partition_data=rows) for name in (TOPIC, OTHER)]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}


@case(0, on_topic("WRITE"), since=3)
def produce_with_bad_acks(facts: Facts, version: int) -> dict[str, Any]:
    return {**produce(facts, version), "acks": 7}


@case(0, on_topic("WRITE", OTHER), on_id("WRITE"), since=3)
def produce_in_a_transaction(facts: Facts, version: int) -> dict[str, Any]:
    """CVE-2018-17196: only a later batch is transactional."""
    topics = [
        named(facts, OTHER, partition_data=[{"index": 0, "records": plain_batch([1000])}]),
        named(facts, TOPIC, partition_data=[{"index": 1, "records": transactional(facts)}]),
    ]
    return {"transactional_id": ID, "acks": -1, "timeout": 1000, "topic_data": topics}


def fetched(facts: Facts, *names: str) -> dict[str, Any]:
    row = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 100_000,
    }
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1_000_000,
        "session_epoch": -1,
        "topics": [named(facts, name, partitions=[row]) for name in names],
    }


@case(1, on_topic("READ"))
def fetch(facts: Facts, version: int) -> dict[str, Any]:
    return fetched(facts, TOPIC)


@case(1, on_topic("READ"), until=12)
def fetch_two_topics_and_one_that_is_unknown(facts: Facts, version: int) -> dict[str, Any]:
    return fetched(facts, TOPIC, OTHER, UNKNOWN)


@case(2, on_topic("DESCRIBE"))
def list_offsets(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"partition_index": index, "timestamp": -1} for index in (0, 9)]
    topics = [{"name": name, "partitions": rows} for name in (TOPIC, UNKNOWN)]
    return {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}


@case(23, on_topic("DESCRIBE"))
@case(23, on_cluster("CLUSTER_ACTION"))
def offset_for_leader_epoch(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    topics = [{"topic": name, "partitions": rows} for name in (TOPIC, UNKNOWN)]
    return {"replica_id": -1, "topics": topics}


# Metadata


@case(3, on_topic("DESCRIBE"), until=12, since=1)
def topics_by_name(facts: Facts, version: int) -> dict[str, Any]:
    asked = [{"name": name} for name in (TOPIC, OTHER)]
    return {
        "topics": asked,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }


@case(3, on_topic("DESCRIBE"), since=12)
def topics_by_id(facts: Facts, version: int) -> dict[str, Any]:
    asked = [{"name": None, "topic_id": facts.ids[name]} for name in (TOPIC, OTHER)]
    return {"topics": asked, "include_topic_authorized_operations": True}


@case(3, on_topic("DESCRIBE"), hides=True)
def all_topics(facts: Facts, version: int) -> dict[str, Any]:
    topics: list[Any] | None = None if version else []
    return {"topics": topics, "include_topic_authorized_operations": True}


@case(3, on_cluster("DESCRIBE"), hides=True, since=8, until=10)
def operations_of_the_cluster(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [], "include_cluster_authorized_operations": True}


@case(3, on_topic("DESCRIBE", UNKNOWN), since=4)
def an_unknown_topic(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [{"name": UNKNOWN}], "allow_auto_topic_creation": False}


NEW = "rights-new"
AUTO, OTHER_AUTO = "rights-auto", "rights-other-auto"


@case(3, on_topic("DESCRIBE", AUTO), on_topic("CREATE", AUTO), since=4)
def a_topic_to_create(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [{"name": AUTO}], "allow_auto_topic_creation": True}


@case(3, on_topic("DESCRIBE", OTHER_AUTO), on_cluster("CREATE"), since=4)
def a_topic_to_create_in_the_cluster(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [{"name": OTHER_AUTO}], "allow_auto_topic_creation": True}


@case(75, on_topic("DESCRIBE"))
def describe_topic_partitions(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "topics": [{"name": name} for name in (TOPIC, OTHER, UNKNOWN)],
        "response_partition_limit": 100,
        "cursor": None,
    }


@case(75, on_topic("DESCRIBE"), hides=True)
def describe_all_topic_partitions(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [], "response_partition_limit": 2_000, "cursor": None}


@case(60, on_cluster("DESCRIBE"), hides=True)
def describe_cluster(facts: Facts, version: int) -> dict[str, Any]:
    return {"include_cluster_authorized_operations": True, "endpoint_type": 1}


# groups


@case(8, on_group("READ"), on_topic("READ"))
def offset_commit(facts: Facts, version: int) -> dict[str, Any]:
    rows = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": NOTE}
        for index in (0, 9)
    ]
    return {
        "group_id": GROUP,
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "topics": [named(facts, name, partitions=rows) for name in (TOPIC, OTHER)],
    }


def offsets_of(facts: Facts, names: tuple[str, ...] | None) -> dict[str, Any]:
    topics = None
    if names is not None:
        topics = [named(facts, name, partition_indexes=[0]) for name in names]
    group = {"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": topics}
    return {**group, "groups": [group], "require_stable": False}


@case(9, on_group("DESCRIBE"), on_topic("DESCRIBE"))
def offset_fetch(facts: Facts, version: int) -> dict[str, Any]:
    return offsets_of(facts, (TOPIC, OTHER))


@case(9, on_group("DESCRIBE"), since=2)
def all_offsets(facts: Facts, version: int) -> dict[str, Any]:
    return offsets_of(facts, None)


@case(9, on_group("DESCRIBE"), on_topic("DESCRIBE"), since=2, hides=True)
def all_offsets_of_topics(facts: Facts, version: int) -> dict[str, Any]:
    return offsets_of(facts, None)


@case(10, on_group("DESCRIBE"))
def find_the_coordinator_of_a_group(facts: Facts, version: int) -> dict[str, Any]:
    return {"key_type": 0, "key": GROUP, "coordinator_keys": [GROUP]}


@case(10, on_id("DESCRIBE"), since=1)
def find_the_coordinator_of_an_id(facts: Facts, version: int) -> dict[str, Any]:
    return {"key_type": 1, "key": ID, "coordinator_keys": [ID]}


JOINED = "rights-joined"


@case(11, on_group("READ", JOINED))
def join_group(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "group_id": JOINED,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "no-such-member",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


@case(12, on_group("READ"))
def heartbeat(facts: Facts, version: int) -> dict[str, Any]:
    return {"group_id": GROUP, "generation_id": 1, "member_id": "m", "group_instance_id": None}


@case(13, on_group("READ"))
def leave_group(facts: Facts, version: int) -> dict[str, Any]:
    return {"group_id": GROUP, "member_id": "m", "members": [{"member_id": "m"}]}


@case(14, on_group("READ"))
def sync_group(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "generation_id": 1,
        "member_id": "m",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }


@case(15, on_group("DESCRIBE"))
def describe_groups(facts: Facts, version: int) -> dict[str, Any]:
    return {"groups": [GROUP, "rights-other"], "include_authorized_operations": True}


@case(16, on_group("DESCRIBE"), hides=True)
@case(16, on_cluster("DESCRIBE"), hides=True)
def list_groups(facts: Facts, version: int) -> dict[str, Any]:
    return {"states_filter": [], "types_filter": []}


@case(42, on_group("DELETE", "rights-gone"))
def delete_groups(facts: Facts, version: int) -> dict[str, Any]:
    return {"groups_names": ["rights-gone"]}


@case(47, on_group("DELETE"), on_topic("READ"))
def offset_delete(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"partition_index": 1}]
    return {"group_id": GROUP, "topics": [named(facts, TOPIC, partitions=rows)]}


CONSUMERS = "rights-consumers"


@case(68, on_group("READ", CONSUMERS), on_topic("DESCRIBE"))
def consumer_group_heartbeat(facts: Facts, version: int) -> dict[str, Any]:
    fields = {
        "group_id": CONSUMERS,
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [TOPIC],
        "server_assignor": None,
        "topic_partitions": [],
    }
    return fields | ({"subscribed_topic_regex": None} if version >= 1 else {})


@case(69, on_group("DESCRIBE", CONSUMERS), on_topic("DESCRIBE"))
def consumer_group_describe(facts: Facts, version: int) -> dict[str, Any]:
    return {"group_ids": [CONSUMERS], "include_authorized_operations": True}


# topics


@case(19, on_topic("CREATE", NEW), on_topic("DESCRIBE_CONFIGS", NEW), since=5)
@case(19, on_cluster("CREATE"), on_topic("DESCRIBE_CONFIGS", NEW), since=5)
@case(19, on_topic("CREATE", NEW), until=4)
def create_topics(facts: Facts, version: int) -> dict[str, Any]:
    new = {"name": NEW, "num_partitions": 2, "replication_factor": 1}
    return {"topics": [new], "timeout": 5_000, "validate_only": True}


def doomed(facts: Facts, version: int, word: str) -> dict[str, Any]:
    name = f"{DOOMED}-{word}-{version}"
    return {
        "topic_names": [name],
        "topics": [{"name": name, "topic_id": None}],
        "timeout": 5_000,
    }


@case(20, on_topic("DELETE", f"{DOOMED}-by-name"))
def delete_topics(facts: Facts, version: int) -> dict[str, Any]:
    return doomed(facts, version, "by-name")


@case(20, on_cluster("DELETE"))
def delete_topics_of_the_cluster(facts: Facts, version: int) -> dict[str, Any]:
    return doomed(facts, version, "by-cluster")


@case(20, on_topic("DELETE", f"{DOOMED}-by-id"), since=6)
def delete_topics_by_id(facts: Facts, version: int) -> dict[str, Any]:
    asked = {"name": None, "topic_id": facts.ids[f"{DOOMED}-by-id-6"]}
    return {"topics": [asked], "timeout": 5_000}


@case(20, on_topic("DESCRIBE", UNKNOWN))
def delete_an_unknown_topic(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "topic_names": [UNKNOWN],
        "topics": [{"name": UNKNOWN, "topic_id": None}],
        "timeout": 5_000,
    }


@case(21, on_topic("DELETE"))
def delete_records(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"partition_index": index, "offset": 0} for index in (2, 9)]
    topics = [{"name": name, "partitions": rows} for name in (TOPIC, UNKNOWN)]
    return {"topics": topics, "timeout": 5_000}


@case(37, on_topic("ALTER"))
def create_partitions(facts: Facts, version: int) -> dict[str, Any]:
    topics = [{"name": name, "count": 4, "assignments": None} for name in (TOPIC, UNKNOWN)]
    return {"topics": topics, "timeout": 5_000, "validate_only": True}


# transactions


@case(22, on_id("WRITE", "rights-y"))
def begin_a_transactional_producer(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "transactional_id": "rights-y",
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


@case(22, on_cluster("IDEMPOTENT_WRITE"))
@case(22, on_topic("WRITE", OTHER))
def begin_an_idempotent_producer(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


@case(24, on_id("WRITE"), on_topic("WRITE"), until=3)
def add_partitions(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": ID,
        "v3_and_below_producer_id": facts.producer_id,
        "v3_and_below_producer_epoch": facts.producer_epoch,
        "v3_and_below_topics": [
            {"name": TOPIC, "partitions": [0, 1]},
            {"name": UNKNOWN, "partitions": [0]},
        ],
    }


@case(24, on_cluster("CLUSTER_ACTION"), since=4)
def verify_partitions(facts: Facts, version: int) -> dict[str, Any]:
    asked = {
        "transactional_id": ID,
        "producer_id": facts.producer_id,
        "producer_epoch": facts.producer_epoch,
        "verify_only": True,
        "topics": [{"name": TOPIC, "partitions": [0]}],
    }
    return {"transactions": [asked]}


def of_producer(facts: Facts, **more: Any) -> dict[str, Any]:
    return {
        "transactional_id": ID,
        "producer_id": facts.producer_id,
        "producer_epoch": facts.producer_epoch,
        **more,
    }


@case(25, on_id("WRITE"), on_group("READ", "rights-gone"))
def add_offsets(facts: Facts, version: int) -> dict[str, Any]:
    return {**of_producer(facts), "group_id": "rights-gone", "producer_epoch": 31_000}


@case(26, on_id("WRITE"))
def end_transaction(facts: Facts, version: int) -> dict[str, Any]:
    return of_producer(facts, committed=True, producer_epoch=31_000)


@case(27, on_cluster("ALTER"))
@case(27, on_cluster("CLUSTER_ACTION"))
def write_markers(facts: Facts, version: int) -> dict[str, Any]:
    marker = {
        "producer_id": 1_000_000,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": UNKNOWN, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
        "transaction_version": 1,
    }
    return {"markers": [marker]}


@case(28, on_id("WRITE"), on_group("READ"), on_topic("READ"))
def offset_commit_in_a_transaction(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"partition_index": 9, "committed_offset": 1, "committed_metadata": None}]
    return of_producer(
        facts,
        group_id=GROUP,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": name, "partitions": rows} for name in (TOPIC, OTHER)],
    )


@case(61, on_topic("READ"))
def describe_producers(facts: Facts, version: int) -> dict[str, Any]:
    names = (TOPIC, UNKNOWN, "bad name")
    return {"topics": [{"name": name, "partition_indexes": [0]} for name in names]}


@case(65, on_id("DESCRIBE"))
def describe_transactions(facts: Facts, version: int) -> dict[str, Any]:
    return {"transactional_ids": [ID]}


@case(65, on_id("DESCRIBE"), on_topic("DESCRIBE"), hides=True)
def describe_transactions_with_topics(facts: Facts, version: int) -> dict[str, Any]:
    return {"transactional_ids": [ID]}


@case(66, on_id("DESCRIBE"), hides=True)
def list_transactions(facts: Facts, version: int) -> dict[str, Any]:
    return {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }
