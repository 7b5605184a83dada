"""format("ledger") in PySpark's Python Data Source API, for batch and streaming queries."""

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
    """The data source "ledger". `gateway.pipelines.direct.options` describes its options."""

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
    """The data source for sessions with filter pushdown."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringBatchReader(parse(self.options))
