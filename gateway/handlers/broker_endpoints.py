"""Names brokers in responses, with the addresses at which the client reaches them.

A client is given the addresses of the listener by which it connected. This broker's address is the
advertised one of that listener, or else the address to which the client connected. Other brokers
have registered theirs. A broker without that listener is left out, as in Kafka; a broker of an
earlier release has one address for all. Source: KIP-103 (listeners), KIP-951 (leaders in errors),
KIP-392 (racks); Kafka 4, KRaftMetadataCache.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.cluster.port import ClusterMember, StreamKey
from gateway.handlers.api import Context, Peer
from gateway.wire.node_endpoints import NodeEndpoint


def live_brokers(ctx: Context) -> Sequence[ClusterMember]:
    """Return the live brokers by node id, or only this broker before the first list."""
    return ctx.cluster.members() or [ClusterMember(ctx.config.node_id, "", -1, ctx.config.rack, "")]


def live_ids(ctx: Context) -> frozenset[int]:
    """Return the node ids of the live brokers."""
    return frozenset(member.node_id for member in live_brokers(ctx))


def endpoint(member: ClusterMember, ctx: Context, peer: Peer) -> NodeEndpoint | None:
    """Return the address at which this client reaches the broker, or None if it has none."""
    if member.node_id == ctx.config.node_id:
        address = ctx.address_for(peer)
    else:
        address = member.address_of(peer.listener)
    return None if address is None else NodeEndpoint(member.node_id, *address, member.rack or None)


def endpoints(ctx: Context, peer: Peer) -> list[NodeEndpoint]:
    """Return the addresses of all live brokers that this client can reach."""
    found = (endpoint(member, ctx, peer) for member in live_brokers(ctx))
    return [each for each in found if each is not None]


def out_of_reach(ctx: Context, peer: Peer) -> frozenset[int]:
    """Return the live brokers that lack the listener by which this client connected."""
    return frozenset(
        member.node_id for member in live_brokers(ctx) if endpoint(member, ctx, peer) is None
    )


def controller_id(ctx: Context, peer: Peer) -> int:
    """Return the broker for admin clients. All brokers return the same, but any would do."""
    members = [each for each in live_brokers(ctx) if endpoint(each, ctx, peer) is not None]
    staying = [member.node_id for member in members if not member.leaving]
    return min(staying, default=members[0].node_id if members else ctx.config.node_id)


class LeaderHints:
    """The leaders that one response names in its errors, and their addresses."""

    def __init__(self, ctx: Context, peer: Peer) -> None:
        self._ctx = ctx
        self._peer = peer
        # The address of each leader named so far, by node id.
        self._named: dict[int, NodeEndpoint] = {}

    def leader(self, named: str | UUID, index: int) -> tuple[int, int] | None:
        """Return node id and leader epoch of the partition's leader, or None if none is alive."""
        ctx = self._ctx
        topic = ctx.catalog.by_name_or_id(named)
        if topic is None:
            return None
        leader = ctx.cluster.leader(StreamKey(topic.topic_id, index))
        if leader.epoch < 0 or not self._reachable(leader.node_id):
            return None
        return leader.node_id, leader.epoch

    def _reachable(self, node_id: int) -> bool:
        ctx = self._ctx
        if node_id in self._named:
            return True
        if node_id == ctx.cluster.node_id and not ctx.cluster.lease_held():
            return False  # if this client came back, it would be refused again
        for member in ctx.cluster.members():
            found = endpoint(member, ctx, self._peer) if member.node_id == node_id else None
            if found is not None:
                self._named[node_id] = found
                return True
        return False

    def nodes(self) -> list[NodeEndpoint]:
        """Return the addresses of the leaders named, by node id."""
        return [self._named[node_id] for node_id in sorted(self._named)]
