"""Checks and describes the configs of brokers that are altered at runtime. Pure.

    cluster-wide defaults ─▶ configs of one broker ─▶ what applies, and where each value is from

Source: Kafka, ConfigAdminManager, DynamicBrokerConfig, DynamicThreadPool and ConfigHelper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gateway.core.shown_text import shown
from gateway.settings.broker_keys import (
    BROKER_KEYS,
    SECURITY_NAMES,
    STATIC_NAMES,
    TOPIC_DEFAULTS,
    base_name,
    is_per_broker,
    key_of,
    synonyms,
)
from gateway.settings.resource_keys import Overrides, UnsuitableConfig
from gateway.topics.config_changes import ConfigChange, ConfigOperation, appended, list_value
from gateway.topics.config_keys import (
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigType,
    format_value,
)
from gateway.topics.configs import TOPIC_KEYS
from gateway.topics.errors import InvalidConfig

_THREADS = (
    "background.threads",
    "num.io.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)


def changed_broker_configs(before: Overrides, changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the configs after all `changes`. Raises InvalidConfig with Kafka's text."""
    after = dict(before)
    for name, operation, value in changes:
        match operation:
            case ConfigOperation.SET:
                after[name] = value or ""
            case ConfigOperation.DELETE:
                after.pop(name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                after[name] = _changed_list(after.get(name), name, operation, value or "")
    return after


def _changed_list(current: str | None, name: str, operation: ConfigOperation, value: str) -> str:
    key = BROKER_KEYS.get(name)
    if key is None and name not in STATIC_NAMES:
        raise InvalidConfig(f"Unknown config name: {shown(name)}")
    if key is None or key.type is not ConfigType.LIST:
        raise InvalidConfig(
            f"Config value {operation.name.lower()} is not allowed for config key: {shown(name)}"
        )
    text = current if current is not None else key.default or ""
    items, named = text.split(",") if text else [], value.split(",")
    if operation is ConfigOperation.APPEND:
        return list_value(name, appended(items, named))
    return list_value(name, subtracted(items, named))


def subtracted(items: Sequence[str], named: Iterable[str]) -> list[str]:
    """Return `items` without `named`. Each name removes the first of its occurrences only."""
    gone = Counter(named)
    left: list[str] = []
    for each in items:
        if gone[each] > 0:
            gone[each] -= 1
        else:
            left.append(each)
    return left


def check_broker_configs(configs: Overrides, applied: Overrides, *, per_broker: bool) -> None:
    """Refuse configs that Kafka's brokers refuse. `applied` are those of the broker as it is.

    Without `per_broker` they are the defaults for all brokers. Raises UnsuitableConfig.
    """
    _refuse("Cannot update these configs dynamically", STATIC_NAMES & configs.keys())
    _refuse(
        "These security configs can be dynamically updated only per-listener using the listener "
        "prefix",
        SECURITY_NAMES & configs.keys(),
    )
    try:
        for name, text in configs.items():
            key = BROKER_KEYS.get(base_name(name))
            if key is not None:
                key.parse(text)
        if not per_broker:
            _refuse(
                "Cannot update these configs at default cluster level, broker id must be specified",
                filter(is_per_broker, configs),
            )
        topic_defaults(configs)
    except InvalidConfig as error:
        raise UnsuitableConfig(str(error)) from None
    _check_threads(configs, applied)


def _refuse(text: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        raise UnsuitableConfig(f"{text}: [{shown(', '.join(found))}]")


def _check_threads(configs: Overrides, applied: Overrides) -> None:
    """Refuse numbers of threads that Kafka's broker would refuse, although they have no effect."""
    for name in _THREADS:
        if name not in configs:
            continue
        new, old = (
            int(each.get(name, BROKER_KEYS[name].default or "1").strip())
            for each in (configs, applied)
        )
        fault = None
        if new < old // 2:
            fault = f"value should be at least half the current value {old}"
        elif new > old * 2:
            fault = f"value should not be greater than double the current value {old}"
        if fault is not None:
            raise UnsuitableConfig(
                "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread "
                f"count update validation failed for {name}={new}, {fault} for configuration "
                "Invalid dynamic configuration"
            )


def topic_defaults(configs: Overrides) -> dict[str, str]:
    """Return the defaults of topics that these configs of a broker set, by the topic's name.

    Raises InvalidConfig if a value is beyond what this broker can serve.
    """
    return {
        name: format_value(TOPIC_KEYS[name].parse(configs[broker]))
        for name, broker in TOPIC_DEFAULTS.items()
        if broker in configs
    }


# -- describing -----------------------------------------------------------------------------------


def describe_altered(
    entries: Iterable[ConfigEntry], own: Overrides, default: Overrides, names: set[str] | None
) -> list[ConfigEntry]:
    """Return the configs of a broker by name: all configs, or the existing ones in `names`.

    `entries` are those that its process was started with.
    """
    static = {entry.key.name: entry for entry in entries}
    known = static.keys() | BROKER_KEYS.keys() | own.keys() | default.keys()
    wanted = known if names is None else known & names
    return [_entry(name, static, own, default) for name in sorted(wanted)]


def describe_defaults(default: Overrides, names: set[str] | None) -> list[ConfigEntry]:
    """Return the cluster-wide defaults, as they were set."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    found: list[ConfigEntry] = []
    for name in sorted(default if names is None else default.keys() & names):
        places = _values(synonyms(name), default, source)
        found.append(_shown(name, default[name], _own_first(name, places)))
    return found


def with_altered_defaults(
    entries: Iterable[ConfigEntry], own: Overrides, default: Overrides
) -> list[ConfigEntry]:
    """Return the configs of a topic with the defaults that were altered for its broker."""
    return [_with_altered_default(each, own, default) for each in entries]


def _with_altered_default(entry: ConfigEntry, own: Overrides, default: Overrides) -> ConfigEntry:
    broker = TOPIC_DEFAULTS.get(entry.key.name)
    if broker is None or (broker not in own and broker not in default):
        return entry
    places = _values((broker,), own, ConfigSource.DYNAMIC_BROKER)
    places += _values((broker,), default, ConfigSource.DYNAMIC_DEFAULT_BROKER)
    places += [(name, text, ConfigSource.DEFAULT) for name, text in entry.key.synonyms]
    if entry.source is ConfigSource.TOPIC:
        return replace(entry, synonyms=(entry.synonyms[0], *places))
    value = own.get(broker, default.get(broker, ""))
    try:
        value = format_value(entry.key.parse(value))
    except InvalidConfig:  # stored by a release with other bounds
        return entry
    return replace(entry, value=value, source=places[0][2], synonyms=tuple(places))


_Synonym = tuple[str, str | None, ConfigSource]


def _entry(
    name: str, static: Mapping[str, ConfigEntry], own: Overrides, default: Overrides
) -> ConfigEntry:
    names = synonyms(name)
    places = _values(names, own, ConfigSource.DYNAMIC_BROKER)
    places += _values(names, default, ConfigSource.DYNAMIC_DEFAULT_BROKER)
    for each in names:
        entry, key = static.get(each), BROKER_KEYS.get(each)
        if entry is not None:
            places += entry.synonyms
        elif key is not None and key.default is not None:
            places.append((each, key.default, ConfigSource.DEFAULT))
    key = key_of(name)
    value = own.get(name, default.get(name))
    if value is None:
        entry = static.get(name)
        value = entry.value if entry is not None else key.default if key is not None else None
        return _shown(name, value, _own_first(name, places), entry)
    if key is not None:
        try:
            value = format_value(key.parse(value))
        except InvalidConfig:  # stored by a release with other bounds
            pass
    return _shown(name, value, _own_first(name, places), static.get(name))


def _values(names: Iterable[str], configs: Overrides, source: ConfigSource) -> list[_Synonym]:
    return [(each, configs[each], source) for each in names if each in configs]


def _own_first(name: str, places: list[_Synonym]) -> list[_Synonym]:
    """Drop the values under other names that precede the first one under this name."""
    at = next((at for at, each in enumerate(places) if each[0] == name), len(places))
    return places[at:]


def _shown(
    name: str, value: str | None, places: list[_Synonym], entry: ConfigEntry | None = None
) -> ConfigEntry:
    key = key_of(name)
    secret = entry is None and (key is None or key.type is ConfigType.PASSWORD)
    described = ConfigKey(
        name=name,
        type=entry.key.type if entry is not None else key.type if key else ConfigType.UNKNOWN,
        default=key.default if key else None,
        about=entry.key.about if entry is not None else key.about if key else "",
    )
    return ConfigEntry(
        key=described,
        value=None if secret else value,
        source=places[0][2] if places else ConfigSource.DEFAULT,
        read_only=name not in BROKER_KEYS,
        is_sensitive=secret,
        synonyms=tuple((each, None if secret else text, of) for each, text, of in places),
    )
