"""format("ledger") as a batch read, which plans all its tasks before the query runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from gateway.pipelines.direct.offsets import PartitionSources, end_offsets, start_offsets
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters, pushed_filters
from gateway.pipelines.direct.storage_connection import BlockingStorageConnection
from gateway.pipelines.direct.tasks import SlicePartition, SliceTask, plan_tasks, read_task
from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerBatchReader(DataSourceReader):
    """A batch read. The driver plans all tasks at once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Filters that prune slices. By default they match everything; FilteringBatchReader replaces
        # them.
        self._filters = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        connection = BlockingStorageConnection(options.storage)
        try:
            return [SlicePartition(task) for task in connection.run(self._tasks(connection))]
        finally:
            connection.close()

    async def _tasks(self, connection: BlockingStorageConnection) -> list[SliceTask]:
        options = self._options
        sources = PartitionSources(connection.storage, options)
        try:
            found = await sources.refresh()
            begin, end = await start_offsets(found, options), await end_offsets(found, options)
            ranges = [OffsetRange(*p, begin[p], end[p]) for p in found if begin[p] < end[p]]
            return await plan_tasks(ranges, found, options.slice_bytes, self._filters)
        finally:
            sources.close()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task. `partition` is None if there are no tasks."""
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)


class FilteringBatchReader(LedgerBatchReader):
    """A batch read with filter pushdown.

    The reader plans no tasks for slices that contain no matching record.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Use the filters to prune slices. Spark still applies all filters to the records."""
        self._filters = pushed_filters(filters)
        return filters
