"""Assembles what a process needs to serve transactions. Only with the preview."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.cluster.peer_links import PeerLinks
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.core.topic_names import TRANSACTION_STATE
from gateway.handlers.api import Context
from gateway.transactions.coordinators import TransactionCoordinators
from gateway.transactions.group_markers import ClusterGroupMarkers
from gateway.transactions.local_markers import LocalMarkers
from gateway.transactions.markers import ClusterMarkers
from gateway.transactions.verifier import CoordinatorVerifier


def add_transactions(
    ctx: Context, shared: ZooKeeperCluster | None
) -> Callable[[], Awaitable[None]]:
    """Let this process coordinate transactions, from the start of its partitions on.

    `shared` is None if this gateway is the only one. Returns what ends the connections to other
    gateways, after the partitions were closed.
    """
    links = PeerLinks(ctx.cluster)
    if shared is not None:
        shared.on_members_changed(links.on_members_changed)
    groups = ctx.groups
    of_groups = ClusterGroupMarkers(
        groups.transactional_groups, groups.transactional, ctx.cluster, links
    )
    ctx.markers = LocalMarkers(ctx.partitions, of_groups)
    sender = ClusterMarkers(ctx.catalog, ctx.cluster, ctx.markers, links)
    ctx.transactions = TransactionCoordinators(
        ctx.catalog,
        ctx.partitions,
        ctx.clock,
        ctx.producer_ids,
        sender,
        ctx.config.transaction,
        ctx.features,
    )
    ctx.partitions.hosts[TRANSACTION_STATE] = ctx.transactions
    ctx.partitions.verifier = CoordinatorVerifier(ctx.cluster.node_id, ctx.transactions, links)

    async def stop() -> None:
        await sender.close()
        await of_groups.close()
        await links.close()

    return stop
