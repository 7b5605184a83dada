"""All partitions that this process serves.

    gained ─▶ (opening: batches wait) ─▶ serving ─▶ handed over │ abandoned: lost or deleted

A background round rolls segments that are old and removes those past their retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.port import Cluster, StreamKey
from gateway.cluster.single_broker import SingleBroker
from gateway.config import GatewayConfig
from gateway.topics.catalog import Catalog, Topic
from gateway.topics.orphans import (
    delete_stream_and_ledgers,
    left_over_streams,
    remove_left_overs,
)
from gateway.topics.partition import Partition
from gateway.topics.replica import ReplicaPartition, preferred_read_replica
from ledger.errors import LedgerError, NodeExists
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import StreamServices

ReadablePartition = Partition | ReplicaPartition
"""What a fetch reads: a partition led here, or the follower of one led by another broker."""

MAINTENANCE_S = 5.0
_CLOSING_AT_ONCE = 64
_ROUNDS_PER_HOUR = 720
_OPENED_PER_ROUND = 64
_TURN_PARTITIONS = 50
_OPENING_AT_ONCE = 64


def _nobody_listens(key: StreamKey, epoch: int) -> None:
    """Alone, nobody else is to know."""


def stream_name(topic_id: UUID, index: int) -> str:
    """Streams are named by topic id, so a recreated topic never meets the old one's data."""
    return f"{topic_id}-{index}"


