"""Checks, caps and describes the configs of groups within the bounds of this broker. Pure.

    stored configs of a group ─▶ capped to the broker's bounds ─▶ what acts
    none stored               ─▶ altered configs of the broker ─▶ those it was started with

A change beyond a bound is refused. A config that was stored before a bound changed stays as it is,
and acts as the bound. Source: Apache Kafka 4.3.0, GroupConfig (validate, evaluate),
GroupCoordinatorConfig (clampDynamicConfigs) and ConfigHelper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gateway.config import GroupLimits
from gateway.settings.broker_keys import BROKER_KEYS
from gateway.settings.resource_keys import GROUP_KEYS, Overrides, UnsuitableConfig
from gateway.topics.config_keys import ConfigEntry, ConfigKey, ConfigSource, Value, format_value
from gateway.topics.errors import InvalidConfig

SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
INTERVAL: Final = "consumer.assignment.interval.ms"
_BROKER: Final = "group."
_INTERVALS: Final = (INTERVAL, "share.assignment.interval.ms", "streams.assignment.interval.ms")


class Bounds(NamedTuple):
    """The least and the greatest value of a config of groups."""

    low: int
    high: int
    broker: str  # the broker's configs for them: %s stands for min or max

    def fault(self, name: str, value: Value) -> str | None:
        """Return Kafka's text about a value beyond a bound, or None."""
        assert isinstance(value, int)
        if value < self.low:
            return f"{name} must be greater than or equal to {self.broker % 'min'}"
        if value > self.high:
            return f"{name} must be less than or equal to {self.broker % 'max'}"
        return None

    def capped(self, value: int) -> int:
        """Return the value, or the bound that it is beyond."""
        return min(max(value, self.low), self.high)


# Those of share groups and of streams groups, which a broker of Kafka 4.3 has by default.
_FIXED: Final[Mapping[str, tuple[int, int, str]]] = {
    "share.heartbeat.interval.ms": (5_000, 15_000, "share.%s.heartbeat.interval.ms"),
    "share.session.timeout.ms": (45_000, 60_000, "share.%s.session.timeout.ms"),
    "share.record.lock.duration.ms": (15_000, 60_000, "share.%s.record.lock.duration.ms"),
    "share.delivery.count.limit": (2, 10, "share.%s.delivery.count.limit"),
    "share.partition.max.record.locks": (100, 4_000, "share.%s.partition.max.record.locks"),
    "share.assignment.interval.ms": (0, 15_000, "share.%s.assignment.interval.ms"),
    "streams.heartbeat.interval.ms": (5_000, 15_000, "streams.%s.heartbeat.interval.ms"),
    "streams.session.timeout.ms": (45_000, 60_000, "streams.%s.session.timeout.ms"),
    "streams.num.standby.replicas": (0, 2, "streams.%s.standby.replicas"),
    "streams.assignment.interval.ms": (0, 15_000, "streams.%s.assignment.interval.ms"),
}


def bounds_of(limits: GroupLimits) -> dict[str, Bounds]:
    """Return the bounds of the configs of groups, in the order in which Kafka checks them."""
    consumer = {
        HEARTBEAT: (
            limits.consumer_heartbeat_interval_ms_min,
            limits.consumer_heartbeat_interval_ms_max,
            "consumer.%s.heartbeat.interval.ms",
        ),
        SESSION: (
            limits.consumer_session_timeout_ms_min,
            limits.consumer_session_timeout_ms_max,
            "consumer.%s.session.timeout.ms",
        ),
        INTERVAL: (
            limits.consumer_assignment_interval_ms_min,
            limits.consumer_assignment_interval_ms_max,
            "consumer.%s.assignment.interval.ms",
        ),
    }
    return {
        name: Bounds(low, high, _BROKER + broker)
        for name, (low, high, broker) in (consumer | dict(_FIXED)).items()
    }


# -- changes --------------------------------------------------------------------------------------


def group_configs(overrides: Overrides, limits: GroupLimits) -> dict[str, str]:
    """Return the configs of a group as they are stored and shown. Raises InvalidConfig.

    As in Kafka, all configs of the group are checked, not only those that change.
    """
    for name in overrides:
        if name not in GROUP_KEYS:
            raise InvalidConfig(f"Unknown group config name: {name}")
    values = {name: GROUP_KEYS[name].parse(text) for name, text in overrides.items()}
    for name, bounds in bounds_of(limits).items():
        fault = bounds.fault(name, values[name]) if name in values else None
        if fault is not None:
            raise InvalidConfig(fault)
    session_ms = values.get(SESSION, limits.consumer_session_timeout_ms)
    heartbeat_ms = values.get(HEARTBEAT, limits.consumer_heartbeat_interval_ms)
    assert isinstance(session_ms, int) and isinstance(heartbeat_ms, int)
    if session_ms <= heartbeat_ms:
        raise InvalidConfig(f"{SESSION} must be greater than {HEARTBEAT}")
    return {name: format_value(value) for name, value in values.items()}


