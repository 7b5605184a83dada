"""Which gateways an answer names, and where its reader reaches them.

A gateway names itself by the address at which the reader came, the others by what they registered.
Source: KIP-951 (leaders in refusals), KIP-392 (racks).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.cluster.port import Member, StreamKey
from gateway.handlers.api import Context, Peer
from gateway.wire.node_endpoints import NodeEndpoint


def live_members(ctx: Context) -> Sequence[Member]:
    """Gateways that live, by node id; this one alone while it knows of none."""
    return ctx.cluster.members() or [Member(ctx.config.node_id, "", -1, ctx.config.rack, "")]


def endpoint(member: Member, ctx: Context, peer: Peer) -> NodeEndpoint:
    """How this peer reaches the member."""
    if member.node_id == ctx.config.node_id:
        host, port = ctx.address_for(peer)
    else:
        host, port = member.host, member.port
    return NodeEndpoint(member.node_id, host, port, member.rack or None)


def endpoints(ctx: Context, peer: Peer) -> list[NodeEndpoint]:
    return [endpoint(member, ctx, peer) for member in live_members(ctx)]


def controller_id(ctx: Context) -> int:
    """The gateway that admin clients are sent to; any would do, so all name the same one."""
    members = live_members(ctx)
    staying = [member.node_id for member in members if not member.leaving]
    return min(staying, default=members[0].node_id)


class LeaderHints:
    """Leaders that the refusals of one answer name, and where they are."""

    def __init__(self, ctx: Context, peer: Peer) -> None:
        self._ctx = ctx
        self._peer = peer
        self._named: dict[int, NodeEndpoint] = {}

    def leader(self, named: str | UUID, index: int) -> tuple[int, int] | None:
        """Node id and leader epoch, when somebody that lives serves the partition."""
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
            return False  # whoever comes back here is refused again
        for member in ctx.cluster.members():
            if member.node_id == node_id:
                self._named[node_id] = endpoint(member, ctx, self._peer)
                return True
        return False

    def nodes(self) -> list[NodeEndpoint]:
        return [self._named[node_id] for node_id in sorted(self._named)]
