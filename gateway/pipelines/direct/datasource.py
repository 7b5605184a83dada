"""format("ledger") as PySpark's Python Data Source API has it: batch and streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from gateway.pipelines.direct.batch import FilteringBatchReader, LedgerBatchReader
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.stream import LedgerStreamReader
from gateway.pipelines.shared.partitions import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "ledger"


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
        return LedgerBatchReader(parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LedgerStreamReader(parse(self.options, streaming=True))


class FilteringSource(LedgerSource):
    """For a pyspark that pushes filters down, where that is switched on."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringBatchReader(parse(self.options))
