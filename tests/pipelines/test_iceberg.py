"""Goal: an Iceberg table holds each archived record once, whatever other writers do.

Method: the contract of all archives, then what only Iceberg has: branches, foreign snapshots,
expiry and rollback. A second catalog over the same warehouse acts as another process, because it
shares no cache with the first. PyIceberg and pyarrow, which share no code with Spark, read the
files.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow.parquet import ParquetFile
from pyiceberg.table import StaticTable

from gateway.pipelines.archives.iceberg import TRUSTED_KEY, IcebergArchive
from gateway.pipelines.archives.iceberg_table import SNAPSHOTS_KEY, STAGING_AGE_MS_MAX
from gateway.pipelines.archives.port import ArchiveProof, ArchiveState
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from ledger.adapters.system.clock import SystemClock
from tests.pipelines.archive_contract import ArchiveContract, Row, commit, frame, read, row, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]
_numbers = itertools.count()
HERE = TopicPartition("a", 0)
STEPS = ("branch", "write", "check", "publish")


def unused() -> str:
    return f"archives.t{next(_numbers)}"


def span(start: int, end: int) -> OffsetRange:
    return OffsetRange(*HERE, start, end)


@pytest.fixture
def table() -> str:
    """Return an unused table name, without `lake.` or `elsewhere.` before it."""
    return unused()


@pytest.fixture(scope="module", autouse=True)
def elsewhere(spark: SparkSession) -> None:
    """A catalog with the tables of `lake`, as another process sees them."""
    for key in ("", ".type", ".warehouse"):
        value = spark.conf.get(f"spark.sql.catalog.lake{key}")
        assert value is not None
        spark.conf.set(f"spark.sql.catalog.elsewhere{key}", value)
    # Iceberg forgets its tables after 30 s; here at once, so that its handles are of many ages.
    spark.conf.set("spark.sql.catalog.elsewhere.cache.expiration-interval-ms", "20")


@pytest.mark.proof  # the tests of a commit run the contract with Parquet
class TestIcebergContract(ArchiveContract):
    """The contract of all archives."""

    def opened(self, spark: SparkSession, name: str) -> IcebergArchive:
        return IcebergArchive(spark, name)

    @pytest.fixture
    def name(self) -> str:
        return f"lake.{unused()}"


class Crash(BaseException):
    """Simulates the death of the process: no handler of ours runs."""


class Stop:
    """Calls `then` the first time that an append reaches a step."""

    def __init__(self, step: str, then: Callable[[], None]) -> None:
        self._step = step
        self._then = then

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._step = "never again"
            self._then()


class Later(SystemClock):
    """A clock more than a day ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + STAGING_AGE_MS_MAX + 60_000


def put(spark: SparkSession, archive: IcebergArchive, *ranges: OffsetRange) -> bool:
    return archive.append(frame(spark, rows(*ranges)), commit(*ranges), archive.state())


def sql(spark: SparkSession, words: str) -> list[Any]:
    return spark.sql(words).collect()


def newest(spark: SparkSession, table: str) -> Any:
    """Return Iceberg's own handle of the table, with its newest metadata."""
    util = spark._jvm.org.apache.iceberg.spark.Spark3Util
    loaded = util.loadIcebergTable(spark._jsparkSession, f"elsewhere.{table}")
    loaded.refresh()
    return loaded


def expire_all_but_the_newest(spark: SparkSession, table: str) -> None:
    far_ms = 4_000_000_000_000
    newest(spark, table).expireSnapshots().expireOlderThan(far_ms).retainLast(1).commit()


def data_files(spark: SparkSession, table: str) -> int:
    """Count the data files on disk, referenced or not."""
    return len(list((location(spark, table) / "data").rglob("*.parquet")))


def location(spark: SparkSession, table: str) -> Path:
    return Path(newest(spark, table).location().removeprefix("file:"))


