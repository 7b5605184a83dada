"""Asks every gateway which bookies it avoids, for `gateway bookie status`."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.admin.client import AdminClient, Broker, Unreachable, raise_for
from gateway.topics.broker_configs import GREYLIST
from gateway.topics.greylist_report import parse_report

_DESCRIBE_CONFIGS = 32
_BROKER_RESOURCE = 4
_VERSION_MAX = 4

Row = dict[str, Any]


async def bookie_status(client: AdminClient) -> list[Row]:
    """Return a row for each gateway: its address, its detection mode and its greylist.

    A gateway that does not answer, or that is of an older version, has no greylist: `detection` is
    then `unreachable` or `unknown`.
    """
    brokers = sorted(await client.brokers(), key=lambda broker: broker.node_id)
    reports = await asyncio.gather(*[_report_of(client, broker) for broker in brokers])
    return [
        {
            "gateway": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "detection": report["detection"],
            "bookies": report["bookies"],
        }
        for broker, report in zip(brokers, reports, strict=True)
    ]


async def _report_of(client: AdminClient, broker: Broker) -> Row:
    resource = {
        "resource_type": _BROKER_RESOURCE,
        "resource_name": str(broker.node_id),
        "configuration_keys": [GREYLIST],
    }
    try:
        answer = await client.at_broker(
            broker, _DESCRIBE_CONFIGS, lambda version: {"resources": [resource]}, _VERSION_MAX
        )
    except Unreachable:
        return {"detection": "unreachable", "bookies": []}
    for result in answer.results:
        if result.error_code.name.endswith("authorization_failed"):
            raise_for(result.error_code, result.error_message, f"gateway {broker.node_id}")
        for config in result.configs:
            report = parse_report(config.value) if config.name == GREYLIST else None
            if report is not None:
                return report
    return {"detection": "unknown", "bookies": []}


def table_rows(found: list[Row]) -> list[Row]:
    """Return a row for each greylisted bookie and gateway."""
    return [
        {"gateway": row["gateway"], "address": row["address"], **bookie}
        for row in found
        for bookie in row["bookies"]
    ]


def remarks(found: list[Row]) -> list[str]:
    """Return a sentence for each gateway whose greylist does not say all."""
    texts = {
        "unreachable": "did not answer",
        "unknown": "does not report its greylist: it is a Kafka broker or of an older version",
        "observe-only": "only observes slow bookies",
        "disabled": "does not compare bookies",
    }
    return [
        f"gateway {row['gateway']} ({row['address']}) {texts[row['detection']]}"
        for row in found
        if row["detection"] in texts
    ]