def check_intervals(altered: Overrides, hidden: Overrides, limits: GroupLimits) -> None:
    """Refuse altered configs of a broker for its groups that are beyond a bound.

    `altered` are those whose value changes: others may have been stored within other bounds. Those
    that `hidden` has do not apply to this broker. Raises UnsuitableConfig.
    """
    bounds = bounds_of(limits)
    for name in _INTERVALS:
        broker = _BROKER + name
        if broker in altered and broker not in hidden:
            fault = bounds[name].fault(broker, BROKER_KEYS[broker].parse(altered[broker]))
            if fault is not None:
                raise UnsuitableConfig(fault)


# -- what acts ------------------------------------------------------------------------------------


def started_with(limits: GroupLimits) -> dict[str, int]:
    """Return the broker's own values of the configs that a group of the consumer protocol has."""
    return {
        SESSION: limits.consumer_session_timeout_ms,
        HEARTBEAT: limits.consumer_heartbeat_interval_ms,
        INTERVAL: limits.consumer_assignment_interval_ms,
    }


def effective_value(
    name: str, own: Overrides, broker: Overrides, bounds: Mapping[str, Bounds], started: int
) -> int:
    """Return the value of a config that acts: of a group, else of the altered or started broker."""
    stored = _number(own.get(name, broker.get(_BROKER + name)))
    return started if stored is None else bounds[name].capped(stored)


def _number(text: str | None) -> int | None:
    """Return a stored number. None if there is none, or another release stored what is none."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


class Capped(NamedTuple):
    """A stored value that acts as the bound that it is beyond."""

    stored: int
    acts: int


def capped_configs(
    overrides: Overrides, bounds: Mapping[str, Bounds], prefix: str = ""
) -> Iterator[tuple[str, Capped]]:
    """Yield the stored configs of a group that are beyond a bound, or of a broker with `prefix`."""
    for name, each in bounds.items():
        stored = _number(overrides.get(prefix + name))
        if stored is not None and each.capped(stored) != stored:
            yield prefix + name, Capped(stored, each.capped(stored))


def capped_broker_configs(
    overrides: Overrides, bounds: Mapping[str, Bounds]
) -> Iterator[tuple[str, Capped]]:
    """Yield the altered configs of a broker that are beyond a bound for its groups, and act."""
    return capped_configs(overrides, {INTERVAL: bounds[INTERVAL]}, _BROKER)


# -- describing -----------------------------------------------------------------------------------


def describe_group(
    overrides: Overrides,
    broker: tuple[Overrides, Overrides],
    limits: GroupLimits,
    names: Iterable[str] | None,
) -> list[ConfigEntry]:
    """Return the configs of a group by name: all configs, or the existing ones in `names`.

    `broker` are the altered configs of this broker alone, and the cluster-wide defaults. A stored
    value is shown as it was stored.
    """
    wanted = None if names is None else set(names)
    bounds, started = bounds_of(limits), started_with(limits)
    found: list[ConfigEntry] = []
    for key in GROUP_KEYS.values():
        if wanted is None or key.name in wanted:
            places = list(_places(key, broker, started.get(key.name)))
            found.append(_entry(key, overrides.get(key.name), places, bounds.get(key.name)))
    return found


_Place = tuple[str, str, ConfigSource]


def _places(
    key: ConfigKey, broker: tuple[Overrides, Overrides], started: int | None
) -> Iterator[_Place]:
    """Yield the values of the broker for a config, the one that acts first."""
    own, default = broker
    for name, standard in key.synonyms:
        if name in own:
            yield name, own[name], ConfigSource.DYNAMIC_BROKER
        if name in default:
            yield name, default[name], ConfigSource.DYNAMIC_DEFAULT_BROKER
        if started is not None and str(started) != standard:
            yield name, str(started), ConfigSource.STATIC_BROKER
        yield name, standard, ConfigSource.DEFAULT


def _entry(
    key: ConfigKey, override: str | None, places: list[_Place], bounds: Bounds | None
) -> ConfigEntry:
    if override is not None:
        own = (key.name, override, ConfigSource.GROUP)
        return ConfigEntry(
            key=key, value=override, source=ConfigSource.GROUP, synonyms=(own, *places)
        )
    _, value, source = places[0]
    return ConfigEntry(
        key=key, value=_capped_text(value, bounds), source=source, synonyms=tuple(places)
    )


def _capped_text(text: str, bounds: Bounds | None) -> str:
    value = _number(text)
    return text if value is None or bounds is None else str(bounds.capped(value))


def with_capped_values(entries: Iterable[ConfigEntry], limits: GroupLimits) -> list[ConfigEntry]:
    """Return the configs of a broker; those beyond a bound for its groups show what acts."""
    bounds = bounds_of(limits)
    return [_with_capped_value(each, bounds) for each in entries]


def _with_capped_value(entry: ConfigEntry, bounds: Mapping[str, Bounds]) -> ConfigEntry:
    name = entry.key.name.removeprefix(_BROKER)
    if name not in _INTERVALS or entry.value is None:
        return entry
    return replace(entry, value=_capped_text(entry.value, bounds[name]))
