"""CreatePartitions, key 37, v0-v3: adds partitions to topics; they start at offset 0.

v2 flexible · v3 refuses beyond a quota. A manual assignment may name live brokers only.
Source: Kafka, ReplicationControlManager.createPartitions (checks and texts).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.assigned_replicas import check_assigned_replicas
from gateway.handlers.broker_endpoints import live_ids
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.quota_checks import count_partitions
from gateway.handlers.rights import TOPIC_DENIED, allows_topic
from gateway.handlers.topic_replies import (
    DUPLICATE_NAME,
    AdminRefusal,
    change_each,
    duplicates,
    wait_led,
)
from gateway.topics.catalog import Topic


async def handle(request: Request, ctx: Context) -> Reply:
    asked = request.body.topics
    twice = await duplicates((each.name for each in asked), request)
    results = Rows(request, "results")
    brokers = live_ids(ctx)
    changed: list[Topic] = []
    for name in sorted(twice):
        await results.add(
            Reply(name=name, error_code=ErrorCode.invalid_request, error_message=DUPLICATE_NAME)
        )
    await change_each(
        (each for each in asked if each.name not in twice),
        lambda each: _add_partitions(each, request, brokers, changed, ctx),
        _about,
        results,
        ctx,
    )
    await wait_led(changed, request, ctx)
    return Reply(results=results.result())


def _about(asked: Any) -> Reply:
    return Reply(name=asked.name)


async def _add_partitions(
    asked: Any, request: Request, brokers: Container[int], changed: list[Topic], ctx: Context
) -> Reply:
    """Add partitions to one topic, and add it to `changed` unless the request only validates."""
    if not allows_topic(request, ctx, Operation.ALTER, asked.name):  # as Kafka, without a text
        return Reply(name=asked.name, error_code=TOPIC_DENIED, error_message=None)
    if ctx.catalog.by_name(asked.name) is None:  # as Kafka, without a text
        return Reply(
            name=asked.name, error_code=ErrorCode.unknown_topic_or_partition, error_message=None
        )
    topic = ctx.catalog.check_added_partitions(asked.name, asked.count)
    if asked.assignments is not None:
        added = asked.count - topic.partitions
        if len(asked.assignments) != added:
            raise AdminRefusal(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {added} additional partition(s), but only "
                f"{len(asked.assignments)} assignment(s) were specified.",
            )
        async for each in with_pauses(asked.assignments, request):
            check_assigned_replicas(each.broker_ids, brokers)
    count_partitions(request, ctx, asked.count - topic.partitions)
    if not request.body.validate_only:
        changed.append(await ctx.catalog.add_partitions(asked.name, asked.count))
    return Reply(name=asked.name, error_code=ErrorCode.none, error_message=None)


API = Api(key=37, name="CreatePartitions", versions=range(4), handle=handle)
