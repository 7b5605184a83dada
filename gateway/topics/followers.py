"""The partitions that this broker follows, and which broker serves the readers of a rack.

A follower is made at its first read, so a gateway without readers of other brokers' partitions
never loads the code of replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gateway.cluster.port import Cluster, StreamKey
    from gateway.topics.configs import TopicConfig
    from gateway.topics.replica import ReplicaPartition
    from gateway.topics.topic_traffic import Traffic
    from ledger.streams.stream import StreamServices


class Followed(NamedTuple):
    """What a follower is made from."""

    stream: str
    named: tuple[str, int]  # topic and index
    config: Callable[[], TopicConfig]  # of the topic, as of now
    leader_epoch: Callable[[], int]
    traffic: Traffic
    transactional: bool


class Followers:
    """The followers of one process. `end` runs the close of one in the background."""

    def __init__(
        self, services: StreamServices, end: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._services = services
        self._end = end
        # By topic id and index, from the first read until this broker gains the partition, or its
        # topic is deleted.
        self._replicas: dict[StreamKey, ReplicaPartition] = {}
        # Limits the replicas that read a snapshot. None before the first one.
        self._loading: asyncio.Semaphore | None = None

    def find(self, key: StreamKey) -> ReplicaPartition | None:
        """Return the follower of a partition, None if there is none yet."""
        return self._replicas.get(key)

    def follow(self, key: StreamKey, followed: Followed) -> ReplicaPartition:
        """Return a new follower of a partition that has none."""
        from gateway.topics.replica import ReplicaPartition
        from gateway.topics.replica_transactions import LOADING_AT_ONCE

        assert key not in self._replicas
        self._loading = self._loading or asyncio.Semaphore(LOADING_AT_ONCE)
        replica = self._replicas[key] = ReplicaPartition(
            followed.stream,
            self._services,
            followed.config,
            followed.leader_epoch,
            named=followed.named,
            transactional=followed.transactional,
            loading=self._loading,
        )
        replica.traffic = followed.traffic
        return replica

    def all(self) -> Iterator[tuple[StreamKey, ReplicaPartition]]:
        """Yield every follower."""
        yield from self._replicas.items()

    def close(self, key: StreamKey) -> None:
        """Close the follower of a partition, if there is one."""
        replica = self._replicas.pop(key, None)
        if replica is not None:
            self._end(replica.close())

    def close_all(self) -> None:
        """Close all followers."""
        for key in list(self._replicas):
            self.close(key)


def preferred_read_replica(
    cluster: Cluster, key: StreamKey, replicas_max: int, rack: str, listener: str
) -> int:
    """Return the broker in the client's rack that should serve the client's fetches, or -1.

    Only replicas qualify: clients reject a broker that is not in the partition's replica list. It
    must have the listener by which the client connected.
    Source: Kafka, RackAwareReplicaSelector.
    """
    near = [
        each.node_id
        for each in cluster.members()
        if each.rack == rack and not each.leaving and each.address_of(listener) is not None
    ]
    if not near:
        return -1
    replicas = cluster.replicas(key, replicas_max)
    return next((node for node in replicas if node in near and node != cluster.node_id), -1)
