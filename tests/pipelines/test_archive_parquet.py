"""Goal: a Parquet archive holds each record exactly once, despite crashes and concurrent jobs.

Method: the suite of all archives. Then the directory is copied at each step of a commit, as a crash
would leave it, and the next run continues from each copy; or another job works at that very step.
The judges are pyarrow and duckdb, which share no code with Spark or with us.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.parquet_log import CHECKPOINT_EVERY
from gateway.pipelines.archives.port import ArchiveProof, Commit, LostOffsets
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from tests.pipelines.archive_contract import ArchiveContract, Row, commit, frame, row, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

HOUR_MS = 3_600_000
NAMES = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("day", pa.date32())])
FIRST = OffsetRange("a", 0, 0, 4)
MORE = OffsetRange("a", 0, 4, 14), OffsetRange("a", 1, 7, 10), OffsetRange("b", 0, 0, 2)
AFTER = OffsetRange("a", 0, 0, 14), *MORE[1:]


class TestContract(ArchiveContract):
    @pytest.fixture
    def name(self, tmp_path: Path) -> str:
        return str(tmp_path / "an archive")

    def opened(self, spark: SparkSession, name: str) -> ParquetArchive:
        return ParquetArchive(spark, name)


class HandClock:
    """A clock that stands still."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


def judged(archive: Path) -> list[Row]:
    """Return what pyarrow finds in the directory, committed or not, by partition and offset."""
    files = sorted(str(each) for each in archive.glob("topic=*/*/*/*.parquet"))
    if not files:
        return []
    partitioning = ds.partitioning(NAMES, flavor="hive")
    table = ds.dataset(files, partitioning=partitioning, partition_base_dir=str(archive))
    found = []
    for each in table.to_table().to_pylist():
        headers = each["headers"]
        if headers is not None:
            each["headers"] = tuple((one["key"], one["value"]) for one in headers)
        found.append(Row(**each))
    return sorted(found, key=lambda one: one[2:5])


def append(
    spark: SparkSession, path: Path, *ranges: OffsetRange, at_step: Any = lambda _: None
) -> bool:
    archive = ParquetArchive(spark, str(path), at_step=at_step)
    return archive.append(frame(spark, rows(*ranges)), commit(*ranges), archive.state())


class Copies:
    """Copies the archive at each step, as a crash would leave it on disk."""

    def __init__(self, archive: Path, into: Path) -> None:
        self._archive, self._into = archive, into
        self.steps: list[tuple[str, Path]] = []

    def __call__(self, step: str) -> None:
        copy = self._into / f"{len(self.steps)} {step}"
        shutil.copytree(self._archive, copy)
        self.steps.append((step, copy))


def at_once(step: str, work: Callable[[], object]) -> Callable[[str], None]:
    """Run another job's `work` when this one reaches that step for the first time."""
    waiting = [work]

    def at_step(now: str) -> None:
        if now == step and waiting:
            waiting.pop()()

    return at_step


# --- files ----------------------------------------------------------------------------------------


