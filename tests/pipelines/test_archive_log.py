"""Goal: the log of a Parquet archive stays small, and old processes never commit into its past.

Method: a file system in memory with its own clock and with lost answers, real encodings, no Spark.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from gateway.pipelines.archives.file_list import DataFile, decode_files, encode_files
from gateway.pipelines.archives.parquet_log import (
    CHECKPOINT_EVERY,
    CHECKPOINTS_KEPT,
    COMMIT_AGE_MS_MAX,
    COMMITS_KEPT_MAX,
    COMMITS_KEPT_MIN,
    CommitEntry,
    CommitLog,
)
from gateway.pipelines.archives.sums import RecordSum
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from tests.pipelines.memory_files import MemoryFiles

TEN_S = 10_000
HERE = TopicPartition("a", 0)


def file_of(number: int, partition: int = 0) -> DataFile:
    path = f"topic=a/partition={partition}/day=2026-01-01/part-{number:05d}.parquet"
    times = 1_760_000_000_000, 1_760_000_001_000
    return DataFile(path, "a", partition, 10, 5_000, number * 10, number * 10 + 9, *times, number)


def entry(number: int, run: str = "") -> CommitEntry:
    """Commit ten offsets in a file; every third commit merges the two files before it."""
    name = run or f"run-{number}"
    if number % 3 == 0:
        before = file_of(number - 2), file_of(number - 1)
        merged = before[0]._replace(path=f"{before[0].path}.merged", rows=20, max_offset=0)
        removed = tuple(each.path for each in before)
        return CommitEntry(number, name, number, files=(merged,), removed=removed)
    start = (number - 1 - number // 3) * 10
    ranges = (OffsetRange("a", 0, start, start + 10),)
    sums = {HERE: RecordSum(10, number)}
    return CommitEntry(number, name, number, ranges, {"a": "id"}, (), (file_of(number),), (), sums)


def grown(files: MemoryFiles, count: int) -> CommitLog:
    log = CommitLog(files, "/archive")
    for number in range(log.refresh().number + 1, count + 1):
        assert log.put(entry(number))
        files.now += TEN_S
        log.refresh()
        log.checkpoint_if_due()
    return log


def commits_in(files: MemoryFiles) -> list[int]:
    names = files.names("/archive/_commits")
    return [int(name[:20]) for name in names if len(name) == len(f"{0:020d}.json")]


# --- growth ---------------------------------------------------------------------------------------


def test_the_log_keeps_a_bounded_number_of_files():
    files, count = MemoryFiles(), 3_000
    grown(files, count)
    kept = commits_in(files)
    assert kept == list(range(kept[0], count + 1))
    assert len(kept) <= COMMITS_KEPT_MAX + CHECKPOINT_EVERY
    names = files.names("/archive/_commits")
    assert len(names) - len(kept) == 2 * CHECKPOINTS_KEPT
    files.reads = 0
    opened = CommitLog(files, "/archive").refresh()
    assert files.reads <= 1 + CHECKPOINT_EVERY
    assert opened.ends == {HERE: count // 3 * 20}
    assert opened.sums[HERE].rows == count // 3 * 20
    assert len(opened.files) == count // 3
    assert sum(each.rows for each in opened.files.values()) == count // 3 * 20


def test_commits_expire_by_age():
    files = MemoryFiles()
    grown(files, 400)
    assert len(commits_in(files)) == 400
    files.now += COMMIT_AGE_MS_MAX
    grown(files, 450)
    assert commits_in(files) == list(range(450 - COMMITS_KEPT_MIN + 1, 451))


def test_a_process_that_slept_while_commits_expired_reads_the_archive_again():
    files = MemoryFiles()
    asleep, idle = CommitLog(files, "/archive"), CommitLog(files, "/archive")
    grown(files, 120)
    old = asleep.refresh().number
    assert idle.refresh().number == 120
    grown(files, 400)
    files.now += COMMIT_AGE_MS_MAX
    written = grown(files, 460).refresh()
    # Its number is free again, but a commit under it would lie in the archive's past.
    before = dict(files.files)
    assert not asleep.put(entry(old + 1, "late"))
    assert files.files == before
    assert idle.refresh().number == 460
    assert idle.refresh().state == written.state
    assert idle.refresh().files == written.files


def test_a_new_archive_that_a_process_saw_empty_is_not_started_again():
    files = MemoryFiles()
    asleep = CommitLog(files, "/archive")
    assert asleep.refresh().number == 0
    grown(files, 300)
    files.now += COMMIT_AGE_MS_MAX
    grown(files, 360)
    assert 1 not in commits_in(files)
    assert not asleep.put(entry(1, "late"))
    assert asleep.refresh().number == 360


class Overtaken(MemoryFiles):
    """A store at which `meanwhile` happens once, before a put or after a list of names."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def _happen(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._happen()
        return super().put_if_absent(path, data)

    def names(self, directory: str) -> list[str]:
        names = super().names(directory)
        self._happen()
        return names


