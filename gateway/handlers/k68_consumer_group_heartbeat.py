"""ConsumerGroupHeartbeat, key 68, v0-v1: a consumer joins its group, goes on, or leaves.

v1 regular expressions, and ids of members that clients make. The reply is sent when the changes
that it shows are durable. The feature `group.version` must be finalized. A join to a classic group
with members makes it one of this protocol, where `group.consumer.migration.policy` permits that.
Source: Kafka, KafkaApis.handleConsumerGroupHeartbeat and GroupCoordinatorService.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.consumer_members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerRefused,
    Epochs,
)
from gateway.core.java_map import in_map_order
from gateway.core.shown_text import shown
from gateway.groups.coordinator import Refused, fresh_member_id
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.consumer_protocol import serves_consumer_protocol
from gateway.handlers.rights import (
    GROUP_DENIED,
    TOPIC_DENIED,
    allows_group,
    allows_topic,
    denied_topics,
)

_OWN_ID_FROM: Final = 1


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not serves_consumer_protocol(ctx):
        return _error(ErrorCode.unsupported_version)
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return _error(GROUP_DENIED)
    if denied_topics(request, ctx, Operation.DESCRIBE, body.subscribed_topic_names or ()):
        return _error(TOPIC_DENIED)

    def allows(topic: str) -> bool:
        return allows_topic(request, ctx, Operation.DESCRIBE, topic)

    try:
        _check(body, request.version, ctx.groups.limits.consumer_assignors)
        answer = await ctx.groups.consumers.heartbeat(body.group_id, _heartbeat(request), allows)
    except ConsumerRefused as refused:
        return _error(refused.code, shown(refused.text))
    except Refused as refused:
        return _error(refused.code)
    return Reply(
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval=timedelta(milliseconds=answer.interval_ms),
        assignment=None if answer.assigned is None else _assignment(answer.assigned),
    )


def _error(code: ErrorCode, text: str | None = None) -> Reply:
    return Reply(error_code=code, error_message=text, member_id=None, assignment=None)


def _assignment(assigned: Epochs) -> Reply:
    return Reply(
        topic_partitions=[
            Reply(topic_id=topic, partitions=sorted(some)) for topic, some in assigned.items()
        ]
    )


def _check(body: Any, version: int, assignors: Collection[str]) -> None:
    """Check a request as Kafka does before it reads the group. Raises ConsumerRefused.

    `assignors` are the enabled ones. The text lists them in the order of Java's sets.
    """
    epoch = body.member_epoch
    if version >= _OWN_ID_FROM or epoch > 0 or epoch == LEAVE_EPOCH:
        _refuse_blank(body.member_id, "MemberId can't be empty.")
    _refuse_blank(body.group_id, "GroupId can't be empty.")
    _refuse_blank(body.instance_id, "InstanceId can't be empty.")
    _refuse_blank(body.rack_id, "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(body)
    elif epoch == STATIC_LEAVE_EPOCH:
        if body.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise ConsumerRefused(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(in_map_order(assignors))}.",
        )


def _check_join(body: Any) -> None:
    if _ms(body.rebalance_timeout) == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if body.topic_partitions is None or body.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if (
        body.subscribed_topic_names is None
        and getattr(body, "subscribed_topic_regex", None) is None
    ):
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def _refuse_blank(value: str | None, text: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(text)


def _invalid(text: str) -> ConsumerRefused:
    return ConsumerRefused(ErrorCode.invalid_request, text)


def _heartbeat(request: Request) -> ConsumerHeartbeat:
    body = request.body
    names = body.subscribed_topic_names
    return ConsumerHeartbeat(
        member_id=body.member_id or fresh_member_id(),
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=_ms(body.rebalance_timeout),
        topics=None if names is None else frozenset(names),
        regex=getattr(body, "subscribed_topic_regex", None),
        assignor=body.server_assignor,
        owned=None if body.topic_partitions is None else _owned(body.topic_partitions),
        client_id=request.client_id or "",
        client_host="/" + request.peer.host,
    )


def _owned(topics: Any) -> dict[UUID, frozenset[int]]:
    """Return the partitions by topic. A topic may come twice."""
    found: dict[UUID, frozenset[int]] = {}
    for each in topics:
        topic_id = each.topic_id or UUID(int=0)
        found[topic_id] = found.get(topic_id, frozenset()) | frozenset(each.partitions)
    return found


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


API = Api(key=68, name="ConsumerGroupHeartbeat", versions=range(2), handle=handle)
