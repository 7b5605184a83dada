"""spark.read.format("ledger"): segments read from bookies, with many tasks per partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_PUSHES_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register format("ledger") with the session.

    Spark's workers must be able to import this package. Those of a local master run this
    interpreter from now on, unless PYSPARK_PYTHON is set. While filter pushdown is off, Spark
    refuses a reader that accepts filters. Therefore the current value of that setting decides
    which reader is registered.
    """
    from gateway.pipelines.direct.datasource import FilteringSource, LedgerSource
    from gateway.pipelines.shared.session import use_this_python

    use_this_python(spark)
    pushes = str(spark.conf.get(_PUSHES_FILTERS, "false")).lower() == "true"
    spark.dataSource.register(FilteringSource if pushes else LedgerSource)
