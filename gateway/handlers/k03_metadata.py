"""Metadata, key 3, v0-v13: returns the topics, the leaders of their partitions, and the brokers.

v0 an empty list requests all topics · v1 null does; controller · v2 cluster id · v4 may forbid
creation · v7 leader epoch · v8 authorized operations · v9 flexible · v10 topic ids · v12 topics by
id · v13 top-level error. If the request creates a topic, the reply waits for its leaders.
LEADER_NOT_AVAILABLE is only for partitions whose broker has just gone.
Not done: copies on bookies (replicas are the brokers that could lead).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.topic_names import is_internal, topic_name_fault
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.broker_endpoints import controller_id, endpoints
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


def handle(request: Request, ctx: Context) -> Reply | Coroutine[Any, Any, Reply]:
    """Reply from memory, unless topics are to be created."""
    body = request.body
    if body.topics is None or (request.version == 0 and not body.topics):
        return _reply(request, ctx, [_found(topic, request, ctx) for topic in ctx.catalog.all()])
    by_id: dict[UUID, None] = {}
    by_name: dict[str, None] = {}
    for asked in body.topics:
        topic_id = getattr(asked, "topic_id", None)
        if asked.name is None and topic_id is not None:
            by_id[topic_id] = None
        else:
            by_name[asked.name or ""] = None
    rows = [_row_by_id(topic_id, request, ctx) for topic_id in by_id]
    if _may_create(body, ctx) and any(_is_new(name, ctx) for name in by_name):
        return _create_and_reply(request, ctx, rows, list(by_name))
    rows += [_row_by_name(name, request, ctx) for name in by_name]
    return _reply(request, ctx, rows)


def _may_create(body: Any, ctx: Context) -> bool:
    return ctx.config.topics.auto_create and getattr(body, "allow_auto_topic_creation", True)


def _is_new(name: str, ctx: Context) -> bool:
    return ctx.catalog.by_name(name) is None and not is_internal(name)


async def _create_and_reply(
    request: Request, ctx: Context, rows: list[Reply], names: list[str]
) -> Reply:
    new = [name for name in names if _is_new(name, ctx)]
    outcomes = await asyncio.gather(*(_create(name, ctx) for name in new))
    refused = {name: code for name, code in zip(new, outcomes, strict=True) if code}
    for name in names:
        code = refused.get(name)
        rows.append(_row_by_name(name, request, ctx) if code is None else _missing(name, code))
    return _reply(request, ctx, rows)


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
    if topic is not None and ctx.catalog.by_name(topic.name) is topic:
        return _found(topic, request, ctx)
    return Reply(
        error_code=ErrorCode.unknown_topic_id,
        name=None,
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


def _reply(request: Request, ctx: Context, topics: list[Reply]) -> Reply:
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
