"""Applies the configs of brokers that are altered at runtime to this broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.log import logger
from gateway.settings.broker_keys import BROKER_KEYS
from gateway.settings.broker_rules import topic_defaults
from gateway.settings.resource_configs import ResourceConfigs
from gateway.topics.catalog import Catalog
from gateway.topics.errors import InvalidConfig

BROKER = 4
"""The type of the resource; its name is a node id, or "" for the cluster-wide default."""

CONNECTIONS, PER_ADDRESS = "max.connections", "max.connections.per.ip"
OVERRIDES = "max.connections.per.ip.overrides"
_OF_LISTENER = "listener.name."


class AlteredLimits(NamedTuple):
    """The limits of connections that were altered at runtime; None where none was."""

    per_address: int | None = None
    in_all: int | None = None
    overrides: Mapping[str, int] | None = None
    per_listener: Mapping[str, int] = {}


class BrokerOverrides:
    """The configs of this broker that were altered at runtime, and their effects."""

    def __init__(self, configs: ResourceConfigs, node_id: int, catalog: Catalog) -> None:
        self._configs = configs
        self._name = str(node_id)
        self._catalog = catalog
        # The stored configs as of the last `apply`.
        self._applied: Mapping[str, str] = {}
        self._on_limits: Callable[[AlteredLimits], None] = lambda _: None
        configs.on_changed.append(self.apply)

    @property
    def own(self) -> Mapping[str, str]:
        """The configs of this broker alone."""
        return self._configs.get(BROKER, self._name)

    @property
    def default(self) -> Mapping[str, str]:
        """The cluster-wide defaults."""
        return self._configs.get(BROKER, "")

    @property
    def effective(self) -> Mapping[str, str]:
        """What applies to this broker."""
        return {**self.default, **self.own}

    def apply(self) -> None:
        """Apply the stored configs, if they changed."""
        now = self.effective
        if now == self._applied:
            return
        self._applied = now
        try:
            self._catalog.use_defaults(topic_defaults(now))
        except InvalidConfig as error:
            logger().error("the stored defaults of topics cannot be used", reason=str(error))
        self._on_limits(_limits(now))

    def limit_connections(self, on_limits: Callable[[AlteredLimits], None]) -> None:
        """Call `on_limits` with the limits of connections, now and after changes."""
        self._on_limits = on_limits
        on_limits(_limits(self._applied))


def _limits(configs: Mapping[str, str]) -> AlteredLimits:
    of_listeners: dict[str, int] = {}
    for key in configs:
        name, _, base = key.removeprefix(_OF_LISTENER).partition(".")
        if key.startswith(_OF_LISTENER) and base == CONNECTIONS:
            limit = _number({base: configs[key]}, base)
            if limit is not None:
                of_listeners[name.upper()] = limit
    overrides = None
    if OVERRIDES in configs:
        overrides = overrides_of(configs[OVERRIDES])
    return AlteredLimits(
        _number(configs, PER_ADDRESS), _number(configs, CONNECTIONS), overrides, of_listeners
    )


def overrides_of(text: str) -> dict[str, int]:
    """Return the limits of single addresses in a value of Kafka's key. Others are left out."""
    found: dict[str, int] = {}
    for each in text.split(","):
        address, _, count = each.strip().rpartition(":")
        if address and count.isascii() and count.isdigit():
            found[address.strip("[]")] = int(count)
    return found


def _number(configs: Mapping[str, str], name: str) -> int | None:
    if name not in configs:
        return None
    try:
        value = BROKER_KEYS[name].parse(configs[name])
    except InvalidConfig:
        return None
    assert isinstance(value, int)
    return value
