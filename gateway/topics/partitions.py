"""Holds the partitions that this broker serves, as leader or as follower.

    gained ─▶ (opening: batches wait) ─▶ serving ─▶ handed over │ abandoned: lost or deleted

`Maintenance` rolls old segments, deletes expired ones and orphans; `Followers` has the partitions
that other brokers lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.port import Cluster, StreamKey
from gateway.cluster.single_broker import SingleBroker
from gateway.config import GatewayConfig
from gateway.core.blocked_reads import BlockedRead
from gateway.core.topic_names import TRANSACTION_STATE, is_internal
from gateway.log import logger
from gateway.topics.catalog import Catalog, Topic
from gateway.topics.configs import TopicConfig
from gateway.topics.empty_partition import EmptyPartition
from gateway.topics.long_work import LongWork
from gateway.topics.maintenance import Maintenance
from gateway.topics.opening_turns import OpeningTurns
from gateway.topics.orphans import delete_stream_and_ledgers
from gateway.topics.partition import DELETED, LOST, Partition
from gateway.topics.partition_host import PartitionHost
from gateway.topics.unopened_epochs import UnopenedEpochs
from gateway.topics.verification import Verifier
from ledger.errors import NodeExists
from ledger.ids import BookieId
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import TailCache
from ledger.tasks import reported, start_once

if TYPE_CHECKING:
    from gateway.topics.followers import Followers
    from gateway.topics.replica import ReadablePartition, ReplicaPartition, StoredPartition
    from gateway.topics.stored_bytes import Shares, StoredBytes
    from gateway.topics.topic_traffic import TopicTraffic

_CLOSING_AT_ONCE = 64


def _ignore_opened(key: StreamKey, epoch: int) -> None:
    """Do nothing: a single broker announces no leader epochs."""


def stream_name(topic_id: UUID, index: int) -> str:
    """Return the stream's name. It contains the topic id, so a recreated topic has new streams."""
    return f"{topic_id}-{index}"


