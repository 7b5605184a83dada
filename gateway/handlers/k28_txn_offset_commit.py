"""TxnOffsetCommit, key 28, v0-v5: stores offsets of a group until their transaction ends.

v2 leader epoch · v3 flexible, member and generation · v4 TRANSACTION_ABORTABLE in place of
INVALID_TXN_STATE · v5 adds the group to the transaction (KIP-890). The reply is sent when the
offsets are durable. They stay pending until the marker of the transaction reaches the group.
Source: Kafka, KafkaApis.handleTxnOffsetCommitRequest and
GroupCoordinatorService.commitTransactionalOffsets.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.groups.transactional_groups import offsets_partition
from gateway.groups.transactional_offsets import TransactionalCommit
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.k08_offset_commit import commit_rows, refused_rows
from gateway.handlers.many_rows import with_pauses
from gateway.handlers.rights import (
    GROUP_DENIED,
    ID_DENIED,
    TOPIC_DENIED,
    allows_group,
    allows_id,
    allows_topic,
)
from gateway.handlers.transaction_errors import keeps_pending
from gateway.topics.catalog import Topic
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

_ABORTABLE_FROM: Final = 4
_ADDS_FROM: Final = 5
_LOADING_FROM: Final = 2  # producers of earlier versions take COORDINATOR_LOAD_IN_PROGRESS as fatal
_CODES: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
}
"""The code of a request about a group in place of that of a partition, as in Kafka."""

_OUTSIDE: Final = (ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state)


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_id(request, ctx, Operation.WRITE, body.transactional_id):
        return Reply(topics=await refused_rows(request, ID_DENIED))
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return Reply(topics=await refused_rows(request, GROUP_DENIED))
    offsets: dict[TopicIdPartition, CommittedOffset] = {}
    faults: list[ErrorCode | None] = []  # of each row; those without one get the commit's code
    async for asked in with_pauses(body.topics, request):
        topic, now_ms = ctx.catalog.by_name(asked.name), ctx.clock.now_ms()
        denied = not allows_topic(request, ctx, Operation.READ, asked.name)
        async for each in with_pauses(asked.partitions, request):
            fault = TOPIC_DENIED if denied else _fault(each, topic, ctx)
            faults.append(fault)
            if topic is not None and fault is None:
                key = TopicIdPartition(topic.topic_id, each.partition_index)
                offsets[key] = CommittedOffset(
                    offset=each.committed_offset,
                    leader_epoch=getattr(each, "committed_leader_epoch", -1),
                    metadata=each.committed_metadata or "",
                    commit_time_ms=now_ms,
                )
    code = await _commit(request, ctx, offsets) if offsets else ErrorCode.none
    return Reply(topics=await commit_rows(request, faults, code))


def _fault(asked: Any, topic: Topic | None, ctx: Context) -> ErrorCode | None:
    """Return why an offset cannot be committed, or None."""
    if topic is None or not 0 <= asked.partition_index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if len(asked.committed_metadata or "") > ctx.config.groups.metadata_bytes_max:
        return ErrorCode.offset_metadata_too_large
    return None


async def _commit(
    request: Request, ctx: Context, offsets: dict[TopicIdPartition, CommittedOffset]
) -> ErrorCode:
    body = request.body
    verifier = ctx.partitions.verifier
    if not body.group_id:
        return ErrorCode.invalid_group_id
    if not keeps_pending(body.group_id, ctx):
        return ErrorCode.coordinator_not_available
    if verifier is None or not ctx.features.writes_new_forms:
        ctx.features.begin_new_forms()
        return ErrorCode.coordinator_not_available
    commit = TransactionalCommit(
        body.group_id,
        body.producer_id,
        body.producer_epoch,
        getattr(body, "member_id", ""),
        getattr(body, "generation_id", -1),
        getattr(body, "group_instance_id", None),
        offsets,
    )

    async def verify() -> ErrorCode:
        return await verifier.verify(
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            CONSUMER_OFFSETS,
            offsets_partition(body.group_id),
            adds=request.version >= _ADDS_FROM,
        )

    code = await ctx.groups.commit_in_transaction(commit, verify)
    code = _CODES.get(code, code)
    if code in _OUTSIDE:
        later = request.version >= _ABORTABLE_FROM
        return ErrorCode.transaction_abortable if later else ErrorCode.invalid_txn_state
    if code is ErrorCode.coordinator_load_in_progress and request.version < _LOADING_FROM:
        return ErrorCode.coordinator_not_available
    return code


API = Api(key=28, name="TxnOffsetCommit", versions=range(6), handle=handle)