def judged(spark: SparkSession, table: str) -> list[Row]:
    """Read with pyarrow the files that PyIceberg finds in the newest metadata file."""
    scan = StaticTable.from_metadata(str(location(spark, table))).scan()
    found = [ParquetFile(task.file.file_path).read().to_pylist() for task in scan.plan_files()]
    made = []
    for one in itertools.chain.from_iterable(found):
        headers = one["headers"]
        if headers is not None:
            one["headers"] = tuple((each["key"], each["value"]) for each in headers)
        made.append(Row(**one, day=one["timestamp"].date()))
    return sorted(made, key=lambda each: each[2:5])


# --- two runs at once ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [*(pytest.param(each, marks=pytest.mark.proof) for each in STEPS[:-1]), STEPS[-1]],
)
def test_a_run_that_is_overtaken_at_any_step_adds_nothing(
    spark: SparkSession, table: str, step: str
):
    other = IcebergArchive(spark, f"elsewhere.{table}")
    first, then = span(0, 3), span(3, 5)
    overtaken = IcebergArchive(
        spark, f"lake.{table}", at_step=Stop(step, lambda: put(spark, other, first))
    )
    assert not put(spark, overtaken, span(0, 5))
    assert put(spark, overtaken, then)
    assert read(other) == rows(span(0, 5))
    assert list(newest(spark, table).refs().keySet()) == ["main"]
    assert data_files(spark, table) == 2


def test_of_many_concurrent_runs_one_commits(spark: SparkSession, table: str):
    archives = [IcebergArchive(spark, f"{at}.{table}") for at in ("lake", "elsewhere", "lake")]
    assert put(spark, archives[0], span(0, 2))
    together = threading.Barrier(len(archives))
    won: list[bool] = []

    def run(archive: IcebergArchive, on: ArchiveState, end: int) -> None:
        def wait() -> None:
            together.wait(60)

        mine = IcebergArchive(spark, archive._table.name, at_step=Stop("publish", wait))
        won.append(mine.append(frame(spark, rows(span(2, end))), commit(span(2, end)), on))

    threads = [
        threading.Thread(target=run, args=(archive, archive.state(), 4 + index))
        for index, archive in enumerate(archives)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(won) == [False, False, True]
    again = IcebergArchive(spark, f"elsewhere.{table}")
    assert read(again) == rows(span(0, again.state().ends[HERE]))
    assert data_files(spark, table) == 2


def marker(spark: SparkSession, table: str) -> Path:
    """Return the only marker of a run, from which jobs compute its age."""
    (found,) = (location(spark, table) / "metadata" / "archive-runs").glob("archive_*")
    return found


def test_a_run_that_dies_leaves_nothing_readable_and_is_cleaned_up_a_day_later(
    spark: SparkSession, table: str
):
    """A day later by the clock of the store: a reader whose clock is ahead removes nothing."""

    def die() -> None:
        raise Crash

    dying = IcebergArchive(spark, f"lake.{table}", at_step=Stop("publish", die))
    with pytest.raises(Crash):
        put(spark, dying, span(0, 3))
    ahead = IcebergArchive(spark, f"elsewhere.{table}", clock=Later())
    assert read(ahead) == []
    assert put(spark, ahead, span(0, 4))
    assert judged(spark, table) == rows(span(0, 4))
    assert data_files(spark, table) == 2
    then_s = marker(spark, table).stat().st_mtime - STAGING_AGE_MS_MAX / 1000 - 60
    os.utime(marker(spark, table), (then_s, then_s))
    later = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, later, span(4, 5))
    assert list(newest(spark, table).refs().keySet()) == ["main"]
    assert data_files(spark, table) == 2
    assert judged(spark, table) == rows(span(0, 5))
    assert list((location(spark, table) / "metadata" / "archive-runs").glob("[!.]*")) == []


