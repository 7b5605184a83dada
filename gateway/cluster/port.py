"""The port to the brokers of a cluster: live brokers, leaders of streams, group coordinators.

An *incarnation* of a broker lasts from its registration until its session ends. All ownership of a
broker is written under its incarnation's token. So everything that the broker owns is free at the
moment the session ends, without any clean-up. Claims only avoid conflicts; fencing keeps the
records safe. Source: DistributedLog, "Ownership tracking" (seed 000); Kafka, KIP-392, KIP-951.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


class ListenerAddress(NamedTuple):
    """The name of a listener, and the address that its clients are given."""

    name: str
    host: str
    port: int


class ClusterMember(NamedTuple):
    """A live broker and its address for clients. Each incarnation has a `token` of its own.

    `peer_host` and `peer_port` are its address for other brokers, if that is another one.
    `listeners` are all addresses for clients; it is empty if an earlier release registered.
    `authorizes` is whether an authorizer decides what its clients may do.
    """

    node_id: int
    host: str
    port: int
    rack: str
    token: str
    leaving: bool = False  # True while the broker hands over its streams and groups and claims none
    peer_host: str = ""
    peer_port: int = 0
    listeners: tuple[ListenerAddress, ...] = ()
    authorizes: bool = False

    def address_of(self, listener: str) -> tuple[str, int] | None:
        """Return the address for clients of this listener, or None if the broker lacks it.

        A broker of an earlier release has one address for all.
        """
        if not self.listeners:
            return self.host, self.port
        found = (each for each in self.listeners if each.name == listener)
        return next(((each.host, each.port) for each in found), None)

    @property
    def peer_address(self) -> tuple[str, int]:
        """Return the address at which other brokers reach this one."""
        return self.peer_host or self.host, self.peer_port or self.port

    def peer_address_by(self, listener: str) -> tuple[str, int]:
        """Return the address for a broker whose listener between brokers is `listener`.

        It differs from `peer_address` while brokers restart one after the other with another
        `inter.broker.listener.name`. As in Kafka, the broker that connects chooses the listener. A
        broker that lacks it is reached at its own one.
        """
        named = (each for each in self.listeners if each.name != listener)
        if any((each.host, each.port) == self.peer_address for each in named):
            return self.address_of(listener) or self.peer_address
        return self.peer_address


class Leader(NamedTuple):
    """The owner of a stream, or `node_id` -1. `epoch` is -1 until it is open and published."""

    node_id: int = -1
    epoch: int = -1


class StreamKey(NamedTuple):
    """One partition of a topic. A topic that is created again has a new id."""

    topic_id: UUID
    partition: int


class Cluster(Protocol):
    """The cluster as handlers see it. Every method that is not async answers from memory."""

    @property
    def node_id(self) -> int: ...

    def lease_held(self) -> bool:
        """Return whether this process may answer as owner and coordinator.

        The lease lasts for nine tenths of the session timeout. It starts when ZooKeeper's leader
        certainly knew that the session lived, on the monotonic clock. No other broker can take over
        before it ends. Owners check the lease before each answer.
        """
        ...

    def members(self) -> Sequence[ClusterMember]:
        """Return the live brokers, including this one, by node id."""
        ...

    def leader(self, key: StreamKey) -> Leader: ...

    def leader_epoch(self, key: StreamKey) -> int:
        """Return the leader epoch that clients are shown.

        It is the last epoch that was published, by the owner or by one before it. It is -1 if this
        broker has not read that one.
        """
        ...

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        """Return at most `count` node ids: the leader, then the next brokers of the ring."""
        ...

    def owns(self, key: StreamKey) -> bool:
        """Return whether this incarnation has claimed the stream. Does not check the lease."""
        ...

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Wait until every partition of the topic has an owner that has opened it.

        Returns False after `timeout_s` seconds. CreateTopics waits, so that clients find leaders.
        """
        ...

    async def coordinator(self, group: str) -> ClusterMember | None:
        """Return the group's coordinator: the live claimant, else the candidate of the ring.

        Returns None if no live broker is found. Raises MetadataUnavailable.
        """
        ...


class GroupClaims(Protocol):
    """The groups that this broker coordinates. A claim ends with the incarnation."""

    def lease_held(self) -> bool: ...

    async def claim(self, group: str) -> None:
        """Claim the group. Does nothing if this broker has claimed it already.

        Raises NotOwner if another live broker has claimed the group, or if the group is unclaimed
        and another broker is its candidate. Raises MetadataUnavailable.
        """
        ...

    async def check(self, group: str) -> None:
        """Check that `claim` would succeed now. Writes nothing.

        Raises NotOwner as `claim` does. Raises MetadataUnavailable.
        """
        ...

    async def release(self, group: str) -> None:
        """Remove the claim from the store, so that other brokers may claim the group.

        Stop answering for the group before this call. Does nothing if the claim has ended. Raises
        MetadataUnavailable.
        """
        ...

    def candidate(self, group: str) -> bool:
        """Return from memory whether the ring names this broker for the group, claimed or not."""
        ...

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        """Return the subset of `groups` that other live brokers have claimed.

        Costs one request per broker, not per group. Raises MetadataUnavailable.
        """
        ...


class TopicSize(Protocol):
    """The name, id and number of partitions of one life of a topic."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partitions(self) -> int: ...

    @property
    def has_streams(self) -> bool:
        """Return False if the partitions are empty for ever. Nobody owns those: the ring leads."""
        ...


class TopicDirectory(Protocol):
    """The topics whose partitions this broker may own. The catalog implements it."""

    @property
    def on_changed(self) -> list[Callable[[], None]]:
        """Callbacks that run after topics or partition counts changed."""
        ...

    def by_id(self, topic_id: UUID) -> TopicSize | None:
        """Return the topic, even while it is being created, or None if it is unknown."""
        ...

    def all(self) -> Sequence[TopicSize]: ...

    async def is_stored(self, topic_id: UUID) -> bool:
        """Return whether the metadata store has this topic now. Raises MetadataUnavailable."""
        ...


class StreamListener(Protocol):
    """The receiver of this broker's ownership changes, in order, on the event loop."""

    def gained(self, key: StreamKey) -> None:
        """Open the stream now: this broker has claimed it, and no other live broker owns it."""
        ...

    def lost(self, key: StreamKey) -> None:
        """Stop acknowledging: the stream was deleted or taken over, or the session ended."""
        ...


Unlisten = Callable[[], None]
HandOver = Callable[[StreamKey], Awaitable[None]]
"""Drain and complete the stream, so that the next owner has nothing to recover."""
