"""Shows how far the compacted partitions of a topic are cleaned, by asking every gateway."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gateway.admin.blocked import broker_report
from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.topics import describe_topic, settings
from gateway.topics.broker_configs import CLEANING


async def topic_cleaning(client: AdminClient, topic: str) -> tuple[list[dict[str, Any]], bool]:
    """Return a row for each partition whose leader cleans it, and whether the topic is compacted.

    Gateways that do not answer are left out. Raises AdminError if the topic does not exist.
    """
    await describe_topic(client, topic, None)
    policy = (await settings(client, topic))["cleanup.policy"] or ""
    found: list[dict[str, Any]] = []
    for broker in await client.brokers():
        with suppress(AdminError, Unreachable):
            rows = await broker_report(client, broker, CLEANING)
            found += [row for row in rows if row["topic"] == topic]
    return sorted(found, key=lambda row: int(row["partition"])), "compact" in policy
