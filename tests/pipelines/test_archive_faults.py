"""Goal: no fault of a file system, a clock or a setting loses records of a Parquet archive.

Method: the file system's answers are lost or wrong at one call, files are damaged, clocks differ.
Then a new reader opens the archive, and pyarrow judges the directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from gateway.pipelines.archives.file_list import DataFile
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.verifying import FileVerifier
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import Files, HadoopFiles, LocalFiles
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.session import session_settings
from tests.pipelines.archive_contract import commit, frame, rows
from tests.pipelines.test_archive_parquet import FIRST, HOUR_MS, HandClock, append, judged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

THEN = OffsetRange("a", 0, 4, 9)
HERE = TopicPartition("a", 0)


def put(
    spark: SparkSession, path: Path, wanted: OffsetRange = FIRST, files: Files | None = None
) -> bool:
    archive = ParquetArchive(spark, str(path), files=files)
    return archive.append(frame(spark, rows(wanted)), commit(wanted), archive.state())


# --- settings and damaged files -------------------------------------------------------------------


def test_a_session_that_leaves_out_files_is_refused(spark: SparkSession, tmp_path: Path):
    assert append(spark, tmp_path, FIRST)
    assert append(spark, tmp_path, THEN)
    archive = ParquetArchive(spark, str(tmp_path))
    more = OffsetRange("c", 0, 0, 2)
    works = (
        archive.read,
        archive.verify,
        lambda: archive.compact(10**9),
        lambda: append(spark, tmp_path, more),
    )
    for name, work in product(("ignoreCorruptFiles", "ignoreMissingFiles"), works):
        with (
            session_settings(spark, {f"spark.sql.files.{name}": "true"}),
            pytest.raises(JobError, match=name) as caught,
        ):
            work()
        assert caught.value.code == "LOSSY_READS"
    assert archive.ranges() == [OffsetRange("a", 0, 0, 9)]
    assert judged(tmp_path) == rows(OffsetRange("a", 0, 0, 9))


def test_a_compaction_is_compared_with_the_log(spark: SparkSession, tmp_path: Path):
    """The originals lost a row since their commit; a second read would not show that."""
    assert append(spark, tmp_path, FIRST)
    assert append(spark, tmp_path, THEN)
    archive = ParquetArchive(spark, str(tmp_path))
    before = archive.files()
    file = tmp_path / before[0].path
    whole = file.read_bytes()
    table = pq.ParquetFile(file).read()
    values = [b"\x00\xff other", *table["value"].to_pylist()[1:]]
    changed = table.set_column(1, table.field("value"), [values])
    for damaged, said in ((table.slice(1), "8 rows instead of 9"), (changed, "the content")):
        pq.write_table(damaged, file, coerce_timestamps="us")
        with pytest.raises(JobError, match=said) as caught:
            archive.compact(10**9)
        assert caught.value.code == "WRONG_RECORDS"
        assert archive.files() == before
    file.write_bytes(whole)
    assert archive.compact(10**9) == (2, 1)
    assert judged(tmp_path) == rows(OffsetRange("a", 0, 0, 9))


class Away(LocalFiles):
    """A store that is away while `hidden` is set: the file is where Spark does not find it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._elsewhere = file.with_name("hidden")
        self.hidden = False

    def hide(self) -> None:
        self.hidden = True
        self._file.rename(self._elsewhere)

    def come_back(self) -> None:
        self.hidden = False
        self._elsewhere.rename(self._file)

    def size(self, path: str) -> int | None:
        self._answer(path)
        return super().size(path)

    def fetch(self, path: str) -> bool:
        self._answer(path)
        return super().fetch(path)

    def _answer(self, path: str) -> None:
        if self.hidden:
            raise JobError(f"{path}: connection refused", "FILE_SYSTEM")


def test_a_store_that_is_away_damages_no_file(spark: SparkSession, tmp_path: Path):
    """The store goes away between Spark's plan and its tasks, and comes back later."""
    assert put(spark, tmp_path, FIRST)
    assert put(spark, tmp_path, THEN)
    archive = ParquetArchive(spark, str(tmp_path))
    files = archive.files()
    store = Away(tmp_path / files[0].path)

    def read(some: Sequence[DataFile]) -> Any:
        records = archive.read()
        if not store.hidden and not reads:
            store.hide()
        reads.append(len(some))
        return records

    reads: list[int] = []
    for some in (files, files[:1]):
        reads.clear()
        with pytest.raises(JobError, match="connection refused") as caught:
            FileVerifier(store, str(tmp_path), read).verify(some)
        assert caught.value.code == "FILE_SYSTEM"
        assert reads == [len(some)]
        store.come_back()
    assert FileVerifier(store, str(tmp_path), read).verify(files) == []


