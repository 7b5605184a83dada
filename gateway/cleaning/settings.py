"""The settings of brokers that act on the cleaner, as they were altered at runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.settings.broker_keys import BROKER_KEYS
from gateway.topics.errors import InvalidConfig

_NONE = 1.7976931348623157e308  # Kafka's default: no limit


class CleanerSettings(NamedTuple):
    """The settings of one gateway's cleaner, with Kafka's defaults."""

    map_bytes: int = 128 * 1024 * 1024  # log.cleaner.dedupe.buffer.size
    io_bytes_per_s: float = _NONE  # log.cleaner.io.max.bytes.per.second
    backoff_ms: int = 15_000  # log.cleaner.backoff.ms


def cleaner_settings(altered: Mapping[str, str]) -> CleanerSettings:
    """Return the settings of a broker with these altered configs."""
    default = CleanerSettings()
    return CleanerSettings(
        int(_number(altered, "log.cleaner.dedupe.buffer.size", default.map_bytes)),
        float(_number(altered, "log.cleaner.io.max.bytes.per.second", default.io_bytes_per_s)),
        int(_number(altered, "log.cleaner.backoff.ms", default.backoff_ms)),
    )


def _number(altered: Mapping[str, str], name: str, default: float) -> float:
    if name not in altered:
        return default
    try:
        value = BROKER_KEYS[name].parse(altered[name])
    except InvalidConfig:
        return default
    assert isinstance(value, int | float)
    return value
