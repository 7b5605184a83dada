"""DescribeConfigs, key 32, v1-v4: returns configs with source, default, type and documentation.

v1 synonyms and sources · v3 types and documentation · v4 flexible. All keys of Kafka are returned,
because tools read all configs, change some and write all of them back.
The only logger of a broker is "root".
Source: Kafka, ConfigHelper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.shown_text import shown
from gateway.core.topic_names import topic_name_fault
from gateway.errors import MALFORMED
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TEXTS,
    TOPIC_DENIED,
    allows_cluster,
    allows_group,
    allows_topic,
)
from gateway.handlers.topic_replies import AdminRefusal, error_fields, not_reached
from gateway.settings.broker_rules import (
    describe_altered,
    describe_defaults,
    with_altered_defaults,
)
from gateway.settings.group_configs import describe_group, with_capped_values
from gateway.settings.loggers import ROOT
from gateway.settings.resource_keys import METRICS_KEYS, describe_resource
from gateway.topics.broker_configs import (
    BLOCKED_PARTITIONS,
    CLEANING,
    describe_blocked,
    describe_broker,
)
from gateway.topics.config_keys import ConfigEntry, ConfigKey, ConfigSource, ConfigType
from gateway.topics.configs import describe_topic
from gateway.topics.errors import InvalidTopic, TopicError, UnknownTopic
from gateway.topics.greylist_report import greylist_report
from ledger.log import level

_Resource = tuple[int, str]  # type and name


class ResourceType(IntEnum):
    """The values of resource_type in DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def check_right(kind: int, name: str, operation: Operation, request: Request, ctx: Context) -> None:
    """Raise AdminRefusal unless the client may do an operation on the configs of a resource."""
    match kind:
        case ResourceType.TOPIC:
            allowed, code = allows_topic(request, ctx, operation, name), TOPIC_DENIED
        case ResourceType.GROUP:
            allowed, code = allows_group(request, ctx, operation, name), GROUP_DENIED
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS:
            allowed, code = allows_cluster(request, ctx, operation), CLUSTER_DENIED
        case _:
            return  # a resource of no type is refused to all
    if not allowed:
        raise AdminRefusal(code, TEXTS[code])


async def handle(request: Request, ctx: Context) -> Reply:
    """Answer each resource once, as clients expect, whose results are a map by resource.

    Kafka answers each mention. A reply of a few bytes per mention would grow thousandfold, because
    a broker has 4 KB of configs. Resources for which the reply has no room get REQUEST_TIMED_OUT.
    """
    results = Rows(request, "results")
    for (kind, name), names in (await _asked(request)).items():
        if results.full:
            row = not_reached(Reply(resource_type=kind, resource_name=name, configs=[]))
        else:
            row = _result(kind, name, names, request, ctx)
        await results.add(row, 1 + len(row["configs"]))
    return Reply(results=results.result())


async def _asked(request: Request) -> dict[_Resource, set[str] | None]:
    """Return the resources with the configs that all mentions ask for, or None for all configs."""
    wanted: dict[_Resource, set[str] | None] = {}
    async for each in with_pauses(request.body.resources, request):
        key = (each.resource_type, each.resource_name)
        before = wanted.setdefault(key, set())
        if before is None or not each.configuration_keys:
            wanted[key] = None
        else:
            async for name in with_pauses(each.configuration_keys, request):
                before.add(name)
    return wanted


def _result(kind: int, name: str, names: set[str] | None, request: Request, ctx: Context) -> Reply:
    about = Reply(resource_type=kind, resource_name=name)
    try:
        check_right(kind, name, Operation.DESCRIBE_CONFIGS, request, ctx)
        entries = _entries(kind, name, names, request, ctx)
    except UnknownTopic:  # as Kafka, without a text
        code = ErrorCode.unknown_topic_or_partition
        return Reply(about, configs=[], error_code=code, error_message="")
    except (TopicError, AdminRefusal) as error:
        return Reply(about, configs=[], **error_fields(error))
    documented = getattr(request.body, "include_documentation", False)
    rows = [_row(entry, request.body.include_synonyms, documented) for entry in entries]
    return Reply(about, error_code=ErrorCode.none, error_message="", configs=rows)


