"""format("ledger") as a batch read: all tasks are decided when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from gateway.pipelines.direct.offsets import PartitionSources, end_offsets, start_offsets
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters, pushed_filters
from gateway.pipelines.direct.storage_connection import StorageConnection
from gateway.pipelines.direct.tasks import SlicePartition, SliceTask, plan_tasks, read_task
from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerBatchReader(DataSourceReader):
    """A batch: everything is decided when it is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        link = StorageConnection(options.metadata, options.tls)
        try:
            return [SlicePartition(task) for task in link.run(self._tasks(link))]
        finally:
            link.close()

    async def _tasks(self, link: StorageConnection) -> list[SliceTask]:
        options = self._options
        sources = PartitionSources(link.storage, options)
        try:
            found = await sources.look()
            begin, end = await start_offsets(found, options), await end_offsets(found, options)
            ranges = [OffsetRange(*p, begin[p], end[p]) for p in found if begin[p] < end[p]]
            return await plan_tasks(ranges, found, options.slice_bytes, self._wanted)
        finally:
            sources.close()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """`partition` is None where there are none."""
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)


class FilteringBatchReader(LedgerBatchReader):
    """The same, told of filters: what none of them lets pass is not even planned."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """All of them are left to Spark too: slices are only pruned as a whole."""
        self._wanted = pushed_filters(filters)
        return filters