class Partitions:
    """One per process. `on_disk_freed` is called after ledgers were deleted.

    In a cluster it is the `StreamListener`: what is gained is opened at once, what is lost is
    abandoned. Alone, each partition is opened when it is first asked for.
    """

    def __init__(
        self,
        catalog: Catalog,
        services: StreamServices,
        config: GatewayConfig,
        on_disk_freed: Callable[[], Awaitable[None]],
        cluster: Cluster | None = None,
    ) -> None:
        self._catalog = catalog
        self._services = services
        self._config = config
        self.rack = config.rack
        self._on_disk_freed = on_disk_freed
        self.cluster: Cluster = cluster or SingleBroker(config.node_id)
        if isinstance(self.cluster, SingleBroker):
            self.cluster.epoch_of = self.epoch_of
        self.on_opened: Callable[[StreamKey, int], None] = _nobody_listens
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_key: dict[StreamKey, Partition] = {}  # the same partitions
        self._replicas: dict[StreamKey, ReplicaPartition] = {}
        self._names: dict[StreamKey, tuple[str, int]] = {}
        self._handed: set[StreamKey] = set()  # drained for another gateway; not opened again
        self._ending: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Semaphore(_OPENING_AT_ONCE)
        self._left_over: set[str] = set()  # streams of nobody, seen in the last round
        self._maintenance: asyncio.Task[None] | None = None
        self._stopping = False
        catalog.on_created.append(self._topic_created)
        catalog.on_deleted.append(self._topic_deleted)
        catalog.on_forgotten.append(self._topic_forgotten)

    # -- finding ------------------------------------------------------------------------------

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition, being opened if it was not open; None: there is none, or another
        gateway owns it (`exists` tells)."""
        partition = self._by_name.get((topic, index))
        if partition is not None:
            return partition
        known = self._catalog.by_name(topic)
        if known is None or not 0 <= index < known.partitions:
            return None
        key = StreamKey(known.topic_id, index)
        if key in self._handed or not self.cluster.owns(key):
            return None
        return self._add(known, index)

    def replica(self, topic: str, index: int) -> ReplicaPartition | None:
        """The partition of another gateway, to be read here; None: there is none, or it is led
        here. Opens when it is read, and closes itself when nobody does."""
        known = self._catalog.by_name(topic)
        if known is None or not 0 <= index < known.partitions:
            return None
        key = StreamKey(known.topic_id, index)
        replica = self._replicas.get(key)
        if replica is None and key not in self._by_key and not self._stopping:
            replica = self._replicas[key] = ReplicaPartition(
                stream_name(known.topic_id, index),
                self._services,
                lambda: self.cluster.leader(key).epoch,
            )
        return replica

    def find_for_fetch(
        self, topic: Hashable, index: int, rack: str
    ) -> tuple[ReadablePartition | None, ErrorCode]:
        """Return the partition that serves a client in `rack`, or None and why there is none.

        `topic` is a name or an id. A partition that another broker leads is read here for clients
        of this broker's own rack alone: the end of the log may be known late.
        """
        name = topic
        if isinstance(topic, UUID):
            known = self._catalog.by_id(topic)
            if known is None:
                return None, ErrorCode.unknown_topic_id
            name = known.name
        assert isinstance(name, str)
        partition = self.find(name, index)
        if partition is not None:
            return partition, ErrorCode.none
        error = self.why_not_led(name, index)
        if error is ErrorCode.not_leader_or_follower and rack and rack == self.rack:
            return self.replica(name, index), error
        return None, error

    def why_not_led(self, topic: str | UUID, index: int) -> ErrorCode:
        """Return the error for a partition that this broker does not lead."""
        known = self._catalog.by_name_or_id(topic)
        if known is None and isinstance(topic, UUID):
            return ErrorCode.unknown_topic_id
        if known is not None and self.exists(known.name, index):
            return ErrorCode.not_leader_or_follower
        return ErrorCode.unknown_topic_or_partition

    def preferred_read_replica(self, topic: Hashable, index: int, rack: str) -> int:
        """Return the broker in `rack` that should serve its clients' fetches, or -1."""
        assert isinstance(topic, str | UUID)
        known = self._catalog.by_name_or_id(topic)
        if known is None:
            return -1
        key = StreamKey(known.topic_id, index)
        return preferred_read_replica(self.cluster, key, known.replication_factor, rack)

    def _close_replica(self, key: StreamKey) -> None:
        replica = self._replicas.pop(key, None)
        if replica is not None:
            self._end(replica.close())

    def opened(self, topic: str, index: int) -> Partition | None:
        """The partition, if it is led here and can be read at once; it is not opened for this."""
        partition = self._by_name.get((topic, index))
        return partition if partition is not None and partition.readable else None

    def exists(self, topic: str, index: int) -> bool:
        """There is such a partition, whoever owns it."""
        known = self._catalog.by_name(topic)
        return known is not None and 0 <= index < known.partitions

    def _add(self, topic: Topic, index: int) -> Partition:
        name = topic.name
        catalog = self._catalog
        key = StreamKey(topic.topic_id, index)

        def topic_config():  # noqa: ANN202  (TopicConfig; the catalog's type)
            known = catalog.by_name(name)
            return catalog.config(known if known is not None else topic)

        partition = Partition(
            stream_name(topic.topic_id, index),
            self._services,
            topic_config,
            lambda: self._stream_config(topic),
            self.cluster.lease_held,
            lambda epoch: self.on_opened(key, epoch),
            self._opening,
            begin=bool(self._config.zookeeper),
        )
        self._by_name[name, index] = partition
        self._by_key[key] = partition
        self._names[key] = (name, index)
        if self._stopping:
            partition.abandon()
        else:
            partition.open()
        return partition

    def _forget(self, key: StreamKey) -> Partition | None:
        partition = self._by_key.pop(key, None)
        named = self._names.pop(key, None)
        if named is not None and self._by_name.get(named) is partition:
            del self._by_name[named]
        return partition

    def leader_epoch(self, topic: Topic, index: int) -> int:
        """-1 while the partition is not open: clients take that as unknown."""
        return self.epoch_of(StreamKey(topic.topic_id, index))

    def epoch_of(self, key: StreamKey) -> int:
        """As `leader_epoch`, by key."""
        partition = self._by_key.get(key)
        return partition.leader_epoch if partition is not None and partition.readable else -1

    # -- owning -------------------------------------------------------------------------------

    def gained(self, key: StreamKey) -> None:
        """See `StreamListener`."""
        self._handed.discard(key)
        self._close_replica(key)
        known = self._by_key.get(key)
        if known is not None and known.closed:  # its hand-over was given up half way
            self._abandon(key)
        topic = self._catalog.by_id(key.topic_id)
        if topic is not None and key not in self._by_key and not self._stopping:
            self._add(topic, key.partition)

    def lost(self, key: StreamKey) -> None:
        """See `StreamListener`."""
        self._handed.discard(key)
        self._abandon(key)

    def _abandon(self, key: StreamKey) -> None:
        partition = self._forget(key)
        if partition is not None:
            partition.abandon()
            self._end(partition.abandoned())

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """In the background; `stop` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def hand_over(self, key: StreamKey) -> None:
        """Nothing of it is under way, its last segment is completed: the next owner has nothing
        to recover. `gained` takes it back."""
        self._handed.add(key)
        partition = self._by_key.get(key)
        if partition is not None:
            await partition.close()
            if self._by_key.get(key) is partition:  # not lost, and gained anew, meanwhile
                self._forget(key)

    def _stream_config(self, topic: Topic) -> StreamConfig:
        config = self._catalog.config(self._catalog.by_name(topic.name) or topic)
        quorum = topic.replication_factor
        ensemble = quorum
        if not self._config.zookeeper:  # embedded: over all bookies there are
            ensemble = self._config.bookies
            quorum = min(quorum, ensemble)
        ack_quorum = min(max(config.min_insync_replicas, quorum // 2 + 1), quorum)
        deletes = "delete" in config.cleanup_policy  # a compacted topic loses nothing to its age
        return StreamConfig(
            ensemble_size=ensemble,
            write_quorum=quorum,
            ack_quorum=ack_quorum,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            segment_jitter_ms=config.segment_ms // 20,
            retention_ms=config.retention_ms if deletes else -1,
            retention_bytes=config.retention_bytes if deletes else -1,
            truncated_keep_ms=config.truncated_keep_ms,
            control_ms=config.control_ms(clustered=bool(self._config.zookeeper)),
        )

    # -- topics come and go -------------------------------------------------------------------

    async def _topic_created(self, topic: Topic) -> None:
        await self._create_streams(topic, range(topic.partitions))

    async def _create_streams(self, topic: Topic, indexes: range) -> None:
        names = [stream_name(topic.topic_id, index) for index in indexes]
        try:
            await create_streams(self._services.metadata, names)
        except NodeExists:  # part of them exist: partitions were added
            for name in names:
                await ensure_stream(self._services, name)

    async def _topic_deleted(self, topic: Topic) -> None:
        abandoned: list[Partition] = []
        for index in range(topic.partitions):
            key = StreamKey(topic.topic_id, index)
            self._close_replica(key)
            partition = self._forget(key)
            if partition is not None:
                partition.abandon()
                abandoned.append(partition)
        for partition in abandoned:
            await partition.abandoned()
        for index in range(topic.partitions):
            await delete_stream_and_ledgers(self._services, stream_name(topic.topic_id, index))
        await self._on_disk_freed()

    def _topic_forgotten(self, topic: Topic) -> None:
        """Another gateway deleted it, and deletes its data."""
        for index in range(topic.partitions):
            key = StreamKey(topic.topic_id, index)
            self._abandon(key)
            self._close_replica(key)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Left-overs of deletions and of crashed rolls go; the maintenance round runs."""
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain())

    async def stop(self) -> None:
        """Every partition is closed and its last segment completed."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        self._stopping = True
        partitions = list(self._by_key.values())
        for at in range(0, len(partitions), _CLOSING_AT_ONCE):
            await asyncio.gather(*(p.close() for p in partitions[at : at + _CLOSING_AT_ONCE]))
        for key in list(self._replicas):
            self._close_replica(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _maintain(self) -> None:
        while True:
            await self._remove_left_overs()
            for _ in range(_ROUNDS_PER_HOUR):
                await asyncio.sleep(MAINTENANCE_S)
                await self.maintain_once()

    async def _remove_left_overs(self) -> None:
        """One gateway does it, and only what was nobody's an hour ago too: another gateway may
        just be making it. Alone there is no other."""
        members = self.cluster.members()
        alone = len(members) == 1 and not self._config.zookeeper
        if not alone and (not members or members[0].node_id != self.cluster.node_id):
            self._left_over.clear()
            return
        try:
            seen = await left_over_streams(self._catalog, self._services)
            gone = seen if alone else seen & self._left_over
            self._left_over = seen - gone
            if await remove_left_overs(self._catalog, self._services, gone):
                await self._on_disk_freed()
        except LedgerError:
            pass  # the next hour tries again; nothing depends on it

    async def maintain_once(self) -> None:
        """One round over every topic: old segments roll, expired ones go.

        Partitions that nobody asked for yet are opened a few in each round.
        """
        removed, opened = 0, 0
        named = [(t.name, index) for t in self._catalog.all() for index in range(t.partitions)]
        for seen, key in enumerate(named):
            if seen % _TURN_PARTITIONS == 0:
                await asyncio.sleep(0)  # others have their turn
            opened += key not in self._by_name
            if key in self._by_name or opened <= _OPENED_PER_ROUND:
                removed += await self._maintain_one(*key)
        if removed:
            await self._on_disk_freed()

    async def _maintain_one(self, topic: str, index: int) -> int:
        """How many segments were removed."""
        partition = self.find(topic, index)
        if partition is None or not partition.readable:
            return 0
        try:
            partition.stream.roll_if_old()
            return await partition.stream.expire()
        except LedgerError:
            return 0  # tried again in the next round


async def ensure_stream(services: StreamServices, name: str) -> None:
    """The stream exists."""
    try:
        await create_streams(services.metadata, [name])
    except NodeExists:
        return
