"""What 30 days of commits cost an archive: `python -m tests.bench.archive_growth`.

A commit each 10 s, 10,000 partitions. All but the last commits are covered by a checkpoint and
expired, so the bench builds that checkpoint and runs only the commits after it. Time is that of
opening a log on the disk. Memory is that of Python's objects.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.pipelines.archives import history as props
from gateway.pipelines.archives import parquet_log as log
from gateway.pipelines.archives.file_list import DataFile, decode_files, encode_files
from gateway.pipelines.archives.iceberg_table import IcebergSnapshot, expired_snapshots
from gateway.pipelines.archives.port import Commit
from gateway.pipelines.archives.sums import RecordSum
from gateway.pipelines.shared.files import LocalFiles
from gateway.pipelines.shared.partitions import OffsetRange
from tests.pipelines.memory_files import MemoryFiles

COMMITS = 30 * 8_640
FEW = 100  # commits of the archive to compare with, which has the same partitions
DAYS = 30
MB = 1_000_000
SNAPSHOTS_MAX = 500
_RANDOM = random.Random(14)  # hashes of records are random numbers


def content() -> int:
    return _RANDOM.randrange(-(2**63), 2**63)


def data_file(partition: int, day: int, number: int) -> DataFile:
    name = f"part-{number:05d}-11111111-2222-3333-4444-{_RANDOM.getrandbits(48):012x}.c000"
    path = f"topic=orders/partition={partition}/day=2026-01-{day + 1:02d}/{name}.zstd.parquet"
    times = 1_760_000_000_000 + number, 1_760_000_001_000 + number
    first = number * 1_000
    return DataFile(path, "orders", partition, 1_000, 50_000, first, first + 999, *times, content())


def commit(number: int, partitions: int, touched: int) -> log.CommitEntry:
    """Return a commit of 1,000 offsets in each of the next `touched` partitions."""
    turns = [divmod(index, partitions) for index in range((number - 1) * touched, number * touched)]
    files = tuple(data_file(at, DAYS - 1, turn) for turn, at in turns)
    ranges = tuple(
        OffsetRange("orders", at, turn * 1_000, turn * 1_000 + 1_000) for turn, at in turns
    )
    sums = {each.topic_partition: RecordSum(1_000, content()) for each in ranges}
    ids = {"orders": "x" * 36}
    return log.CommitEntry(number, f"run-{number}", number, ranges, ids, (), files, (), sums)


def checkpoint(number: int, partitions: int, touched: int, files: int) -> log.ArchiveContents:
    """Return the sum of commits 1 to `number`, compacted to that many files."""
    ends = [-(-(number * touched - at) // partitions) * 1_000 for at in range(partitions)]
    ranges = tuple(OffsetRange("orders", at, 0, end) for at, end in enumerate(ends))
    sums = {each.topic_partition: RecordSum(each.length, content()) for each in ranges}
    old = tuple(data_file(n % partitions, n // partitions % DAYS, n) for n in range(files))
    contents = log.ArchiveContents()
    ids = {"orders": "x" * 36}
    contents.apply(log.CommitEntry(1, "run", 1, ranges, ids, (), old, (), sums))
    contents.number = number
    return contents


def log_of(commits: int, partitions: int, touched: int, files: int) -> MemoryFiles:
    """Return the files of a log after that many commits, of which the last ones are real."""
    store = MemoryFiles()
    start = max(0, commits - log.COMMITS_KEPT_MAX - 2 * log.CHECKPOINT_EVERY)
    start -= start % log.CHECKPOINT_EVERY
    if start:
        contents = checkpoint(start, partitions, touched, files)
        path = f"/archive/{log.COMMITS}/{start:020d}"
        store.put_if_absent(f"{path}.files.json.gz", encode_files(contents.files.values()))
        store.put_if_absent(f"{path}.checkpoint.json", contents.encode())
        store.put_if_absent(f"{path}.json", commit(start, partitions, touched).encode())
    writer = log.CommitLog(store, "/archive")
    for number in range(start + 1, commits + 1):
        writer.refresh()
        assert writer.put(commit(number, partitions, touched))
        store.now += 10_000
        writer.refresh()
        writer.checkpoint_if_due()
    return store


def opening_s(store: MemoryFiles, into: Path, rounds: int) -> float:
    """Return the shortest time in which the log is opened on the disk."""
    for path, (data, _) in store.files.items():
        file = Path(f"{into}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    times: list[float] = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        log.CommitLog(LocalFiles(), f"{into}/archive").refresh()
        times.append(time.perf_counter() - start_s)
    return min(times)


def show_opening(partitions: int, touched: int, files: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as below:
        few = log_of(FEW, partitions, max(touched, -(-partitions // FEW)), 0)
        base_s = opening_s(few, Path(below) / "few", rounds)
        many = log_of(COMMITS, partitions, touched, files)
        long_s = opening_s(many, Path(below) / "many", rounds)
    size = sum(len(data) for data, _ in many.files.values())
    print(
        f"Parquet, {COMMITS} commits, {partitions} partitions, {files} files: opened in"
        f" {long_s * 1000:.0f} ms, {long_s / base_s:.2f} times that of {FEW} commits; the log has"
        f" {len(many.files)} files, {size / MB:.1f} MB"
    )


def traced(work: Callable[[], Any]) -> tuple[int, int, Any]:
    """Return the bytes that the result of `work` takes, and the peak while it was made."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    found = work()
    gc.collect()
    now, peak = tracemalloc.get_traced_memory()
    return now - before, peak - before, found


