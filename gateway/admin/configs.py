"""Reads and changes settings of topics and brokers, with their origins and meanings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, raise_for
from gateway.admin.topics import Row
from gateway.core.config_effect import BROKER_KEYS_WITH_EFFECT, TOPIC_KEYS_WITH_EFFECT
from gateway.topics.config_keys import ConfigSource, ConfigType
from gateway.topics.configs import TOPIC_KEYS
from ledger.command_line.program import nearest

_DESCRIBE, _ALTER = 32, 44
_TOPIC, _BROKER = 2, 4  # values of resource_type
_SET, _REMOVE = 0, 1  # values of config_operation
_CLUSTER: Final = ""  # the name of the resource with cluster-wide defaults

ORIGINS: Final = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "cluster",
    ConfigSource.STATIC_BROKER: "start",
    ConfigSource.DEFAULT: "default",
}
"""Where a value is from: `start` is the command line or file with which the broker started."""


_ORIGIN_OF: Final = {int(source): name for source, name in ORIGINS.items()}
_TYPES: Final = {int(each): each.name.lower() for each in ConfigType}


class Resource(NamedTuple):
    """A topic, a broker, or the cluster-wide defaults of all brokers."""

    kind: int
    name: str

    @property
    def own(self) -> str:
        """The origin of settings that are set on it."""
        if self.kind == _TOPIC:
            return ORIGINS[ConfigSource.TOPIC]
        return ORIGINS[ConfigSource.DYNAMIC_BROKER] if self.name else "cluster"

    def __str__(self) -> str:
        if self.kind == _TOPIC:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "the cluster"


def topic(name: str) -> Resource:
    return Resource(_TOPIC, name)


def broker(node_id: int | None) -> Resource:
    """Return a broker; None stands for the cluster-wide defaults."""
    return Resource(_BROKER, _CLUSTER if node_id is None else str(node_id))


async def describe(
    client: AdminClient, resource: Resource, keys: Sequence[str] | None
) -> list[Row]:
    """Return the settings by name: all, or those in `keys` that exist. Raises AdminError."""
    asked = {
        "resource_type": resource.kind,
        "resource_name": resource.name,
        "configuration_keys": None if keys is None else list(keys),
    }
    fields = {"resources": [asked], "include_synonyms": True, "include_documentation": True}
    answer = await _send(client, resource, _DESCRIBE, fields)
    (result,) = answer.results
    if result.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{resource.name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    raise_for(result.error_code, result.error_message, str(resource))
    ours = await client.reaches_gateway()
    return [_row(each, resource, ours) for each in sorted(result.configs, key=lambda c: c.name)]


async def _send(client: AdminClient, resource: Resource, key: int, fields: dict[str, Any]) -> Any:
    """Ask any broker; but a broker alone describes and changes its own settings."""
    if resource.kind != _BROKER or not resource.name:
        return await client.send(key, fields)
    brokers = {each.node_id: each for each in await client.brokers()}
    node_id = int(resource.name)
    if node_id not in brokers:
        known = ", ".join(map(str, sorted(brokers)))
        raise AdminError(f"there is no broker {node_id}; there are {known}", "UNKNOWN_BROKER")
    return await client.at_broker(brokers[node_id], key, lambda _: fields)


def _row(config: Any, resource: Resource, ours: bool) -> Row:
    kind = getattr(config, "config_type", 0)
    own = TOPIC_KEYS.get(config.name)
    where = origin(config.config_source)
    meaning = getattr(config, "documentation", None) or (own.about if own else None)
    return {
        "key": config.name,
        "value": None if config.is_sensitive else config.value,
        "origin": where,
        "type": _TYPES.get(int(kind), "unknown"),
        "read_only": config.read_only,
        "sensitive": config.is_sensitive,
        "has_effect": has_effect(config.name, resource, where) if ours else None,
        "meaning": meaning,
        "values": [
            {"key": each.name, "value": each.value, "origin": origin(each.source)}
            for each in config.synonyms
        ],
    }


def origin(source: int) -> str:
    """Return the origin of a value by its number in DescribeConfigs."""
    return _ORIGIN_OF.get(int(source), "unknown")


def has_effect(key: str, resource: Resource, origin: str) -> bool:
    """Return whether a gateway acts on a setting. What it was started with, it acts on."""
    if resource.kind == _TOPIC:
        return key in TOPIC_KEYS_WITH_EFFECT
    return origin == "start" or key in broker_keys_with_effect()


def broker_keys_with_effect() -> frozenset[str]:
    """Return the settings of brokers, altered at runtime, that a gateway acts on.

    Some of them are the defaults of settings of topics.
    """
    from gateway.settings.broker_keys import TOPIC_DEFAULTS  # builds a table of all keys

    defaults = {broker for own, broker in TOPIC_DEFAULTS.items() if own in TOPIC_KEYS_WITH_EFFECT}
    return BROKER_KEYS_WITH_EFFECT | defaults


async def explain(client: AdminClient, resource: Resource, key: str) -> Row:
    """Return one setting. Raises AdminError with the nearest key if it does not exist."""
    rows = await describe(client, resource, None)
    found = next((row for row in rows if row["key"] == key), None)
    if found is not None:
        return found
    raise unknown_key(key, [row["key"] for row in rows], resource)


def unknown_key(key: str, known: Sequence[str], resource: Resource) -> AdminError:
    command = "gateway cluster config show --all"
    if resource.kind == _TOPIC:
        command = f"gateway topic config show {resource.name} --all"
    hint = nearest(key, known) or f"; list them with `{command}`"
    return AdminError(f"{resource} has no setting {key!r}{hint}", "UNKNOWN_CONFIG")


class Change(NamedTuple):
    """The outcome of a change of settings."""

    rows: list[Row]
    remark: str | None  # what the server said about settings that it accepted


async def change(
    client: AdminClient, resource: Resource, values: Mapping[str, str | None]
) -> Change:
    """Set settings, or unset those whose value is None; all of them or none. Raises AdminError."""
    before = {row["key"]: row for row in await describe(client, resource, list(values))}
    if resource.kind == _TOPIC:
        missing = next((key for key in values if key not in before), None)
        if missing is not None:
            rows = await describe(client, resource, None)
            raise unknown_key(missing, [row["key"] for row in rows], resource)
    asked = {
        "resource_type": resource.kind,
        "resource_name": resource.name,
        "configs": [
            {
                "name": key,
                "config_operation": _REMOVE if value is None else _SET,
                "value": value,
            }
            for key, value in values.items()
        ],
    }
    fields = {"resources": [asked], "validate_only": False}
    answer = await _send(client, resource, _ALTER, fields)
    (altered,) = answer.responses
    raise_for(altered.error_code, altered.error_message, str(resource))
    rows = [_changed(key, value, before.get(key), resource) for key, value in values.items()]
    return Change(rows, altered.error_message or None)


def _changed(key: str, value: str | None, before: Row | None, resource: Resource) -> Row:
    """Return what a setting was and is. The value behind an unset one follows from its synonyms."""
    unknown: Row = {"value": None, "origin": None, "values": []}
    was = unknown if before is None else before
    after = {"value": value, "origin": resource.own}
    if value is None:
        rest = [each for each in was["values"] if each["origin"] != resource.own]
        after = rest[0] if rest else _default_of(key)
    return {
        "key": key,
        "before": was["value"],
        "before_origin": was["origin"],
        "after": after["value"],
        "origin": after["origin"],
    }


def _default_of(key: str) -> Row:
    own = TOPIC_KEYS.get(key)
    return {"value": None if own is None else own.default, "origin": "default"}
