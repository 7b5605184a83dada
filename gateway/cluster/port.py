"""The port to all gateways of a cluster: who lives, who leads which stream, who coordinates whom.

One gateway lives in one *incarnation*: from its registration until its session ends. Whatever it
owns is written under the incarnation's token, so all of it is free in the moment the session ends,
and nothing has to be cleared up. Who claims what is courtesy; what keeps records safe is fencing.
Source: DistributedLog, "Ownership tracking" (seed 000); Kafka, KIP-392, KIP-951.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


class ClusterMember(NamedTuple):
    """A gateway that lives: where clients reach it. `token` is this incarnation's alone."""

    node_id: int
    host: str
    port: int
    rack: str
    token: str
    leaving: bool = False  # it hands over what it has and takes nothing more


class Leader(NamedTuple):
    """Who owns a stream. `node_id` -1: nobody that lives. `epoch` -1: it is not open yet."""

    node_id: int = -1
    epoch: int = -1


class StreamKey(NamedTuple):
    """One partition of one life of a topic."""

    topic_id: UUID
    partition: int


class Cluster(Protocol):
    """What handlers ask. Everything that does not await answers from memory."""

    @property
    def node_id(self) -> int: ...

    def lease_held(self) -> bool:
        """This process may answer as owner and as coordinator: nobody can have taken over yet.

        True until the send time of the last answered ZooKeeper ping + 2/3 of the session, on the
        monotonic clock. Asked before each answer that an owner gives, and it costs nothing.
        """
        ...

    def members(self) -> Sequence[ClusterMember]:
        """Gateways that live, this one too, by node id."""
        ...

    def leader(self, key: StreamKey) -> Leader: ...

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        """Node ids, the leader first, then the next gateways of the ring; at most `count`."""
        ...

    def owns(self, key: StreamKey) -> bool:
        """This incarnation has claimed the stream. The lease is not looked at."""
        ...

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Every partition of the topic has an owner that has opened it; False: not in that time.

        Whoever creates a topic waits, so that the answer names leaders.
        """
        ...

    async def coordinator(self, group: str) -> ClusterMember | None:
        """Who to ask about the group: who claimed it, if it lives, else the candidate of the ring.

        Raises MetadataUnavailable. None: no gateway can be named now.
        """
        ...


class GroupClaims(Protocol):
    """Which groups this gateway coordinates. A claim ends with the incarnation."""

    def lease_held(self) -> bool: ...

    async def claim(self, group: str) -> None:
        """This gateway coordinates the group, and no other that lives does. Ours already: nothing.

        Raises NotOwner (another one does, or is the candidate of a group that nobody has),
        MetadataUnavailable.
        """
        ...

    async def release(self, group: str) -> None:
        """Others may claim it, and nothing of the claim is left in the store.

        Whoever calls has stopped answering for it. Not ours any more: nothing happens. Raises
        MetadataUnavailable.
        """
        ...

    def candidate(self, group: str) -> bool:
        """The ring names this gateway for the group, whoever has claimed it. From memory."""
        ...

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        """Those of the groups that another gateway that lives has claimed.

        For lists of very many groups: a few requests, not one for each. Raises
        MetadataUnavailable.
        """
        ...


class TopicSize(Protocol):
    """One life of a topic, as far as ownership is concerned."""

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partitions(self) -> int: ...


class TopicDirectory(Protocol):
    """The topics whose partitions this broker may own. The catalog implements it."""

    @property
    def on_changed(self) -> list[Callable[[], None]]:
        """Callbacks that run after topics or partition counts changed."""
        ...

    def by_id(self, topic_id: UUID) -> TopicSize | None:
        """Return the topic, also while its creation is under way, or None."""
        ...

    def all(self) -> Sequence[TopicSize]: ...

    async def is_stored(self, topic_id: UUID) -> bool:
        """Return whether the metadata store has this topic now. Raises MetadataUnavailable."""
        ...


class StreamListener(Protocol):
    """What happens to the streams of this gateway; calls come on the loop, in order."""

    def gained(self, key: StreamKey) -> None:
        """Claimed: nobody else that lives has it. Open it now, not when a client asks."""
        ...

    def lost(self, key: StreamKey) -> None:
        """Not ours any more (deleted, taken, or the session ended): acknowledge nothing."""
        ...


Unlisten = Callable[[], None]
HandOver = Callable[[StreamKey], Awaitable[None]]
"""Drains and completes the stream, so that the next owner has nothing to recover."""
