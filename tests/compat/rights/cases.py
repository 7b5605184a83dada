"""One request or more for each API, with the rights that it needs on the resources of a world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from gateway.access import CLUSTER, Operation, ResourceType
from gateway.handlers.rights import Right
from tests.batches import plain_batch, raw_batch, record

TOPIC, OTHER, GROUP, ID = "rights-t", "rights-u", "rights-g", "rights-x"
UNKNOWN = "rights-none"
NOTE = "SECRET-NOTE"
VALUE = b"SECRET-VALUE"
USER = "SECRET-USER"
DOOMED = "rights-doomed"


class Need(NamedTuple):
    """A right on one resource."""

    operation: Operation
    kind: ResourceType
    name: str

    @property
    def right(self) -> Right:
        return Right(self.operation, self.kind)

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {self.name}"


class Facts(NamedTuple):
    """What a server chose for the resources of the world."""

    ids: dict[str, UUID]
    producer_id: int
    producer_epoch: int


Body = Callable[[Facts, int], dict[str, Any]]


class Case(NamedTuple):
    """One request, in all versions between two, and the rights that it needs."""

    key: int
    name: str
    needs: tuple[Need, ...]
    body: Body
    since: int = 0
    until: int = 99
    hides: bool = False  # without a right something is missing, and nothing is refused

    def __str__(self) -> str:
        return f"{self.key}-{self.name} by {', '.join(map(str, self.needs))}"


CASES: list[Case] = []


def case(
    key: int, *needs: Need, since: int = 0, until: int = 99, hides: bool = False
) -> Callable[[Body], Body]:
    """Add a case, with the name of its function."""

    def add(body: Body) -> Body:
        name = body.__name__.strip("_").replace("_", "-")
        CASES.append(Case(key, name, needs, body, since, until, hides))
        return body

    return add


def on_topic(operation: str, name: str = TOPIC) -> Need:
    return Need(Operation(operation), ResourceType.TOPIC, name)


def on_group(operation: str, name: str = GROUP) -> Need:
    return Need(Operation(operation), ResourceType.GROUP, name)


def on_id(operation: str, name: str = ID) -> Need:
    return Need(Operation(operation), ResourceType.TRANSACTIONAL_ID, name)


def on_cluster(operation: str) -> Need:
    return Need(Operation(operation), ResourceType.CLUSTER, CLUSTER.name)


def named(facts: Facts, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "topic": name, "topic_id": facts.ids.get(name), **more}


def transactional(facts: Facts) -> bytes:
    return raw_batch(
        record(0, 0, None, VALUE),
        attributes=0x10,
        producer=facts.producer_id,
        epoch=facts.producer_epoch,
        sequence=0,
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


# the cluster

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