def _entries(
    kind: int, name: str, names: set[str] | None, request: Request, ctx: Context
) -> Iterable[ConfigEntry]:
    match kind:
        case ResourceType.TOPIC:
            fault = topic_name_fault(name)
            if fault is not None:
                raise InvalidTopic(f"Topic name is invalid: {fault}")
            topic = ctx.catalog.by_name(name)
            if topic is None:
                raise UnknownTopic
            entries = describe_topic(topic.configs, names)
            return with_altered_defaults(entries, ctx.altered.own, ctx.altered.default)
        case ResourceType.BROKER:
            if name == "":
                return describe_defaults(ctx.altered.default, names)
            _check_node(name, ctx)
            addresses = ctx.advertised(request.peer)
            greylist = _greylist(ctx)
            static = describe_broker(ctx.config, addresses, ctx.metadata_address, greylist, None)
            configs = describe_altered(static, ctx.altered.own, ctx.altered.default, names)
            configs = with_capped_values(configs, ctx.config.groups)
            return configs if names is None else [*configs, *_reports(names, ctx)]
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise AdminRefusal(ErrorCode.invalid_request, "Broker id must not be empty")
            _check_node(name, ctx, "")
            return _loggers(names)
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            return _stored(ResourceType(kind), name, names, ctx)
        case _:
            raise AdminRefusal(ErrorCode.invalid_request, MALFORMED)


def _stored(
    kind: ResourceType, name: str, names: set[str] | None, ctx: Context
) -> Iterable[ConfigEntry]:
    overrides = ctx.stored.configs.get(kind, name)
    if kind is ResourceType.GROUP:
        if not name:
            raise AdminRefusal(ErrorCode.invalid_request, "Group name must not be empty")
        altered = (ctx.altered.own, ctx.altered.default)
        return describe_group(overrides, altered, ctx.config.groups, names)
    if not name:
        text = "Client metrics subscription name must not be empty"
        raise AdminRefusal(ErrorCode.invalid_request, text)
    return describe_resource(METRICS_KEYS, overrides, ConfigSource.CLIENT_METRICS, names)


def _reports(names: set[str], ctx: Context) -> Iterator[ConfigEntry]:
    """Yield the reports of this broker that are named. They are not listed otherwise."""
    if BLOCKED_PARTITIONS in names:
        yield describe_blocked(ctx.partitions.blocked())
    cleaned = next((each for each in names if each.startswith(CLEANING)), None)
    if (
        cleaned is not None and ctx.cleaner is not None
    ):  # one topic, because it costs a pass over all
        from gateway.cleaning.report import describe_cleaning  # imports the codecs

        topic = cleaned.removeprefix(CLEANING)
        yield describe_cleaning(topic, ctx.cleaner.reports(), ctx.clock.now_ms())


def _greylist(ctx: Context) -> str | None:
    if ctx.avoided_bookies is None:
        return None
    return greylist_report(ctx.avoided_bookies(), ctx.clock.now_ms())


def _loggers(names: set[str] | None) -> list[ConfigEntry]:
    key = ConfigKey(name=ROOT, type=ConfigType.UNKNOWN, default=None, about="")
    entry = ConfigEntry(key=key, value=level(), source=ConfigSource.BROKER_LOGGER)
    return [entry] if names is None or ROOT in names else []


def _check_node(name: str, ctx: Context, or_none: str = " or empty string") -> None:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", name):
        raise AdminRefusal(
            ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {shown(name)}"
        )
    if int(name) != ctx.config.node_id:
        raise AdminRefusal(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {ctx.config.node_id}{or_none}"
            f"{',' if or_none else ''} but received {name[:64]}",
        )


def _row(entry: ConfigEntry, with_synonyms: bool, documented: bool) -> Reply:
    synonyms = entry.synonyms if with_synonyms else ()
    return Reply(
        name=entry.key.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[Reply(name=name, value=value, source=source) for name, value, source in synonyms],
        config_type=entry.key.type,
        documentation=_text(entry) if documented else None,
    )


def _text(entry: ConfigEntry) -> str | None:
    return None if entry.key.type is ConfigType.UNKNOWN else entry.key.about


API = Api(key=32, name="DescribeConfigs", versions=range(1, 5), handle=handle)
