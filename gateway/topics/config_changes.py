"""Applies changes of IncrementalAlterConfigs and AlterConfigs to a topic's overrides.

Pure: overrides in, overrides out. `configs.normalize` validates the result.
Source: Kafka, ConfigurationControlManager and ConfigAdminManager (rules and texts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from gateway.core.shown_text import shown
from gateway.topics.config_keys import ConfigType
from gateway.topics.configs import TOPIC_KEYS
from gateway.topics.errors import InvalidConfig
from gateway.wire.bounds_check import STRING_BYTES_MAX


class ConfigOperation(IntEnum):
    """The values of config_operation in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One operation on one config key."""

    name: str
    operation: ConfigOperation
    value: str | None


def apply_changes(overrides: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the overrides after all `changes`. Raises InvalidConfig with Kafka's text."""
    after = dict(overrides)
    for change in changes:
        name, value = change.name, change.value or ""
        match change.operation:
            case ConfigOperation.SET:
                after[name] = value
            case ConfigOperation.DELETE:
                after.pop(name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                after[name] = _changed_list(after.get(name), change)
    return after


def _changed_list(current: str | None, change: ConfigChange) -> str:
    key = TOPIC_KEYS.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        raise not_a_list(change)
    items = _items(current if current is not None else key.default or "")
    named = dict.fromkeys(_items(change.value or ""))
    if change.operation is ConfigOperation.APPEND:
        return list_value(change.name, appended(items, named))
    return list_value(change.name, without(items, named))


def appended(items: Sequence[str], named: Iterable[str]) -> list[str]:
    """Return `items`, and then each of `named` that is not among them."""
    known = set(items)
    return [*items, *(each for each in named if each not in known)]


def without(items: Sequence[str], named: Iterable[str]) -> list[str]:
    """Return `items` without all that are in `named`."""
    gone = set(named)
    return [each for each in items if each not in gone]


def list_value(name: str, items: Sequence[str]) -> str:
    """Return the value of a LIST key. Raises InvalidConfig if no string of the protocol holds it.

    Repeated changes could make it longer than that, and DescribeConfigs could not return it.
    """
    text = ",".join(items)
    size = len(text.encode())
    if size > STRING_BYTES_MAX:
        raise InvalidConfig(
            f"The value of configuration {name} would have {size} bytes, and the limit is "
            f"{STRING_BYTES_MAX}. Subtract items of the list, or set a shorter value."
        )
    return text


def not_a_list(change: ConfigChange) -> InvalidConfig:
    """Return the error of a change that appends to a key that is no list, or subtracts from it."""
    return InvalidConfig(
        f"Can't {change.operation.name} to key {shown(change.name)} because its type is not LIST."
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