class Partitions:
    """The partitions of one process. Source: Kafka, ReplicaManager.

    In a cluster this class is the `StreamListener`: a partition is opened when it is gained and
    abandoned when it is lost. A single broker opens each partition when it is first looked up.
    """

    def __init__(
        self,
        catalog: Catalog,
        services: StreamServices,
        config: GatewayConfig,
        on_disk_freed: Callable[[], Awaitable[None]],
        cluster: Cluster | None = None,
    ) -> None:
        """Create the empty set of partitions. `on_disk_freed` runs after ledgers were deleted."""
        self._catalog = catalog
        self._services = services
        self._config = config
        self.rack = config.rack
        self._on_disk_freed = on_disk_freed
        self.cluster: Cluster = cluster or SingleBroker(config.node_id)
        if isinstance(self.cluster, SingleBroker):
            self.cluster.epoch_of = self.epoch_of
        # Called with the epoch each time a partition was opened. Set once, at the process's start.
        self.on_opened: Callable[[StreamKey, int], None] = _ignore_opened
        # Asks coordinators about producers of transactions. Set once, as `on_opened` is.
        self.verifier: Verifier | None = None
        # Returns False while it is certain that no log has a transaction. Set once, too.
        self.transactions_may_exist: Callable[[], bool] = lambda: True
        # The hosts of internal topics, by name. Set when the process is assembled. Partitions of an
        # internal topic without a host are not opened: they store the state of another object.
        self.hosts: dict[str, PartitionHost] = {}
        # The epochs of partitions before their first opening. Used by a single broker only.
        self._unopened = UnopenedEpochs(services)
        # The partitions led by this broker, from `_add` to `_forget`. The tables are by topic name
        # and index, by topic id and index, and the name of each. They hold the same partitions,
        # except that a recreated topic replaces the entry of its name. Those of internal topics
        # have a table of names of their own, so that Produce does not find them.
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._internal: dict[tuple[str, int], Partition] = {}
        self._by_key: dict[StreamKey, Partition] = {}
        self._names: dict[StreamKey, tuple[str, int]] = {}
        self.changes = 0  # counts what these tables gained and lost
        # The followers, from the first one on. None is of a partition in `_by_key`.
        self._followers: Followers | None = None
        self._empty = EmptyPartition()  # every partition of a topic without streams
        self._empty_was_read = False  # True once a client has fetched one, which is logged
        # Partitions handed over to another broker. They stay closed until they are gained or lost.
        self._handed_over: set[StreamKey] = set()
        # Background tasks that close partitions. `stop` waits for them.
        self._ending: set[asyncio.Task[None]] = set()
        self._opening = OpeningTurns()  # decides which partitions are opened first
        # Checks and searches of records that take long, of all partitions.
        self._long_work = LongWork()
        self._stored: StoredBytes | None = None  # made by the first request about disk usage
        self._traffic: TopicTraffic | None = None  # made with the first partition, or when asked
        lookups = (self.find, self.led, self._serves)
        alone = not config.zookeeper
        self.maintenance = Maintenance(
            catalog, services, self.cluster, lookups, on_disk_freed, alone=alone
        )
        # True once `stop` has ended the maintenance. No partition is opened any more then.
        self._stopping = False
        catalog.on_created.append(self._topic_created)
        catalog.on_deleted.append(self._topic_deleted)
        catalog.on_forgotten.append(self._topic_forgotten)

    # -- lookups ------------------------------------------------------------------------------

    @property
    def traffic(self) -> TopicTraffic:
        """The bytes and records of each topic here."""
        if self._traffic is None:
            from gateway.topics.topic_traffic import TopicTraffic  # no start waits for it

            self._traffic = TopicTraffic()
        return self._traffic

    @property
    def tail_cache(self) -> TailCache:
        """The newest records of all partitions that this process serves."""
        return self._services.cache

    def find(self, topic: str, index: int) -> Partition | None:
        """Return the partition if this broker leads it. Opens it if necessary.

        Returns None if another broker owns the partition, or if it does not exist (see `exists`).
        """
        partition = self.led(topic, index)
        if partition is not None:
            return partition
        known = self._catalog.by_name(topic)
        if known is None or not 0 <= index < known.partitions or not known.has_streams:
            return None
        key = StreamKey(known.topic_id, index)
        if key in self._handed_over or not self.cluster.owns(key) or not self._serves(known):
            return None
        return self._add(known, index)

    def _serves(self, topic: Topic) -> bool:
        """Return whether this broker opens partitions of the topic."""
        return topic.name != TRANSACTION_STATE or topic.name in self.hosts

    def find_for_produce(self, topic: str, index: int) -> Partition | None:
        """Return the partition if this broker leads it and clients may write to it, as `find`."""
        partition = self._by_name.get((topic, index))
        if partition is not None or is_internal(topic):
            return partition
        return self.find(topic, index)

    def why_not_produced(self, topic: str | UUID, index: int) -> ErrorCode:
        """Return the error for a partition that `find_for_produce` did not return."""
        known = self._catalog.by_name_or_id(topic)
        if known is not None and known.is_internal and self.exists(known.name, index):
            return ErrorCode.invalid_topic_exception
        return self.why_not_led(topic, index)

    def led(self, topic: str, index: int) -> Partition | None:
        """Return the partition if this broker leads it. Does not open it, unlike `find`."""
        named = topic, index
        return self._by_name.get(named) or self._internal.get(named)

    def empty(self, topic: str, index: int) -> EmptyPartition | None:
        """Return the partition of a topic without streams, whichever broker leads it."""
        known = self._catalog.by_name(topic)
        if known is None or known.has_streams or not 0 <= index < known.partitions:
            return None
        return self._empty

    def bookies(self) -> list[BookieId]:
        """Return the bookies that are alive, by id."""
        return self._services.client.alive()

    async def stored_bytes(self, topic: Topic, index: int) -> Shares | None:
        """Return the bytes of a partition by bookie. Does not open it.

        Returns None if another broker owns the partition, or if it does not exist. Raises
        LedgerError.
        """
        key = StreamKey(topic.topic_id, index)
        if not 0 <= index < topic.partitions:
            return None
        if not topic.has_streams:
            return {} if self.cluster.leader(key).node_id == self.cluster.node_id else None
        if self._stored is None:
            from gateway.topics.stored_bytes import StoredBytes

            self._stored = StoredBytes(self._services)
        return await self._stored.of(stream_name(*key)) if self.cluster.owns(key) else None

    def replica(self, topic: str, index: int) -> ReplicaPartition | None:
        """Return the follower of a partition that another broker leads.

        Returns None if this broker leads the partition, or if it does not exist.
        """
        known = self._catalog.by_name(topic)
        if known is None or not 0 <= index < known.partitions:
            return None
        key = StreamKey(known.topic_id, index)
        replica = None if self._followers is None else self._followers.find(key)
        if replica is None and key not in self._by_key and not self._stopping:
            return self._follow(known, key)
        return replica

    def _follow(self, topic: Topic, key: StreamKey) -> ReplicaPartition:
        from gateway.topics.followers import Followed, Followers  # few gateways follow any

        followed = Followed(
            stream_name(*key),
            (topic.name, key.partition),
            self._topic_config(topic),
            lambda: self.cluster.leader_epoch(key),
            self.traffic.of(topic.name),
            transactional=self.verifier is not None,
        )
        self._followers = self._followers or Followers(self._services, self._end)
        return self._followers.follow(key, followed)

    def find_for_fetch(
        self, topic: Hashable, index: int, rack: str
    ) -> tuple[ReadablePartition | None, ErrorCode]:
        """Return the partition that serves a client in `rack`, or None and an error code.

        `topic` is a name or an id. If another broker leads the partition, this broker serves only
        clients of its own rack, because its high watermark may lag.
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
        empty = self.empty(name, index)
        if empty is not None:
            if not self._empty_was_read:
                self._empty_was_read = True
                logger().warning(
                    "a client reads a topic that is always empty; use OffsetFetch instead",
                    topic=name,
                )
            return empty, ErrorCode.none
        error = self.why_not_led(name, index)
        if error is ErrorCode.not_leader_or_follower and rack and rack == self.rack:
            return self.replica(name, index), error
        return None, error

    def shows_epoch(self, topic: str, index: int, partition: Partition) -> bool:
        """Return whether clients may be shown the leader epoch of a partition of this broker.

        Not before it is published: if this broker died, others would show a lower one until then,
        and clients would ignore them.
        """
        known = self._catalog.by_name(topic)
        if known is None:
            return True
        shown = self.cluster.leader_epoch(StreamKey(known.topic_id, index))
        return shown >= partition.leader_epoch

    def why_not_led(self, topic: str | UUID, index: int) -> ErrorCode:
        """Return the error for a partition that this broker does not lead."""
        known = self._catalog.by_name_or_id(topic)
        if known is None and isinstance(topic, UUID):
            return ErrorCode.unknown_topic_id
        if known is not None and self.exists(known.name, index):
            return ErrorCode.not_leader_or_follower
        return ErrorCode.unknown_topic_or_partition

    def preferred_read_replica(self, topic: Hashable, index: int, rack: str, listener: str) -> int:
        """Return the broker in `rack` with this listener that should serve the rack, or -1."""
        assert isinstance(topic, str | UUID)
        from gateway.topics.followers import preferred_read_replica

        known = self._catalog.by_name_or_id(topic)
        if known is None:
            return -1
        key = StreamKey(known.topic_id, index)
        return preferred_read_replica(self.cluster, key, known.replication_factor, rack, listener)

    def _close_follower(self, key: StreamKey) -> None:
        if self._followers is not None:
            self._followers.close(key)

    def opened(self, topic: str, index: int) -> Partition | None:
        """Return the partition if this broker leads it and it is open. This does not open it."""
        partition = self.led(topic, index)
        return partition if partition is not None and partition.readable else None

    def served(self) -> Iterator[tuple[str, int, StoredPartition]]:
        """Yield every partition that this broker leads or follows, with its topic and index."""
        for key, partition in self._by_key.items():
            yield *self._names[key], partition
        for key, replica in self._followers.all() if self._followers else ():
            topic = self._catalog.by_id(key.topic_id)
            if topic is not None:
                yield topic.name, key.partition, replica

    def blocked(self) -> Iterator[tuple[str, int, BlockedRead]]:
        """Yield the offsets at which readers of this broker wait, with topic and index."""
        for topic, index, partition in self.served():
            for place in partition.losses.places(partition.log_start_offset):
                yield topic, index, place

    def exists(self, topic: str, index: int) -> bool:
        """Return whether the partition exists, on this broker or on another."""
        known = self._catalog.by_name(topic)
        return known is not None and 0 <= index < known.partitions

    def _add(self, topic: Topic, index: int) -> Partition:
        name = topic.name
        key = StreamKey(topic.topic_id, index)
        host = self.hosts.get(name)
        state, observer = (None, None) if host is None else host.build(index)
        partition = Partition(
            stream_name(topic.topic_id, index),
            self._services,
            self._topic_config(topic),
            lambda: self._stream_config(topic),
            self.cluster.lease_held,
            lambda epoch: self.on_opened(key, epoch),
            self._opening,
            self._long_work,
            begin=bool(self._config.zookeeper),
            named=(name, index),
            state=state,
            observer=observer,
            verifier=self.verifier,
            may_exist=self.transactions_may_exist,
        )
        partition.topic_id = topic.topic_id
        if not topic.is_internal:
            partition.count_in(self.traffic.of(name))
        (self._internal if topic.is_internal else self._by_name)[name, index] = partition
        self._by_key[key] = partition
        self._names[key] = (name, index)
        self.changes += 1
        if self._stopping:
            partition.abandon()
        else:
            partition.open()
        return partition

    def _topic_config(self, topic: Topic) -> Callable[[], TopicConfig]:
        """Return a function that returns the present configs of the topic."""
        catalog = self._catalog
        known = catalog.by_name(topic.name) or topic
        config, defaults = catalog.config(known), catalog.defaults

        def topic_config() -> TopicConfig:
            nonlocal known, config, defaults
            now = catalog.by_name(topic.name) or topic
            # A change of configs replaces the topic.
            if now is not known or catalog.defaults is not defaults:
                known, config, defaults = now, catalog.config(now), catalog.defaults
            return config

        return topic_config

    def _forget(self, key: StreamKey) -> Partition | None:
        partition = self._by_key.pop(key, None)
        named = self._names.pop(key, None)
        self.changes += partition is not None
        for table in (self._by_name, self._internal):
            if named is not None and table.get(named) is partition:
                del table[named]
        if named is not None and named[0] in self.hosts:
            self.hosts[named[0]].on_forgotten(named[1])
        return partition

    async def learn_epochs(self) -> None:
        """Read the epochs with which partitions will open. A single broker calls this at its start.

        A partition whose metadata cannot be read has the epoch -1 until it is open.
        """
        stored = [topic for topic in self._catalog.all() if topic.has_streams]
        await self._unopened.load(stored, stream_name)

    def epoch_of(self, key: StreamKey) -> int:
        """Return the epoch of a partition of a single broker.

        It is the last one while the partition is opened again, and the one with which it will open
        before its first opening. Returns -1 if the partition does not exist.
        """
        partition = self._by_key.get(key)
        epoch = -1 if partition is None else partition.leader_epoch
        if epoch >= 0:
            return epoch
        topic = self._catalog.by_id(key.topic_id)
        if topic is not None and not topic.has_streams:
            return self._empty.leader_epoch
        return self._unopened.of(key)

    # -- owning -------------------------------------------------------------------------------

    def gained(self, key: StreamKey) -> None:
        """See `StreamListener`."""
        self._handed_over.discard(key)
        self._close_follower(key)
        known = self._by_key.get(key)
        if known is not None and known.closed:  # an unfinished hand-over left the partition closed
            self._abandon(key)
        topic = self._catalog.by_id(key.topic_id)
        if topic is None or key in self._by_key or self._stopping or not self._serves(topic):
            return
        self._add(topic, key.partition)

    def lost(self, key: StreamKey) -> None:
        """See `StreamListener`."""
        self._handed_over.discard(key)
        self._abandon(key)

    def _abandon(self, key: StreamKey, reason: str = LOST) -> None:
        partition = self._forget(key)
        if partition is not None:
            partition.abandon(reason)
            self._end(partition.wait_abandoned())

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background. `stop` waits for it."""
        task = start_once("the end of a partition", work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def hand_over(self, key: StreamKey) -> None:
        """Make all batches durable and complete the segment, so that no recovery is necessary.

        `gained` takes the partition back.
        """
        self._handed_over.add(key)
        partition = self._by_key.get(key)
        if partition is not None:
            await partition.close()
            # False if the partition was lost and gained again during `close`.
            if self._by_key.get(key) is partition:
                self._forget(key)

    def _stream_config(self, topic: Topic) -> StreamConfig:
        config = self._catalog.config(self._catalog.by_name(topic.name) or topic)
        quorum = topic.replication_factor
        ensemble = quorum
        if not self._config.zookeeper:  # an embedded gateway uses all of its bookies
            ensemble = self._config.bookies
            quorum = min(quorum, ensemble)
        ack_quorum = min(max(config.min_insync_replicas, quorum // 2 + 1), quorum)
        segment_ms = config.segment_ms
        if config.compacts and self.verifier is not None:  # Kafka, LogConfig.maxSegmentMs
            segment_ms = min(segment_ms, config.cleaning.lag_ms_max)
        deletes = "delete" in config.cleanup_policy  # retention does not apply to a compacted topic
        return StreamConfig(
            ensemble_size=ensemble,
            write_quorum=quorum,
            ack_quorum=ack_quorum,
            segment_bytes=config.segment_bytes,
            segment_ms=segment_ms,
            segment_jitter_ms=segment_ms // 20,
            retention_ms=config.retention_ms if deletes else -1,
            retention_bytes=config.retention_bytes if deletes else -1,
            truncated_keep_ms=config.truncated_keep_ms,
            control_ms=config.control_ms(clustered=bool(self._config.zookeeper)),
        )

    # -- topics -------------------------------------------------------------------------------

    async def _topic_created(self, topic: Topic) -> None:
        if not topic.has_streams:
            return
        await self._create_streams(topic, range(topic.partitions))
        if isinstance(self.cluster, SingleBroker):
            self._unopened.add(topic)

    async def _create_streams(self, topic: Topic, indexes: range) -> None:
        names = [stream_name(topic.topic_id, index) for index in indexes]
        try:
            await create_streams(self._services.metadata, names, self._services.epoch_base)
        except NodeExists:  # partitions were added to a topic, so some streams exist
            for name in names:
                await ensure_stream(self._services, name)

    async def _topic_deleted(self, topic: Topic) -> None:
        abandoned: list[Partition] = []
        for index in range(topic.partitions):
            key = StreamKey(topic.topic_id, index)
            self._close_follower(key)
            partition = self._forget(key)
            if partition is not None:
                partition.abandon(DELETED)
                abandoned.append(partition)
        self._unopened.forget(topic.topic_id)
        for partition in abandoned:
            await partition.wait_abandoned()
        for index in range(topic.partitions):
            await delete_stream_and_ledgers(self._services, stream_name(topic.topic_id, index))
        await self._on_disk_freed()

    def _topic_forgotten(self, topic: Topic) -> None:
        """Stop serving a topic that another broker deleted. That broker deletes the data."""
        for index in range(topic.partitions):
            key = StreamKey(topic.topic_id, index)
            self._abandon(key, DELETED)
            self._close_follower(key)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the maintenance."""
        self.maintenance.start()

    async def stop(self) -> None:
        """Close every partition and complete its last segment."""
        await self.maintenance.stop()
        self._stopping = True
        partitions = list(self._by_key.values())
        for at in range(0, len(partitions), _CLOSING_AT_ONCE):
            await asyncio.gather(*map(_close, partitions[at : at + _CLOSING_AT_ONCE]))
        if self._followers is not None:
            self._followers.close_all()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def maintain_once(self) -> None:
        """Run one round of the maintenance now."""
        await self.maintenance.round()


async def _close(partition: Partition) -> None:
    """Close one of many partitions. Whatever fails, the others are closed too."""
    with reported(f"the end of {partition.name}"):
        await partition.close()


async def ensure_stream(services: StreamServices, name: str) -> None:
    """Create the stream unless it exists."""
    try:
        await create_streams(services.metadata, [name], services.epoch_base)
    except NodeExists:
        return
