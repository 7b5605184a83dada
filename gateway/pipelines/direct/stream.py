"""format("ledger") as a stream. Offsets are encoded as by Spark's Kafka source, plus topic ids.

A checkpoint belongs to a topic id, not to a name. After a topic is deleted and recreated, the
stored offsets would select other records. A query that continues from such a checkpoint gets an
error, even if the new topic is longer than the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.pipelines.direct.checkpoint import OffsetsJson, StreamOffsets, from_json, to_json
from gateway.pipelines.direct.losses import report_loss
from gateway.pipelines.direct.offsets import (
    OpenSources,
    PartitionSource,
    PartitionSources,
    clamp_to_logs,
    end_offsets,
    report_recreated,
    start_offsets,
    topic_ids,
    wait_until_known,
)
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters, limit_trigger
from gateway.pipelines.direct.storage_connection import BlockingStorageConnection
from gateway.pipelines.direct.tasks import SlicePartition, SliceTask, plan_tasks, read_task
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerStreamReader(DataSourceStreamReader):
    """The reader of a streaming query. The driver keeps one; `read` runs on any worker."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # The connection to storage: opened by the first call on the driver, closed by `stop`. None
        # in workers.
        self._connection: BlockingStorageConnection | None = None
        self._sources: PartitionSources | None = None
        # The offsets at which a query without a checkpoint begins. Determined once.
        self._first: StreamOffsets | None = None
        # The offsets at which the next trigger begins: the end of the last planned batch.
        self._next: StreamOffsets | None = None
        # The offsets at which a query with ending offsets ends. Determined by its first trigger.
        self._last: StreamOffsets | None = None

    def initialOffset(self) -> OffsetsJson:
        """Return the offsets at which a query without a checkpoint begins.

        Spark may call `latestOffset` first.
        """
        return to_json(self._initial(self._refresh()))

    def _initial(self, sources: OpenSources) -> StreamOffsets:
        if self._first is None:
            begin = self._connected().run(start_offsets(sources, self._options))
            self._first = StreamOffsets(begin, topic_ids(sources))
        return self._first

    def latestOffset(self, start: Any = None, limit: Any = None) -> OffsetsJson:
        """Return the end of the next trigger. Only later versions of Spark pass `start`."""
        sources = self._refresh()
        stored = from_json(start) if start else self._next or self._initial(sources)
        self._connected().run(self._wait_until_known(stored, sources))
        begin = self._trigger_starts(stored, sources)
        end = self._trigger_ends(begin, sources)
        limit = self._options.offsets_per_trigger_max
        if limit is not None:
            losses = {partition: source.scan.losses for partition, source in sources.items()}
            end = limit_trigger(limit, begin, end, losses)
        return to_json(StreamOffsets(end, topic_ids(sources)))

    def _trigger_ends(
        self, begin: Mapping[TopicPartition, int], sources: OpenSources
    ) -> dict[TopicPartition, int]:
        """Return the current ends of all partitions, limited to the ending offsets, if any.

        Ending offsets are determined once, by the first trigger.
        """
        now = {partition: source.scan.end_sequence_id for partition, source in sources.items()}
        if self._options.ending is None:
            return now
        if self._last is None:
            last = self._connected().run(end_offsets(sources, self._options))
            self._last = StreamOffsets(last, topic_ids(sources))
        recreated = self._last.recreated(topic_ids(sources))
        last = {p: at for p, at in self._last.offsets.items() if p.topic not in recreated}
        return {p: max(at, min(now[p], last.get(p, at))) for p, at in begin.items()}

    def _trigger_starts(
        self, stored: StreamOffsets, sources: OpenSources
    ) -> dict[TopicPartition, int]:
        """Return the offset at which each partition continues, and report lost records.

        A partition added later begins at 0, and a recreated topic at its first offset.
        """
        fail = self._options.fail_on_data_loss
        recreated = report_recreated(stored, sources, fail)
        gone = [
            OffsetRange(*p, at, at + 1)
            for p, at in stored.offsets.items()
            if p not in sources and p.topic not in recreated
        ]
        if gone:
            report_loss(gone, "the partitions no longer exist", fail)
        begin = {
            partition: source.scan.start_sequence_id
            if partition.topic in recreated
            else stored.offsets.get(partition, 0)
            for partition, source in sources.items()
        }
        return clamp_to_logs(begin, sources, fail)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """Plan a batch. Spark passes `end` twice when a query continues from its checkpoint."""
        self._next = from_json(end)
        if start == end:
            return []
        work = self._tasks(from_json(start), self._next)
        return [SlicePartition(task) for task in self._connected().run(work)]

    async def _tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[SliceTask]:
        sources = await self._open_sources().refresh()
        await self._wait_until_known(end, sources)
        begin = self._trigger_starts(start, sources)
        # A topic recreated since the batch was planned has lost these records.
        recreated = report_recreated(end, sources, self._options.fail_on_data_loss)
        ended = {
            partition: at
            for partition, at in end.offsets.items()
            if partition in sources and partition.topic not in recreated
        }
        self._check_end(ended, sources)
        ranges = [
            OffsetRange(*partition, begin[partition], at)
            for partition, at in ended.items()
            if begin[partition] < at
        ]
        return await plan_tasks(ranges, sources, self._options.slice_bytes, PushedFilters())

    async def _wait_until_known(self, stored: StreamOffsets, sources: OpenSources) -> None:
        """Wait until this reader sees the stored offsets.

        Offsets of recreated topics are skipped.
        """
        recreated = stored.recreated(topic_ids(sources))
        mine = {
            partition: at
            for partition, at in stored.offsets.items()
            if partition.topic not in recreated
        }
        await wait_until_known(sources, mine)

    def _check_end(self, ended: dict[TopicPartition, int], sources: OpenSources) -> None:
        """Report a loss if a log has become shorter, and lower its entry in `ended`."""
        for partition, end in ended.items():
            now = sources[partition].scan.end_sequence_id
            if now < end:
                lost = [OffsetRange(*partition, now, end)]
                report_loss(lost, "beyond the end of the log", self._options.fail_on_data_loss)
                ended[partition] = now

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)

    def commit(self, end: OffsetsJson) -> None:
        """Do nothing: Spark's checkpoint holds all state."""

    def stop(self) -> None:
        sources, self._sources = self._sources, None
        connection, self._connection = self._connection, None
        if sources is not None:
            sources.close()
        if connection is not None:
            connection.close()

    def _connected(self) -> BlockingStorageConnection:
        if self._connection is None:
            self._connection = BlockingStorageConnection(self._options.metadata, self._options.tls)
        return self._connection

    def _open_sources(self) -> PartitionSources:
        if self._sources is None:
            self._sources = PartitionSources(self._connected().storage, self._options)
        return self._sources

    def _refresh(self) -> dict[TopicPartition, PartitionSource]:
        return self._connected().run(self._open_sources().refresh())
