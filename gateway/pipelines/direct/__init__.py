"""spark.read.format("ledger"): segments read from bookies, many tasks for one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_PUSHES_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """The session knows format("ledger"). Its workers must be able to import this package.

    Spark refuses a reader that takes filters where it does not push them, so the setting decides,
    as it is now, which reader is registered.
    """
    from gateway.pipelines.direct.datasource import FilteringSource, LedgerSource

    pushes = str(spark.conf.get(_PUSHES_FILTERS, "false")).lower() == "true"
    spark.dataSource.register(FilteringSource if pushes else LedgerSource)
