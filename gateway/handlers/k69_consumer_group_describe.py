"""ConsumerGroupDescribe, key 69, v0-v1: returns the members of groups of the consumer protocol.

v1 the type of each member. The reply shows what is durable. A member has a partition until it has
revoked it. A group of the classic protocol gets GROUP_ID_NOT_FOUND.
Source: Kafka, KafkaApis.handleConsumerGroupDescribe and ConsumerGroup.asDescribedGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.consumer_members import ConsumerRefused
from gateway.core.shown_text import shown
from gateway.groups.consumer_groups import DescribedGroup, DescribedMember
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.consumer_protocol import serves_consumer_protocol
from gateway.handlers.many_rows import Rows, answer_each, with_pauses
from gateway.handlers.rights import (
    GROUP_DENIED,
    TOPIC_DENIED,
    allows_group,
    denied_topics,
    group_operations,
)

_NOT_REQUESTED: Final = -(2**31)
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
_HIDDEN: Final = "The group has described topic(s) that the client is not authorized to describe."

_Places = Mapping[UUID, Iterable[int]]


async def handle(request: Request, ctx: Context) -> Reply:
    groups = Rows(request, "groups")
    served = serves_consumer_protocol(ctx)
    named: list[str] = []
    async for group_id in with_pauses(request.body.group_ids, request):
        if not served:
            await groups.add(_error(group_id, ErrorCode.unsupported_version))
        elif not allows_group(request, ctx, Operation.DESCRIBE, group_id):
            await groups.add(_error(group_id, GROUP_DENIED))
        else:
            named.append(group_id)
    await answer_each(
        named,
        lambda group_id: _describe(group_id, request, ctx),
        lambda group_id: _error(group_id, ErrorCode.coordinator_not_available),
        groups,
        ctx,
    )
    return Reply(groups=groups.result())


async def _describe(group_id: str, request: Request, ctx: Context) -> Reply:
    if not group_id:
        return _error(group_id, ErrorCode.invalid_group_id)
    try:
        group = await ctx.groups.consumers.describe(group_id)
    except ConsumerRefused as refused:
        return _error(group_id, refused.code, shown(refused.text))
    except Refused as refused:
        return _error(group_id, refused.code)
    if denied_topics(request, ctx, Operation.DESCRIBE, _topics(group, ctx)):
        return _error(group_id, TOPIC_DENIED, _HIDDEN)
    asked = request.body.include_authorized_operations
    return Reply(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        authorized_operations=(
            group_operations(request, ctx, group_id) if asked else _NOT_REQUESTED
        ),
        members=[_member(each, ctx) for each in group.members],
    )


def _error(group_id: str, code: ErrorCode, text: str | None = None) -> Reply:
    return Reply(
        error_code=code,
        error_message=text,
        group_id=group_id,
        group_state="",
        assignor_name="",
        members=[],
        authorized_operations=_NOT_REQUESTED,
    )


def _topics(group: DescribedGroup, ctx: Context) -> set[str]:
    """Return the names of the topics whose partitions the reply shows."""
    ids = {
        topic
        for each in group.members
        for places in (each.member.assigned, each.member.revoking, each.target)
        for topic in places
    }
    known = (ctx.catalog.by_id(each) for each in ids)
    return {each.name for each in known if each is not None}


def _member(each: DescribedMember, ctx: Context) -> Reply:
    member, target = each
    owned: dict[UUID, list[int]] = {}
    for places in (member.assigned, member.revoking):
        for topic, some in places.items():
            owned.setdefault(topic, []).extend(some)
    return Reply(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(owned, ctx),
        target_assignment=_assignment(target, ctx),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(places: _Places, ctx: Context) -> Reply:
    known = [(ctx.catalog.by_id(topic_id), some) for topic_id, some in places.items()]
    return Reply(
        topic_partitions=[
            Reply(topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(some))
            for topic, some in known
            if topic is not None
        ]
    )


API = Api(key=69, name="ConsumerGroupDescribe", versions=range(2), handle=handle)
