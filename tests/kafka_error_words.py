"""Cause and fix of the error codes of Kafka, as this server answers with them, for docs/errors.md.

Codes that the server does not answer with yet may have words here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.error_words import Words

_RETRIES = "none: clients retry"
_LOOKS_AGAIN = "none: clients look for the leader again and retry"
_COORDINATOR = "none: clients look for the coordinator again and retry"
_UPGRADE = "report it: the client and the server disagree about the protocol"
_RESTART = "restart the producer; with a transactional id, one process at a time may use it"
_ACL = "let the principal have the right, or use another principal"

KAFKA: Final[Mapping[str, Words]] = {
    "unknown_server_error": Words(
        "an unexpected exception, or a value that no other code describes",
        "read the message, and the log of the gateway",
    ),
    "offset_out_of_range": Words(
        "the offset is below the start of the log or beyond its end",
        "choose `auto.offset.reset`, or move the group by `gateway group seek`",
    ),
    "corrupt_message": Words(
        "the checksum of a batch is wrong, or its form is damaged",
        "retry; if it comes again, report it with the client's name and version",
    ),
    "unknown_topic_or_partition": Words(
        "there is no such topic or partition, or it was deleted",
        "`gateway topic list` lists them; create it by `gateway topic create`",
    ),
    "invalid_fetch_size": Words("the size of a fetch is negative", "correct the client's setting"),
    "leader_not_available": Words("no gateway leads the partition yet", _LOOKS_AGAIN),
    "not_leader_or_follower": Words(
        "another gateway leads the partition, or it is not known whether the batch was written",
        _LOOKS_AGAIN,
    ),
    "request_timed_out": Words(
        "the request was not done within its timeout",
        "raise the timeout of the client; `gateway slow` shows where the time goes",
    ),
    "replica_not_available": Words(
        "it is not known now on which bookies the partition lies",
        "try again; `gateway bookie list` shows which are away",
    ),
    "message_too_large": Words(
        "a batch is larger than `max.message.bytes` of its topic, or than an entry may be",
        "raise `max.message.bytes`, or lower `batch.size` or the size of the records",
    ),
    "stale_controller_epoch": Words("an old controller asked", _RETRIES),
    "offset_metadata_too_large": Words(
        "the metadata of a commit is longer than 4,096 bytes", "commit shorter metadata"
    ),
    "network_exception": Words("another gateway did not answer", _RETRIES),
    "coordinator_load_in_progress": Words("the coordinator still reads its state", _RETRIES),
    "coordinator_not_available": Words(
        "no gateway coordinates the group or transactional id now", _COORDINATOR
    ),
    "not_coordinator": Words("another gateway is the coordinator", _COORDINATOR),
    "invalid_topic_exception": Words(
        "the name of the topic is not allowed, or the topic is internal",
        "use up to 249 of `a-z A-Z 0-9 . _ -`",
    ),
    "record_list_too_large": Words(
        "a batch is larger than one may be once it is written anew",
        "lower `batch.size` of the producer",
    ),
    "not_enough_replicas": Words(
        "too few bookies take writes: fewer than `min.insync.replicas` or than a quorum",
        "`gateway bookie list` shows which are away; start them, or add one",
    ),
    "not_enough_replicas_after_append": Words(
        "too few bookies acknowledged the record, which may be stored", _RETRIES
    ),
    "invalid_required_acks": Words("`acks` is none of 0, 1 and all (-1)", "correct `acks`"),
    "illegal_generation": Words(
        "the group has rebalanced since the member joined",
        "none: consumers join again; a commit after a rebalance is lost, so commit more often",
    ),
    "inconsistent_group_protocol": Words(
        "the members of the group have no assignor in common",
        "let all members use the same `partition.assignment.strategy`",
    ),
    "invalid_group_id": Words("the id of the group is empty", "set `group.id`"),
    "unknown_member_id": Words(
        "the member was removed, mostly because it was silent for its session timeout",
        "none: consumers join again; if it comes often, raise `session.timeout.ms` or "
        "`max.poll.interval.ms`",
    ),
    "invalid_session_timeout": Words(
        "`session.timeout.ms` is outside of the bounds of the server",
        "choose 6 s to 30 min, or change `--group-min-session-timeout` and "
        "`--group-max-session-timeout`",
    ),
    "rebalance_in_progress": Words("the group rebalances", "none: consumers join again"),
    "invalid_commit_offset_size": Words(
        "the offsets of one commit are too large to be stored together", "commit fewer at a time"
    ),
    "topic_authorization_failed": Words("the principal may not do this with the topic", _ACL),
    "group_authorization_failed": Words("the principal may not do this with the group", _ACL),
    "cluster_authorization_failed": Words(
        "the principal may not do this with the cluster; replicas of Kafka cannot fetch here", _ACL
    ),
    "invalid_timestamp": Words(
        "a timestamp is outside of `message.timestamp.before.max.ms` and `.after.max.ms`",
        "correct the clock of the producer, or change the settings of the topic",
    ),
    "unsupported_sasl_mechanism": Words(
        "the server does not have this SASL mechanism", "choose one that the message names"
    ),
    "illegal_sasl_state": Words("a request came before or after its turn in SASL", _UPGRADE),
    "unsupported_version": Words(
        "the server does not have this version of the request, or cannot do what it asks for",
        "compare with [kafka-api.md](kafka-api.md) and [NOT_DONE.md](NOT_DONE.md)",
    ),
    "topic_already_exists": Words("there is a topic of this name", "choose another name"),
    "invalid_partitions": Words(
        "the number of partitions is not allowed",
        "a topic has at least 1, never loses any, and all topics share a limit, which the message "
        "names",
    ),
    "invalid_replication_factor": Words(
        "the replication factor is larger than the number of bookies, or less than 1",
        "choose a smaller one, or add bookies",
    ),
    "invalid_replica_assignment": Words(
        "the assignment names brokers that do not live, or moves partitions to chosen brokers",
        "leave out the assignment: leaders follow the gateways",
    ),
    "invalid_config": Words(
        "a setting does not exist or has a wrong value", "`gateway topic config explain` has it"
    ),
    "not_controller": Words("the metadata store did not answer in time", _RETRIES),
    "invalid_request": Words("the request has fields that contradict each other", _UPGRADE),
    "unsupported_for_message_format": Words(
        "a marker of a transaction for `__transaction_state`, which holds no records of clients",
        "nothing: only tools send such markers",
    ),
    "policy_violation": Words(
        "a bound of stored settings, quotas or transactions is reached, or records of a topic that "
        "is only compacted were to be deleted",
        "the message names the bound; truncate only topics whose `cleanup.policy` has `delete`",
    ),
    "out_of_order_sequence_number": Words(
        "batches of an idempotent producer are missing before this one",
        "restart the producer; with `max.in.flight.requests.per.connection` above 5, lower it",
    ),
    "duplicate_sequence_number": Words(
        "the batch was written before", "none: the producer takes it as written"
    ),
    "invalid_producer_epoch": Words("a newer producer has taken over", _RESTART),
    "invalid_txn_state": Words(
        "the transaction is in another state than the request needs",
        "abort the transaction, and begin again",
    ),
    "invalid_producer_id_mapping": Words(
        "the transactional id belongs to another producer id, or it has expired", _RESTART
    ),
    "invalid_transaction_timeout": Words(
        "`transaction.timeout.ms` is larger than the server allows", "choose at most 15 minutes"
    ),
    "concurrent_transactions": Words("the transaction before is still being completed", _RETRIES),
    "transaction_coordinator_fenced": Words(
        "a newer coordinator has written to the partition", _COORDINATOR
    ),
    "transactional_id_authorization_failed": Words(
        "the principal may not use the transactional id, or the id is missing", _ACL
    ),
    "security_disabled": Words(
        "the server has no authorizer, so there are no ACLs",
        "start all gateways with [`--authorizer standard`](security-acls.md)",
    ),
    "operation_not_attempted": Words(
        "another part of the request failed, so this one was not tried", "correct that part"
    ),
    "kafka_storage_error": Words(
        "the storage tier could not read or write", "`gateway doctor`, and the log of the gateway"
    ),
    "log_dir_not_found": Words(
        "there is no such log directory: a partition is on the bookies of its ledgers",
        "leave the partition where it is",
    ),
    "sasl_authentication_failed": Words(
        "name or password is wrong, or the mechanism is another one",
        "correct `sasl.jaas.config`, or `sasl.username` and `sasl.password`",
    ),
    "unknown_producer_id": Words(
        "records of this producer were lost, so its next sequence number is not known",
        "restart the producer; without a transactional id, clients begin a new sequence themselves",
    ),
    "reassignment_in_progress": Words("the partition is being moved", _RETRIES),
    "delegation_token_auth_disabled": Words(
        "the server has no delegation tokens", "authenticate in another way"
    ),
    "delegation_token_request_not_allowed": Words(
        "delegation tokens need a connection that is authenticated", "authenticate in another way"
    ),
    "invalid_principal_type": Words("the type of a principal is not `User`", "write `User:name`"),
    "non_empty_group": Words("the group has members", "stop its consumers first"),
    "group_id_not_found": Words(
        "there is no such group", "`gateway group list` lists them; a group expires when unused"
    ),
    "fetch_session_id_not_found": Words(
        "the session of fetches was evicted", "none: clients begin a new one"
    ),
    "invalid_fetch_session_epoch": Words(
        "a request of the session of fetches is missing", "none: clients begin a new one"
    ),
    "listener_not_found": Words(
        "the leader has no address at the listener of the client",
        "give all gateways listeners of the same names",
    ),
    "topic_deletion_disabled": Words("`delete.topic.enable` is false", "set it"),
    "fenced_leader_epoch": Words("the client knows an older leader", _LOOKS_AGAIN),
    "unknown_leader_epoch": Words("the client knows a newer leader than the gateway", _RETRIES),
    "unsupported_compression_type": Words(
        "the client is too old for zstd, or the codec is unknown",
        "upgrade the client, or choose another `compression.type`",
    ),
    "stale_broker_epoch": Words("an older life of the broker asked", _RETRIES),
    "offset_not_available": Words("the new leader does not know the end of the log yet", _RETRIES),
    "member_id_required": Words("a new member gets its id first", "none: consumers join with it"),
    "preferred_leader_not_available": Words(
        "the preferred leader does not live", "start that gateway"
    ),
    "group_max_size_reached": Words(
        "the group has as many members as it may have", "use another group or fewer consumers"
    ),
    "fenced_instance_id": Words(
        "another consumer has the same `group.instance.id`", "give each consumer its own"
    ),
    "eligible_leaders_not_available": Words("no gateway could lead the partition", "start one"),
    "election_not_needed": Words("the preferred leader leads already", "nothing"),
    "no_reassignment_in_progress": Words("the partition is not being moved", "nothing"),
    "group_subscribed_to_topic": Words(
        "members of the group read the topic, so its offsets are in use", "stop them first"
    ),
    "invalid_record": Words(
        "a record is malformed, or has no key and the topic is compacted",
        "the message names the record; give it a key",
    ),
    "unstable_offset_commit": Words(
        "a transaction with offsets of the partition is open", _RETRIES
    ),
    "throttling_quota_exceeded": Words("a quota of the client is used up", "none: clients wait"),
    "producer_fenced": Words("a newer producer has taken over the transactional id", _RESTART),
    "resource_not_found": Words("there are no credentials of this user", "compare the name"),
    "duplicate_resource": Words("the request names a user twice", "name it once"),
    "unacceptable_credential": Words(
        "salt, iterations or name of a credential are not acceptable",
        "4,096 to 16,384 iterations; the message has the reason",
    ),
    "feature_update_failed": Words("a feature could not be changed", "the message has the reason"),
    "invalid_update_version": Words(
        "a feature has no such level, or a gateway does not support it",
        "`gateway feature describe` shows the levels",
    ),
    "transactional_id_not_found": Words(
        "there is no such transactional id", "`gateway transaction list` lists them"
    ),
    "unknown_topic_id": Words(
        "there is no topic of this id: it was deleted, or created again", _LOOKS_AGAIN
    ),
    "unsupported_endpoint_type": Words("only brokers can be described", "ask for brokers"),
    "mismatched_endpoint_type": Words("the request is of another kind of server", _UPGRADE),
    "transaction_abortable": Words(
        "the transaction cannot go on", "abort it, and begin a new one; the producer stays usable"
    ),
    "fenced_member_epoch": Words(
        "the coordinator has another epoch for the member, such as after its session ended",
        "none: consumers give up their partitions and join again",
    ),
    "stale_member_epoch": Words(
        "the member has moved to another epoch since, or no longer has the partition",
        "none: consumers learn their epoch with the next heartbeat, and try again",
    ),
    "unreleased_instance_id": Words(
        "another consumer has the same `group.instance.id`, and has not left",
        "give each consumer its own, or wait until the session of the other one ends",
    ),
    "unsupported_assignor": Words(
        "`group.remote.assignor` names no assignor of the gateway", "use `uniform` or `range`"
    ),
    "invalid_regular_expression": Words("the pattern is no expression of RE2", "correct it"),
    "invalid_share_session_epoch": Words("share groups are not served", "use consumer groups"),
}
