"""Defines the configs of groups and client metrics: keys, defaults, texts of Kafka 4.3.

The bounds of those of groups are in `group_configs`. Those of the consumer protocol act
(`group_timing`). The others have no effect here: they belong to share groups, to streams groups
and to telemetry.
Source: Kafka, GroupConfig, ClientMetricsConfigs and ConfigurationControlManager.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gateway.settings.re2_patterns import InvalidPattern, class_count, compile_pattern
from gateway.topics.config_changes import ConfigChange, ConfigOperation, not_a_list
from gateway.topics.config_keys import (
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Value,
    describe_config,
    format_value,
)
from gateway.topics.errors import InvalidConfig

Overrides = Mapping[str, str]


class UnsuitableConfig(Exception):
    """The error of a config that Kafka answers with INVALID_REQUEST, with its text."""


_DURATION = re.compile(
    r"[+-]?P(?=.)(?:[+-]?\d+D)?(?:T(?=.)(?:[+-]?\d+H)?(?:[+-]?\d+M)?(?:[+-]?\d+(?:\.\d{1,9})?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def _reset_fault(value: Value) -> str | None:
    text = str(value)
    begin, colon, duration = text.partition(":")
    if text in ("earliest", "latest"):
        return None
    if colon and begin == "by_duration" and _DURATION.fullmatch(duration):
        return None
    return (
        f"Invalid value `{text}` for configuration share.auto.offset.reset. The value must be "
        "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


def _group_key(
    name: str,
    type_: ConfigType,
    default: str,
    about: str,
    *,
    at_least: int | None = None,
    one_of: tuple[str, ...] = (),
    own_name: bool = False,
) -> ConfigKey:
    """Return a key. `own_name` is True if brokers have no config for the default."""
    return ConfigKey(
        name=name,
        type=type_,
        default=default,
        about=about,
        at_least=at_least,
        one_of=one_of,
        synonyms=((name if own_name else f"group.{name}", default),),
        check=_reset_fault if name == "share.auto.offset.reset" else None,
    )


def _timing(kind: str) -> tuple[ConfigKey, ...]:
    return (
        _group_key(
            f"{kind}.session.timeout.ms",
            ConfigType.INT,
            "45000",
            f"The time after which a silent member of a {kind} group is removed.",
            at_least=1,
        ),
        _group_key(
            f"{kind}.heartbeat.interval.ms",
            ConfigType.INT,
            "5000",
            f"The time between two heartbeats of a member of a {kind} group.",
            at_least=1,
        ),
        _group_key(
            f"{kind}.assignment.interval.ms",
            ConfigType.INT,
            "1000",
            f"The time between two assignments of a {kind} group.",
            at_least=0,
        ),
    )


_GROUP = (
    *_timing("consumer"),
    *_timing("share"),
    *_timing("streams"),
    _group_key(
        "share.record.lock.duration.ms",
        ConfigType.INT,
        "30000",
        "How long a record of a share group is locked.",
        at_least=1_000,
    ),
    _group_key(
        "share.delivery.count.limit",
        ConfigType.INT,
        "5",
        "How often a record is delivered to a share group.",
        at_least=2,
    ),
    _group_key(
        "share.partition.max.record.locks",
        ConfigType.INT,
        "2000",
        "The limit of locked records of a partition in a share group.",
        at_least=100,
    ),
    _group_key(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Where a share group begins to read: earliest, latest or by_duration:<ISO duration>.",
        own_name=True,
    ),
    _group_key(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        "The isolation level of a share group: read_uncommitted also returns uncommitted records.",
        one_of=("read_committed", "read_uncommitted"),
        own_name=True,
    ),
    _group_key(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether members of a share group may renew locks.",
        own_name=True,
    ),
    _group_key(
        "streams.num.standby.replicas",
        ConfigType.INT,
        "0",
        "The standby replicas of each task of a streams group.",
        at_least=0,
    ),
    _group_key(
        "streams.initial.rebalance.delay.ms",
        ConfigType.INT,
        "3000",
        "How long a new streams group waits for further members.",
        at_least=0,
    ),
)
GROUP_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _GROUP}

_METRICS = (
    ConfigKey(
        name="interval.ms",
        type=ConfigType.INT,
        default="300000",
        about="The time between two pushes of a client's metrics.",
    ),
    ConfigKey(
        name="match",
        type=ConfigType.LIST,
        default="",
        about="The clients to which the subscription applies.",
    ),
    ConfigKey(
        name="metrics",
        type=ConfigType.LIST,
        default="",
        about="Prefixes of the names of metrics.",
    ),
)
METRICS_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _METRICS}
_PUSH_MS_MIN, _PUSH_MS_MAX = 100, 3_600_000
# A value of `match` is compiled in one step of the event loop, and a request may have many values.
# These bounds are for all of its expressions together: compiling them takes at most about 3 ms.
_EXPRESSIONS_MAX = 16
_EXPRESSION_CHARACTERS_MAX = 1_024
_CLASSES_MAX = 4
_COUNTS_MAX = 16  # counted repetitions: a{1000} is a thousand times a
_MEMORY_BYTES_MAX = 128 * 1024  # of the program of one expression
_SELECTORS = {
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
}


def changed_configs(before: Overrides, changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the overrides after all `changes`. Raises InvalidConfig: no key here is a list."""
    after = dict(before)
    for change in changes:
        match change.operation:
            case ConfigOperation.SET:
                after[change.name] = change.value or ""
            case ConfigOperation.DELETE:
                after.pop(change.name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                raise not_a_list(change)
    return after


def client_metrics_configs(overrides: Overrides) -> dict[str, str]:
    """Return the configs of a subscription as they are stored and shown.

    Raises InvalidConfig or UnsuitableConfig.
    """
    for name in overrides:
        if name not in METRICS_KEYS:
            raise UnsuitableConfig(f"Unknown client metrics configuration: {name}")
    values = {name: METRICS_KEYS[name].parse(text) for name, text in overrides.items()}
    for name, value in values.items():
        if isinstance(value, tuple) and "" in value:
            raise InvalidConfig(f"Configuration '{name}' values must not be empty.")
    push_ms = values.get("interval.ms")
    if isinstance(push_ms, int) and not _PUSH_MS_MIN <= push_ms <= _PUSH_MS_MAX:
        raise UnsuitableConfig(
            f"Invalid value {overrides['interval.ms']} for interval.ms, interval must be between "
            f"{_PUSH_MS_MIN} and {_PUSH_MS_MAX} (1 hour)"
        )
    patterns = values.get("match", ())
    assert isinstance(patterns, tuple)
    _check_patterns(patterns)
    return {name: format_value(value) for name, value in values.items()}


def _check_patterns(patterns: Sequence[str]) -> None:
    """Check the value of `match`. No expression is run here. Raises InvalidConfig."""
    fault = _cost_fault(patterns)
    if fault is not None:
        raise InvalidConfig(f"The client matching patterns have {fault} together.")
    for each in patterns:
        if not _is_pattern(each):
            raise InvalidConfig(f"Illegal client matching pattern: {each}")


def _cost_fault(patterns: Sequence[str]) -> str | None:
    """Return which bound on all expressions together is exceeded, or None."""
    if len(patterns) > _EXPRESSIONS_MAX:
        return f"{len(patterns)} expressions, and at most {_EXPRESSIONS_MAX} are allowed"
    text = "".join(each.partition("=")[2].strip() for each in patterns)
    if len(text) > _EXPRESSION_CHARACTERS_MAX:
        return f"{len(text)} characters, and at most {_EXPRESSION_CHARACTERS_MAX} are allowed"
    classes, counts = class_count(text), text.count("{")
    if classes > _CLASSES_MAX:
        return f"{classes} Unicode classes, and at most {_CLASSES_MAX} are allowed"
    if counts > _COUNTS_MAX:
        return f"{counts} counted repetitions, and at most {_COUNTS_MAX} are allowed"
    return None


def _is_pattern(text: str) -> bool:
    """Return whether `text` is a selector and an expression."""
    selector, equals, expression = text.partition("=")
    if not equals or "=" in expression or selector.strip() not in _SELECTORS:
        return False
    if not expression.strip():
        return False
    try:
        compile_pattern(expression.strip(), _MEMORY_BYTES_MAX)
    except InvalidPattern:
        return False
    return True


def describe_resource(
    keys: Mapping[str, ConfigKey],
    overrides: Overrides,
    source: ConfigSource,
    names: Iterable[str] | None,
) -> list[ConfigEntry]:
    """Return the configs of a resource by name: all configs, or the existing ones in `names`."""
    wanted = None if names is None else set(names)
    return [
        describe_config(key, overrides.get(key.name), source, key.synonyms)
        for key in keys.values()
        if wanted is None or key.name in wanted
    ]