def test_a_file_is_read_again_before_it_counts_as_damaged(spark: SparkSession, tmp_path: Path):
    """Spark fails at the first read of each file, as it does if a store is away for a moment."""
    assert put(spark, tmp_path, FIRST)
    assert put(spark, tmp_path, THEN)
    archive = ParquetArchive(spark, str(tmp_path))
    failed: set[tuple[DataFile, ...]] = set()

    def read(some: Sequence[DataFile]) -> Any:
        records = archive.read(within=[each_range(file) for file in some])
        if tuple(some) in failed:
            return records
        failed.add(tuple(some))
        return records.where("raise_error('connection refused') IS NULL")

    assert FileVerifier(LocalFiles(), str(tmp_path), read).verify(archive.files()) == []
    assert len(failed) == 3


def each_range(file: DataFile) -> OffsetRange:
    return OffsetRange(file.topic, file.partition, file.min_offset, file.max_offset + 1)


# --- answers that are lost ------------------------------------------------------------------------


class Unsure(LocalFiles):
    """A file system whose answer to the put of a commit is wrong, or does not come.

    `answer` makes the answer, after the put took effect if `done`.
    """

    def __init__(self, done: bool, answer: Callable[[], bool]) -> None:
        self._done = done
        self._answer = answer
        self.unreadable = False

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if "/_commits/" not in path:
            return super().put_if_absent(path, data)
        if self._done:
            super().put_if_absent(path, data)
        return self._answer()

    def read(self, path: str) -> bytes | None:
        if self.unreadable:
            raise JobError(f"{path}: no answer", "FILE_SYSTEM")
        return super().read(path)


def exists() -> bool:
    return False


def fails() -> bool:
    raise JobError("java.io.IOException: rename failed", "FILE_SYSTEM")


@pytest.mark.parametrize("answer", [exists, fails])
def test_a_commit_that_took_effect_keeps_its_files(
    spark: SparkSession, tmp_path: Path, answer: Callable[[], bool]
):
    assert put(spark, tmp_path, files=Unsure(True, answer))
    assert judged(tmp_path) == rows(FIRST)
    assert ParquetArchive(spark, str(tmp_path)).state().ends == {HERE: 4}


@pytest.mark.parametrize("answer", [exists, fails])
def test_a_lost_race_adds_nothing_however_the_store_reports_it(
    spark: SparkSession, tmp_path: Path, answer: Callable[[], bool]
):
    files = Unsure(False, answer)
    archive = ParquetArchive(spark, str(tmp_path), files=files, at_step=lambda step: other(step))

    def other(step: str) -> None:
        if step == "checked":
            assert put(spark, tmp_path, OffsetRange("a", 0, 0, 6))

    assert not archive.append(frame(spark, rows(FIRST)), commit(FIRST), archive.state())
    assert judged(tmp_path) == rows(OffsetRange("a", 0, 0, 6))
    assert list((tmp_path / "_staging").iterdir()) == []


@pytest.mark.parametrize("done", [True, False])
def test_the_files_of_a_commit_with_unknown_outcome_stay(
    spark: SparkSession, tmp_path: Path, done: bool
):
    files = Unsure(done, lambda: unreachable())

    def unreachable() -> bool:
        files.unreadable = True
        raise JobError("no answer", "FILE_SYSTEM")

    with pytest.raises(JobError, match="no answer"):
        put(spark, tmp_path, files=files)
    assert len(list((tmp_path / "_staging").glob("*/topic=a/*/*/*.parquet"))) == 1
    again = ParquetArchive(spark, str(tmp_path))
    assert sum(each.rows for each in again.files()) == (4 if done else 0)
    assert judged(tmp_path) == (rows(FIRST) if done else [])


class Twice(HadoopFiles):
    """A Hadoop file system that repeats a rename after a lost answer, or is overtaken."""

    def __init__(self, spark: SparkSession, before: Callable[[Any, Any], bool]) -> None:
        super().__init__(spark)
        self._before = before

    def _rename(self, old: Any, new: Any) -> bool:
        rename = super()._rename
        return self._before(lambda: rename(old, new), lambda: rename(old, new))


def test_a_move_may_be_made_twice_at_once(spark: SparkSession, tmp_path: Path):
    """The second rename finds no source (it fails), or an answer says that the target exists."""

    def both(first: Callable[[], bool], second: Callable[[], bool]) -> bool:
        return first() and second()

    def said_to_exist(first: Callable[[], bool], _: Any) -> bool:
        return not first()

    for number, before in enumerate((both, said_to_exist)):
        source, target = f"file:{tmp_path}/_s/{number}", f"file:{tmp_path}/k=1/{number}"
        HadoopFiles(spark).put_if_absent(source, b"data")
        Twice(spark, before).move(source, target)
        assert HadoopFiles(spark).read(target) == b"data"
        assert HadoopFiles(spark).read(source) is None


