"""Whether this broker serves groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from gateway.core.feature_levels import GROUP_VERSION
from gateway.core.offset_expiry import CONSUMER
from gateway.handlers.api import Context


def serves_consumer_protocol(ctx: Context) -> bool:
    """Return whether members of the consumer protocol are served.

    `group.version` must be finalized at 1, committed offsets must be in log segments, and the
    broker must enable the protocol (`group.coordinator.rebalance.protocols`).
    """
    enabled = CONSUMER in ctx.groups.limits.rebalance_protocols
    return enabled and ctx.features.level(GROUP_VERSION) >= 1 and ctx.groups.keeps_records
