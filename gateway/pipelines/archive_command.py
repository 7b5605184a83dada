"""`gateway job archive`: its options and its output."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gateway.admin.notation import read_moment
from gateway.pipelines.archives import ArchiveFormat
from gateway.pipelines.archives.archive_job import (
    EARLIEST,
    LATEST,
    ArchiveJob,
    ArchiveReport,
    ArchiveRequest,
    ArchiveWatcher,
)
from gateway.pipelines.archives.rounds import ArchiveRound
from gateway.pipelines.job import job_options, run_job, seconds_type
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from ledger.adapters.system.clock import SystemClock
from ledger.command_line import units
from ledger.command_line.output import (
    Format,
    ProgressLine,
    as_json,
    as_table,
    emit,
    headings,
    usage,
)
from ledger.command_line.program import Command, Value, old_spelling, option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INT64_MAX = 2**63 - 1


@click.command(cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", help="Topics to archive.")
@option(
    "--pattern",
    metavar="REGEX",
    default="",
    help="Also archive topics whose whole name matches, including later ones.",
)
@option(
    "--to",
    metavar="PLACE",
    required=True,
    help="Archive to write to: a directory, or catalog.namespace.table with --format iceberg.",
)
@option(
    "--format",
    "kind",
    type=Value("format", units.member(ArchiveFormat)),
    default="parquet",
    help="Format of the archive: parquet or iceberg.",
)
@option(
    "--from",
    "begin",
    metavar="START",
    default=EARLIEST,
    help="Start of topics that are not archived yet: earliest, latest, a time, or how long ago, "
    "such as 2h.",
)
@option("--follow", is_flag=True, help="Continue with new records until SIGTERM or Ctrl-C.")
@option(
    "--interval",
    type=seconds_type(0.1),
    default="10s",
    help="With --follow: time between two reads; a bare number is seconds.",
)
@option(
    "--max-offsets-per-round",
    "offsets_max",
    type=Value("count", units.whole(1, _INT64_MAX)),
    default=5_000_000,
    help="Approximate number of offsets per commit.",
)
@option(
    "--accept-loss",
    is_flag=True,
    help="Continue without records that were deleted before they were archived, or that are lost.",
)
@option(
    "--allow-gaps",
    is_flag=True,
    help="Accept offsets without a record, which transactions and compaction leave.",
)
@option(
    "--metadata",
    metavar="URL",
    default="",
    shown="the one of the gateways",
    help="Where accepted losses are read: zk://host:port,... or grpc://127.0.0.1:3181.",
)
@option("--compact", is_flag=True, help="Also merge small files of the archive into large ones.")
@option(
    "--file-size",
    type=Value("size", units.size(1, _INT64_MAX)),
    default="128MiB",
    help="With --compact: approximate size of a file.",
)
@old_spelling("--file-bytes", of="file_size")
@option(
    "--isolation",
    type=Value("level", units.member(Isolation)),
    default="read_committed",
    help="Records to read: read_committed or read_uncommitted.",
)
@option(
    "--timeout",
    type=seconds_type(),
    default="2m",
    help="How long to retry transient errors; a bare number is seconds.",
)
@job_options
def archive(
    topics: Sequence[str],
    pattern: str,
    to: str,
    kind: ArchiveFormat,
    begin: str,
    follow: bool,
    interval: float,
    offsets_max: int,
    accept_loss: bool,
    allow_gaps: bool,
    metadata: str,
    compact: bool,
    file_size: int,
    isolation: Isolation,
    timeout: float,
    bootstrap: str,
    master: str,
    conf: Sequence[str],
    output: Format,
) -> None:
    """Copy topics to Parquet files or to an Iceberg table.

    A later run continues after the last archived offset.
    """
    if not topics and not pattern:
        usage("name a topic, or a --pattern", output)
    wanted = ArchiveRequest(
        topics=tuple(topics),
        pattern=pattern,
        start=_start(begin, output),
        offsets_per_round_max=offsets_max,
        accept_loss=accept_loss,
        allow_gaps=allow_gaps,
        isolation=isolation,
        interval_s=interval,
        timeout_s=timeout,
        file_bytes=file_size if compact else 0,
        metadata=metadata,
    )

    def work(spark: SparkSession) -> ArchiveReport:
        from gateway.pipelines.archives import open_archive

        target = open_archive(spark, to, kind.value)
        with _ending(follow) as ending, _Progress() as watcher:
            job = ArchiveJob(
                spark, target, bootstrap, wanted, watcher=watcher, stop=lambda: ending.asked
            )
            return job.follow() if follow else job.run()

    report = run_job("archive", master, conf, output, work)
    emit(as_json(_as_data(report, to, kind)) if output is Format.json else _as_text(report, to))


def _start(word: str, output: Format) -> str | int:
    if word in (EARLIEST, LATEST):
        return word
    try:
        start_ms = read_moment(word, SystemClock().now_ms())
    except ValueError as error:
        usage(f"--from: {error}; or earliest, or latest", output)
    if start_ms < 0:  # ListOffsets reads -1 and -2 as latest and earliest
        usage(f"--from: {word!r} is before 1970; pass earliest", output)
    return start_ms


class _Ending:
    """A flag that a signal sets to end the job."""

    asked = False


@contextmanager
def _ending(follow: bool) -> Generator[_Ending]:
    """With `follow`, let SIGTERM and SIGINT end the job after its current round."""
    ending = _Ending()

    def on_signal(*_: Any) -> None:
        ending.asked = True

    if not follow:
        yield ending
        return
    caught = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, on_signal) for number in caught]
    try:
        yield ending
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)


class _Progress(ArchiveWatcher):
    """A progress line on stderr, if stderr is a terminal. Retried errors are always printed."""

    def __init__(self) -> None:
        self._line = ProgressLine()
        self._planned = 0  # offsets of all planned rounds; `_done` counts the archived ones
        self._done = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def on_planned(self, offsets: int) -> None:
        self._planned = self._done + offsets
        self._show()

    def on_committed(self, done: ArchiveRound) -> None:
        self._done += done.offsets
        self._show()

    def on_retry(self, error: JobError, wait_s: float) -> None:
        self._line.clear()
        print(f"gateway: {error}; retrying in {wait_s:.0f} s", file=sys.stderr)

    def _show(self) -> None:
        self._line.bar(self._done, self._planned, "offsets archived")


def _rows(report: ArchiveReport) -> list[dict[str, Any]]:
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "start": each.start,
            "end": each.end,
            "offsets": each.end - each.start - each.lost,
            "lost": each.lost,
        }
        for partition, each in sorted(report.partitions.items())
    ]


def _as_data(report: ArchiveReport, to: str, kind: ArchiveFormat) -> dict[str, Any]:
    """Return the report for JSON. Programs read the JSON, so its keys must not change.

    `lost` counts offsets that were deleted before they were archived, or whose loss was accepted.
    """
    return {
        "archive": to,
        "format": kind.value,
        "commits": report.commits,
        "offsets": report.offsets,
        "lost": report.lost,
        "places": _rows(report),
        "compacted": report.compacted._asdict() if report.compacted else None,
    }


def _as_text(report: ArchiveReport, to: str) -> str:
    lines: list[str] = []
    if report.partitions:
        columns = headings("topic", "partition", "start", "end", "offsets", "lost")
        lines += [as_table(columns, _rows(report)), ""]
    lines.append(f"{report.offsets} offsets archived to {to}; commits: {report.commits}")
    if report.lost:
        lines.append(f"{report.lost} offsets were deleted or lost before they could be archived")
    if report.compacted:
        lines.append("{} files before compaction, {} after".format(*report.compacted))
    return "\n".join(lines)
