"""Which partitions a read is about, and the offsets where it begins and ends in each.

As the Kafka source decides them, but asked of the metadata store and of bookies.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gateway.pipelines.direct.checkpoint import StreamOffsets
from gateway.pipelines.direct.decode import DECOMPRESSED_BYTES_MAX
from gateway.pipelines.direct.options import EARLIEST, LATEST, OffsetLimit, Options
from gateway.pipelines.direct.storage import ReadStorage, read_topic, read_topics
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.topics.catalog import Topic
from gateway.topics.partitions import stream_name
from gateway.wire import batches
from ledger.errors import NoNode
from ledger.streams.scan import StreamScan

_AT_ONCE = 16
_PARTITIONS_MAX = 100_000
_LOOK_S, _LOOKS = 0.1, 30  # at what is acknowledged, where an offset lies beyond it

T = TypeVar("T")


class PartitionSource(NamedTuple):
    """A partition that is read: its stream as it was when looked at."""

    place: TopicPartition
    topic_id: str
    scan: StreamScan


class TopicRecreated(DataLost):
    """Another topic of that name is there now: the offsets of the old one are other records'."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ())
        self.code = "TOPIC_MADE_ANEW"


class PartitionSources:
    """All partitions of the options, open until `close`."""

    def __init__(self, storage: ReadStorage, options: Options) -> None:
        self._storage = storage
        self._options = options
        self._open: dict[TopicPartition, PartitionSource] = {}

    async def look(self) -> dict[TopicPartition, PartitionSource]:
        """The partitions that there are now, each as it is now. Raises JobError, LedgerError."""
        topics = await self._topics()
        wanted: dict[TopicPartition, Topic] = {}
        for topic in topics:
            for index in self._options.assigned.get(topic.name, range(topic.partitions)):
                wanted[TopicPartition(topic.name, index)] = topic
        if len(wanted) > _PARTITIONS_MAX:
            raise JobError(f"{len(wanted)} partitions are more than {_PARTITIONS_MAX}")
        for place, source in list(self._open.items()):
            topic = wanted.get(place)
            if topic is None or str(topic.topic_id) != source.topic_id:
                source.scan.close()
                del self._open[place]
        places = sorted(wanted)
        found = await _gathered([self._source(place, wanted[place]) for place in places])
        self._open = dict(zip(places, found, strict=True))
        return dict(self._open)

    async def _topics(self) -> list[Topic]:
        options, store = self._options, self._storage.store
        if options.pattern:
            pattern = re.compile(options.pattern)
            known = await read_topics(store)
            return [t for t in known if not t.is_internal and pattern.fullmatch(t.name)]
        found = [await read_topic(store, name) for name in options.topics or options.assigned]
        for topic in found:
            for index in options.assigned.get(topic.name, ()):
                if index >= topic.partitions:
                    raise JobError(
                        f"assign: {topic.name} has {topic.partitions} partitions, {index} is none",
                        "UNKNOWN_PARTITION",
                    )
        return found

    async def _source(self, place: TopicPartition, topic: Topic) -> PartitionSource:
        known = self._open.get(place)
        if known is not None:
            await known.scan.refresh()
            return known
        try:
            scan = await StreamScan.open(
                stream_name(topic.topic_id, place.partition),
                self._storage.store,
                self._storage.client,
                batches.timestamp_max,
            )
        except NoNode as error:
            raise JobError(f"{place} went away while it was looked at", "UNKNOWN_TOPIC") from error
        return PartitionSource(place, str(topic.topic_id), scan)

    def close(self) -> None:
        for source in self._open.values():
            source.scan.close()
        self._open.clear()


