"""The samples of the metrics page, with kafka_exporter's names and labels, so its dashboards work.

Each broker of a cluster reports its own share, so that sums over all brokers are right. A share
consists of the partitions that the broker leads, the groups that it coordinates, and the fetches of
read-only groups. The values are looked up, within bounds, when the page is requested;
`process_samples` has those of the process itself. The number of samples left out is a metric too.
Source: github.com/danielqsj/kafka_exporter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from gateway.cluster.peers import Peers
from gateway.cluster.port import ClusterMember, StreamKey
from gateway.core.blocked_reads import AT_END, STALLED_S, STUCK_S, BlockedRead
from gateway.core.figures import lag_in_records
from gateway.core.group_members import State
from gateway.figures.rows import GroupRow
from gateway.groups.read_only_groups import TYPE as READ_ONLY
from gateway.groups.views import GroupState
from gateway.handlers.api import Context
from gateway.handlers.broker_endpoints import live_brokers
from gateway.metrics.record_times import ages
from gateway.topics.catalog import Topic
from gateway.topics.greylist_report import REASONS
from gateway.topics.partition import Partition
from gateway.wire.list_offsets_request import list_offsets_fields
from ledger.exposition import Buckets, Declared, Family, Kind
from ledger.ports.disk import BLOCKED_S

_LIST_OFFSETS = 2
_LATEST, _EARLIEST = -1, -2
_SLICE = 200  # samples computed before other callbacks of the loop run

_PLACE = ("topic", "partition")
_GROUP_TOPIC = ("consumergroup", "topic")
FAMILIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "kafka_brokers": ("Gateways that live.", ()),
    "kafka_broker_info": ("Each of them, and where clients reach it.", ("id", "address")),
    "kafka_topic_partitions": ("Partitions of the topic.", ("topic",)),
    "kafka_topic_partition_current_offset": ("Offset after the last record.", _PLACE),
    "kafka_topic_partition_oldest_offset": ("Offset of the first record that is kept.", _PLACE),
    "kafka_topic_partition_leader": ("Node id of the gateway that leads it.", _PLACE),
    "kafka_topic_partition_replicas": ("Gateways that serve it.", _PLACE),
    "kafka_topic_partition_in_sync_replica": ("Those of them that are in sync.", _PLACE),
    "kafka_topic_partition_under_replicated_partition": ("1: fewer than there are.", _PLACE),
    "gateway_topic_partition_lost_records": (
        "Records that no bookie can have any more; without acceptance, those that readers met.",
        (*_PLACE, "accepted"),
    ),
    "gateway_topic_partition_blocked": ("1: readers wait at an offset.", (*_PLACE, "reason")),
    "gateway_blocked_partitions": ("Partitions at which readers wait for a record.", ()),
    "gateway_readers_stalled": ("Readers that have waited 30 s for a record.", ()),
    "gateway_readers_stuck": ("Readers that have waited 121 s for a record.", ()),
    "gateway_topic_partition_dirty_bytes": ("Bytes that compaction has not cleaned.", _PLACE),
    "gateway_topic_partition_dirty_age_seconds": ("Age of the oldest dirty record.", _PLACE),
    "gateway_topic_partition_cleaning_progress": ("0 to 1, only while it is cleaned.", _PLACE),
    "gateway_topic_partition_cleaning_failed": (
        "1: the last attempt to clean it failed, or a batch of it cannot be read.",
        (*_PLACE, "state"),
    ),
    "kafka_consumergroup_members": ("Members, or clients that read.", ("consumergroup",)),
    "kafka_consumergroup_current_offset": (
        "Committed offset, or the one that is fetched next.",
        (*_GROUP_TOPIC, "partition"),
    ),
    "kafka_consumergroup_current_offset_sum": ("Sum over the partitions.", _GROUP_TOPIC),
    "kafka_consumergroup_lag": (
        "Offsets between there, or the start, and the end; -1: the end is not known.",
        (*_GROUP_TOPIC, "partition"),
    ),
    "kafka_consumergroup_lag_sum": ("Sum over the partitions.", _GROUP_TOPIC),
    "gateway_consumergroup_lag_seconds": (
        "Age of the first record behind the committed offset, by the index of times; 0 at the end.",
        (*_GROUP_TOPIC, "partition"),
    ),
    "gateway_consumergroup_info": (
        "1. Type read-only: commits nothing, shown by what it fetches.",
        ("consumergroup", "type", "state"),
    ),
    "gateway_bookies_greylisted": (
        "Bookies that this gateway avoids, or would avoid with mode enabled.",
        ("reason", "detection"),
    ),
    "gateway_tail_cache_bytes": ("Bytes of the newest records in memory.", ()),
    "gateway_tail_cache_seconds": ("Age of the oldest of them.", ()),
    "gateway_tail_cache_reads": (
        "Reads that the tail cache answered, or that went on to the bookies.",
        ("result",),
    ),
    "gateway_metrics_left_out": ("How many are not on this page, for want of room.", ("what",)),
}

HISTOGRAMS: Final[dict[str, Declared]] = {
    "gateway_disk_blocked_seconds": Declared(
        "`gateway dev`: calls that wrote to the disk of a bookie, and how long each blocked the "
        "event loop.",
        (),
        Kind.HISTOGRAM,
    ),
}

Place = tuple[str, int]
"""A topic and a partition."""


K = TypeVar("K")
V = TypeVar("V")


class _Stands(NamedTuple):
    group: str
    place: Place
    offset: int


class Samples:
    """One snapshot of all metrics. `gather` runs once."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._limits = ctx.config.metrics
        self._families: dict[str, Family] = {}
        self._left_out = {"partitions": 0, "groups": 0, "positions": 0}
        self._stands: list[_Stands] = []
        # Groups of which not all offsets fitted: their sums are unknown.
        self._partial: set[str] = set()

    async def gather(self) -> list[Family]:
        """Return every family that has a sample."""
        self._brokers()
        self._bookies()
        self._tail_cache()
        self._disks()
        await self._topics()
        await self._blocked()
        await self._cleaning()
        await self._groups()
        await self._readers()
        await self._lags()
        for what, count in self._left_out.items():
            self._say("gateway_metrics_left_out", count, what)
        return list(self._families.values())

    async def group_lags(
        self, rows: Iterable[GroupRow]
    ) -> dict[str, tuple[float | None, float | None]]:
        """Return the lag of groups in records and in seconds; None if unknown.

        `rows` are the groups of this gateway, with their positions. Runs in place of `gather`.
        """
        for number, row in enumerate(islice(rows, self._limits.groups_max), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            self._take(row)
        await self._lags()
        records: dict[str, float | None] = dict.fromkeys(self._partial)
        for number, ((group, _, _), lag) in enumerate(self._of("kafka_consumergroup_lag"), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            before = records.get(group, 0.0)
            records[group] = None if before is None or lag < 0 else before + lag
        seconds: dict[str, float] = {}
        found = self._of("gateway_consumergroup_lag_seconds")
        for number, ((group, _, _), age_s) in enumerate(found, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            seconds[group] = max(seconds.get(group, 0.0), age_s)
        for group in self._partial:
            seconds.pop(group, None)
        return {group: (lag, seconds.get(group)) for group, lag in records.items()}

    def _take(self, row: GroupRow) -> None:
        """Take the positions of a group, as far as there is room."""
        if row.positions is None:
            self._partial.add(row.group)
            return
        places = {
            (topic, index): offset
            for topic, each in row.positions.items()
            for index, offset in each
        }
        for place, offset in self._fitting(row.group, places):
            self._stand(row.group, place, offset)

    def _of(self, name: str) -> Iterator[tuple[tuple[str, ...], float]]:
        family = self._families.get(name)
        for labels, value in [] if family is None else family.samples:
            if not isinstance(value, Buckets):
                yield labels, value

    def _say(self, name: str, value: float, *labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(name, *FAMILIES[name], [])
        family.samples.append((labels, value))

    def _brokers(self) -> None:
        members = live_brokers(self._ctx)
        self._say("kafka_brokers", len(members))
        for member in members:
            address = f"{member.host}:{member.port}" if member.host else ""
            self._say("kafka_broker_info", 1, str(member.node_id), address)

    def _bookies(self) -> None:
        if self._ctx.avoided_bookies is None:
            return
        detection, bookies = self._ctx.avoided_bookies()
        found = Counter(each.reason for each in bookies)
        for reason in REASONS:
            self._say("gateway_bookies_greylisted", found[reason], reason, detection)

    def _tail_cache(self) -> None:
        cache = self._ctx.partitions.tail_cache
        self._say("gateway_tail_cache_bytes", cache.bytes_held)
        self._say("gateway_tail_cache_seconds", cache.seconds_held())
        self._say("gateway_tail_cache_reads", cache.hits, "hit")
        self._say("gateway_tail_cache_reads", cache.misses, "miss")

    def _disks(self) -> None:
        """Report the classes of time of all embedded bookies."""
        disks = self._ctx.disks_blocked
        if not disks:
            return
        counts = [sum(classes) for classes in zip(*(disk.counts for disk in disks), strict=True)]
        blocked = Buckets(BLOCKED_S, counts, sum(disk.total_s for disk in disks))
        name = "gateway_disk_blocked_seconds"
        text, labels, kind = HISTOGRAMS[name]
        self._families[name] = Family(name, text, labels, [((), blocked)], kind)

    # -- topics -------------------------------------------------------------------------------

    async def _topics(self) -> None:
        """Report the partition count of each topic whose first partition this broker leads."""
        ctx = self._ctx
        me, told, seen = ctx.cluster.node_id, 0, 0
        for topic in list(ctx.catalog.all()):
            if ctx.cluster.leader(StreamKey(topic.topic_id, 0)).node_id == me:
                self._say("kafka_topic_partitions", topic.partitions, topic.name)
            for index in range(topic.partitions):
                seen += 1
                if seen % _SLICE == 0:
                    await asyncio.sleep(0)
                partition = ctx.partitions.opened(topic.name, index)
                if partition is None or not partition.is_leader:
                    continue
                told += 1
                if told <= self._limits.partitions_max:
                    self._partition(topic, index, partition)
        self._left_out["partitions"] = max(0, told - self._limits.partitions_max)

    def _partition(self, topic: Topic, index: int, partition: Partition) -> None:
        cluster = self._ctx.cluster
        at = (topic.name, str(index))
        key = StreamKey(topic.topic_id, index)
        replicas = len(cluster.replicas(key, topic.replication_factor))
        self._say("kafka_topic_partition_current_offset", partition.high_watermark, *at)
        self._say("kafka_topic_partition_oldest_offset", partition.log_start_offset, *at)
        self._say("kafka_topic_partition_leader", cluster.node_id, *at)
        # As in Metadata: the leader is the only replica, because bookies keep the copies.
        self._say("kafka_topic_partition_replicas", replicas, *at)
        self._say("kafka_topic_partition_in_sync_replica", replicas, *at)
        self._say("kafka_topic_partition_under_replicated_partition", 0, *at)
        accepted = partition.accepted_lost_records
        if accepted:
            self._say("gateway_topic_partition_lost_records", accepted, *at, "true")

    async def _blocked(self) -> None:
        """Report where readers wait, at partitions that this broker leads or follows."""
        partitions = stalled = stuck = 0
        for seen, (topic, index, partition) in enumerate(list(self._ctx.partitions.served()), 1):
            if seen % _SLICE == 0:
                await asyncio.sleep(0)
            places = partition.losses.places(partition.log_start_offset)
            if not places:
                continue
            partitions += 1
            stalled += partition.losses.readers_blocked(STALLED_S)
            stuck += partition.losses.readers_blocked(STUCK_S)
            if partitions <= self._limits.partitions_max:
                self._places((topic, str(index)), places)
        self._say("gateway_blocked_partitions", partitions)
        self._say("gateway_readers_stalled", stalled)
        self._say("gateway_readers_stuck", stuck)

    async def _cleaning(self) -> None:
        """Report the compacted partitions that this broker leads."""
        cleaner = self._ctx.cleaner
        if cleaner is None:
            return
        now_ms = self._ctx.clock.now_ms()
        reports = islice(list(cleaner.reports()), self._limits.partitions_max)
        for seen, report in enumerate(reports, 1):
            if seen % _SLICE == 0:
                await asyncio.sleep(0)
            at = (report.topic, str(report.partition))
            self._say("gateway_topic_partition_dirty_bytes", report.dirty_bytes, *at)
            if report.oldest_dirty_ms is not None:
                age_s = max(now_ms - report.oldest_dirty_ms, 0) / 1000
                self._say("gateway_topic_partition_dirty_age_seconds", age_s, *at)
            if report.progress is not None:
                share = report.progress.share
                self._say("gateway_topic_partition_cleaning_progress", share, *at)
            if report.error is not None:
                name = "gateway_topic_partition_cleaning_failed"
                self._say(name, 1, *at, "uncleanable" if report.uncleanable else "failed")

    def _places(self, at: tuple[str, str], places: Sequence[BlockedRead]) -> None:
        for place in places:
            self._say("gateway_topic_partition_blocked", 1, *at, place.text)
        lost = sum(
            each.lost_offsets
            for each in places
            if each.lost and not each.stopped and each.offset != AT_END
        )
        if lost:
            self._say("gateway_topic_partition_lost_records", lost, *at, "false")

    # -- groups -------------------------------------------------------------------------------

    async def _groups(self) -> None:
        catalog = self._ctx.catalog
        standings, self._left_out["groups"] = await self._ctx.groups.snapshots(self._limits)
        for number, each in enumerate(standings, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            self._group(each.name, each.kind, each.state, each.members)
            for key, committed in self._fitting(each.name, each.offsets):
                topic = catalog.by_id(key.topic_id)
                if topic is not None and committed.offset >= 0:
                    self._stand(each.name, (topic.name, key.partition), committed.offset)

    async def _readers(self) -> None:
        """Report read-only groups. After a partition moved, its new broker reports the
        next fetch.
        """
        ctx = self._ctx
        for group in list(ctx.read_only_groups.known()):
            if ctx.groups.stored(group.name):
                continue
            await asyncio.sleep(0)
            self._group(group.name, READ_ONLY, State.STABLE, len(group.clients))
            for (topic_id, index), fetched in self._fitting(group.name, group.fetches):
                topic = ctx.catalog.by_id(topic_id)
                if topic is not None and ctx.partitions.opened(topic.name, index) is not None:
                    self._stand(group.name, (topic.name, index), fetched.offset)

    def _group(self, name: str, kind: str, state: GroupState, members: int) -> None:
        self._say("gateway_consumergroup_info", 1, name, kind, state.value)
        self._say("kafka_consumergroup_members", members, name)

    def _fitting(self, group: str, positions: Mapping[K, V]) -> list[tuple[K, V]]:
        """Return entries of `positions` up to the bound. The other entries count as left out."""
        room = self._limits.positions_max - len(self._stands)
        if len(positions) > room:
            self._left_out["positions"] += len(positions) - room
            self._partial.add(group)
        return list(islice(positions.items(), max(0, room)))

    def _stand(self, group: str, place: Place, offset: int) -> None:
        self._stands.append(_Stands(group, place, offset))

    async def _each_stand(self) -> AsyncGenerator[_Stands]:
        """Yield all stands, with pauses for other tasks."""
        for number, each in enumerate(self._stands, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            yield each

    async def _lags(self) -> None:
        places: set[Place] = set()
        async for each in self._each_stand():
            places.add(each.place)
        ends = await self._offsets_at(places, _LATEST)
        behind: set[Place] = set()
        async for each in self._each_stand():
            if each.offset < ends.get(each.place, 0):
                behind.add(each.place)
        starts = await self._offsets_at(behind, _EARLIEST)
        offsets: dict[tuple[str, str], int] = {}
        lags: dict[tuple[str, str], int] = {}
        async for each in self._each_stand():
            topic, index = each.place
            known = lag_in_records(each.offset, starts.get(each.place), ends.get(each.place))
            lag = -1 if known is None else known
            at = (each.group, topic, str(index))
            self._say("kafka_consumergroup_current_offset", each.offset, *at)
            self._say("kafka_consumergroup_lag", lag, *at)
            of_topic = (each.group, topic)
            offsets[of_topic] = offsets.get(of_topic, 0) + each.offset
            lags[of_topic] = lags.get(of_topic, 0) + max(0, lag)
        await self._ages(ends)
        for number, (of_topic, value) in enumerate(offsets.items(), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            self._say("kafka_consumergroup_current_offset_sum", value, *of_topic)
            self._say("kafka_consumergroup_lag_sum", lags[of_topic], *of_topic)

    async def _ages(self, ends: Mapping[Place, int]) -> None:
        """Report the lags in seconds. Those that are unknown are left out."""
        behind: set[tuple[str, int, int]] = set()
        async for each in self._each_stand():
            if each.offset < ends.get(each.place, each.offset):
                behind.add((*each.place, each.offset))
        known = await ages(self._ctx, behind)
        async for each in self._each_stand():
            age_s = known.get((*each.place, each.offset))
            if each.offset >= ends.get(each.place, each.offset + 1):
                age_s = 0.0
            if age_s is not None:
                at = (each.group, each.place[0], str(each.place[1]))
                self._say("gateway_consumergroup_lag_seconds", age_s, *at)

    # -- starts and ends of partitions --------------------------------------------------------

    async def _offsets_at(self, places: set[Place], which: int) -> dict[Place, int]:
        """Return starts or high watermarks from memory or from the leaders.

        Unknown ones are left out.
        """
        ctx = self._ctx
        ends: dict[Place, int] = {}
        elsewhere: dict[int, dict[str, list[int]]] = {}
        for number, place in enumerate(places, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            topic = ctx.catalog.by_name(place[0])
            partition = ctx.partitions.opened(*place)
            if partition is not None and partition.is_leader:
                end = partition.high_watermark
                ends[place] = end if which == _LATEST else partition.log_start_offset
            elif topic is not None:
                node_id = ctx.cluster.leader(StreamKey(topic.topic_id, place[1])).node_id
                elsewhere.setdefault(node_id, {}).setdefault(place[0], []).append(place[1])
        elsewhere.pop(ctx.cluster.node_id, None)  # this broker is opening it
        elsewhere.pop(-1, None)
        if not elsewhere:
            return ends

        def fields(member: ClusterMember) -> dict[str, Any] | None:
            asked = elsewhere.get(member.node_id)
            return None if asked is None else list_offsets_fields(asked, which, committed=False)

        answers = await Peers(ctx.cluster, ctx.clock, self._limits.ask_s_max).ask(
            _LIST_OFFSETS, fields
        )
        for answer in answers.values():
            ends.update(_told(answer))
        return ends


def _told(answer: Any) -> dict[Place, int]:
    """Return the end offsets in a ListOffsets response."""
    return {
        (topic.name, each.partition_index): each.offset
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code.value and each.offset >= 0
    }
