"""Goal: of several jobs, exactly one puts a file that records progress, whole and durably.

Method: the same tests on the local disk and through Hadoop (on a `file:` path). Many threads race
for one name on the disk, where a link decides.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import Files, HadoopFiles, LocalFiles, join_path, open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, spark: SparkSession) -> Files:
    return LocalFiles() if request.param == "local" else HadoopFiles(spark)


@pytest.fixture(params=["a b%c=d", "plain"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / request.param)


def test_the_second_of_a_name_is_refused_and_the_first_stays(files: Files, base: str) -> None:
    path = join_path(base, "deep", "1.json")
    assert files.put_if_absent(path, b"first\x00\xff")
    assert not files.put_if_absent(path, b"second")
    assert files.read(path) == b"first\x00\xff"
    assert files.names(join_path(base, "deep")) == ["1.json"]
    assert {*os.listdir(f"{base}/deep")} <= {"1.json", ".1.json.crc"}


def test_a_missing_file_reads_as_none(files: Files, base: str) -> None:
    assert files.read(join_path(base, "no")) is None
    assert files.names(join_path(base, "no")) == []
    assert files.modified_ms(join_path(base, "no")) is None
    files.remove(join_path(base, "no"))


def test_a_move_may_be_made_again(files: Files, base: str) -> None:
    source, target = join_path(base, "_s", "x"), join_path(base, "k=1%2F", "x")
    files.put_if_absent(source, b"data")
    files.move(source, target)
    files.move(source, target)
    assert files.read(target) == b"data" and files.read(source) is None
    with pytest.raises(JobError):
        files.move(source, join_path(base, "elsewhere"))


def test_a_directory_is_removed_with_its_contents(files: Files, base: str) -> None:
    files.put_if_absent(join_path(base, "d", "e", "f"), b"")
    assert files.modified_ms(join_path(base, "d"))
    files.remove(join_path(base, "d"))
    assert files.names(base) == []


def test_of_many_concurrent_writers_one_wins_and_its_data_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "_commits" / "7.json")

    def put(number: int) -> bool:
        return LocalFiles().put_if_absent(path, b"%d" % number * 1000)

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(put, range(64)))
    assert won.count(True) == 1
    assert LocalFiles().read(path) == b"%d" % won.index(True) * 1000
    assert os.listdir(tmp_path / "_commits") == ["7.json"]


def test_an_unfinished_file_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".8.json.abc").write_bytes(b"half")
    assert LocalFiles().names(str(tmp_path)) == []


def test_a_file_uri_is_the_same_file(tmp_path: Path) -> None:
    LocalFiles().put_if_absent(f"file://{tmp_path}/a%20#b", b"1")
    for path in (f"{tmp_path}/a%20#b", f"file:{tmp_path}/a%20#b"):
        assert LocalFiles().read(path) == b"1"


def test_a_file_system_without_atomic_rename_is_refused(spark: SparkSession) -> None:
    with pytest.raises(JobError, match="Iceberg"):
        open_files(spark, "gs://bucket/x")
    assert isinstance(open_files(spark, "/x"), LocalFiles)
    assert isinstance(open_files(spark, "hdfs://host/x"), HadoopFiles)
