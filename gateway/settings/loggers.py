"""Checks changes of log levels. The process has one logger, and forgets its level when it ends.

Source: Kafka, RuntimeLoggerManager.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.shown_text import shown
from gateway.settings.resource_keys import UnsuitableConfig
from gateway.topics.config_changes import ConfigChange, ConfigOperation
from gateway.topics.errors import InvalidConfig

ROOT = "root"
_LEVELS = ("DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "WARN")


def wanted_level(changes: Sequence[ConfigChange]) -> str | None:
    """Return the level that the changes set, or None. Raises InvalidConfig, UnsuitableConfig."""
    wanted: str | None = None
    for name, operation, value in changes:
        if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            raise UnsuitableConfig(
                f"{operation.name} operation is not allowed for the BROKER_LOGGER resource"
            )
        if name != ROOT:
            raise InvalidConfig(f"Logger {shown(name)} does not exist!")
        if operation is ConfigOperation.DELETE:
            raise UnsuitableConfig("Removing the log level of the root logger is not allowed")
        if value not in _LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {ROOT} to {shown(value or '')} as it is not a "
                f"supported log level. Valid log levels are {', '.join(_LEVELS)}"
            )
        wanted = value
    return wanted
