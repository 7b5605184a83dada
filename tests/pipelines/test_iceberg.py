"""Goal: an Iceberg table holds each archived record once, whoever else works on it.

Method: the contract of all archives, and then what only Iceberg has: foreign snapshots, expiry,
rollback, and two runs that are stopped at each step while the other one commits.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from gateway.pipelines.archives.iceberg import IcebergArchive
from tests.pipelines.archive_contract import ArchiveContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")
_numbers = itertools.count()


def unused() -> str:
    return f"lake.archives.t{next(_numbers)}"


class TestIcebergContract(ArchiveContract):
    """What every archive does."""

    def opened(self, spark: SparkSession, name: str) -> IcebergArchive:
        return IcebergArchive(spark, name)

    @pytest.fixture
    def name(self) -> str:
        return unused()
