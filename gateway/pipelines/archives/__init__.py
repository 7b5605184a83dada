"""Where archived records live: Parquet files under a log of commits, or an Iceberg table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.pipelines.shared.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipelines.archives.port import Archive

FORMATS = ("parquet", "iceberg")


def open_archive(spark: SparkSession, to: str, format: str) -> Archive:
    """The archive at `to`, which need not exist: a directory, or a table `catalog.namespace.table`.

    Raises JobError for a format that is none of `FORMATS`, and for a place that cannot be one.
    """
    if format == "parquet":
        from gateway.pipelines.archives.parquet import ParquetArchive

        return ParquetArchive(spark, to)
    if format == "iceberg":
        from gateway.pipelines.archives.iceberg import IcebergArchive

        return IcebergArchive(spark, to)
    raise JobError(f"format {format!r}: must be one of {', '.join(FORMATS)}", "USAGE")
