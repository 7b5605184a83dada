"""Applies changes of IncrementalAlterConfigs and AlterConfigs to a topic's overrides.

Pure: overrides in, overrides out. `configs.normalize` validates the result.
Source: Kafka, ConfigurationControlManager and ConfigAdminManager (rules and texts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from gateway.core.shown_text import shown
from gateway.topics.config_keys import ConfigType
from gateway.topics.configs import TOPIC_KEYS
from gateway.topics.errors import InvalidConfig


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
    named = _items(change.value or "")
    if change.operation is ConfigOperation.APPEND:
        items += [item for item in dict.fromkeys(named) if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def not_a_list(change: ConfigChange) -> InvalidConfig:
    """Return the error of a change that appends to a key that is no list, or subtracts from it."""
    return InvalidConfig(
        f"Can't {change.operation.name} to key {shown(change.name)} because its type is not LIST."
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
