"""The cluster of a cluster: gateways that share all streams by what is written in ZooKeeper.

Who lives is `membership`'s, who owns which stream `streams`', who coordinates which group
`claims`'; here they are one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID, uuid4

from gateway.cluster.coordinator_ownership import CoordinatorOwnership
from gateway.cluster.membership import ClusterMembership, listen
from gateway.cluster.partition_ownership import PartitionOwnership
from gateway.cluster.port import (
    ClusterMember,
    HandOver,
    Leader,
    StreamKey,
    StreamListener,
    TopicDirectory,
    Unlisten,
)
from gateway.log import logger
from ledger.errors import MetadataUnavailable
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore

BALANCE_SETTLE_S = 5.0  # so long a gateway has been there before streams move to it
BALANCE_AT_ONCE = 8
_RETRY_S = 0.1


def _new_token() -> str:
    return uuid4().hex


class ZooKeeperCluster:
    """A `Cluster` and `GroupClaims` of many gateways. `start` once, `stop` once."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: TopicDirectory,
        clock: Clock,
        *,
        node_id: int,
        host: str,
        port: int,
        rack: str,
        session_ms: int,
        lease: Callable[[], bool],
        balance_settle_s: float = BALANCE_SETTLE_S,
        balance_at_once: int = BALANCE_AT_ONCE,
        new_token: Callable[[], str] = _new_token,
    ) -> None:
        self._lease = lease
        self._stopped = False
        self._membership = ClusterMembership(
            metadata,
            clock,
            node_id=node_id,
            host=host,
            port=port,
            rack=rack,
            session_ms=session_ms,
            new_token=new_token,
        )
        self._partitions = PartitionOwnership(
            metadata,
            catalog,
            clock,
            self._membership,
            session_ms=session_ms,
            balance_settle_s=balance_settle_s,
            balance_at_once=balance_at_once,
        )
        self._ownership = self._partitions.state
        self._claims = CoordinatorOwnership(
            metadata, self._membership, lambda: self._ownership.ring
        )

    async def start(self, listener: StreamListener) -> None:
        """Registered, and streams are claimed from now on. The catalog is loaded before.

        Raises NotOwner (another process lives under this node id), MetadataUnavailable.
        """
        await self._membership.register()
        await self._partitions.start(listener)

    async def stop(self) -> None:
        """Not registered any more; nothing is claimed and nobody is told. May be called again."""
        if not self._stopped:
            self._stopped = True
            await self._partitions.stop()
            await self._membership.close()

    async def set_address(self, host: str, port: int) -> None:
        """Clients are sent to this address: told once the port is bound."""
        await self._until_said(lambda: self._membership.set_address(host, port))

    def set_hand_over(self, hand_over: HandOver) -> None:
        """How the balancer drains a stream that goes to a gateway that has joined."""
        self._partitions.balancer.set_hand_over(hand_over)

    def note_opened(self, key: StreamKey, epoch: int) -> None:
        """As `opened`, for who does not wait."""
        self._partitions.note_opened(key, epoch)

    async def opened(self, key: StreamKey, epoch: int) -> None:
        """All gateways see the epoch; many of one topic are written together.

        Returns also when the stream was lost meanwhile. Call it once the stream's head snapshot
        is durable.
        """
        await self._partitions.opened(key, epoch)

    async def hand_over_all(self, hand_over: HandOver) -> None:
        """Every stream is drained and belongs to its next candidate. Ends the taking of streams.

        While the store is away it waits: whoever is in a hurry cancels it.
        """
        await self._until_said(self._membership.leave_soon)
        await self._partitions.hand_over_all(hand_over)

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Every partition has an owner that opened it. False: not within the time."""
        return await self._partitions.wait_led(topic_id, timeout_s)

    def on_members_changed(self, changed: Callable[[], None]) -> Unlisten:
        """`changed` runs after members came or went; `orphans` may have an answer then."""
        return self._membership.on_changed(changed)

    def on_expired(self, expired: Callable[[], None]) -> Unlisten:
        """`expired` runs when the session was lost: all streams and group claims have ended."""
        return self._membership.on_expired(expired)

    def on_replaced(self, replaced: Callable[[str], None]) -> Unlisten:
        """`replaced` runs with a reason when another process lives under this node id for good:
        this one should end."""
        return listen(self._partitions.rounds.on_replaced, replaced)

    @property
    def node_id(self) -> int:
        return self._membership.node_id

    def lease_held(self) -> bool:
        return self._membership.registered and self._lease()

    def members(self) -> Sequence[ClusterMember]:
        return self._membership.members()

    def leader(self, key: StreamKey) -> Leader:
        return self._ownership.leader(key)

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        return self._ownership.replicas(key, count)

    def owns(self, key: StreamKey) -> bool:
        return self._ownership.owns(key)

    async def coordinator(self, group: str) -> ClusterMember | None:
        return await self._claims.coordinator(group)

    async def claim(self, group: str) -> None:
        await self._claims.claim(group)

    async def claim_all(self, groups: Sequence[str]) -> list[str]:
        """Those of the groups that this gateway coordinates now; many are claimed together."""
        return await self._claims.claim_all(groups)

    async def release(self, group: str) -> None:
        await self._claims.release(group)

    def candidate(self, group: str) -> bool:
        return self._claims.candidate(group)

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        return await self._claims.claimed_elsewhere(groups)

    async def orphans(self) -> list[str]:
        """Groups whose claimant is dead and whose candidate is this gateway.

        One read for each dead claimant, not for each group. Raises MetadataUnavailable.
        """
        return await self._claims.orphans()

    async def _until_said(self, say: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await say()
                return
            except MetadataUnavailable as error:
                logger().warning("this gateway's registration is old", reason=str(error))
                await asyncio.sleep(_RETRY_S)
