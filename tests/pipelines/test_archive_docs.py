"""Goal: docs/formats/archive.md suffices to read an archive without our code and without Spark.

Method: both archives are written, and each `python` block of the document runs as written, except
for the paths.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.pipelines.archives import open_archive
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange
from tests.documents import code_blocks, documents
from tests.pipelines.archive_contract import commit, frame, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]
DOCUMENT = "docs/formats/archive.md"
TABLE = "data/lake/archives/flights"
RANGES = OffsetRange("flights", 0, 0, 12), OffsetRange("flights", 1, 3, 5)


def test_the_examples_of_the_document_read_parquet_and_iceberg(spark: SparkSession, tmp_path: Path):
    places = {"parquet": str(tmp_path), "iceberg": "lake.archives.flights"}
    for kind, to in places.items():
        archive = open_archive(spark, to, kind)
        assert archive.append(frame(spark, rows(*RANGES)), commit(*RANGES), archive.state())
    lake = spark.conf.get("spark.sql.catalog.lake.warehouse")
    here = {"data/archive": str(tmp_path), TABLE: f"{lake}/archives/flights"}
    document = next(each for each in documents() if each.path == DOCUMENT)
    printed: list[str] = []
    for block in code_blocks(document):
        if block.language == "python":
            text = block.text
            for shown, real in here.items():
                text = text.replace(shown, real)
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, f"{block.path}:{block.line}", "exec"), {})
            printed.append(out.getvalue())
    duck, pandas, iceberg = printed
    for day, count, first, last in (("28", 10, 0, 9), ("29", 2, 10, 11)):
        assert f"2024-02-{day} │ {count:>12} │ {first:>13} │ {last:>13}" in duck, duck
    assert [line.split()[1:] for line in pandas.splitlines()[1:]] == [
        ["flights", str(each.partition), str(each.offset)] for each in rows(*RANGES)
    ]
    assert iceberg.splitlines()[0] == '{"flights":{"0":[[0,12]],"1":[[3,5]]}}'
    assert iceberg.count("count_star()") == 2


def test_another_format_is_refused(spark: SparkSession):
    with pytest.raises(JobError, match="must be one of parquet, iceberg"):
        open_archive(spark, "anywhere", "orc")
