"""`gateway job archive`: its options and what it prints."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.admin.cli import DEFAULT_BOOTSTRAP, usage
from gateway.admin.group_words import read_moment
from gateway.admin.output import Format, as_json, as_table, emit, headings
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
from gateway.pipelines.job import Bootstrap, Conf, Master, Output, run_job
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from ledger.adapters.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

_OFFSETS_MAX = 5_000_000
_FILE_BYTES = 128 * 1024 * 1024


_Topics = Annotated[list[str] | None, typer.Argument(help="Topics to archive.")]
_Pattern = Annotated[
    str, typer.Option("--pattern", help="Also topics whose whole name matches, now or later.")
]
_To = Annotated[str, typer.Option("--to", help="A directory, or catalog.namespace.table.")]
_Kind = Annotated[ArchiveFormat, typer.Option("--format", help="parquet or iceberg.")]
_From = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where topics begin that are not archived yet: earliest, latest, a time, or how"
        " long ago (2h).",
    ),
]
_Follow = Annotated[
    bool, typer.Option("--follow", help="Go on with what comes, until SIGTERM or Ctrl-C.")
]
_Interval = Annotated[
    float, typer.Option("--interval", min=0.1, help="Seconds between looks, with --follow.")
]
_OffsetsMax = Annotated[
    int, typer.Option("--max-offsets-per-round", min=1, help="In one commit, about.")
]
_AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Go on when records were deleted too early.")
]
_AllowGaps = Annotated[
    bool,
    typer.Option("--allow-gaps", help="Offsets without a record are fine: transactions make them."),
]
_Compact = Annotated[
    bool, typer.Option("--compact", help="Also make few large files of many small ones.")
]
_FileBytes = Annotated[
    int, typer.Option("--file-bytes", min=1, help="Of a file, about, with --compact.")
]
_Isolation = Annotated[Isolation, typer.Option("--isolation", help="Which records are read.")]
_Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0, help="Seconds for which failures that may pass are borne."),
]


def archive(
    topics: _Topics = None,
    pattern: _Pattern = "",
    to: _To = "",
    kind: _Kind = ArchiveFormat.parquet,
    begin: _From = EARLIEST,
    follow: _Follow = False,
    interval_s: _Interval = 10.0,
    offsets_max: _OffsetsMax = _OFFSETS_MAX,
    accept_loss: _AcceptLoss = False,
    allow_gaps: _AllowGaps = False,
    compact: _Compact = False,
    file_bytes: _FileBytes = _FILE_BYTES,
    isolation: _Isolation = Isolation.read_committed,
    timeout_s: _Timeout = 120.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "",
    conf: Conf = None,
    output: Output = Format.table,
) -> None:
    """Archive topics as Parquet files or in an Iceberg table; a rerun goes on where it ended."""
    if not to:
        usage("--to: name a directory, or a table with --format iceberg", output)
    if not topics and not pattern:
        usage("name a topic, or a --pattern", output)
    wanted = ArchiveRequest(
        topics=tuple(topics or ()),
        pattern=pattern,
        start=_start(begin, output),
        offsets_per_round_max=offsets_max,
        accept_loss=accept_loss,
        allow_gaps=allow_gaps,
        isolation=isolation,
        interval_s=interval_s,
        timeout_s=timeout_s,
        file_bytes=file_bytes if compact else 0,
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
    if start_ms < 0:  # Kafka looks for no such time: -1 and -2 have it say latest and earliest
        usage(f"--from: {word!r} is before 1970; say earliest", output)
    return start_ms


class _Ending:
    """Whether somebody has asked the job to end."""

    asked = False


@contextmanager
def _ending(follow: bool) -> Generator[_Ending]:
    """With `follow`, SIGTERM and SIGINT only say that the job shall end after its round."""
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
    """A bar on stderr, when that is a terminal; failures that are borne are lines on it anyway."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._done = 0

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("archived", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_planned(self, offsets: int) -> None:
        self._show(total=self._done + offsets)

    def on_committed(self, done: ArchiveRound) -> None:
        self._done += done.offsets
        self._show(completed=self._done)

    def on_retry(self, error: JobError, wait_s: float) -> None:
        print(f"gateway: {error}; again in {wait_s:.0f} s", file=sys.stderr)

    def _show(self, completed: int | None = None, total: int | None = None) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed, total=total)


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
    """Programs read it: keys stay what they are. `lost`: offsets that were deleted too early."""
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
        lines.append(f"{report.lost} offsets were deleted before they could be archived")
    if report.compacted:
        lines.append("{} files before compaction, {} after".format(*report.compacted))
    return "\n".join(lines)
