"""What the topic APIs share: codes for what the catalog refuses, rows for partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from kio.schema.errors import ErrorCode

from gateway.errors import code_for
from gateway.handlers.api import Context, Reply
from gateway.topics import errors
from gateway.topics.catalog import Topic
from gateway.topics.errors import TopicError
from ledger.errors import LedgerError

UNASKED_OPERATIONS = -(2**31)
# One bit per AclOperation: all that Kafka lists for the resource when nothing forbids it.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

UNKNOWN_ID = "This server does not host this topic ID."
DUPLICATE_NAME = "Duplicate topic name."

_CODES: dict[type[TopicError], ErrorCode] = {
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidReplicationFactor: ErrorCode.invalid_replication_factor,
    errors.InvalidConfig: ErrorCode.invalid_config,
}


class Refused(Exception):
    """A request, or one topic of it, that gets this code and text instead of an answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_fields(error: TopicError | Refused | LedgerError) -> Reply:
    """`error_code` and `error_message` of one topic's answer."""
    if isinstance(error, TopicError):
        code = _CODES[type(error)]
    elif isinstance(error, Refused):
        code = error.code
    else:
        code = admin_code(error)
    return Reply(error_code=code, error_message=str(error))


def admin_code(error: LedgerError) -> ErrorCode:
    """Like `code_for`; what may pass gets a code after which admin clients try again."""
    return ErrorCode.not_controller if error.retryable else code_for(error)


async def outcome(work: Awaitable[Reply], about: Reply) -> Reply:
    """What `work` answers, or `about` with the error that it raised."""
    try:
        return await work
    except (TopicError, Refused, LedgerError) as error:
        return Reply(about, **error_fields(error))


def repeated(names: Iterable[str]) -> set[str]:
    """Those that occur more than once."""
    seen: set[str] = set()
    again: set[str] = set()
    for name in names:
        (again if name in seen else seen).add(name)
    return again


def partition_rows(topic: Topic, indexes: Iterable[int], ctx: Context) -> list[Reply]:
    """Partitions as Metadata and DescribeTopicPartitions show them: this process leads them all."""
    node_id = ctx.config.node_id
    nodes = [node_id]
    leader_epoch = ctx.partitions.leader_epoch
    return [
        Reply(
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=node_id,
            leader_epoch=leader_epoch(topic, index),
            replica_nodes=nodes,
            isr_nodes=nodes,
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=[],
        )
        for index in indexes
    ]