class LostAnswers:
    """Iceberg's table, or its transaction, whose commit ends with an unknown state."""

    def __init__(self, spark: SparkSession, java: Any, done: bool) -> None:
        self._spark = spark
        self._java = java
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._java, name)

    def newTransaction(self) -> LostAnswers:
        return LostAnswers(self._spark, self._java.newTransaction(), self._done)

    def commitTransaction(self) -> None:
        if self._done:
            self._java.commitTransaction()
        jvm: Any = self._spark._jvm
        cause = jvm.java.lang.RuntimeException("no answer")
        unknown = jvm.org.apache.iceberg.exceptions.CommitStateUnknownException(cause)
        raise Py4JJavaError("no answer", unknown)


def test_a_commit_with_an_unknown_state_is_looked_up(spark: SparkSession, table: str):
    def lost(done: bool) -> IcebergArchive:
        def lose() -> None:
            archive._table._loaded = LostAnswers(spark, archive._table._loaded, done)

        archive = IcebergArchive(spark, f"lake.{table}", at_step=Stop("publish", lose))
        return archive

    assert put(spark, lost(done=True), span(0, 3))
    assert judged(spark, table) == rows(span(0, 3))
    with pytest.raises(Py4JJavaError):
        put(spark, lost(done=False), span(3, 5))
    assert put(spark, IcebergArchive(spark, f"elsewhere.{table}"), span(3, 6))
    assert judged(spark, table) == rows(span(0, 6))


def test_a_file_that_cannot_be_decoded_or_is_gone_is_a_problem(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 4))
    (file,) = (location(spark, table) / "data").rglob("*.parquet")
    (file.parent / f".{file.name}.crc").unlink()
    file.write_bytes(bytes(file.stat().st_size))
    (problem,) = archive.verify().problems
    assert problem.where == f"lake.{table}" and "cannot be read" in problem.problem
    file.unlink()
    (problem,) = archive.verify().problems
    assert problem.where.endswith(f"/{file.name}") and problem.problem == "the file is missing"


def test_a_row_that_a_file_has_lost_is_found_before_a_compaction(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 4))
    assert put(spark, archive, span(4, 6))
    assert archive.verify() == ArchiveProof(files=2, rows=6, unproved_rows=0)
    before = newest(spark, table).currentSnapshot().snapshotId()
    file = max((location(spark, table) / "data").rglob("*.parquet"), key=lambda f: f.stat().st_size)
    size = file.stat().st_size
    kept = ParquetFile(file).read().slice(1)
    pq.write_table(kept, file, compression="zstd", coerce_timestamps="us", store_schema=False)
    data = file.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    file.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])
    (file.parent / f".{file.name}.crc").unlink()
    problems = [str(each) for each in archive.verify().problems]
    lost = len(rows(span(0, 6))) - 1
    assert f"a-0: {lost} rows, the commits have 6" in problems
    assert any(problem.endswith(f"{file.name}: 3 rows instead of 4") for problem in problems)
    with pytest.raises(JobError, match="differ from those of the commits") as caught:
        archive.compact(1 << 20)
    assert caught.value.code == "WRONG_RECORDS"
    table_now = newest(spark, table)
    assert table_now.currentSnapshot().snapshotId() == before
    assert list(table_now.refs().keySet()) == ["main"]


OTHERS = tuple(OffsetRange("b", partition, 0, 1) for partition in range(8))
"""Ranges that make a whole description longer than a change."""


