"""Applies the configs of brokers that are altered at runtime to this broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.log import logger
from gateway.settings.broker_keys import BROKER_KEYS
from gateway.settings.broker_rules import topic_defaults
from gateway.settings.resource_configs import ResourceConfigs
from gateway.topics.catalog import Catalog
from gateway.topics.errors import InvalidConfig

BROKER = 4
"""The type of the resource; its name is a node id, or "" for the cluster-wide default."""

CONNECTIONS, PER_ADDRESS = "max.connections", "max.connections.per.ip"


class BrokerOverrides:
    """The configs of this broker that were altered at runtime, and their effects."""

    def __init__(self, configs: ResourceConfigs, node_id: int, catalog: Catalog) -> None:
        self._configs = configs
        self._name = str(node_id)
        self._catalog = catalog
        # The stored configs as of the last `apply`.
        self._applied: Mapping[str, str] = {}
        self._on_limits: Callable[[int | None, int | None], None] = lambda _, __: None
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
        self._on_limits(_number(now, PER_ADDRESS), _number(now, CONNECTIONS))

    def limit_connections(self, on_limits: Callable[[int | None, int | None], None]) -> None:
        """Call `on_limits` with the limits for one address and for all, now and after changes.

        It receives None where no limit was set.
        """
        self._on_limits = on_limits
        on_limits(_number(self._applied, PER_ADDRESS), _number(self._applied, CONNECTIONS))


def _number(configs: Mapping[str, str], name: str) -> int | None:
    if name not in configs:
        return None
    try:
        value = BROKER_KEYS[name].parse(configs[name])
    except InvalidConfig:
        return None
    assert isinstance(value, int)
    return value
