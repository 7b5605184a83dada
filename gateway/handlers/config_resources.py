"""Shared by AlterConfigs and IncrementalAlterConfigs: checks, changes and replies.

Configs of topics, groups, client metrics and brokers can be altered, and the level of the log.
Source: Kafka, ConfigAdminManager (checks and texts).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.shown_text import shown
from gateway.core.topic_names import topic_name_fault
from gateway.handlers.api import Context, Reply, Request
from gateway.handlers.k32_describe_configs import ResourceType, check_right
from gateway.handlers.many_rows import Rows
from gateway.handlers.topic_replies import AdminRefusal, change_each, copies_remark, duplicates
from gateway.settings.broker_rules import changed_broker_configs, check_broker_configs
from gateway.settings.group_configs import check_intervals, group_configs
from gateway.settings.loggers import wanted_level
from gateway.settings.resource_keys import (
    Overrides,
    UnsuitableConfig,
    changed_configs,
    client_metrics_configs,
)
from gateway.settings.stored_rows import TableFull
from gateway.topics.config_changes import ConfigChange, ConfigOperation, apply_changes
from gateway.topics.configs import normalize
from gateway.topics.errors import InvalidTopic, UnknownTopic
from ledger.log import set_level

_NAMELESS = {
    ResourceType.GROUP: "Default group resources are not allowed.",
    ResourceType.CLIENT_METRICS: "Subscription name can't be empty",
}

Changes = Callable[[Any, Context], Sequence[ConfigChange]]
"""Returns the changes that one resource of a request contains. Raises AdminRefusal."""


async def alter_all(request: Request, ctx: Context, changes: Changes) -> Reply:
    """Alter or refuse each resource independently. Each mention of a duplicate is refused."""
    resources = request.body.resources
    named = ((each.resource_type, each.resource_name) for each in resources)
    twice = await duplicates(named, request)
    responses = Rows(request, "responses")
    await change_each(
        resources,
        lambda each: _alter(each, twice, request, ctx, changes),
        _about,
        responses,
        ctx,
    )
    return Reply(responses=responses.result())


def _about(asked: Any) -> Reply:
    return Reply(resource_type=asked.resource_type, resource_name=asked.resource_name)


async def _alter(
    asked: Any, twice: set[tuple[int, str]], request: Request, ctx: Context, changes: Changes
) -> Reply:
    if (asked.resource_type, asked.resource_name) in twice:
        raise AdminRefusal(ErrorCode.invalid_request, "Each resource must appear at most once.")
    if ctx.authorizer is not None and asked.resource_type in tuple(ResourceType):
        _check_names_and_values(changes(asked, ctx))  # as in Kafka, whose brokers check this first
        kind, name = asked.resource_type, asked.resource_name
        check_right(kind, name, Operation.ALTER_CONFIGS, request, ctx)
    validate_only: bool = request.body.validate_only
    if asked.resource_type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        return await _alter_stored(asked, validate_only, ctx, changes)
    if asked.resource_type == ResourceType.BROKER:
        return await _alter_broker(asked, validate_only, ctx, changes)
    if asked.resource_type == ResourceType.BROKER_LOGGER:
        return _alter_log(asked, validate_only, ctx, changes)
    name = _topic_name(asked)
    wanted = changes(asked, ctx)
    _check_names_and_values(wanted)
    topic = ctx.catalog.by_name(name)
    if topic is None or validate_only:
        normalize(apply_changes({} if topic is None else topic.configs, wanted))
    if topic is None:  # Kafka, too, checks the values first
        raise _no_topic(name)
    if not validate_only:
        try:
            await ctx.catalog.change_configs(name, lambda now: apply_changes(now, wanted))
        except UnknownTopic:  # the topic was deleted after it was looked up
            raise _no_topic(name) from None
    remark = None if validate_only else copies_remark(ctx, ctx.catalog.by_name(name))
    return Reply(_about(asked), error_code=ErrorCode.none, error_message=remark)


async def _alter_stored(asked: Any, validate_only: bool, ctx: Context, changes: Changes) -> Reply:
    """Alter the configs of a group or of client metrics."""
    kind, name = ResourceType(asked.resource_type), asked.resource_name
    if not name:
        raise AdminRefusal(ErrorCode.invalid_request, _NAMELESS[kind])
    wanted = changes(asked, ctx)
    _check_names_and_values(wanted)

    def changed(before: Overrides) -> Overrides:
        after = changed_configs(before, wanted)
        if kind is ResourceType.GROUP:
            return group_configs(after, ctx.config.groups)
        return client_metrics_configs(after)

    return await _store(asked, changed, validate_only, ctx)


async def _alter_broker(asked: Any, validate_only: bool, ctx: Context, changes: Changes) -> Reply:
    """Alter the configs of this broker, or the defaults of all brokers."""
    name = asked.resource_name
    if name:
        check_node(name, ctx, "Unexpected broker id, expected")
    wanted = changes(asked, ctx)
    _check_names_and_values(wanted)

    def changed(before: Overrides) -> Overrides:
        after = changed_broker_configs(before, wanted)
        check_broker_configs(after, ctx.altered.effective, per_broker=bool(name))
        anew = {key: value for key, value in after.items() if before.get(key) != value}
        check_intervals(anew, {} if name else ctx.altered.own, ctx.config.groups)
        return after

    return await _store(asked, changed, validate_only, ctx)


def _alter_log(asked: Any, validate_only: bool, ctx: Context, changes: Changes) -> Reply:
    """Change the level of this process's log, until it ends."""
    wanted = changes(asked, ctx)
    _check_names_and_values(wanted)
    check_node(asked.resource_name, ctx, "Unexpected node id. Expected")
    try:
        level = wanted_level(wanted)
    except UnsuitableConfig as fault:
        raise AdminRefusal(ErrorCode.invalid_request, str(fault)) from None
    if level is not None and not validate_only:
        set_level(level)
    return Reply(_about(asked), error_code=ErrorCode.none, error_message=None)


