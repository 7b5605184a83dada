"""OffsetDelete, key 47, v0: deletes offsets of a group, except for topics that it subscribes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from subscriptions.committed_offset import TopicIdPartition


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not body.group_id:
        return Reply(error_code=ErrorCode.invalid_group_id, topics=[])
    known = {key: name for asked in body.topics for key, name in _known(asked, ctx)}
    try:
        codes = await ctx.groups.delete_offsets(body.group_id, known)
    except Refused as refused:
        return Reply(error_code=refused.code, topics=[])
    return Reply(
        error_code=ErrorCode.none, topics=[_topic(asked, codes, ctx) for asked in body.topics]
    )


def _known(asked: Any, ctx: Context) -> Iterator[tuple[TopicIdPartition, str]]:
    """Return the partitions that exist, each with the name of its topic."""
    topic = ctx.catalog.by_name(asked.name)
    for each in asked.partitions:
        if topic is not None and 0 <= each.partition_index < topic.partitions:
            yield TopicIdPartition(topic.topic_id, each.partition_index), topic.name


def _topic(asked: Any, codes: dict[TopicIdPartition, ErrorCode], ctx: Context) -> Reply:
    topic = ctx.catalog.by_name(asked.name)
    unknown = ErrorCode.unknown_topic_or_partition
    return Reply(
        name=asked.name,
        partitions=[
            Reply(
                partition_index=each.partition_index,
                error_code=unknown
                if topic is None
                else codes.get(TopicIdPartition(topic.topic_id, each.partition_index), unknown),
            )
            for each in asked.partitions
        ],
    )


API = Api(key=47, name="OffsetDelete", versions=range(1), handle=handle)
