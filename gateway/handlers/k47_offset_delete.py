"""OffsetDelete, key 47, v0: deletes offsets of a group, except for topics that it subscribes to."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import GROUP_DENIED, TOPIC_DENIED, allows_group, allows_topic
from subscriptions.committed_offset import TopicIdPartition


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_group(request, ctx, Operation.DELETE, body.group_id):
        return Reply(error_code=GROUP_DENIED, topics=[])
    if not body.group_id:
        return Reply(error_code=ErrorCode.invalid_group_id, topics=[])
    try:
        codes = await ctx.groups.delete_offsets(body.group_id, await _known(request, ctx))
    except Refused as refused:
        return Reply(error_code=refused.code, topics=[])
    topics = Rows(request, "topics")
    async for asked in with_pauses(body.topics, request):
        rows = Rows(request, "topics", "partitions")
        denied = not allows_topic(request, ctx, Operation.READ, asked.name)
        async for each in with_pauses(asked.partitions, request):
            if denied:
                row = Reply(partition_index=each.partition_index, error_code=TOPIC_DENIED)
            else:
                row = _row(asked.name, each.partition_index, codes, ctx)
            await rows.add(row)
        await topics.add(Reply(name=asked.name, partitions=rows.result()))
    return Reply(error_code=ErrorCode.none, topics=topics.result())


async def _known(request: Request, ctx: Context) -> dict[TopicIdPartition, str]:
    """Return the partitions that exist, each with the name of its topic."""
    known: dict[TopicIdPartition, str] = {}
    async for asked in with_pauses(request.body.topics, request):
        topic = ctx.catalog.by_name(asked.name)
        if not allows_topic(request, ctx, Operation.READ, asked.name):
            continue
        async for each in with_pauses(asked.partitions, request):
            if topic is not None and 0 <= each.partition_index < topic.partitions:
                known[TopicIdPartition(topic.topic_id, each.partition_index)] = topic.name
    return known


def _row(name: str, index: int, codes: dict[TopicIdPartition, ErrorCode], ctx: Context) -> Reply:
    topic, code = ctx.catalog.by_name(name), ErrorCode.unknown_topic_or_partition
    if topic is not None:
        code = codes.get(TopicIdPartition(topic.topic_id, index), code)
    return Reply(partition_index=index, error_code=code)


API = Api(key=47, name="OffsetDelete", versions=range(1), handle=handle)
