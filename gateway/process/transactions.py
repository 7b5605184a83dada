"""Assembles what a process needs for transactions and log compaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.cleaning.cleaner import Cleaner
from gateway.cleaning.settings import cleaner_settings
from gateway.cluster.peer_links import Encode, OnAnswer, PeerLinks
from gateway.core.topic_names import TRANSACTION_STATE
from gateway.handlers.api import Context
from gateway.transactions.coordinators import TransactionCoordinators
from gateway.transactions.group_markers import ClusterGroupMarkers
from gateway.transactions.local_markers import LocalMarkers
from gateway.transactions.markers import ClusterMarkers
from gateway.transactions.verifier import CoordinatorVerifier

if TYPE_CHECKING:
    from gateway.cluster.zookeeper_cluster import ZooKeeperCluster


class Links(Protocol):
    """The connections to other gateways, as `PeerLinks` has them."""

    def ask(self, node_id: int, key: int, encode: Encode, on_answer: OnAnswer) -> None: ...

    def on_members_changed(self) -> None: ...

    async def close(self) -> None: ...


def add_transactions(
    ctx: Context, shared: ZooKeeperCluster | None, new_links: Callable[[], Links] | None = None
) -> Callable[[], Awaitable[None]]:
    """Let this process coordinate transactions and compact logs, once its partitions start.

    `shared` is None if this gateway is the only one. Without `new_links`, other gateways are
    reached over TCP. Returns what ends the connections to them, after the partitions were closed.
    """
    new_links = new_links or partial(PeerLinks, ctx.cluster)
    # Another gateway answers the requests of one connection in order, and a marker only once it is
    # durable. So verifications, for which producers wait, have connections of their own.
    links, links_of_verifier = new_links(), new_links()
    if shared is not None:
        shared.on_members_changed(links.on_members_changed)
        shared.on_members_changed(links_of_verifier.on_members_changed)
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
    ctx.partitions.transactions_may_exist = lambda: ctx.features.transactions_may_exist
    ctx.partitions.verifier = CoordinatorVerifier(
        ctx.cluster.node_id, ctx.transactions, links_of_verifier, ctx.partitions.exists
    )

    ctx.cleaner = Cleaner(
        ctx.catalog,
        ctx.partitions,
        ctx.features,
        ctx.clock,
        lambda: cleaner_settings(ctx.altered.effective),
    )

    async def stop() -> None:
        await sender.close()
        await of_groups.close()
        await links.close()
        await links_of_verifier.close()

    return stop