def check_node(name: str, ctx: Context, unexpected: str) -> None:
    """Check that `name` is the id of this broker. Raises AdminRefusal."""
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", name):
        text = f"Node id must be an integer, but it is: {shown(name)}"
        raise AdminRefusal(ErrorCode.invalid_request, text)
    if int(name) != ctx.config.node_id:
        text = f"{unexpected} {ctx.config.node_id}, but received {name[:64]}"
        raise AdminRefusal(ErrorCode.invalid_request, text)


async def _store(
    asked: Any, changed: Callable[[Overrides], Overrides], validate_only: bool, ctx: Context
) -> Reply:
    kind, name = ResourceType(asked.resource_type), asked.resource_name
    try:
        if validate_only:
            changed(ctx.stored.configs.get(kind, name))
        else:
            await ctx.stored.configs.change(kind, name, changed)
    except UnsuitableConfig as fault:
        raise AdminRefusal(ErrorCode.invalid_request, str(fault)) from None
    except TableFull as fault:
        raise AdminRefusal(ErrorCode.policy_violation, str(fault)) from None
    return Reply(_about(asked), error_code=ErrorCode.none, error_message=None)


def overrides_of(asked: Any, ctx: Context) -> Overrides:
    """Return the present overrides of a resource of a request, or none."""
    if asked.resource_type not in (ResourceType.TOPIC, ResourceType.BROKER_LOGGER):
        return ctx.stored.configs.get(asked.resource_type, asked.resource_name)
    topic = ctx.catalog.by_name(asked.resource_name)
    return {} if topic is None else topic.configs


def _topic_name(asked: Any) -> str:
    name: str = asked.resource_name
    if asked.resource_type not in tuple(ResourceType):
        raise AdminRefusal(
            ErrorCode.invalid_request, f"Unknown resource type {asked.resource_type}"
        )
    if asked.resource_type != ResourceType.TOPIC:
        raise AdminRefusal(
            ErrorCode.invalid_request, f"Unsupported resource type: {asked.resource_type}"
        )
    if not name:
        raise AdminRefusal(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    fault = topic_name_fault(name)
    if fault is not None:
        raise InvalidTopic(f"Topic name is invalid: {fault}")
    return name


def _no_topic(name: str) -> AdminRefusal:
    return AdminRefusal(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")


def _check_names_and_values(changes: Sequence[ConfigChange]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise AdminRefusal(ErrorCode.invalid_request, "Error due to duplicate config keys")
    nulls = sorted(
        change.name
        for change in changes
        if change.value is None and change.operation is not ConfigOperation.DELETE
    )
    if nulls:
        raise AdminRefusal(
            ErrorCode.invalid_request, f"Null value not supported for : {','.join(nulls)}"
        )