def show_checkpoint(partitions: int, files: int) -> None:
    tracemalloc.start()
    held, _, contents = traced(lambda: checkpoint(50, partitions, partitions, files))
    stored, peak, data = traced(lambda: encode_files(contents.files.values()))
    back, peak_back, _ = traced(lambda: decode_files(data))
    tracemalloc.stop()
    print(
        f"checkpoint of {files} files: {held / MB:.0f} MB in memory, {stored / MB:.1f} MB stored;"
        f" writing takes {peak / MB:.0f} MB more ({peak / held:.2f} of its size in memory), reading"
        f" {peak_back / MB:.0f} MB for {back / MB:.0f} MB ({peak_back / back:.2f})"
    )


def metadata_bytes(snapshots: list[IcebergSnapshot], properties: dict[str, str]) -> int:
    """Return the size of a metadata.json with these snapshots, as Iceberg writes them."""
    counts = {f"total-{name}": "1234567890" for name in ("records", "files-size", "data-files")}
    counts |= {f"added-{name}": "1000000" for name in ("records", "files-size", "data-files")}
    counts |= {f"engine-{n}": "3.5.1" for n in ("name", "version")} | {"spark.app.id": "x" * 20}
    uri = "file:/warehouse/archives/orders/metadata/" + "x" * 60
    written = [
        {
            "sequence-number": each.sequence,
            "snapshot-id": 2**62 + each.id,
            "parent-snapshot-id": 2**62 + each.id,
            "timestamp-ms": each.at_ms,
            "summary": {"operation": each.operation, **counts, **each.summary},
            "manifest-list": uri,
            "schema-id": 0,
            "log": {"timestamp-ms": each.at_ms, "snapshot-id": 2**62 + each.id},
        }
        for each in snapshots
    ]
    files = [{"timestamp-ms": 1_760_000_000_000, "metadata-file": uri}] * 100
    whole = {"properties": properties, "snapshots": written, "metadata-log": files}
    return len(json.dumps(whole, separators=(",", ":")))


def show_metadata(partitions: int, touched: int, commits: int) -> None:
    ends = checkpoint(COMMITS - commits, partitions, touched, 0)
    history = props.from_ranges(ends.ranges, ends.sums)
    snapshots: list[IcebergSnapshot] = []  # the newest first
    count: props.ChangeCount | None = None
    largest = 0
    for number in range(COMMITS - commits + 1, COMMITS + 1):
        entry = commit(number, partitions, touched)
        plain = Commit(entry.ranges, entry.topic_ids)
        change = props.HistoryChange(plain, entry.sums)
        history = history.after(change)
        summary = props.commit_properties(history, change, count)
        found = props.change_from_properties(summary, "here")
        count = found.count if found else props.ChangeCount()
        for properties in ({}, summary):
            at = number * 2 + len(properties)
            snapshot = IcebergSnapshot(at, at - 1, at, "append", number * 10_000, properties)
            snapshots.insert(0, snapshot)
        if found is None:
            largest = max(largest, metadata_bytes(snapshots, history.properties()))
            expired = set(expired_snapshots(snapshots, SNAPSHOTS_MAX, 5 * 86_400_000))
            snapshots = [each for each in snapshots if each.id not in expired]
    print(
        f"Iceberg, {COMMITS} commits, {partitions} partitions, {touched} of them in each commit:"
        f" metadata.json has at most {largest / MB:.1f} MB, with {len(snapshots)} snapshots"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000, help="partitions of the topic")
    parser.add_argument(
        "--touched", type=int, default=40, help="partitions with records per commit"
    )
    parser.add_argument("--files", type=int, default=400_000, help="files after compaction")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of a time")
    args = parser.parse_args()
    show_checkpoint(args.partitions, args.files)
    show_metadata(args.partitions, args.touched, 1_000)
    show_metadata(args.partitions, args.partitions, 150)
    show_opening(args.partitions, args.touched, args.files, args.rounds)


if __name__ == "__main__":
    main()
