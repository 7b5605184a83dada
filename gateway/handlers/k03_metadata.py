"""Metadata, key 3, v0-v13: returns the topics, the leaders of their partitions, and the brokers.

v0 an empty list requests all topics · v1 null does; controller · v2 cluster id · v4 may forbid
creation · v7 leader epoch · v8 authorized operations · v9 flexible · v10 topic ids · v12 topics by
id · v13 top-level error. If the request creates a topic, the reply waits for its leaders.
LEADER_NOT_AVAILABLE is only for partitions whose broker has just gone.
Not done: copies on bookies (replicas are the brokers that could lead).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.topic_names import is_internal, topic_name_fault
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.broker_endpoints import controller_id, endpoints
from gateway.handlers.many_rows import ANSWER_S_MAX, Rows
from gateway.handlers.topic_replies import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_REQUESTED,
    TOPIC_OPERATIONS,
    WAIT_LED_S_MAX,
    error_fields,
    partition_rows,
    wait_led,
)
from gateway.topics.catalog import Topic
from gateway.topics.errors import TopicError, TopicExists
from ledger.errors import LedgerError

_AT_ONCE_MAX = 500  # names, or topics or partitions of the catalog, of a reply without pauses
_CREATED_AT_ONCE = 64
_BY_ID_FROM = 12  # v10 and v11 have the field, but Kafka refuses to look topics up by it


def handle(request: Request, ctx: Context) -> Reply | Coroutine[Any, Any, Reply]:
    """Reply from memory, unless topics are to be created."""
    body = request.body
    if body.topics is None or (request.version == 0 and not body.topics):
        topics = ctx.catalog.all()
        if len(topics) > _AT_ONCE_MAX or sum(each.partitions for each in topics) > _AT_ONCE_MAX:
            return _reply_with_pauses(request, ctx, [], topics)
        return _reply(request, ctx, [_found(topic, request, ctx) for topic in topics])
    if len(body.topics) > _AT_ONCE_MAX:
        return _reply_to_many(request, ctx)
    by_id: dict[UUID, None] = {}
    by_name: dict[str, None] = {}
    for asked in body.topics:
        _add(asked, by_id, by_name)
    if _may_create(body, ctx) and any(_is_new(name, ctx) for name in by_name):
        return _create_and_reply(request, ctx, list(by_id), list(by_name))
    rows = [_row_by_id(topic_id, request, ctx) for topic_id in by_id]
    rows += [_row_by_name(name, request, ctx) for name in by_name]
    return _reply(request, ctx, rows)


def _add(asked: Any, by_id: dict[UUID, None], by_name: dict[str, None]) -> None:
    topic_id = getattr(asked, "topic_id", None)
    if asked.name is None and topic_id is not None:
        by_id[topic_id] = None
    else:
        by_name[asked.name or ""] = None


async def _reply_to_many(request: Request, ctx: Context) -> Reply:
    """Reply to a request that names many topics, with pauses for other tasks."""
    by_id: dict[UUID, None] = {}
    by_name: dict[str, None] = {}
    may_create, creates = _may_create(request.body, ctx), False
    for number, asked in enumerate(request.body.topics, 1):
        _add(asked, by_id, by_name)
        creates = creates or (may_create and asked.name is not None and _is_new(asked.name, ctx))
        if number % _AT_ONCE_MAX == 0:
            await asyncio.sleep(0)
    if creates:
        return await _create_and_reply(request, ctx, list(by_id), list(by_name))
    return await _reply_with_pauses(request, ctx, [*by_id, *by_name], ())


async def _reply_with_pauses(
    request: Request,
    ctx: Context,
    asked: Iterable[str | UUID],
    topics: Iterable[Topic],
    refused: Mapping[str, ErrorCode] | None = None,
) -> Reply:
    """Reply with rows for the names and ids in `asked` and for `topics`, with pauses."""
    rows = Rows(request, "topics")
    for key in asked:
        if isinstance(key, UUID):
            row = _row_by_id(key, request, ctx)
        elif refused is not None and key in refused:
            row = _missing(key, refused[key])
        else:
            row = _row_by_name(key, request, ctx)
        await rows.add(row, 1 + len(row["partitions"]))
    for topic in topics:
        await rows.add(_found(topic, request, ctx), 1 + topic.partitions)
    return _reply(request, ctx, rows.result())


def _may_create(body: Any, ctx: Context) -> bool:
    return ctx.config.topics.auto_create and getattr(body, "allow_auto_topic_creation", True)


def _is_new(name: str, ctx: Context) -> bool:
    return ctx.catalog.by_name(name) is None and not is_internal(name)


async def _create_and_reply(
    request: Request, ctx: Context, ids: list[UUID], names: list[str]
) -> Reply:
    """Create the new topics, some at a time.

    Topics that are not created in time get LEADER_NOT_AVAILABLE: clients ask again.
    """
    new = [name for name in names if _is_new(name, ctx)]
    refused: dict[str, ErrorCode] = {}

    end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    for at in range(0, len(new), _CREATED_AT_ONCE):
        some = new[at : at + _CREATED_AT_ONCE]
        codes: Sequence[ErrorCode | None] = [ErrorCode.leader_not_available] * len(some)
        if ctx.clock.monotonic_s() < end_s:
            codes = await asyncio.gather(*(_create(name, ctx) for name in some))
        refused.update((name, code) for name, code in zip(some, codes, strict=True) if code)
    return await _reply_with_pauses(request, ctx, [*ids, *names], (), refused)


async def _create(name: str, ctx: Context) -> ErrorCode | None:
    defaults = ctx.config.topics
    try:
        await ctx.catalog.create(name, defaults.partitions, defaults.replication_factor, {})
    except TopicExists:
        pass  # another client created it first
    except TopicError as error:
        return error_fields(error)["error_code"]
    except LedgerError:
        return ErrorCode.leader_not_available  # a retriable error
    topic = ctx.catalog.by_name(name)
    if topic is not None:
        await wait_led(topic, WAIT_LED_S_MAX, ctx)
    return None


def _row_by_name(name: str, request: Request, ctx: Context) -> Reply:
    topic = ctx.catalog.by_name(name)
    if topic is not None:
        return _found(topic, request, ctx)
    if topic_name_fault(name) is not None:
        return _missing(name, ErrorCode.invalid_topic_exception)
    return _missing(name, ErrorCode.unknown_topic_or_partition)


def _row_by_id(topic_id: UUID, request: Request, ctx: Context) -> Reply:
    topic = ctx.catalog.by_id(topic_id)
    by_id = request.version >= _BY_ID_FROM
    if by_id and topic is not None and ctx.catalog.by_name(topic.name) is topic:
        return _found(topic, request, ctx)
    return Reply(
        error_code=ErrorCode.unknown_topic_id if by_id else ErrorCode.unsupported_version,
        name=None if by_id else "",
        topic_id=topic_id,
        partitions=[],
        topic_authorized_operations=OPERATIONS_NOT_REQUESTED,
    )


def _missing(name: str, code: ErrorCode) -> Reply:
    return Reply(
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=is_internal(name),
        partitions=[],
        topic_authorized_operations=OPERATIONS_NOT_REQUESTED,
    )


def _found(topic: Topic, request: Request, ctx: Context) -> Reply:
    asked = getattr(request.body, "include_topic_authorized_operations", False)
    return Reply(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partition_rows(topic, range(topic.partitions), ctx),
        topic_authorized_operations=TOPIC_OPERATIONS if asked else OPERATIONS_NOT_REQUESTED,
    )


def _reply(request: Request, ctx: Context, topics: Any) -> Reply:
    asked = getattr(request.body, "include_cluster_authorized_operations", False)
    return Reply(
        brokers=[Reply(node._asdict()) for node in endpoints(ctx, request.peer)],
        cluster_id=ctx.cluster_id,
        controller_id=controller_id(ctx),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_REQUESTED,
        error_code=ErrorCode.none,
    )


API = Api(key=3, name="Metadata", versions=range(14), handle=handle)
