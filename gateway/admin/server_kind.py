"""Finds out whether a server is a gateway of this project or another broker, such as Kafka's."""

from __future__ import annotations

from gateway.admin.client import AdminClient
from gateway.admin.features import list_features
from gateway.core.feature_levels import GATEWAY_VERSION


async def is_ledger_gateway(client: AdminClient) -> bool:
    """Return whether the server supports a feature that only gateways have."""
    return any(row["feature"] == GATEWAY_VERSION for row in await list_features(client))
