"""format("ledger") as a stream: its offsets are those of the Kafka source, and ids of topics.

A checkpoint is of one topic, not of a name: offsets of a topic that was deleted and made anew are
other records'. Who goes on from them is told so, also where the new topic is the longer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.pipelines.direct.checkpoint import OffsetsJson, StreamOffsets, from_json, to_json
from gateway.pipelines.direct.offsets import (
    PartitionSource,
    PartitionSources,
    clamp_to_logs,
    end_offsets,
    report_loss,
    report_recreated,
    start_offsets,
    topic_ids,
    wait_until_known,
)
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters, limit_trigger
from gateway.pipelines.direct.storage_connection import StorageConnection
from gateway.pipelines.direct.tasks import SlicePartition, SliceTask, plan_tasks, read_task
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerStreamReader(DataSourceStreamReader):
    """The driver's process keeps one for a query; `read` runs anywhere."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._link: StorageConnection | None = None
        self._sources: PartitionSources | None = None
        self._first: StreamOffsets | None = None  # where a query without a checkpoint begins
        self._position: StreamOffsets | None = None  # where the next trigger begins
        self._last: StreamOffsets | None = None  # where a query ends that is to end

    def initialOffset(self) -> OffsetsJson:
        """Of a query without a checkpoint; Spark may ask for the latest before."""
        return to_json(self._beginning(self._look()))

    def _beginning(self, sources: Mapping[TopicPartition, PartitionSource]) -> StreamOffsets:
        if self._first is None:
            begin = self._connected().run(start_offsets(sources, self._options))
            self._first = StreamOffsets(begin, topic_ids(sources))
        return self._first

    def latestOffset(self, start: Any = None, limit: Any = None) -> OffsetsJson:
        """The end of the next trigger. Later Sparks say where it starts, this one remembers."""
        sources = self._look()
        position = from_json(start) if start else self._position or self._beginning(sources)
        self._connected().run(self._reached(position, sources))
        begin = self._begin(position, sources)
        end = self._ended(begin, sources)
        end = limit_trigger(self._options.offsets_per_trigger_max, begin, end)
        return to_json(StreamOffsets(end, topic_ids(sources)))

    def _ended(
        self, begin: Mapping[TopicPartition, int], sources: Mapping[TopicPartition, PartitionSource]
    ) -> dict[TopicPartition, int]:
        """Where each place ends now, or where it did at the first look of a query that is to end
        there; what came later has no part in that one."""
        now = {place: source.scan.end_sequence_id for place, source in sources.items()}
        if self._options.ending is None:
            return now
        if self._last is None:
            last = self._connected().run(end_offsets(sources, self._options))
            self._last = StreamOffsets(last, topic_ids(sources))
        others = self._last.others(topic_ids(sources))
        last = {p: at for p, at in self._last.offsets.items() if p.topic not in others}
        return {p: max(at, min(now[p], last.get(p, at))) for p, at in begin.items()}

    def _begin(
        self, position: StreamOffsets, sources: Mapping[TopicPartition, PartitionSource]
    ) -> dict[TopicPartition, int]:
        """Where each place goes on; one that came later begins at 0, and a topic that was made
        anew at its start. Losses are told."""
        fail = self._options.fail_on_data_loss
        anew = report_recreated(position, sources, fail)
        gone = [
            OffsetRange(*p, at, at + 1)
            for p, at in position.offsets.items()
            if p not in sources and p.topic not in anew
        ]
        if gone:
            report_loss(gone, "the partitions are not there any more", fail)
        begin = {
            place: source.scan.start_sequence_id
            if place.topic in anew
            else position.offsets.get(place, 0)
            for place, source in sources.items()
        }
        return clamp_to_logs(begin, sources, fail)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """Also how a query that goes on says where it is: `start` and `end` are the same then."""
        self._position = from_json(end)
        if start == end:
            return []
        work = self._tasks(from_json(start), self._position)
        return [SlicePartition(task) for task in self._connected().run(work)]

    async def _tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[SliceTask]:
        sources = await self._known().look()
        await self._reached(end, sources)
        begin = self._begin(start, sources)
        # Made anew since the batch was planned: its records are gone, and the next one begins anew.
        anew = report_recreated(end, sources, self._options.fail_on_data_loss)
        ended = {
            place: at
            for place, at in end.offsets.items()
            if place in sources and place.topic not in anew
        }
        self._check_end(ended, sources)
        ranges = [
            OffsetRange(*place, begin[place], at)
            for place, at in ended.items()
            if begin[place] < at
        ]
        return await plan_tasks(ranges, sources, self._options.slice_bytes, PushedFilters())

    async def _reached(
        self, position: StreamOffsets, sources: Mapping[TopicPartition, PartitionSource]
    ) -> None:
        """Its offsets are known here too, but for those of other topics of that name."""
        others = position.others(topic_ids(sources))
        mine = {place: at for place, at in position.offsets.items() if place.topic not in others}
        await wait_until_known(sources, mine)

    def _check_end(
        self, ended: dict[TopicPartition, int], sources: Mapping[TopicPartition, PartitionSource]
    ) -> None:
        """A log that is shorter than it was is another one."""
        for place, end in ended.items():
            now = sources[place].scan.end_sequence_id
            if now < end:
                lost = [OffsetRange(*place, now, end)]
                report_loss(lost, "the log ends before them now", self._options.fail_on_data_loss)
                ended[place] = now

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)

    def commit(self, end: OffsetsJson) -> None:
        """The checkpoint says it all."""

    def stop(self) -> None:
        sources, self._sources = self._sources, None
        link, self._link = self._link, None
        if sources is not None:
            sources.close()
        if link is not None:
            link.close()

    def _connected(self) -> StorageConnection:
        if self._link is None:
            self._link = StorageConnection(self._options.metadata, self._options.tls)
        return self._link

    def _known(self) -> PartitionSources:
        if self._sources is None:
            self._sources = PartitionSources(self._connected().storage, self._options)
        return self._sources

    def _look(self) -> dict[TopicPartition, PartitionSource]:
        return self._connected().run(self._known().look())