def test_pyarrow_and_duckdb_read_the_archived_records(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    assert append(spark, path, FIRST)
    assert append(spark, path, *MORE)
    assert judged(path) == rows(*AFTER)
    (file,) = (path / "topic=a" / "partition=0" / "day=2024-02-29").glob("*.parquet")
    kept = pq.ParquetFile(file).schema_arrow
    assert kept.names == ["key", "value", "offset", "timestamp", "timestampType", "headers"]
    assert kept.field("timestamp").type == pa.timestamp("us", tz="UTC")
    found = duckdb.sql(
        f"""SELECT topic, partition, count(*), min("offset"), max("offset"), max(day)::VARCHAR,
        sum(octet_length(value))
        FROM read_parquet('{path}/topic=*/*/*/*.parquet', hive_partitioning=true)
        GROUP BY ALL ORDER BY ALL"""
    ).fetchall()
    expected = []
    for each in AFTER:
        records = rows(each)
        size = sum(len(one.value or b"") for one in records)
        last = max(one.day for one in records)
        expected.append(
            (*each.topic_partition, each.length, each.start, each.end - 1, str(last), size)
        )
    assert found == expected


def test_a_file_is_in_order_of_offsets_even_if_timestamps_are_not(
    spark: SparkSession, tmp_path: Path
):
    wanted = OffsetRange("a", 0, 0, 40)
    mixed = [
        row("a", 0, offset)._replace(timestamp=row("a", 0, offset * 7 % 40).timestamp)
        for offset in range(40)
    ]
    archive = ParquetArchive(spark, str(tmp_path / "archive"))
    assert archive.append(frame(spark, mixed[::-1]), commit(wanted), archive.state())
    files = archive.files()
    assert len(files) == 4
    for each in files:
        table = pq.ParquetFile(tmp_path / "archive" / each.path).read()
        offsets = table["offset"].to_pylist()
        assert offsets == sorted(offsets)
        times = [int(one.timestamp() * 1000) for one in table["timestamp"].to_pylist()]
        assert each[3:9] == (
            len(offsets),
            (tmp_path / "archive" / each.path).stat().st_size,
            *(offsets[0], offsets[-1], min(times), max(times)),
        )


def test_files_without_the_wanted_offsets_are_not_opened(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    assert append(spark, path, FIRST)
    assert append(spark, path, *MORE)
    archive = ParquetArchive(spark, str(path))
    wanted = OffsetRange("a", 0, 2, 4), OffsetRange("b", 0, 0, 1)
    for each in archive.files():
        place = TopicPartition(each.topic, each.partition)
        if (place, each.min_offset) not in {
            (TopicPartition("a", 0), 0),
            (TopicPartition("b", 0), 0),
        }:
            (path / each.path).unlink()
    found = archive.read(["a", "b"], wanted).select("topic", "partition", "offset").collect()
    expected = rows(FIRST, OffsetRange("b", 0, 0, 2))
    assert sorted(map(tuple, found)) == sorted(one[2:5] for one in expected)
    assert archive.read(["a"], ()).count() == 0


def test_the_day_is_in_utc_also_before_1970(spark: SparkSession, tmp_path: Path):
    times = [datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), datetime(1970, 1, 1, tzinfo=UTC)]
    times += [datetime(2024, 12, 31, 23, 30, tzinfo=UTC)]
    records = [row("a", 0, n)._replace(timestamp=time) for n, time in enumerate(times)]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        archive = ParquetArchive(spark, str(tmp_path / "archive"))
        wanted = commit(OffsetRange("a", 0, 0, 3))
        assert archive.append(frame(spark, records), wanted, archive.state())
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [(one.timestamp, one.day) for one in judged(tmp_path / "archive")] == [
        (time, time.date()) for time in times
    ]


# --- the proof against the log --------------------------------------------------------------------


def damaged(path: Path) -> dict[str, Callable[[Path], None]]:
    """Return ways to damage a data file, by what the proof reports."""

    def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
        def rewrite(file: Path) -> None:
            table = pq.ParquetFile(file).read()
            size = file.stat().st_size
            pq.write_table(change(table), file, coerce_timestamps="us")
            # The size of the file must not be what gives it away.
            log = path / "_commits" / f"{1:020d}.json"
            words = log.read_text().replace(f'"bytes":{size}', f'"bytes":{file.stat().st_size}')
            log.write_text(words)

        return rewrite

    def digit(table: pa.Table) -> pa.Table:
        values = table["value"].to_pylist()
        values[1] = values[1][:-1] + b"9"
        return table.set_column(1, "value", pa.array(values, pa.binary()))

    return {
        "the content of some records": rewritten(digit),
        "3 rows instead of 4": rewritten(lambda table: table.slice(0, 3)),
        "5 rows instead of 4": rewritten(lambda table: pa.concat_tables([table, table.slice(3)])),
        "bytes instead of": lambda file: file.write_bytes(file.read_bytes()[:200]),
        "the file is missing": Path.unlink,
        "cannot be read": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    }


def test_a_damaged_file_differs_from_the_log(spark: SparkSession, tmp_path: Path):
    whole = tmp_path / "whole"
    assert append(spark, whole, FIRST, OffsetRange("b", 0, 0, 2))
    proof = ParquetArchive(spark, str(whole)).verify()
    assert proof == ArchiveProof(files=2, rows=6, unproved_rows=0)
    proof.expect_intact("here")
    copy = tmp_path / "copy"
    for said, damage in damaged(copy).items():
        shutil.copytree(whole, copy)
        (file,) = copy.glob("topic=a/*/*/*.parquet")
        damage(file)
        archive = ParquetArchive(spark, str(copy))
        (problem,) = archive.verify().problems
        assert problem.where == str(file.relative_to(copy))
        assert said in problem.problem
        with pytest.raises(JobError, match=said) as caught:
            archive.verify(["a"], [OffsetRange("a", 0, 2, 3)]).expect_intact("here")
        assert caught.value.code == "DAMAGED_ARCHIVE"
        assert not archive.verify(["b"]).problems
        shutil.rmtree(copy)


def test_a_file_that_a_commit_forgot_differs_from_its_sums(spark: SparkSession, tmp_path: Path):
    assert append(spark, tmp_path, FIRST, *MORE[1:])
    log = tmp_path / "_commits" / f"{1:020d}.json"
    entry = json.loads(log.read_bytes())
    entry["files"] = [each for each in entry["files"] if each["topic"] != "b"]
    log.write_text(json.dumps(entry))
    (problem,) = ParquetArchive(spark, str(tmp_path)).verify().problems
    assert str(problem) == "b-0: the files have 0 rows, the commits 2"


def test_an_archive_without_sums_is_read_and_counted(spark: SparkSession, tmp_path: Path):
    assert append(spark, tmp_path, FIRST)
    log = tmp_path / "_commits" / f"{1:020d}.json"
    entry = json.loads(log.read_bytes())
    del entry["sums"], entry["files"][0]["content_sum"]
    log.write_text(json.dumps({**entry, "format": 1}))
    assert append(spark, tmp_path, *MORE)
    archive = ParquetArchive(spark, str(tmp_path))
    proof = archive.verify()
    assert (proof.rows, proof.unproved_rows, proof.problems) == (19, 4, ())
    assert archive.compact(10**9) == (5, 4)
    assert judged(tmp_path) == rows(*AFTER)
    proof = ParquetArchive(spark, str(tmp_path)).verify()
    assert (proof.rows, proof.unproved_rows, proof.problems) == (19, 0, ())


# --- death ----------------------------------------------------------------------------------------


def test_an_append_that_dies_at_any_step_is_done_exactly_once(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    assert append(spark, path, FIRST)
    copies = Copies(path, tmp_path / "copies")
    assert append(spark, path, *MORE, at_step=copies)
    steps = [step for step, _ in copies.steps]
    assert steps == ["staged", "checked", "committed", *4 * ["moved one"], "finished"]
    for step, copy in copies.steps:
        committed = step not in ("staged", "checked")
        seen = judged(copy)
        assert all(one in rows(*AFTER) for one in seen)
        assert len({one[2:5] for one in seen}) == len(seen), f"{step}: twice in the directory"
        state = ParquetArchive(spark, str(copy)).state()
        assert state.ends[TopicPartition("a", 0)] == (14 if committed else 4), step
        if not committed:
            assert append(spark, copy, *MORE), step
        files = ParquetArchive(spark, str(copy)).files()
        assert sum(each.rows for each in files) == 19, step
        assert judged(copy) == rows(*AFTER), step


def test_a_job_that_goes_on_finishes_the_moves_of_another_one_that_died(
    spark: SparkSession, tmp_path: Path
):
    path = tmp_path / "archive"
    assert append(spark, path, FIRST)
    follows = ParquetArchive(spark, str(path))
    follows.state()

    def die(step: str) -> None:
        if step == "committed":
            raise Died

    with pytest.raises(Died):
        append(spark, path, *MORE, at_step=die)
    assert judged(path) == rows(FIRST)
    follows.state()
    assert judged(path) == rows(*AFTER)


def test_a_compaction_that_dies_at_any_step_changes_no_record(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    for each in (FIRST, OffsetRange("a", 0, 4, 7), OffsetRange("a", 0, 7, 10)):
        assert append(spark, path, each)
    copies = Copies(path, tmp_path / "copies")
    assert ParquetArchive(spark, str(path), at_step=copies).compact(10**9) == (3, 1)
    steps = [step for step, _ in copies.steps]
    assert steps == [
        "staged",
        "checked",
        "committed",
        *3 * ["removed one"],
        "moved one",
        "finished",
    ]
    everything = rows(OffsetRange("a", 0, 0, 10))
    for step, copy in copies.steps:
        seen = [one.offset for one in judged(copy)]
        assert len(seen) == len(set(seen)), f"{step}: twice in the directory"
        files = ParquetArchive(spark, str(copy)).files()
        assert len(files) == (3 if step in ("staged", "checked") else 1), step
        assert judged(copy) == everything, step


def aged(path: Path, hours: float) -> None:
    """Make a file or directory that many hours older."""
    then_s = path.stat().st_mtime - hours * 3600
    os.utime(path, (then_s, then_s))


def test_staged_files_of_a_dead_run_are_removed_after_a_day(spark: SparkSession, tmp_path: Path):
    archive = ParquetArchive(spark, str(tmp_path))
    for age_h in (23, 25):
        for kind in ("with", "without"):
            run = tmp_path / "_staging" / f"0000000000000-{kind}-{age_h}"
            run.mkdir(parents=True)
            (run / "part.parquet").write_bytes(b"some")
            if kind == "with":
                (run / "_began").touch()
                aged(run / "_began", age_h)
            else:
                aged(run, age_h)
    assert archive.files() == []
    assert {each.name[-3:] for each in (tmp_path / "_staging").iterdir()} == {"-23"}
    assert len(list((tmp_path / "_staging").iterdir())) == 2


def test_a_run_old_enough_to_count_as_dead_does_not_commit(spark: SparkSession, tmp_path: Path):
    def long(step: str) -> None:
        if step == "checked":
            (began,) = tmp_path.glob("archive/_staging/*/_began")
            aged(began, 13)

    archive = ParquetArchive(spark, str(tmp_path / "archive"), at_step=long)
    with pytest.raises(JobError, match=r"over 12 hours.*--max-offsets-per-round"):
        archive.append(frame(spark, rows(FIRST)), commit(FIRST), archive.state())
    assert archive.state().ends == {}


def test_directories_above_a_new_archive_are_synced_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: set[str] = set()
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    assert append(spark, tmp_path / "new" / "archive", FIRST)
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "archive")} <= synced


def test_a_compaction_leaves_large_files_alone(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    archive = ParquetArchive(spark, str(path))
    for offset, noise in enumerate((100_000, 1, 1)):
        records = [row("a", 0, offset)._replace(value=os.urandom(noise))]
        one = commit(OffsetRange("a", 0, offset, offset + 1))
        assert archive.append(frame(spark, records), one, archive.state())
    large = max(archive.files(), key=lambda each: each.bytes)
    assert archive.compact(2 * large.bytes) == (3, 2)
    assert large in archive.files()


# --- others at work -------------------------------------------------------------------------------


def test_of_two_concurrent_runs_the_slower_one_adds_nothing(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    faster = at_once("checked", lambda: append(spark, path, FIRST))
    assert not append(spark, path, OffsetRange("a", 0, 0, 9), at_step=faster)
    assert judged(path) == rows(FIRST)
    assert list((path / "_staging").iterdir()) == []


def test_a_reader_may_finish_the_moves_of_a_running_writer(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    read = at_once("moved one", lambda: ParquetArchive(spark, str(path)).files())
    assert append(spark, path, *MORE, at_step=read)
    assert judged(path) == rows(*MORE)


def test_files_may_be_moved_and_compacted_during_a_write(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "archive"
    assert append(spark, path, FIRST)
    compact = at_once("committed", lambda: ParquetArchive(spark, str(path)).compact(10**9))
    assert append(spark, path, OffsetRange("a", 0, 4, 9), at_step=compact)
    assert judged(path) == rows(OffsetRange("a", 0, 0, 9))


def test_a_compaction_tolerates_an_append_and_yields_to_another_compaction(
    spark: SparkSession, tmp_path: Path
):
    path = tmp_path / "archive"
    assert append(spark, path, FIRST)
    assert append(spark, path, OffsetRange("a", 0, 4, 6))
    more = at_once("checked", lambda: append(spark, path, OffsetRange("a", 0, 6, 9)))
    assert ParquetArchive(spark, str(path), at_step=more).compact(10**9) == (2, 2)
    assert judged(path) == rows(OffsetRange("a", 0, 0, 9))
    other = at_once("checked", lambda: ParquetArchive(spark, str(path)).compact(10**9))
    assert ParquetArchive(spark, str(path), at_step=other).compact(10**9) == (2, 1)
    assert judged(path) == rows(OffsetRange("a", 0, 0, 9))


# --- the log --------------------------------------------------------------------------------------


def log_of(path: Path, spark: SparkSession, count: int) -> ParquetArchive:
    """Make an archive of `count` commits without records: each loses one offset of a partition."""
    archive = ParquetArchive(spark, str(path))
    nothing = spark.createDataFrame([], "offset BIGINT")
    for n in range(count):
        place = ("a", n % 3)
        gone = LostOffsets(OffsetRange(*place, n // 3, n // 3 + 1), n)
        empty = OffsetRange(*place, n // 3 + 1, n // 3 + 1)
        assert archive.append(nothing, Commit((empty,), {"a": "id"}, (gone,)), archive.state())
    return archive


def test_opening_reads_the_last_checkpoint_and_the_commits_after_it(
    spark: SparkSession, tmp_path: Path
):
    count = 2 * CHECKPOINT_EVERY + 7
    written = log_of(tmp_path / "archive", spark, count).state()
    before = 2 * CHECKPOINT_EVERY
    for number in range(1, before + 1):
        (tmp_path / "archive" / "_commits" / f"{number:020d}.json").unlink()
    opened = ParquetArchive(spark, str(tmp_path / "archive")).state()
    assert opened == written
    assert len(opened.lost) == count
    assert opened.ends == {TopicPartition("a", n): (count - n + 2) // 3 for n in range(3)}


class Died(Exception):
    """Simulates the death of the process."""


def test_a_checkpoint_waits_for_files_that_a_dead_run_has_not_moved(
    spark: SparkSession, tmp_path: Path
):
    """Commits are read while files are moved.

    One of them is of a run that dies before its moves, and a checkpoint would be due with it.
    """
    path = tmp_path / "archive"
    log_of(path, spark, CHECKPOINT_EVERY - 4)
    assert append(spark, path, OffsetRange("c", 0, 0, 2))

    def die(step: str) -> None:
        if step == "committed":
            raise Died

    def others() -> None:
        ParquetArchive(spark, str(path)).compact(10**9)
        with pytest.raises(Died):
            append(spark, path, OffsetRange("d", 0, 0, 3), at_step=die)

    moved = at_once("moved one", others)
    assert append(spark, path, OffsetRange("b", 0, 0, 4), OffsetRange("c", 0, 2, 4), at_step=moved)
    ParquetArchive(spark, str(path)).files()
    ends = {"b": 4, "c": 4, "d": 3}
    assert judged(path) == rows(*(OffsetRange(topic, 0, 0, ends[topic]) for topic in ends))


def test_an_invalid_commit_is_a_clear_error(spark: SparkSession, tmp_path: Path):
    log_of(tmp_path, spark, 3)
    last = tmp_path / "_commits" / f"{3:020d}.json"
    good = json.loads(last.read_bytes())
    wrong = {
        "damaged": b'{"format":1,',
        "use a newer one": json.dumps({**good, "format": 3}).encode(),
        "does not follow offset": json.dumps({**good, "ranges": [["a", 2, 9, 9]]}).encode(),
        "is removed but does not exist": json.dumps({**good, "removed": ["x"]}).encode(),
    }
    for said, data in wrong.items():
        last.write_bytes(data)
        with pytest.raises(JobError, match=f"{last.name}: .*{said}"):
            ParquetArchive(spark, str(tmp_path)).state()


def test_names_that_paths_cannot_hold_are_refused(spark: SparkSession, tmp_path: Path):
    with pytest.raises(JobError, match="pattern"):
        ParquetArchive(spark, str(tmp_path / "a[1]"))
    with pytest.raises(JobError, match="__HIVE_DEFAULT_PARTITION__"):
        append(spark, tmp_path, OffsetRange("__HIVE_DEFAULT_PARTITION__", 0, 0, 1))
