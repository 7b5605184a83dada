"""DescribeTopicPartitions, key 75, v0: returns topics by name, in pages with a cursor.

Source: KIP-966; Kafka, DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import merge
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.topic_names import is_internal, topic_name_fault
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import allows_topic, topic_operations
from gateway.handlers.topic_replies import hidden_topic, partition_rows

PARTITIONS_MAX = 2_000  # Kafka: max.request.partition.size.limit
_SORTED_AT_ONCE = 500


async def handle(request: Request, ctx: Context) -> Reply:
    cursor = request.body.cursor
    names = await _names(request)
    fault = _fault(cursor, names)
    if fault is not None:
        refused = Rows(request, "topics")
        for name in names:
            await refused.add(_missing(name, fault))
        return Reply(topics=refused.result())
    if not names:
        names = {topic.name: None for topic in ctx.catalog.all()}
        return await _page(names, request, ctx, Rows(request, "topics"), all_topics=True)
    return await _page(names, request, ctx, Rows(request, "topics"))


async def _names(request: Request) -> dict[str, None]:
    """Return the names of a request in their order, each once. Short lists are sorted at a time."""
    short: list[list[str]] = [[]]
    async for topic in with_pauses(request.body.topics, request):
        if len(short[-1]) == _SORTED_AT_ONCE:
            short[-1].sort()
            short.append([])
        short[-1].append(topic.name)
    short[-1].sort()
    names: dict[str, None] = {}
    async for name in with_pauses(merge(*short), request):
        names[name] = None
    return names


def _fault(cursor: Any, names: Mapping[str, None]) -> ErrorCode | None:
    """Return why the whole request is refused, or None."""
    if "" in names:  # as in Kafka, whose handler fails
        return ErrorCode.unknown_server_error
    if cursor is None:
        return None
    unknown = bool(names) and cursor.topic_name not in names
    return ErrorCode.invalid_request if cursor.partition_index < 0 or unknown else None


async def _page(
    names: Iterable[str], request: Request, ctx: Context, rows: Rows, *, all_topics: bool = False
) -> Reply:
    """Return the topics from the cursor on, up to the limit of partitions.

    As in Kafka, unknown topics do not count: their rows have no partitions. Topics that the client
    may not describe are left out of all topics, and have an error if the request names them.
    """
    cursor = request.body.cursor
    room = max(1, min(request.body.response_partition_limit, PARTITIONS_MAX))
    async for name in with_pauses(names, request):
        if cursor is not None and name < cursor.topic_name:
            continue
        if not allows_topic(request, ctx, Operation.DESCRIBE, name):
            if not all_topics:
                await rows.add(hidden_topic(name, None))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        topic = ctx.catalog.by_name(name)
        if topic is None:
            missing = _missing(name, _why_missing(name))
            bits = topic_operations(request, ctx, name)
            await rows.add(Reply(missing, topic_authorized_operations=bits))
            continue
        if room == 0:
            return _reply(rows, name, 0)
        end = min(topic.partitions, first + room)
        row = Reply(
            error_code=ErrorCode.none,
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=partition_rows(topic, range(first, end), ctx, request.peer, ErrorCode.none),
            topic_authorized_operations=topic_operations(request, ctx, name),
        )
        await rows.add(row, 1 + len(row["partitions"]))
        if end < topic.partitions:
            return _reply(rows, name, end)
        room -= max(0, end - first)
    return Reply(topics=rows.result(), next_cursor=None)


def _reply(rows: Rows, name: str, index: int) -> Reply:
    """Return a page after which another one begins at this partition."""
    return Reply(topics=rows.result(), next_cursor=Reply(topic_name=name, partition_index=index))


def _why_missing(name: str) -> ErrorCode:
    if topic_name_fault(name) is not None:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition


def _missing(name: str, code: ErrorCode) -> Reply:
    return Reply(
        error_code=code, name=name, topic_id=None, is_internal=is_internal(name), partitions=[]
    )


API = Api(key=75, name="DescribeTopicPartitions", versions=range(1), handle=handle)
