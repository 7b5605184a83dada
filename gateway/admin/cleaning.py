"""Shows how far the compacted partitions of a topic are cleaned, by asking every gateway."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.admin.blocked import broker_report
from gateway.admin.client import AdminClient, AdminError, Broker, Unreachable
from gateway.admin.topics import describe_topic, settings
from gateway.topics.broker_configs import CLEANING


class TopicCleaning(NamedTuple):
    """The cleaning of one topic, as its gateways report it."""

    rows: list[dict[str, Any]]  # one for each partition whose leader cleans it, in order
    compacted: bool  # whether the topic's cleanup.policy has `compact`
    missing: list[AdminError]  # why rows may be missing


async def topic_cleaning(client: AdminClient, topic: str) -> TopicCleaning:
    """Return the cleaning of a topic. Raises AdminError if the topic does not exist."""
    await describe_topic(client, topic, None)
    policy = (await settings(client, topic))["cleanup.policy"] or ""
    found = TopicCleaning([], "compact" in policy, [])
    for broker in await client.brokers():
        try:
            await _add_report(client, broker, topic, found)
        except (AdminError, Unreachable) as error:
            code = error.code if isinstance(error, AdminError) else "UNREACHABLE"
            found.missing.append(AdminError(f"gateway {broker}: {error}", code))
    found.rows.sort(key=lambda row: int(row["partition"]))
    return found


async def _add_report(
    client: AdminClient, broker: Broker, topic: str, found: TopicCleaning
) -> None:
    rows = await broker_report(client, broker, CLEANING + topic)
    for row in rows:
        if "left_out" not in row:
            found.rows.append(row)
            continue
        text = f"gateway {broker}: its report leaves out {row['left_out']} partitions"
        found.missing.append(AdminError(text, "INCOMPLETE"))
