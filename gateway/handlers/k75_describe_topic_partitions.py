"""DescribeTopicPartitions, key 75, v0: returns topics by name, in pages with a cursor.

Source: KIP-966; Kafka, DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.core.topic_names import is_internal, topic_name_fault
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.topic_replies import TOPIC_OPERATIONS, partition_rows

PARTITIONS_MAX = 2_000  # Kafka: max.request.partition.size.limit


def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    cursor = body.cursor
    names = sorted({topic.name for topic in body.topics})
    if "" in names:  # as in Kafka, whose handler fails
        return Reply(topics=[_missing(name, ErrorCode.unknown_server_error) for name in names])
    if _bad_cursor(cursor, names):
        return Reply(topics=[_missing(name, ErrorCode.invalid_request) for name in names])
    if not names:
        names = [topic.name for topic in ctx.catalog.all()]
    first_index = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_index = cursor.partition_index
    room = max(1, min(body.response_partition_limit, PARTITIONS_MAX))
    return _page(names, first_index, room, ctx)


def _bad_cursor(cursor: Any, names: list[str]) -> bool:
    if cursor is None:
        return False
    return cursor.partition_index < 0 or (bool(names) and cursor.topic_name not in names)


def _page(names: list[str], first_index: int, room: int, ctx: Context) -> Reply:
    rows: list[Reply] = []
    for name in names:
        topic = ctx.catalog.by_name(name)
        if topic is None:
            missing = _missing(name, _why_missing(name))
            rows.append(Reply(missing, topic_authorized_operations=TOPIC_OPERATIONS))
            first_index = 0
            continue
        if room == 0:
            return Reply(topics=rows, next_cursor=Reply(topic_name=name, partition_index=0))
        end = min(topic.partitions, first_index + room)
        rows.append(
            Reply(
                error_code=ErrorCode.none,
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=partition_rows(topic, range(first_index, end), ctx),
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if end < topic.partitions:
            return Reply(topics=rows, next_cursor=Reply(topic_name=name, partition_index=end))
        room -= max(0, end - first_index)
        first_index = 0
    return Reply(topics=rows, next_cursor=None)


def _why_missing(name: str) -> ErrorCode:
    if topic_name_fault(name) is not None:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition


def _missing(name: str, code: ErrorCode) -> Reply:
    return Reply(
        error_code=code, name=name, topic_id=None, is_internal=is_internal(name), partitions=[]
    )


API = Api(key=75, name="DescribeTopicPartitions", versions=range(1), handle=handle)
