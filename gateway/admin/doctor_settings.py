"""The settings of topics and brokers that were changed and have no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.admin.client import AdminClient
from gateway.admin.configs import broker_keys_with_effect
from gateway.admin.doctor_facts import Idle
from gateway.core.config_effect import TOPIC_KEYS_WITH_EFFECT

_DESCRIBE_CONFIGS = 32
_TOPIC, _BROKER = 2, 4  # values of resource_type
_OF_TOPIC, _OF_BROKER, _OF_ALL_BROKERS = 1, 2, 3  # values of config_source
_TOPICS_AT_ONCE: Final = 200


async def described(client: AdminClient, kind: int, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return kio's configs of each resource that could be described."""
    found: dict[str, list[Any]] = {}
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            for name in names[first : first + _TOPICS_AT_ONCE]
        ]
        answer = await client.send(_DESCRIBE_CONFIGS, {"resources": resources})
        for result in answer.results:
            if not result.error_code.value:
                found[result.resource_name] = list(result.configs)
    return found


async def topic_configs(client: AdminClient, names: Sequence[str]) -> dict[str, list[Any]]:
    return await described(client, _TOPIC, names)


async def broker_configs(client: AdminClient, nodes: Sequence[int]) -> dict[str, list[Any]]:
    """Return the configs of the brokers that answer; a broker describes only itself."""
    return await described(client, _BROKER, [str(node) for node in nodes])


def idle_of_topics(configs: Mapping[str, Sequence[Any]]) -> list[Idle]:
    """Return the settings of topics that do nothing."""
    return [
        Idle(f"topic {name}", each.name)
        for name, rows in sorted(configs.items())
        for each in rows
        if each.config_source == _OF_TOPIC and each.name not in TOPIC_KEYS_WITH_EFFECT
    ]


def idle_of_brokers(configs: Mapping[str, Sequence[Any]]) -> list[Idle]:
    """Return the settings of brokers, altered at runtime, that do nothing. Each of them once."""
    acting = broker_keys_with_effect()
    found: dict[Idle, None] = {}
    for name, rows in sorted(configs.items()):
        for each in rows:
            if each.name in acting or each.config_source not in (_OF_BROKER, _OF_ALL_BROKERS):
                continue
            whole = each.config_source == _OF_ALL_BROKERS
            found[Idle("all brokers" if whole else f"broker {name}", each.name)] = None
    return list(found)
