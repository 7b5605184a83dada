"""The cluster of an embedded gateway: one broker that owns and coordinates everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.cluster.port import ClusterMember, Leader, StreamKey

if TYPE_CHECKING:
    from gateway.wire.client_link import Security


class SingleBroker:
    """A `Cluster` and `GroupClaims` of one broker.

    `epoch_of` returns the epoch of a partition, or the one with which it will open. -1 if it does
    not exist.
    """

    def __init__(self, node_id: int, epoch_of: Callable[[StreamKey], int] = lambda _: -1) -> None:
        self._node_id = node_id
        self.epoch_of = epoch_of
        # The address for clients. Set once the port is bound.
        self.address: tuple[str, int] = ("", -1)
        # How the page connects to the port; None: in plain text.
        self.peer_security: Security | None = None
        self.peer_listener = ""  # unused: there is no other broker

    @property
    def node_id(self) -> int:
        return self._node_id

    def lease_held(self) -> bool:
        return True

    def members(self) -> Sequence[ClusterMember]:
        host, port = self.address
        return [ClusterMember(self._node_id, host, port, "", "")]

    def leader(self, key: StreamKey) -> Leader:
        return Leader(self._node_id, self.epoch_of(key))

    def leader_epoch(self, key: StreamKey) -> int:
        return self.epoch_of(key)

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        return [self._node_id]

    def owns(self, key: StreamKey) -> bool:
        return True

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Return True at once: this process opens a partition at its first request."""
        return True

    async def coordinator(self, group: str) -> ClusterMember | None:
        return self.members()[0]

    async def claim(self, group: str) -> None:
        """Do nothing: the only broker coordinates every group."""

    async def check(self, group: str) -> None:
        """Do nothing: the only broker may claim every group."""

    async def release(self, group: str) -> None:
        """Do nothing: no other broker could claim the group."""

    def candidate(self, group: str) -> bool:
        return True

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        return set()
