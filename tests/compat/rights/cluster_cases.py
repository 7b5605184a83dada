"""Requests about the cluster, its ACLs, configs, quotas and users."""

from __future__ import annotations

from typing import Any

from tests.compat.rights.language import (
    GROUP,
    TOPIC,
    UNKNOWN,
    Facts,
    case,
    on_cluster,
    on_group,
    on_topic,
)

FILTER = {
    "resource_type_filter": 3,
    "resource_name_filter": "rights-no-acl",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@case(29, on_cluster("DESCRIBE"))
def describe_acls(facts: Facts, version: int) -> dict[str, Any]:
    return {**FILTER}


@case(30, on_cluster("ALTER"))
def create_acls(facts: Facts, version: int) -> dict[str, Any]:
    wrong = {
        "resource_type": 2,
        "resource_name": "",
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return {
        "creations": [
            wrong,
            wrong | {"resource_name": "t", "principal": "ann"},
            wrong | {"resource_name": "t", "operation": 99},
            wrong | {"resource_name": "t", "resource_pattern_type": 99},
            wrong | {"resource_type": 4, "resource_name": "cluster"},
        ]
    }


@case(30, on_cluster("ALTER"))
def create_an_acl_for_any(facts: Facts, version: int) -> dict[str, Any]:
    rows = create_acls(facts, version)["creations"]
    return {"creations": [*rows, rows[1] | {"operation": 1}]}


@case(31, on_cluster("ALTER"))
def delete_acls(facts: Facts, version: int) -> dict[str, Any]:
    return {"filters": [FILTER, FILTER | {"operation": 99}]}


def resources(*named_resources: tuple[int, str], **more: Any) -> dict[str, Any]:
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configs": [], **more}
            for kind, name in named_resources
        ],
        "include_synonyms": False,
        "include_documentation": False,
        "validate_only": True,
    }


@case(32, on_cluster("DESCRIBE_CONFIGS"))
def describe_configs_of_clients(facts: Facts, version: int) -> dict[str, Any]:
    return resources((16, "rights-metrics"), configuration_keys=["interval.ms"])


@case(32, on_topic("DESCRIBE_CONFIGS"))
def describe_configs_of_topics(facts: Facts, version: int) -> dict[str, Any]:
    return resources((2, TOPIC), (2, UNKNOWN), configuration_keys=["retention.ms"])


@case(32, on_group("DESCRIBE_CONFIGS"))
def describe_configs_of_groups(facts: Facts, version: int) -> dict[str, Any]:
    keys = ["consumer.session.timeout.ms"]
    return resources((32, GROUP), configuration_keys=keys)


def altered(kind: int, name: str, config: str, value: str) -> dict[str, Any]:
    rows = [{"name": config, "value": value, "config_operation": 0}]
    asked = {"resource_type": kind, "resource_name": name, "configs": rows}
    return {"resources": [asked], "validate_only": True}


@case(33, on_cluster("ALTER_CONFIGS"))
@case(44, on_cluster("ALTER_CONFIGS"))
def alter_configs_of_clients(facts: Facts, version: int) -> dict[str, Any]:
    return altered(16, "rights-metrics", "interval.ms", "1000")


@case(33, on_topic("ALTER_CONFIGS"))
@case(44, on_topic("ALTER_CONFIGS"))
def alter_configs_of_topics(facts: Facts, version: int) -> dict[str, Any]:
    return altered(2, TOPIC, "retention.ms", "1000")


@case(33, on_group("ALTER_CONFIGS"))
@case(44, on_group("ALTER_CONFIGS"))
def alter_configs_of_groups(facts: Facts, version: int) -> dict[str, Any]:
    return altered(32, GROUP, "consumer.session.timeout.ms", "50000")


@case(44)
def alter_configs_twice(facts: Facts, version: int) -> dict[str, Any]:
    once = altered(2, TOPIC, "retention.ms", "1000")
    return {**once, "resources": 2 * once["resources"]}


@case(34, on_cluster("ALTER"))
def alter_replica_log_dirs(facts: Facts, version: int) -> dict[str, Any]:
    topics = [{"name": UNKNOWN, "partitions": [0, 1]}]
    return {"dirs": [{"path": "/no-such-directory", "topics": topics}]}


@case(35, on_cluster("DESCRIBE"))
def describe_log_dirs(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [{"topic": UNKNOWN, "partitions": [0]}]}


@case(43, on_cluster("ALTER"))
def elect_leaders(facts: Facts, version: int) -> dict[str, Any]:
    topics = [{"topic": UNKNOWN, "partitions": [0, 1]}]
    return {"election_type": 0, "topic_partitions": topics, "timeout": 5_000}


@case(45, on_cluster("ALTER"))
def alter_partition_reassignments(facts: Facts, version: int) -> dict[str, Any]:
    rows = [{"partition_index": 0, "replicas": None}]
    return {"timeout": 5_000, "topics": [{"name": UNKNOWN, "partitions": rows}]}


@case(46, on_cluster("DESCRIBE"))
def list_partition_reassignments(facts: Facts, version: int) -> dict[str, Any]:
    return {"timeout": 5_000, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}


@case(48, on_cluster("DESCRIBE_CONFIGS"))
def describe_client_quotas(facts: Facts, version: int) -> dict[str, Any]:
    part = {"entity_type": "user", "match_type": 0, "match": "nobody"}
    return {"components": [part], "strict": True}


@case(49, on_cluster("ALTER_CONFIGS"))
def alter_client_quotas(facts: Facts, version: int) -> dict[str, Any]:
    entity = [{"entity_type": "user", "entity_name": "somebody"}]
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    return {"entries": [{"entity": entity, "ops": ops}], "validate_only": True}


@case(50, on_cluster("DESCRIBE"))
def describe_scram_users(facts: Facts, version: int) -> dict[str, Any]:
    return {"users": [{"name": "nobody"}, {"name": "somebody"}]}


@case(51, on_cluster("ALTER"))
def alter_scram_users(facts: Facts, version: int) -> dict[str, Any]:
    gone = [{"name": name, "mechanism": 1} for name in ("nobody", "a-user")]
    return {"deletions": gone, "upsertions": []}


@case(55, on_cluster("DESCRIBE"))
def describe_quorum(facts: Facts, version: int) -> dict[str, Any]:
    return {"topics": [{"topic_name": UNKNOWN, "partitions": [{"partition_index": 0}]}]}


@case(57, on_cluster("ALTER"))
def update_features(facts: Facts, version: int) -> dict[str, Any]:
    update = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
    return {"timeout": 5_000, "feature_updates": [update], "validate_only": True}


@case(74, on_cluster("DESCRIBE_CONFIGS"))
def list_config_resources(facts: Facts, version: int) -> dict[str, Any]:
    return {"resource_types": [16]}
