"""CreateTopics, key 19, v2-v7: creates topics, each one independent of the others.

v4 -1 stands for the broker's default · v5 flexible, configs in the reply · v7 topic id.
A manual assignment may name live brokers only. It sets the number of partitions and the
replication factor, but not the leaders, which follow the ring. The reply waits until the partitions
have leaders, for the request's timeout at most. Topics for which the request has no time, or the
reply no room, get REQUEST_TIMED_OUT.
Not done: leaders by assignment (a manual assignment may name live brokers only, and leaders follow
the ring).
Source: Kafka, ReplicationControlManager.createTopics (checks and texts).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.topic_names import is_fixed
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.assigned_replicas import check_assigned_replicas
from gateway.handlers.broker_endpoints import live_ids
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.quota_checks import count_partitions
from gateway.handlers.rights import TOPIC_DENIED, allows_cluster, allows_topic
from gateway.handlers.topic_replies import (
    DUPLICATE_NAME,
    AdminRefusal,
    change_each,
    copies_remark,
    duplicates,
    error_fields,
    wait_led,
)
from gateway.settings.broker_rules import with_altered_defaults
from gateway.topics.catalog import Topic
from gateway.topics.configs import describe_topic, normalize
from gateway.topics.errors import InvalidPartitions, InvalidReplicationFactor, InvalidTopic
from gateway.topics.internal_topics import INTERNAL_PARTITIONS, is_wanted

_BAD_ASSIGNMENT = ErrorCode.invalid_replica_assignment


async def handle(request: Request, ctx: Context) -> Reply:
    asked = request.body.topics
    twice = await duplicates((each.name for each in asked), request)
    topics = Rows(request, "topics")
    for name in sorted(twice):
        refused = AdminRefusal(ErrorCode.invalid_request, DUPLICATE_NAME)
        await topics.add(Reply(_not_created(name), **error_fields(refused)))
    brokers = live_ids(ctx)
    created: list[Topic] = []
    await change_each(
        (each for each in asked if each.name not in twice),
        lambda each: _create(each, request, brokers, created, ctx),
        lambda each: _not_created(each.name),
        topics,
        ctx,
    )
    await wait_led(created, request, ctx)
    return Reply(topics=topics.result())


async def _create(
    asked: Any, request: Request, brokers: Container[int], created: list[Topic], ctx: Context
) -> Reply:
    """Create one topic, and add it to `created` unless the request only validates."""
    create = Operation.CREATE
    if not allows_cluster(request, ctx, create) and not allows_topic(
        request, ctx, create, asked.name
    ):
        raise AdminRefusal(TOPIC_DENIED, "Authorization failed.")
    configs = {config.name: config.value for config in asked.configs}  # the last one counts
    ctx.catalog.check_name(asked.name)  # name, configs, size: the order of Kafka's checks
    normalize(configs)
    partitions, replication_factor = await _size(asked, request, brokers, ctx)
    _check_internal(asked.name, partitions, ctx)
    if ctx.quotas is not None:  # as in Kafka, partitions that are not created do not count
        ctx.catalog.check_new(asked.name, partitions, replication_factor, configs)
        count_partitions(request, ctx, partitions)
    if request.body.validate_only:
        topic = ctx.catalog.check_new(asked.name, partitions, replication_factor, configs)
        return _created(topic, request, ctx)
    topic = await ctx.catalog.create(asked.name, partitions, replication_factor, configs)
    created.append(topic)
    return Reply(_created(topic, request, ctx), error_message=copies_remark(ctx, topic))


def _check_internal(name: str, partitions: int, ctx: Context) -> None:
    """Raise InvalidTopic for an internal topic that the broker would not create itself now.

    Nobody could delete it, and earlier releases would take it for an ordinary topic.
    """
    if not is_fixed(name):
        return
    if not is_wanted(name, ctx.features.may_write):
        raise InvalidTopic(f"Topic '{name}' is internal; the gateway creates it if it needs it.")
    if partitions != INTERNAL_PARTITIONS:
        raise InvalidTopic(f"Topic '{name}' is internal and has {INTERNAL_PARTITIONS} partitions.")


async def _size(
    asked: Any, request: Request, brokers: Container[int], ctx: Context
) -> tuple[int, int]:
    """Return the number of partitions and the replication factor of a topic to create."""
    if asked.assignments:
        return await _assigned(asked, request, brokers)
    partitions, replication_factor = asked.num_partitions, asked.replication_factor
    if partitions == -1:
        partitions = ctx.config.topics.partitions
    if replication_factor == -1:
        replication_factor = ctx.config.topics.replication_factor
    if replication_factor <= 0:
        raise InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if partitions <= 0:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
    return partitions, replication_factor


async def _assigned(asked: Any, request: Request, brokers: Container[int]) -> tuple[int, int]:
    not_default = "A manual partition assignment was specified, but {} was not set to -1."
    if asked.replication_factor != -1:
        raise AdminRefusal(ErrorCode.invalid_request, not_default.format("replication factor"))
    if asked.num_partitions != -1:
        raise AdminRefusal(ErrorCode.invalid_request, not_default.format("numPartitions"))
    copies = len(asked.assignments[0].broker_ids)
    indexes: set[int] = set()
    async for each in with_pauses(asked.assignments, request):
        index, count = each.partition_index, len(each.broker_ids)
        if index in indexes:
            raise AdminRefusal(
                _BAD_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        indexes.add(index)
        check_assigned_replicas(each.broker_ids, brokers)
        if count != copies:
            raise AdminRefusal(
                _BAD_ASSIGNMENT,
                f"The manual partition assignment includes a partition with {count} replica(s), "
                "but this is not consistent with previous partitions, which have "
                f"{copies} replica(s).",
            )
    if indexes != set(range(len(indexes))):
        raise AdminRefusal(
            _BAD_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return len(indexes), copies


def _not_created(name: str) -> Reply:
    return Reply(name=name, topic_id=None, num_partitions=-1, replication_factor=-1, configs=[])


def _created(topic: Topic, request: Request, ctx: Context) -> Reply:
    about = Reply(topic_id=topic.topic_id, error_code=ErrorCode.none, error_message=None)
    if not allows_topic(request, ctx, Operation.DESCRIBE_CONFIGS, topic.name):
        return Reply(_not_created(topic.name), **about, topic_config_error_code=int(TOPIC_DENIED))
    return Reply(
        about,
        name=topic.name,
        topic_config_error_code=0,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            Reply(
                name=entry.key.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in with_altered_defaults(
                describe_topic(topic.configs, None), ctx.altered.own, ctx.altered.default
            )
        ],
    )


API = Api(key=19, name="CreateTopics", versions=range(2, 8), handle=handle)
