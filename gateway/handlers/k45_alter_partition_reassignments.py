"""AlterPartitionReassignments, key 45, v0-v1: refuses to move partitions, which follow the ring.

v1 whether the number of replicas may change.
An assignment to the replicas that a partition has already succeeds, as in Kafka. No other one can
be carried out, so it is refused. No reassignment is ever in progress.
Source: Kafka, ReplicationControlManager.alterPartitionReassignments (order of checks, texts).
Not done: moving partitions to chosen brokers (INVALID_REPLICA_ASSIGNMENT).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.cluster.port import StreamKey
from gateway.core.shown_text import shown
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.assigned_replicas import check_assigned_replicas
from gateway.handlers.broker_endpoints import live_ids
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster
from gateway.handlers.topic_replies import AdminRefusal, error_fields

_NAMED_MAX = 10  # replicas that an error text names


async def handle(request: Request, ctx: Context) -> Reply:
    responses = Rows(request, "responses")
    fixed = not getattr(request.body, "allow_replication_factor_change", True)
    brokers = live_ids(ctx)
    denied = not allows_cluster(request, ctx, Operation.ALTER)
    async for each in with_pauses(request.body.topics, request):
        rows = Rows(request, "responses", "partitions")
        async for asked in with_pauses(each.partitions, request):
            if denied:
                row = _denied(asked)
            else:
                row = _row(each.name, asked, fixed, brokers, ctx)
            await rows.add(Reply(row, error_message=rows.text(row["error_message"])))
        await responses.add(Reply(name=each.name, partitions=rows.result()))
    if denied:
        return Reply(
            error_code=CLUSTER_DENIED, error_message=CLUSTER_TEXT, responses=responses.result()
        )
    return Reply(
        allow_replication_factor_change=not fixed,
        error_code=ErrorCode.none,
        error_message=None if request.body.topics else "",
        responses=responses.result(),
    )


def _denied(asked: Any) -> Reply:
    return Reply(
        partition_index=asked.partition_index,
        error_code=CLUSTER_DENIED,
        error_message=CLUSTER_TEXT,
    )


def _row(name: str, asked: Any, fixed: bool, brokers: Container[int], ctx: Context) -> Reply:
    row = Reply(partition_index=asked.partition_index, error_code=ErrorCode.none)
    try:
        _check(name, asked, fixed, brokers, ctx)
    except AdminRefusal as refusal:
        return Reply(row, **error_fields(refusal))
    if asked.replicas is None:
        row["error_code"] = ErrorCode.no_reassignment_in_progress
    return Reply(row, error_message=None)


def _check(name: str, asked: Any, fixed: bool, brokers: Container[int], ctx: Context) -> None:
    """Raise AdminRefusal unless the partition has the assignment, or there is none to cancel."""
    topic = ctx.catalog.by_name(name)
    unknown = ErrorCode.unknown_topic_or_partition
    if topic is None:
        raise AdminRefusal(unknown, f"Unable to find a topic named {shown(name)}.")
    index: int = asked.partition_index
    if not 0 <= index < topic.partitions:
        raise AdminRefusal(unknown, f"Unable to find partition {name}:{index}.")
    if asked.replicas is None:
        return
    check_assigned_replicas(asked.replicas, brokers)
    present = ctx.cluster.replicas(StreamKey(topic.topic_id, index), topic.replication_factor)
    if list(asked.replicas) == present:
        return
    if fixed and len(asked.replicas) != len(present):
        raise AdminRefusal(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(present)} to {len(asked.replicas)}",
        )
    raise AdminRefusal(
        ErrorCode.invalid_replica_assignment,
        f"Brokers cannot be assigned to a partition: its replicas are {_shown(present)}, the "
        "leader and the next brokers of the ring, and its records are on bookies.",
    )


def _shown(replicas: Sequence[int]) -> str:
    more = ", ..." if len(replicas) > _NAMED_MAX else ""
    return f"[{', '.join(map(str, replicas[:_NAMED_MAX]))}{more}]"


API = Api(key=45, name="AlterPartitionReassignments", versions=range(2), handle=handle)
