"""Defines a config key: name, type, bounds, default and documentation.

Types, sources and error texts are the same as in Kafka's ConfigDef and DescribeConfigs, so that
admin tools show the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from gateway.topics.errors import InvalidConfig

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)

Value = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """The values of config_type in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The values of config_source in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


_NUMBER_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (LONG_MIN, LONG_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One config key. `default` is formatted. None means that the key has no value."""

    name: str
    type: ConfigType
    default: str | None
    about: str  # the documentation that DescribeConfigs returns
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] = ()  # the allowed values of a STRING, or of each item of a LIST
    synonyms: tuple[
        tuple[str, str], ...
    ] = ()  # names of the broker configs for this key, with their defaults
    check: Callable[[Value], str | None] | None = (
        None  # a further rule, which returns an error text or None
    )

    def parse(self, text: str) -> Value:
        """Return the typed value. Raises InvalidConfig with Kafka's text."""
        value = self._parse(text.strip())
        items = value if isinstance(value, tuple) else (value,)
        for item in items if self.one_of else ():
            if item not in self.one_of:
                raise self._invalid(str(item), f"String must be one of: {', '.join(self.one_of)}")
        fault = self._fault(value)
        if fault is not None:
            raise self._invalid(text, fault)
        return value

    def _parse(self, text: str) -> Value:
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(text, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.type is ConfigType.LIST:
            return tuple(item.strip() for item in text.split(",")) if text else ()
        if self.type in _NUMBER_BOUNDS or self.type is ConfigType.DOUBLE:
            return self._parse_number(text)
        return text

    def _parse_number(self, text: str) -> int | float:
        fault = f"Not a number of type {self.type.name}"
        if (
            "_" in text or not text.isascii()
        ):  # int() would also accept 1_000 and the digits of other scripts
            raise self._invalid(text, fault)
        try:
            if self.type is ConfigType.DOUBLE:
                return float(text)
            number = int(text)
        except ValueError:
            raise self._invalid(text, fault) from None
        low, high = _NUMBER_BOUNDS[self.type]
        if not low <= number <= high:
            raise self._invalid(text, fault)
        return number

    def _fault(self, value: Value) -> str | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.at_least is not None and not value >= self.at_least:
                return f"Value must be at least {self.at_least:.17g}"
            if self.at_most is not None and not value <= self.at_most:
                return f"Value must be no more than {self.at_most:.17g}"
        return self.check(value) if self.check is not None else None

    def _invalid(self, text: str, fault: str) -> InvalidConfig:
        return InvalidConfig(f"Invalid value {text[:200]} for configuration {self.name}: {fault}")


def format_value(value: Value) -> str:
    """Return the value as DescribeConfigs and the catalog represent it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One effective config as DescribeConfigs returns it.

    `synonyms` lists every value for the key, the effective one first, the default last.
    """

    key: ConfigKey
    value: str | None
    source: ConfigSource
    read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()


def describe_config(
    key: ConfigKey,
    override: str | None,
    source: ConfigSource,
    defaults: Iterable[tuple[str, str]],
) -> ConfigEntry:
    """Return the effective config of a key: the override, which is of `source`, or the default.

    `defaults` are the names and values of brokers' configs that the entry lists for the key.
    """
    synonyms = tuple((name, text, ConfigSource.DEFAULT) for name, text in defaults)
    if override is None:
        return ConfigEntry(
            key=key, value=key.default, source=ConfigSource.DEFAULT, synonyms=synonyms
        )
    own = (key.name, override, source)
    return ConfigEntry(key=key, value=override, source=source, synonyms=(own, *synonyms))