def test_snapshots_expire_and_most_describe_only_their_commit(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.pipelines.archives.history.CHANGES_MAX", 1)
    monkeypatch.setattr("gateway.pipelines.archives.iceberg_table.SNAPSHOTS_KEPT_MIN", 1)
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 2), *OTHERS)
    sql(spark, f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('{SNAPSHOTS_KEY}'='3')")
    again = IcebergArchive(spark, f"elsewhere.{table}")
    for start in (2, 4, 6):
        assert put(spark, again, span(start, start + 2))
    # The third commit describes the whole archive again, and lets those before the first expire.
    found = newest(spark, table).snapshots()
    whole = [each.summary().containsKey("archive.offsets") for each in found]
    assert whole == [True, False, False, False, True, False, False]
    at_end = again.state()
    newest(spark, table).manageSnapshots().rollbackTo(found[2].snapshotId()).commit()
    back = IcebergArchive(spark, f"lake.{table}")
    assert (back.state().ends[HERE], at_end.ends[HERE]) == (4, 8)
    assert put(spark, back, span(4, 7))
    assert back.verify() == ArchiveProof(3 + len(OTHERS), 7 + len(OTHERS), unproved_rows=0)
    assert judged(spark, table) == rows(span(0, 7), *OTHERS)


def test_a_change_without_the_history_before_it_is_refused(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 2), *OTHERS)
    for start in (2, 4):
        assert put(spark, archive, span(start, start + 2))
    *before, second, _, _ = newest(spark, table).snapshots()
    expire = newest(spark, table).expireSnapshots().expireOlderThan(0)
    for each in before:
        expire.expireSnapshotId(each.snapshotId())
    expire.commit()
    again = IcebergArchive(spark, f"elsewhere.{table}")
    assert again.state().ends[HERE] == 6, "by the properties of the table"
    newest(spark, table).manageSnapshots().rollbackTo(second.snapshotId()).commit()
    with pytest.raises(JobError, match="roll the table forward") as caught:
        again.state()
    assert caught.value.code == "UNSURE_STATE"


def test_a_concurrent_compaction_is_noticed_and_nothing_is_duplicated(
    spark: SparkSession, table: str
):
    other = IcebergArchive(spark, f"elsewhere.{table}")
    assert put(spark, other, span(0, 2))
    assert put(spark, other, span(2, 4))
    archive = IcebergArchive(
        spark, f"lake.{table}", at_step=Stop("publish", lambda: other.compact(1 << 20))
    )
    assert not put(spark, archive, span(4, 6))
    assert put(spark, archive, span(4, 6))
    assert judged(spark, table) == rows(span(0, 6))


# --- other writers of the table -----------------------------------------------------------------


def test_the_state_outlives_compaction_and_expiry(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 2))
    assert put(spark, archive, span(2, 4))
    assert archive.compact(1 << 20) == (2, 1)
    before = archive.state()
    expire_all_but_the_newest(spark, table)
    again = IcebergArchive(spark, f"elsewhere.{table}")
    assert again.state() == before
    assert again.ranges() == [span(0, 4)]
    assert put(spark, again, span(4, 6))
    assert judged(spark, table) == rows(span(0, 6))


def test_the_state_goes_back_with_a_rollback(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 3))
    first = archive.state()
    assert put(spark, archive, span(3, 6))
    newest(spark, table).manageSnapshots().rollbackTo(int(first.version)).commit()
    assert archive.state() == first
    assert put(spark, archive, span(3, 5))
    assert judged(spark, table) == rows(span(0, 5))


def test_after_a_rollback_and_expiry_the_records_determine_the_end(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 3))
    first = archive.state()
    assert put(spark, archive, span(3, 6))
    newest(spark, table).manageSnapshots().rollbackTo(int(first.version)).commit()
    sql(spark, f"INSERT INTO elsewhere.{table} SELECT * FROM elsewhere.{table} WHERE false")
    expire_all_but_the_newest(spark, table)
    with pytest.raises(JobError, match="its properties name") as caught:
        archive.state()
    assert caught.value.code == "UNSURE_STATE"


def test_records_deleted_by_others_stay_archived(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 4))
    sql(spark, f"DELETE FROM elsewhere.{table} WHERE `offset` = 3")
    assert archive.state().ends == {HERE: 4}
    assert archive.verify() == ArchiveProof(files=1, rows=3, unproved_rows=3)
    expire_all_but_the_newest(spark, table)
    assert IcebergArchive(spark, f"lake.{table}").state().ends == {HERE: 4}
    assert put(spark, archive, span(4, 5))
    assert judged(spark, table) == [each for each in rows(span(0, 5)) if each.offset != 3]


