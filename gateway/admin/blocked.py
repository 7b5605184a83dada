"""Finds where readers wait for lost or unreachable records, by asking every gateway."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from gateway.admin.client import AdminClient, AdminError, Broker, Place, Unreachable
from gateway.core.blocked_reads import AT_END
from gateway.topics.broker_configs import BLOCKED_PARTITIONS

_DESCRIBE_CONFIGS = 32
_BROKER_RESOURCE = 4
_VERSION_MAX = 4

Blocked = dict[Place, dict[int, str]]
"""The reasons by partition and offset."""


async def blocked_places(client: AdminClient) -> Blocked:
    """Return where readers are blocked, as of now.

    A broker that does not answer, and a broker of Kafka or of an older version, is left out.
    """
    found: Blocked = {}
    for broker in await client.brokers():
        with suppress(AdminError, Unreachable):
            _add(await broker_report(client, broker, BLOCKED_PARTITIONS), found)
    return found


def blocked_from(blocked: Blocked, place: Place, position: int | None) -> str | None:
    """Return the reason that a reader of the partition at `position` meets first, or None."""
    reasons = blocked.get(place, {})
    ahead = [at for at in reasons if position is None or at >= position or at == AT_END]
    return reasons[min(ahead)] if ahead else None


async def broker_report(client: AdminClient, broker: Broker, name: str) -> list[dict[str, Any]]:
    """Return the rows of one broker, which describes only itself, from the config `name`."""
    resource = {
        "resource_type": _BROKER_RESOURCE,
        "resource_name": str(broker.node_id),
        "configuration_keys": [name],
    }
    answer = await client.at_broker(
        broker, _DESCRIBE_CONFIGS, lambda _: {"resources": [resource]}, _VERSION_MAX
    )
    texts = [
        config.value
        for result in answer.results
        for config in result.configs
        if config.name == name and config.value
    ]
    return json.loads(texts[0]) if texts else []


def _add(rows: list[dict[str, Any]], found: Blocked) -> None:
    for row in rows:
        place = (str(row["topic"]), int(row["partition"]))
        found.setdefault(place, {})[int(row["offset"])] = str(row["reason"])
