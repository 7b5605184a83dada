"""A cluster of brokers that share streams and groups through ZooKeeper.

`ClusterMembership` holds the live brokers, `PartitionOwnership` the owners of streams,
`CoordinatorOwnership` the coordinators of groups. `ZooKeeperCluster` presents them as one port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from gateway.cluster.coordinator_ownership import CoordinatorOwnership
from gateway.cluster.membership import ClusterMembership, listen
from gateway.cluster.partition_ownership import PartitionOwnership
from gateway.cluster.port import (
    ClusterMember,
    HandOver,
    Leader,
    ListenerAddress,
    StreamKey,
    StreamListener,
    TopicDirectory,
    Unlisten,
)
from gateway.config import PLAINTEXT
from gateway.core.feature_levels import Supported
from gateway.log import logger
from ledger.errors import MetadataUnavailable
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore

if TYPE_CHECKING:
    from gateway.wire.client_link import Security

BALANCE_SETTLE_S = 5.0  # seconds between the join of a broker and the first move to it
BALANCE_AT_ONCE = 8  # the number of streams that move at the same time
_RETRY_S = 0.1


def _new_token() -> str:
    return uuid4().hex


class ZooKeeperCluster:
    """A `Cluster` and `GroupClaims` of many brokers. Call `start` once."""

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
        keeps_epochs: bool = True,
        supported: Supported | None = None,
        authorizes: bool = False,
    ) -> None:
        """With `keeps_epochs`, the nodes of owners keep last epochs. Older releases refuse them.

        `supported` are the levels of features that this broker registers, and `authorizes` is
        whether it has an authorizer.
        """
        self._lease = lease
        self._stopped = False
        # The TLS and the login with which this broker connects to others; None: plain text.
        self.peer_security: Security | None = None
        # The name of the listener by which it connects to others.
        self.peer_listener = PLAINTEXT
        self._membership = ClusterMembership(
            metadata,
            clock,
            node_id=node_id,
            host=host,
            port=port,
            rack=rack,
            session_ms=session_ms,
            new_token=new_token,
            supported=supported or {},
        )
        self._membership.authorizes = authorizes
        self._partitions = PartitionOwnership(
            metadata,
            catalog,
            clock,
            self._membership,
            session_ms=session_ms,
            balance_settle_s=balance_settle_s,
            balance_at_once=balance_at_once,
            keeps_epochs=keeps_epochs,
        )
        self._ownership = self._partitions.state
        self._claims = CoordinatorOwnership(
            metadata, self._membership, lambda: self._ownership.ring
        )

    async def start(self, listener: StreamListener) -> None:
        """Register this broker and start to claim streams. Load the catalog before this call.

        Raises NotOwner if another process has this node id. Raises MetadataUnavailable.
        """
        await self._membership.register()
        await self._partitions.start(listener)

    async def stop(self) -> None:
        """Deregister and stop claiming. The listener is not notified. Idempotent."""
        if not self._stopped:
            self._stopped = True
            await self._partitions.stop()
            await self._membership.close()

    async def set_address(
        self,
        host: str,
        port: int,
        peer: tuple[str, int] = ("", 0),
        listeners: Sequence[ListenerAddress] = (),
    ) -> None:
        """Publish the addresses for clients, and the one for other brokers if it differs.

        Call it once the ports are bound.
        """
        await self._retry_write(lambda: self._membership.set_address(host, port, peer, listeners))

    async def supported_by_others(self) -> Mapping[int, Supported]:
        """Read the levels of features that the other live brokers support, by node id.

        A broker of an older release supports none. Raises MetadataUnavailable.
        """
        return await self._membership.supported_by_others()

    def set_hand_over(self, hand_over: HandOver) -> None:
        """Set the function that drains a stream before the balancer gives the stream away."""
        self._partitions.balancer.set_hand_over(hand_over)

    def note_opened(self, key: StreamKey, epoch: int) -> None:
        """Publish the epoch soon, without waiting for it as `opened` does."""
        self._partitions.note_opened(key, epoch)

    async def opened(self, key: StreamKey, epoch: int) -> None:
        """Publish the epoch, and wait until all brokers see it or the stream is lost.

        Epochs of one topic are written together. Call this method once the stream's head snapshot
        is durable.
        """
        await self._partitions.opened(key, epoch)

    async def hand_over_all(self, hand_over: HandOver) -> None:
        """Drain every stream and give it to its next candidate. No stream is claimed any more.

        Waits while the metadata store is unavailable. Cancel the call to give up.
        """
        await self._retry_write(self._membership.leave_soon)
        await self._partitions.hand_over_all(hand_over)

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Wait until every partition has an owner that opened it. See `Cluster`."""
        return await self._partitions.wait_led(topic_id, timeout_s)

    def on_members_changed(self, changed: Callable[[], None]) -> Unlisten:
        """Run `changed` after brokers joined or left. Call `orphans` after such a change."""
        return self._membership.on_changed(changed)

    def on_expired(self, expired: Callable[[], None]) -> Unlisten:
        """Run `expired` when the session has expired, which ends all streams and group claims."""
        return self._membership.on_expired(expired)

    def on_replaced(self, replaced: Callable[[str], None]) -> Unlisten:
        """Run `replaced` with a reason when another process keeps this node id.

        This process should end after such a report.
        """
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

    def leader_epoch(self, key: StreamKey) -> int:
        return self._ownership.leader_epoch(key)

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        return self._ownership.replicas(key, count)

    def owns(self, key: StreamKey) -> bool:
        return self._ownership.owns(key)

    async def coordinator(self, group: str) -> ClusterMember | None:
        return await self._claims.coordinator(group)

    async def claim(self, group: str) -> None:
        await self._claims.claim(group)

    async def check(self, group: str) -> None:
        await self._claims.check(group)

    async def release(self, group: str) -> None:
        await self._claims.release(group)

    def candidate(self, group: str) -> bool:
        return self._claims.candidate(group)

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        return await self._claims.claimed_elsewhere(groups)

    async def orphans(self) -> list[str]:
        """Return the groups of dead claimants of which this broker is the candidate.

        Costs one read per dead claimant, not per group. Raises MetadataUnavailable.
        """
        return await self._claims.orphans()

    async def _retry_write(self, write: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await write()
                return
            except MetadataUnavailable as error:
                logger().warning("this broker's registration is out of date", reason=str(error))
                await asyncio.sleep(_RETRY_S)
