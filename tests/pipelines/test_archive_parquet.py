"""Goal: a Parquet archive holds each record exactly once, whatever dies and whoever runs at once.

Method: the suite of all archives; then pyarrow and duckdb, which know nothing of Spark, read the
files. A hook raises at each step of a commit, as a process that dies there, and the next one goes
on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.pipelines.archives.parquet import ParquetArchive
from tests.pipelines.archive_contract import ArchiveContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")


class TestContract(ArchiveContract):
    @pytest.fixture
    def name(self, tmp_path: Path) -> str:
        return str(tmp_path / "an archive")

    def opened(self, spark: SparkSession, name: str) -> ParquetArchive:
        return ParquetArchive(spark, name)
