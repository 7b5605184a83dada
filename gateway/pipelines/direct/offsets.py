"""The partitions of a read, and the offsets at which the read begins and ends in each.

The rules are those of Spark's Kafka source, but the offsets come from the metadata store and
bookies.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from gateway.pipelines.direct.checkpoint import StreamOffsets
from gateway.pipelines.direct.committed import CommittedView
from gateway.pipelines.direct.decode import DECOMPRESSED_BYTES_MAX
from gateway.pipelines.direct.losses import report_loss
from gateway.pipelines.direct.options import EARLIEST, LATEST, OffsetLimit, Options
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.storage import ReadStorage, read_topic, read_topics
from gateway.topics.catalog import IDS, Topic
from gateway.topics.configs import LossMode, topic_config
from gateway.topics.partitions import stream_name
from gateway.wire import batches
from gateway.wire.steps import result_of
from ledger.errors import MetadataUnavailable, NoNode
from ledger.streams.scan import StreamScan

_AT_ONCE = 128  # partitions that are read at once; each has at most a few requests in flight
_LISTS_PER_LOOK = 256  # partitions of a look whose start and losses are read again
_PARTITIONS_MAX = 100_000
# Interval and number of checks whether a requested offset is acknowledged
_POLL_S, _POLLS = 0.1, 30

T = TypeVar("T")


class PartitionSource(NamedTuple):
    """A partition to read, with the state of its stream as of the last refresh."""

    topic_partition: TopicPartition
    topic_id: str
    scan: StreamScan
    loss_mode: LossMode = LossMode.SKIP  # `gateway.loss.delivery` of the topic
    committed: CommittedView | None = None  # None for read_uncommitted

    @property
    def end(self) -> int:
        """The offset at which this reader ends: of the log, or of what is committed of it."""
        return self.scan.end_sequence_id if self.committed is None else self.committed.stable_offset

    async def refresh(self) -> None:
        """Read the state of the stream. Raises LedgerError."""
        await self.scan.refresh()
        if self.committed is not None:
            await self.committed.advance()


OpenSources = Mapping[TopicPartition, PartitionSource]


class TopicRecreated(DataLost):
    """An error because a topic was recreated: stored offsets belong to other records."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ())
        self.code = "TOPIC_MADE_ANEW"


class PartitionSources:
    """All partitions that the options select. The partitions stay open until `close`.

    A look at many partitions must cost little, because a stream takes one in each trigger. So a
    look syncs the metadata store once. For a partition that was open before, it reads the end, and
    only for some of them in turn the start and the losses: tasks find out what was removed
    meanwhile.
    """

    def __init__(self, storage: ReadStorage, options: Options) -> None:
        self._storage = storage
        self._options = options
        # The partitions of the last refresh. A refresh closes partitions of deleted topics.
        self._open: dict[TopicPartition, PartitionSource] = {}
        # The open partitions in the order in which their lists were read, the oldest first.
        self._by_age: OrderedDict[TopicPartition, None] = OrderedDict()

    async def refresh(self) -> dict[TopicPartition, PartitionSource]:
        """Return the selected partitions with their current state. Raises JobError, LedgerError."""
        topics = await self._topics()
        wanted: dict[TopicPartition, Topic] = {}
        for topic in topics:
            for index in self._options.assigned.get(topic.name, range(topic.partitions)):
                wanted[TopicPartition(topic.name, index)] = topic
        if len(wanted) > _PARTITIONS_MAX:
            raise JobError(f"{len(wanted)} partitions exceed the limit of {_PARTITIONS_MAX}")
        self._close_others(wanted)
        partitions = sorted(wanted)
        oldest = set(islice(self._by_age, _LISTS_PER_LOOK))
        found = await gathered(
            [self._look(each, wanted[each], read_list=each in oldest) for each in partitions]
        )
        modes = {topic.name: topic_config(topic.configs).loss_mode for topic in topics}
        self._open = {
            partition: source._replace(loss_mode=modes[partition.topic])
            for partition, source in zip(partitions, found, strict=True)
        }
        return dict(self._open)

    def _close_others(self, wanted: Mapping[TopicPartition, Topic]) -> None:
        """Close the partitions of topics that were deleted, also if they were created again."""
        for partition, source in list(self._open.items()):
            topic = wanted.get(partition)
            if topic is None or str(topic.topic_id) != source.topic_id:
                source.scan.close()
                del self._open[partition]
                self._by_age.pop(partition, None)

    async def topics_exist(self) -> bool:
        """Return whether no topic of the last refresh was deleted since, one call for each topic.

        A topic that was created again has another id. Raises JobError.
        """
        store = self._storage.store
        ids = sorted({source.topic_id for source in self._open.values()})
        try:
            await store.sync(IDS)
            return all(await gathered([store.exists(f"{IDS}/{topic_id}") for topic_id in ids]))
        except MetadataUnavailable as error:
            raise JobError(f"topics cannot be read: {error}", type(error).__name__) from error

    async def _topics(self) -> list[Topic]:
        """Return the selected topics, after a sync of the metadata store."""
        options, store = self._options, self._storage.store
        if options.pattern:
            pattern = re.compile(options.pattern)
            known = await read_topics(store)
            return [t for t in known if not t.is_internal and pattern.fullmatch(t.name)]
        names = options.topics or tuple(options.assigned)
        found = await gathered([read_topic(store, name) for name in names])
        for topic in found:
            if not topic.has_streams:
                raise JobError(f"{topic.name} has no records to read here", "NO_STREAMS")
            for index in options.assigned.get(topic.name, ()):
                if index >= topic.partitions:
                    raise JobError(
                        f"assign: {topic.name} has {topic.partitions} partitions, not {index}",
                        "UNKNOWN_PARTITION",
                    )
        return found

    async def _look(
        self, partition: TopicPartition, topic: Topic, *, read_list: bool
    ) -> PartitionSource:
        known = self._open.get(partition)
        if known is not None and not read_list:
            await known.scan.refresh_end()
        else:
            if known is None:
                known = await self._open_source(partition, topic)
            else:
                await known.scan.refresh(synced=True)
            self._by_age[partition] = None
            self._by_age.move_to_end(partition)
        if known.committed is not None:
            await known.committed.advance()
        return known

    async def _open_source(self, partition: TopicPartition, topic: Topic) -> PartitionSource:
        try:
            scan = await StreamScan.open(
                stream_name(topic.topic_id, partition.partition),
                self._storage.store,
                self._storage.client,
                batches.timestamp_max,
                synced=True,
            )
        except NoNode as error:
            raise JobError(f"{partition} was deleted meanwhile", "UNKNOWN_TOPIC") from error
        committed = CommittedView(scan) if self._options.committed else None
        return PartitionSource(partition, str(topic.topic_id), scan, committed=committed)

    def close(self) -> None:
        for source in self._open.values():
            source.scan.close()
        self._open.clear()
        self._by_age.clear()


