"""format("ledger") as PySpark's Python Data Source API has it: batch and streaming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from gateway.pipelines.direct.link import Link
from gateway.pipelines.direct.offsets import Sources, ends, starts
from gateway.pipelines.direct.options import Options, parse
from gateway.pipelines.direct.plan import Wanted, wanted
from gateway.pipelines.direct.tasks import Task, read_task, tasks_of
from gateway.pipelines.model import COLUMNS, OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "ledger"


class SlicePartition(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


class LedgerReader(DataSourceReader):
    """A batch: everything is decided when it is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        link = Link(options.metadata, options.tls)
        try:
            return [SlicePartition(task) for task in link.run(self._tasks(link))]
        finally:
            link.close()

    async def _tasks(self, link: Link) -> list[Task]:
        options = self._options
        sources = Sources(link.storage, options)
        try:
            found = await sources.look()
            begin, end = await starts(found, options), await ends(found, options)
            ranges = [OffsetRange(*p, begin[p], end[p]) for p in found if begin[p] < end[p]]
            return await tasks_of(ranges, found, options.slice_bytes, self._wanted)
        finally:
            sources.close()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """`partition` is None where there are none."""
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)


class FilteringReader(LedgerReader):
    """The same, told of filters: what none of them lets pass is not even planned."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """All of them are left to Spark too: slices are only pruned as a whole."""
        self._wanted = wanted(filters)
        return filters


class LedgerSource(DataSource):
    """Options: see `gateway.pipelines.direct.options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS if self._include_headers else COLUMNS.rpartition(", headers ")[0]

    @property
    def _include_headers(self) -> bool:
        return str(dict(self.options).get("includeheaders", "")).lower() == "true"

    def reader(self, schema: StructType) -> DataSourceReader:
        return LedgerReader(parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from gateway.pipelines.direct.stream import LedgerStreamReader

        return LedgerStreamReader(parse(self.options, streaming=True))


class FilteringSource(LedgerSource):
    """For a pyspark that pushes filters down, where that is switched on."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(parse(self.options))
