"""The fleet of a cluster: gateways that share all streams by what is written in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from gateway.fleet.port import HandOver, Leader, Member, StreamKey, StreamListener, Unlisten
from gateway.topics.catalog import Catalog
from ledger.world.clock import Clock
from ledger.world.metadata import MetadataStore


class ClusterFleet:
    """A `Fleet` and `GroupClaims` of many gateways. `start` once, `stop` once."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: Catalog,
        clock: Clock,
        *,
        node_id: int,
        host: str,
        port: int,
        rack: str,
        session_ms: int,
        lease: Callable[[], bool],
    ) -> None:
        raise NotImplementedError

    async def start(self, listener: StreamListener) -> None:
        """Registered, and streams are claimed from now on. The catalog is loaded before.

        Raises NotOwner (another process lives under this node id), MetadataUnavailable.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Not registered any more; nothing is claimed and nobody is told. May be called again."""
        raise NotImplementedError

    async def set_address(self, host: str, port: int) -> None:
        """Clients are sent to this address: told once the port is bound."""
        raise NotImplementedError

    def set_hand_over(self, hand_over: HandOver) -> None:
        """How the balancer drains a stream that goes to a gateway that has joined."""
        raise NotImplementedError

    async def opened(self, key: StreamKey, epoch: int) -> None:
        """All gateways see the epoch; many of one topic are written together.

        Returns also when the stream was lost meanwhile. Call it once the stream's head snapshot
        is durable.
        """
        raise NotImplementedError

    async def hand_over_all(self, hand_over: HandOver) -> None:
        """Every stream is drained and belongs to its next candidate. Ends the taking of streams."""
        raise NotImplementedError

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Every partition has an owner that opened it. False: not within the time."""
        raise NotImplementedError

    def on_members_changed(self, changed: Callable[[], None]) -> Unlisten:
        raise NotImplementedError

    def on_expired(self, expired: Callable[[], None]) -> Unlisten:
        """`expired` runs when the session was lost, after `lost` of every stream: all group
        claims have ended too."""
        raise NotImplementedError

    def on_replaced(self, replaced: Callable[[str], None]) -> Unlisten:
        """`replaced` runs with a reason when another process lives under this node id for good:
        this one should end."""
        raise NotImplementedError

    @property
    def node_id(self) -> int:
        raise NotImplementedError

    def lease_held(self) -> bool:
        raise NotImplementedError

    def members(self) -> Sequence[Member]:
        raise NotImplementedError

    def leader(self, key: StreamKey) -> Leader:
        raise NotImplementedError

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        raise NotImplementedError

    def owns(self, key: StreamKey) -> bool:
        raise NotImplementedError

    async def coordinator(self, group: str) -> Member | None:
        raise NotImplementedError

    async def claim(self, group: str) -> None:
        raise NotImplementedError

    async def release(self, group: str) -> None:
        raise NotImplementedError

    async def orphans(self) -> list[str]:
        """Groups whose claimant is dead and whose candidate is this gateway.

        One read for each dead claimant, not for each group. Raises MetadataUnavailable.
        """
        raise NotImplementedError