async def _gathered(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order, a few at once; the first error is raised when all are over."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Awaitable[T]) -> T:
        async with room:
            return await each

    found = await asyncio.gather(*map(one, work), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


async def start_offsets(
    sources: Mapping[TopicPartition, PartitionSource], options: Options
) -> dict[TopicPartition, int]:
    """Where reading begins, never below what is there. Raises JobError, DataLost."""
    edge = options.starting
    _check_named("startingOffsets", edge, sources)
    await wait_until_known(sources, edge.offsets or {})
    found = await _resolve(sources, edge, EARLIEST)
    for place, offset in found.items():
        if offset is None and not options.latest_where_no_time:
            raise JobError(
                f"{place} has no record that new;"
                " startingOffsetsByTimestampStrategy latest begins at its end",
                "NO_SUCH_TIME",
            )
    known = {
        place: sources[place].scan.end_sequence_id if offset is None else offset
        for place, offset in found.items()
    }
    return clamp_to_logs(known, sources, options.fail_on_data_loss)


async def end_offsets(
    sources: Mapping[TopicPartition, PartitionSource], options: Options
) -> dict[TopicPartition, int]:
    """One past the last offset that is read, never above what is there. Raises JobError."""
    edge = options.ending
    assert edge is not None, "a stream without an end"
    _check_named("endingOffsets", edge, sources)
    await wait_until_known(sources, edge.offsets or {})
    found: dict[TopicPartition, int] = {}
    for place, offset in (await _resolve(sources, edge, LATEST)).items():
        end = sources[place].scan.end_sequence_id
        if offset is not None and offset > end:
            raise JobError(f"endingOffsets: {place} ends at {end}, before {offset}", "BEYOND_END")
        found[place] = end if offset is None else offset
    return found


def clamp_to_logs(
    begin: Mapping[TopicPartition, int],
    sources: Mapping[TopicPartition, PartitionSource],
    fail: bool,
) -> dict[TopicPartition, int]:
    """`begin`, moved to where a log begins or ends now. Raises DataLost, or says it on stderr."""
    found: dict[TopicPartition, int] = {}
    lost: list[OffsetRange] = []
    for place, offset in begin.items():
        scan = sources[place].scan
        found[place] = min(max(offset, scan.start_sequence_id), scan.end_sequence_id)
        if found[place] != offset:
            lost.append(OffsetRange(*place, *sorted((offset, found[place]))))
    if lost:
        report_loss(lost, "removed, or never there", fail)
    return found


def report_loss(lost: Iterable[OffsetRange], why: str, fail: bool) -> None:
    """Raises DataLost where losses are to fail, else says them."""
    ranges = tuple(lost)
    said = f"{', '.join(map(str, ranges))}: {why}"
    if fail:
        raise DataLost(f"{said}; failOnDataLoss=false reads on without them", ranges)
    print(f"format(ledger): left out {said}", file=sys.stderr)


def topic_ids(sources: Mapping[TopicPartition, PartitionSource]) -> dict[str, str]:
    """By name, of the topics that there are now."""
    return {place.topic: source.topic_id for place, source in sources.items()}


def report_recreated(
    position: StreamOffsets, sources: Mapping[TopicPartition, PartitionSource], fail: bool
) -> frozenset[str]:
    """Topics of which there is another one now than `position` is of. Raises TopicMadeAnew where
    losses are to fail, else says them."""
    now = topic_ids(sources)
    others = position.others(now)
    if others:
        ids = [f"{name} (its id was {position.topic_ids[name]}, is {now[name]})" for name in others]
        said = f"deleted and made anew: {', '.join(ids)}; the offsets are other records' now"
        if fail:
            raise TopicRecreated(
                f"{said}. Begin with another checkpointLocation; or let the query go on from the"
                " start of the new topic, without what it had not read of the old one, with"
                " failOnDataLoss=false"
            )
        print(f"format(ledger): {said}; goes on from the start of the new topic", file=sys.stderr)
    return frozenset(others)


def _check_named(
    option: str, edge: OffsetLimit, sources: Mapping[TopicPartition, PartitionSource]
) -> None:
    """Where places are named, all are, and no others. Source: Spark, KafkaOffsetReaderAdmin."""
    named = edge.offsets if edge.offsets is not None else edge.times_ms
    if named is None or named.keys() == sources.keys():
        return
    missing = sorted(sources.keys() - named.keys())
    others = sorted(named.keys() - sources.keys())
    said = [f"lacks {', '.join(map(str, missing))}"] if missing else []
    said += [f"names {', '.join(map(str, others))}, not read"] if others else []
    raise JobError(f"{option}: must name all partitions: {'; '.join(said)}", "BAD_OPTION")


async def wait_until_known(
    sources: Mapping[TopicPartition, PartitionSource], wanted: Mapping[TopicPartition, int]
) -> None:
    """Offsets that are named are known here too, if they are there: readers hear of the last ones
    a little later than the producer did, and others, or a checkpoint, may have told the offsets."""
    for _ in range(_LOOKS):
        behind = [
            sources[place].scan
            for place, offset in wanted.items()
            if place in sources and sources[place].scan.end_sequence_id < offset
        ]
        if not behind:
            return
        await asyncio.sleep(_LOOK_S)
        await _gathered([scan.refresh() for scan in behind])


async def _resolve(
    sources: Mapping[TopicPartition, PartitionSource], edge: OffsetLimit, otherwise: int
) -> dict[TopicPartition, int | None]:
    """None: a time after the last record's."""

    async def one(source: PartitionSource) -> int | None:
        place, scan = source.place, source.scan
        time_ms = edge.time_ms if edge.times_ms is None else edge.times_ms[place]
        if time_ms is not None:
            return await offset_at(scan, time_ms)
        offset = otherwise if edge.offset is None else edge.offset
        offset = offset if edge.offsets is None else edge.offsets[place]
        if offset == EARLIEST:
            return scan.start_sequence_id
        return scan.end_sequence_id if offset == LATEST else offset

    found = await _gathered([one(source) for source in sources.values()])
    return dict(zip(sources, found, strict=True))


async def offset_at(scan: StreamScan, time_ms: int) -> int | None:
    """The first offset whose timestamp is not before that; None: there is none."""
    from gateway.wire.record_scan import first_at_or_after

    record = await scan.find_timestamp(time_ms)
    while record is not None:
        batch = b"".join(record.data)
        found = first_at_or_after(batch, time_ms, scan.start_sequence_id, DECOMPRESSED_BYTES_MAX)
        if found is not None:
            return found[1]
        # The header claimed more than its records hold, or those are below the log start.
        record = await scan.find_timestamp(time_ms, record.end_sequence_id)
    return None
