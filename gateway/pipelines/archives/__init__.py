"""Storage for archived records: Parquet files under a log of commits, or an Iceberg table."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.pipelines.shared.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipelines.archives.port import Archive


class ArchiveFormat(StrEnum):
    """The format in which an archive stores its records."""

    parquet = "parquet"
    iceberg = "iceberg"


def open_archive(spark: SparkSession, to: str, format: str) -> Archive:
    """Open the archive at `to`: a directory, or a table `catalog.namespace.table`.

    The archive need not exist. Raises JobError for an unknown format or an unsuitable location.
    """
    if format == "parquet":
        from gateway.pipelines.archives.parquet import ParquetArchive

        return ParquetArchive(spark, to)
    if format == "iceberg":
        from gateway.pipelines.archives.iceberg import IcebergArchive

        return IcebergArchive(spark, to)
    raise JobError(f"format {format!r}: must be one of {', '.join(ArchiveFormat)}", "USAGE")
