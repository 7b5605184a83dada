"""Shared by the APIs of topics and configs: error codes, and the rows of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.port import Leader, StreamKey
from gateway.core.shown_text import bounded
from gateway.errors import admin_code
from gateway.handlers.api import Context, Peer, Reply, Request
from gateway.handlers.broker_endpoints import out_of_reach
from gateway.handlers.many_rows import Rows, answer_each, with_pauses
from gateway.handlers.rights import TOPIC_DENIED
from gateway.topics import errors
from gateway.topics.catalog import Topic
from gateway.topics.errors import TopicError
from ledger.errors import LedgerError

# The limit for all topics of a request, because replies are sent in order and the next ones wait.
WAIT_LED_S_MAX = 10.0
OPERATIONS_NOT_REQUESTED = -(2**31)

_NO_ERROR, _NO_LEADER = ErrorCode.none, ErrorCode.leader_not_available
_UNKNOWN_LEADER = Leader()

UNKNOWN_ID = "This server does not host this topic ID."
DUPLICATE_NAME = "Duplicate topic name."
AT_ONCE = 64  # topics or resources that one request changes at the same time

_Name = TypeVar("_Name", bound=Hashable)
_Key = TypeVar("_Key")


def copies_remark(ctx: Context, topic: Topic | None) -> str | None:
    """Return a warning for a topic whose settings no producer with acks=all can meet, or None."""
    if topic is None:
        return None
    wanted, copies = ctx.catalog.config(topic).min_insync_replicas, topic.replication_factor
    if wanted <= copies:
        return None
    return (
        f"min.insync.replicas={wanted} exceeds the replication factor {copies}: producers with "
        "acks=all get NOT_ENOUGH_REPLICAS."
    )


_CODES: dict[type[TopicError], ErrorCode] = {
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidReplicationFactor: ErrorCode.invalid_replication_factor,
    errors.InvalidConfig: ErrorCode.invalid_config,
}


class AdminRefusal(Exception):
    """A refusal of a request, or of one resource in it, with an error code and mostly a text."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code


def error_fields(error: TopicError | AdminRefusal | LedgerError) -> Reply:
    """Return `error_code` and `error_message` for one topic or resource."""
    if isinstance(error, TopicError):
        code = _CODES[type(error)]
    elif isinstance(error, AdminRefusal):
        code = error.code
    else:
        code = admin_code(error)
    return Reply(error_code=code, error_message=bounded(str(error)) or None)


async def reply_or_error(work: Awaitable[Reply], about: Reply) -> Reply:
    """Return the reply of `work`. If it raises an error, return `about` with that error."""
    try:
        return await work
    except (TopicError, AdminRefusal, LedgerError) as error:
        return Reply(about, **error_fields(error))


async def change_each(
    asked: Iterable[_Key],
    change: Callable[[_Key], Awaitable[Reply]],
    about: Callable[[_Key], Reply],
    rows: Rows,
    ctx: Context,
) -> None:
    """Change each topic or resource of a request, `AT_ONCE` at a time, and add its row.

    The row of one that fails, or is not reached in time, is `about(asked)` with the error.
    """
    await answer_each(
        asked,
        lambda each: reply_or_error(change(each), about(each)),
        lambda each: not_reached(about(each)),
        rows,
        ctx,
        at_once=AT_ONCE,
    )


def not_reached(about: Reply) -> Reply:
    """Return `about` with a retriable error: the request has no time, or its reply no room."""
    late = AdminRefusal(
        ErrorCode.request_timed_out, "The request names too much for its time or for one reply."
    )
    return Reply(about, **error_fields(late))


async def duplicates(names: Iterable[_Name], request: Request) -> set[_Name]:
    """Return the names that occur more than once."""
    seen: set[_Name] = set()
    again: set[_Name] = set()
    async for name in with_pauses(names, request):
        (again if name in seen else seen).add(name)
    return again


def partition_rows(
    topic: Topic, indexes: Iterable[int], ctx: Context, peer: Peer, unlisted: ErrorCode
) -> list[Reply]:
    """Return the rows of partitions for Metadata and DescribeTopicPartitions.

    The replicas are the brokers that may serve fetches: the leader, then the next brokers of the
    ring. A partition without a leader has its last epoch, and an error that makes clients retry.
    Without the lease this broker does not name itself as leader, because it may have lost its
    partitions. A partition whose leader lacks the listener of this client has none either, and the
    error `unlisted`.
    """
    far = out_of_reach(ctx, peer)
    cluster, topic_id, count = ctx.cluster, topic.topic_id, topic.replication_factor
    unsure = -1 if cluster.lease_held() else cluster.node_id
    rows: list[Reply] = []
    for index in indexes:
        key = StreamKey(topic_id, index)
        leader = cluster.leader(key)
        if leader.node_id == unsure:
            leader = _UNKNOWN_LEADER
        nodes = cluster.replicas(key, count)
        code, leader_id = _NO_ERROR, leader.node_id
        if leader_id < 0:
            code = _NO_LEADER
        elif leader_id in far:
            code, leader_id = unlisted, -1
        rows.append(
            Reply(
                error_code=code,
                partition_index=index,
                leader_id=leader_id,
                leader_epoch=leader.epoch if leader.epoch >= 0 else cluster.leader_epoch(key),
                replica_nodes=nodes,
                isr_nodes=nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[node for node in nodes if node in far] if far else [],
            )
        )
    return rows


async def wait_led(topics: Sequence[Topic], request: Request, ctx: Context) -> None:
    """Wait until the owners of all partitions have opened them, for the request's timeout at most.

    So a client that receives a new topic finds its leaders ready.
    """
    timeout_s: float = request.body.timeout.total_seconds()
    end_s = ctx.clock.monotonic_s() + min(max(timeout_s, 0.0), WAIT_LED_S_MAX)
    async for topic in with_pauses(topics, request):
        left_s = max(end_s - ctx.clock.monotonic_s(), 0.0)
        await ctx.cluster.wait_led(topic.topic_id, left_s)


def hidden_topic(name: str | None, topic_id: UUID | None, *, internal: bool = False) -> Reply:
    """Return the row of a topic that the client may not describe or create.

    It does not show whether the topic exists. A topic that is named by its id has no name there.
    """
    return Reply(
        error_code=TOPIC_DENIED,
        name=name,
        topic_id=topic_id,
        is_internal=internal,
        partitions=[],
        topic_authorized_operations=OPERATIONS_NOT_REQUESTED,
    )