def test_records_added_by_others_beyond_the_end_are_refused(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 2))
    frame(spark, [row("a", 0, 5)]).writeTo(f"elsewhere.{table}").append()
    with pytest.raises(JobError, match="others have added records up to a-0 offset 5"):
        archive.state()
    sql(spark, f"DELETE FROM elsewhere.{table} WHERE `offset` = 5")
    assert archive.state().ends == {HERE: 2}


def test_an_operator_can_confirm_the_properties(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(0, 4))
    sql(spark, f"DELETE FROM elsewhere.{table} WHERE `offset` = 3")
    assert archive.compact(1 << 20)[1] == 1
    sql(spark, f"INSERT INTO elsewhere.{table} SELECT * FROM elsewhere.{table} WHERE false")
    expire_all_but_the_newest(spark, table)
    again = IcebergArchive(spark, f"lake.{table}")
    with pytest.raises(JobError, match=TRUSTED_KEY) as caught:
        again.state()
    said = str(caught.value)
    sql(spark, said[said.index("ALTER TABLE") : said.index(";")])
    assert again.state().ends == {HERE: 4}
    assert put(spark, again, span(4, 5))


def test_the_state_of_a_copied_table_is_derived_from_complete_records(
    spark: SparkSession, table: str
):
    assert put(spark, IcebergArchive(spark, f"lake.{table}"), span(2, 6), OffsetRange("b", 1, 0, 2))
    copied, thin = unused(), unused()
    sql(spark, f"CREATE TABLE lake.{copied} USING iceberg AS SELECT * FROM lake.{table}")
    sql(
        spark,
        f"CREATE TABLE lake.{thin} USING iceberg AS"
        f" SELECT * FROM lake.{table} WHERE `offset` <> 3 OR topic <> 'a'",
    )
    archive = IcebergArchive(spark, f"lake.{copied}")
    assert archive.ranges() == [span(2, 6), OffsetRange("b", 1, 0, 2)]
    assert put(spark, archive, span(6, 8))
    assert archive.ranges() == [span(2, 8), OffsetRange("b", 1, 0, 2)]
    with pytest.raises(JobError, match="has no archive properties") as caught:
        IcebergArchive(spark, f"lake.{thin}").state()
    assert caught.value.code == "UNSURE_STATE"


# --- how it looks -------------------------------------------------------------------------------


def test_other_readers_see_partitions_in_utc_and_the_state(spark: SparkSession, table: str):
    archive = IcebergArchive(spark, f"lake.{table}")
    assert put(spark, archive, span(5, 12), OffsetRange("b", 1, 0, 1))
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    try:
        spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # 14 hours ahead
        assert read(archive, "a") == rows(span(5, 12))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = StaticTable.from_metadata(str(location(spark, table)))
    snapshot = found.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["archive.format"] == "2"
    assert snapshot.summary["archive.offsets"] == '{"a":{"0":[[5,12]]},"b":{"1":[[0,1]]}}'
    assert snapshot.summary["archive.topic-ids"] == '{"a":"id of a","b":"id of b"}'
    assert found.properties["archive.offsets"] == snapshot.summary["archive.offsets"]
    assert [each.name for each in found.spec().fields] == ["topic", "partition", "timestamp_day"]
    assert len(list(found.scan(row_filter="topic = 'a' and partition = 0").plan_files())) == 2


def test_names_that_cannot_be_an_archive_are_refused(spark: SparkSession, table: str):
    sql(spark, f"CREATE TABLE lake.{table} (id BIGINT) USING iceberg")
    refused = {
        "t": "must be catalog.namespace.table",
        "lake..t": "must be catalog.namespace.table",
        "sea.archives.t": "there is no catalog 'sea'",
        f"lake.{table}": "is no archive",
    }
    for name, why in refused.items():
        with pytest.raises(JobError, match=why):
            IcebergArchive(spark, name).state()
