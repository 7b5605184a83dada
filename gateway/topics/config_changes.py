"""Changes of a topic's own settings, as IncrementalAlterConfigs and AlterConfigs ask for them.

Pure: overrides in, overrides out; `configs.normalize` judges the result.
Source: Kafka, ConfigurationControlManager and ConfigAdminManager (rules and texts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from gateway.topics.config_keys import Type
from gateway.topics.configs import TOPIC_KEYS
from gateway.topics.errors import InvalidConfig


class Operation(IntEnum):
    """IncrementalAlterConfigs' config_operation."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: Operation
    value: str | None


def apply_changes(overrides: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    """The overrides after all of `changes`. Raises InvalidConfig in Kafka's words."""
    after = dict(overrides)
    for change in changes:
        name, value = change.name, change.value or ""
        match change.operation:
            case Operation.SET:
                after[name] = value
            case Operation.DELETE:
                after.pop(name, None)
            case Operation.APPEND | Operation.SUBTRACT:
                after[name] = _changed_list(after.get(name), change)
    return after


def _changed_list(current: str | None, change: Change) -> str:
    key = TOPIC_KEYS.get(change.name)
    if key is None:
        raise InvalidConfig(f"Unknown topic config name: {change.name}")
    if key.type is not Type.LIST:
        raise InvalidConfig(
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST."
        )
    items = _items(current if current is not None else key.default or "")
    named = _items(change.value or "")
    if change.operation is Operation.APPEND:
        items += [item for item in dict.fromkeys(named) if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