def expired(files: MemoryFiles, count: int) -> CommitLog:
    """Let commits happen up to that number, and the old ones expire."""
    grown(files, count - 60)
    files.now += COMMIT_AGE_MS_MAX
    return grown(files, count)


def test_commits_that_expire_during_a_put_make_it_void():
    files = Overtaken()
    grown(files, 120)
    asleep = CommitLog(files, "/archive")
    old = asleep.refresh().number
    files.meanwhile = lambda: expired(files, 460)
    assert not asleep.put(entry(old + 1, "late"))
    assert commits_in(files)[0] > old + 1
    assert asleep.refresh().state == CommitLog(files, "/archive").refresh().state


def test_a_checkpoint_that_is_written_late_revives_no_expired_commit():
    files = MemoryFiles()
    grown(files, 60)
    asleep = CommitLog(files, "/archive")
    asleep.refresh()
    grown(files, 110)
    old = asleep.refresh().number
    assert asleep.refresh().files
    expired(files, 460)
    asleep.checkpoint_if_due()
    assert not asleep.put(entry(old + 1, "late"))
    assert asleep.refresh().number == 460


def test_commits_that_expire_while_they_are_read_are_read_again():
    files = Overtaken()
    grown(files, 120)
    files.meanwhile = lambda: expired(files, 460)
    assert CommitLog(files, "/archive").refresh().number == 460


def test_a_list_of_files_that_expired_is_no_damage():
    files = MemoryFiles()
    grown(files, 120)
    asleep = CommitLog(files, "/archive").refresh()
    expired(files, 460)
    with pytest.raises(JobError, match="run the job again") as caught:
        len(asleep.files)
    assert caught.value.code == "EXPIRED"


def test_a_list_of_files_is_packed_lines_that_other_tools_read():
    files = [file_of(number, number % 3) for number in range(5_000)]
    data = encode_files(files)
    assert list(decode_files(data).values()) == files
    assert gzip.decompress(data).count(b"\n") == 5_000
    assert len(data) < 5_000 * 40
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises((ValueError, OSError)):
            decode_files(data[:cut])


def test_a_damaged_list_of_files_is_a_clear_error_when_files_are_needed():
    files = MemoryFiles()
    grown(files, CHECKPOINT_EVERY + 3)
    path = f"/archive/_commits/{CHECKPOINT_EVERY:020d}.files.json.gz"
    good, at_ms = files.files[path]
    for bad in (good[:-9], b"", good[:40] + b"x" + good[41:], encode_files([file_of(1)])):
        files.files[path] = bad, at_ms
        opened = CommitLog(files, "/archive").refresh()
        assert opened.ends
        with pytest.raises(JobError, match=r"files\.json\.gz: damaged") as caught:
            len(opened.files)
        assert caught.value.code == "DAMAGED_ARCHIVE"


# --- answers that are lost ------------------------------------------------------------------------


class Unsure(MemoryFiles):
    """A store whose answer to the put of a commit is made by `answer`, after `done` took effect."""

    def __init__(self, done: bytes | bool, answer: Callable[[], bool]) -> None:
        super().__init__()
        self._done = done
        self._answer = answer

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self._done:
            super().put_if_absent(path, data if self._done is True else self._done)
        return self._answer()


def exists() -> bool:
    return False


def fails() -> bool:
    raise JobError("java.io.IOException: rename failed", "FILE_SYSTEM")


def not_synced() -> bool:
    raise JobError("written, but not synced", "NOT_SYNCED")


@pytest.mark.parametrize("answer", [exists, fails])
def test_a_put_without_a_clear_answer_is_settled_by_reading(answer: Callable[[], bool]):
    assert CommitLog(Unsure(True, answer), "/archive").put(entry(1))
    assert not CommitLog(Unsure(entry(1, "other").encode(), answer), "/archive").put(entry(1))
    with pytest.raises(JobError):
        CommitLog(Unsure(False, answer), "/archive").put(entry(1))


def test_a_commit_that_is_not_durable_is_no_success():
    with pytest.raises(JobError, match="not synced"):
        CommitLog(Unsure(True, not_synced), "/archive").put(entry(1))