async def gathered(work: Sequence[Awaitable[T]]) -> list[T]:
    """Return all results in order, with bounded concurrency.

    All work ends before an error is raised.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Awaitable[T]) -> T:
        async with room:
            return await each

    found = await asyncio.gather(*map(one, work), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


async def start_offsets(sources: OpenSources, options: Options) -> dict[TopicPartition, int]:
    """Return the offsets at which reading begins, within the current logs.

    Raises JobError, DataLost.
    """
    limit = options.starting
    _check_named("startingOffsets", limit, sources)
    await wait_until_known(sources, limit.offsets or {})
    found = await _resolve(sources, limit, EARLIEST)
    for partition, offset in found.items():
        if offset is None and not options.latest_where_no_time:
            raise JobError(
                f"{partition} has no record that new; set startingOffsetsByTimestampStrategy to"
                " latest to begin at its end",
                "NO_SUCH_TIME",
            )
    known = {
        partition: sources[partition].end if offset is None else offset
        for partition, offset in found.items()
    }
    return clamp_to_logs(known, sources, options.fail_on_data_loss)


async def end_offsets(sources: OpenSources, options: Options) -> dict[TopicPartition, int]:
    """Return the offsets at which reading ends (exclusive), within the current logs.

    Raises JobError.
    """
    limit = options.ending
    assert limit is not None, "a stream without an end has no end offsets"
    _check_named("endingOffsets", limit, sources)
    await wait_until_known(sources, limit.offsets or {}, decided=True)
    found: dict[TopicPartition, int] = {}
    for partition, offset in (await _resolve(sources, limit, LATEST)).items():
        end = sources[partition].end
        if offset is not None and offset > end:
            why = _undecided(sources[partition], offset)
            raise JobError(
                f"endingOffsets: {partition} ends at {end}, before {offset}{why}", "BEYOND_END"
            )
        found[partition] = end if offset is None else offset
    return found


def clamp_to_logs(
    begin: Mapping[TopicPartition, int],
    sources: OpenSources,
    fail: bool,
) -> dict[TopicPartition, int]:
    """Move the offsets `begin` into the current logs.

    Raises DataLost, or reports the loss on stderr.
    """
    found: dict[TopicPartition, int] = {}
    lost: list[OffsetRange] = []
    for partition, offset in begin.items():
        scan = sources[partition].scan
        found[partition] = min(max(offset, scan.start_sequence_id), scan.end_sequence_id)
        if found[partition] != offset:
            lost.append(OffsetRange(*partition, *sorted((offset, found[partition]))))
    if lost:
        report_loss(lost, "deleted, or never written", fail)
    return found


def topic_ids(sources: OpenSources) -> dict[str, str]:
    """Return the ids of the current topics by name."""
    return {partition.topic: source.topic_id for partition, source in sources.items()}


def report_recreated(stored: StreamOffsets, sources: OpenSources, fail: bool) -> frozenset[str]:
    """Return the topics that were recreated since `stored`.

    If a topic was recreated, raises TopicRecreated if `fail` is set, and otherwise reports the
    topic on stderr.
    """
    now = topic_ids(sources)
    others = stored.recreated(now)
    if others:
        ids = [f"{name} (its id was {stored.topic_ids[name]}, is {now[name]})" for name in others]
        change = f"deleted and recreated: {', '.join(ids)}; the stored offsets no longer apply"
        if fail:
            raise TopicRecreated(
                f"{change}. Begin with another checkpointLocation; or set failOnDataLoss=false, and"
                " the query continues from the start of the new topic, without unread records of"
                " the old one"
            )
        print(
            f"format(ledger): {change}; continuing from the start of the new topic", file=sys.stderr
        )
    return frozenset(others)


def _check_named(option: str, limit: OffsetLimit, sources: OpenSources) -> None:
    """Raise JobError if the option names partitions other than the ones to read.

    Source: Spark, KafkaOffsetReaderAdmin.
    """
    named = limit.offsets if limit.offsets is not None else limit.times_ms
    if named is None or named.keys() == sources.keys():
        return
    missing = sorted(sources.keys() - named.keys())
    others = sorted(named.keys() - sources.keys())
    problems = [f"lacks {', '.join(map(str, missing))}"] if missing else []
    problems += [f"names {', '.join(map(str, others))}, not read"] if others else []
    raise JobError(f"{option}: must name all partitions: {'; '.join(problems)}", "BAD_OPTION")


def _undecided(source: PartitionSource, offset: int) -> str:
    """Return the reason if the log has `offset`, but the outcome of its records is open."""
    if source.scan.end_sequence_id < offset or source.committed is None:
        return ""
    return f": {source.committed.undecided}"


async def wait_until_known(
    sources: OpenSources, wanted: Mapping[TopicPartition, int], *, decided: bool = False
) -> None:
    """Wait until this reader sees the wanted offsets, for a few seconds at most.

    A reader sees the last records a little later than their producer does. A wanted offset may come
    from another reader or from a checkpoint. With `decided`, the transactions below it must have
    ended, if the read is a committed one.
    """
    for _ in range(_POLLS):
        behind = [
            sources[partition]
            for partition, offset in wanted.items()
            if partition in sources
            and (sources[partition].end if decided else sources[partition].scan.end_sequence_id)
            < offset
        ]
        if not behind:
            return
        await asyncio.sleep(_POLL_S)
        await gathered([source.refresh() for source in behind])


async def _resolve(
    sources: OpenSources, limit: OffsetLimit, otherwise: int
) -> dict[TopicPartition, int | None]:
    """Return the offset for each partition, or None if the time is after its last record."""

    async def one(source: PartitionSource) -> int | None:
        partition, scan = source.topic_partition, source.scan
        time_ms = limit.time_ms if limit.times_ms is None else limit.times_ms[partition]
        if time_ms is not None:
            at = await offset_at(scan, time_ms)
            decided = source.committed is None or at is None or at < source.end
            return at if decided else None
        offset = otherwise if limit.offset is None else limit.offset
        offset = offset if limit.offsets is None else limit.offsets[partition]
        if offset == EARLIEST:
            return scan.start_sequence_id
        return source.end if offset == LATEST else offset

    found = await gathered([one(source) for source in sources.values()])
    return dict(zip(sources, found, strict=True))


async def offset_at(scan: StreamScan, time_ms: int) -> int | None:
    """Return the offset of the first record with a timestamp of at least `time_ms`, or None."""
    from gateway.wire.record_scan import first_at_or_after

    record = await scan.find_timestamp(time_ms)
    while record is not None:
        batch = b"".join(record.data)
        start = scan.start_sequence_id
        found = result_of(first_at_or_after(batch, time_ms, start, DECOMPRESSED_BYTES_MAX))
        if found is not None:
            return found[1]
        # No record of this batch qualifies: its header overstates the timestamps, or the matching
        # records are below the log start.
        record = await scan.find_timestamp(time_ms, record.end_sequence_id)
    return None