def test_a_move_removes_no_existing_target(spark: SparkSession, tmp_path: Path):
    files = HadoopFiles(spark)
    source, target = f"file:{tmp_path}/_s/x", f"file:{tmp_path}/k=1/x"
    assert files.put_if_absent(source, b"data")
    assert files.put_if_absent(target, b"other data")
    with pytest.raises(JobError, match="exists with another size"):
        files.move(source, target)
    assert (files.read(source), files.read(target)) == (b"data", b"other data")
    files.remove(target)
    assert files.put_if_absent(target, b"data")
    files.move(source, target)
    assert (files.read(source), files.read(target)) == (None, b"data")


# --- durability -----------------------------------------------------------------------------------


def test_staged_files_are_durable_before_their_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    assert append(spark, tmp_path, FIRST, OffsetRange("b", 0, 0, 2))
    committed = next(n for n, each in enumerate(synced) if "/_commits/" in each)
    before = {each for each in synced[:committed] if "/_staging/" in each}
    for topic in "ab":
        (directory,) = {each for each in before if each.endswith(f"topic={topic}/partition=0")}
        (file,) = {each for each in before if each.startswith(directory) and "/part-" in each}
        assert {directory, str(Path(directory).parent), str(Path(file).parent)} <= before


def test_a_link_whose_answer_was_lost_over_nfs_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", repeated)
    assert LocalFiles().put_if_absent(str(tmp_path / "1.json"), b"mine")
    with pytest.raises(FileExistsError):
        os.link(tmp_path / "1.json", tmp_path / "2.json")
    monkeypatch.undo()
    assert not LocalFiles().put_if_absent(str(tmp_path / "1.json"), b"theirs")


class Noted:
    """A Java object whose calls are noted by name, and those of the objects that it returns."""

    def __init__(self, java: Any, calls: list[str]) -> None:
        self._java = java
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._calls.append(name)
            plain = [each._java if isinstance(each, Noted) else each for each in arguments]
            found = getattr(self._java, name)(*plain)
            wrapped = name in ("getFileSystem", "create")
            return Noted(found, self._calls) if wrapped else found

        return call


class NotedFiles(HadoopFiles):
    """A Hadoop file system whose calls are noted. Each path in it notes the calls."""

    def __init__(self, spark: SparkSession, calls: list[str]) -> None:
        super().__init__(spark)
        self._calls = calls

    def _path(self, path: str) -> Any:
        return Noted(super()._path(path), self._calls)

    def _rename(self, old: Any, new: Any) -> bool:
        self._calls.append("rename")
        return super()._rename(old, new._java)


def test_a_commit_on_hdfs_is_synced_before_it_gets_its_name(spark: SparkSession, tmp_path: Path):
    calls: list[str] = []
    assert NotedFiles(spark, calls).put_if_absent(f"file:{tmp_path}/1.json", b"data")
    order = [each for each in calls if each in ("write", "hsync", "close", "rename")]
    assert order == ["write", "hsync", "close", "rename"]
    assert (tmp_path / "1.json").read_bytes() == b"data"


# --- the age of a run -----------------------------------------------------------------------------


def test_a_reader_whose_clock_is_days_ahead_removes_nothing_live(
    spark: SparkSession, tmp_path: Path
):
    ahead = HandClock(HandClock().ms + 30 * 24 * HOUR_MS)

    def read(step: str) -> None:
        if step in ("staged", "checked"):
            assert ParquetArchive(spark, str(tmp_path), clock=ahead).files() == []

    behind = HandClock(0)
    archive = ParquetArchive(spark, str(tmp_path), clock=behind, at_step=read)
    assert archive.append(frame(spark, rows(FIRST)), commit(FIRST), archive.state())
    assert judged(tmp_path) == rows(FIRST)


def test_a_run_whose_files_were_removed_does_not_commit(spark: SparkSession, tmp_path: Path):
    def remove(step: str) -> None:
        if step == "checked":
            shutil.rmtree(tmp_path / "_staging")

    archive = ParquetArchive(spark, str(tmp_path), at_step=remove)
    with pytest.raises(JobError, match="over 12 hours") as caught:
        archive.append(frame(spark, rows(FIRST)), commit(FIRST), archive.state())
    assert caught.value.code == "TOO_SLOW"
    assert ParquetArchive(spark, str(tmp_path)).state().ends == {}
    assert append(spark, tmp_path, FIRST)
    assert judged(tmp_path) == rows(FIRST)


class ReadOnly(LocalFiles):
    """Files of a user who may only read."""

    def now_ms(self, directory: str) -> int:
        raise JobError(f"{directory}: Permission denied", "FILE_SYSTEM")


def test_a_user_who_may_only_read_is_not_stopped_by_a_run(spark: SparkSession, tmp_path: Path):
    assert append(spark, tmp_path, FIRST)
    (tmp_path / "_staging" / "0000000000000-other").mkdir(parents=True)
    archive = ParquetArchive(spark, str(tmp_path), files=ReadOnly())
    assert archive.read().count() == 4
