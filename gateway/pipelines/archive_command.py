"""`gateway job archive`: its options and its output."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from gateway.admin.notation import read_moment
from gateway.admin.requests import exit_code_of
from gateway.pipelines.archives import ArchiveFormat
from gateway.pipelines.archives.archive_job import ArchiveJob
from gateway.pipelines.archives.archive_model import (
    EARLIEST,
    LATEST,
    ArchiveReport,
    ArchiveRequest,
    ArchiveWatcher,
    ArchiveWatchers,
)
from gateway.pipelines.archives.port import SKIPPED, LostOffsets
from gateway.pipelines.archives.rounds import ArchiveRound
from gateway.pipelines.archives.shapes import ARCHIVED
from gateway.pipelines.job import (
    is_verbose,
    job_options,
    kafka_option,
    run_job,
    seconds_type,
    servers_of,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from ledger.adapters.system.clock import SystemClock
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import Output, fail, headings, note, usage
from ledger.command_line.program import Command, Value, old_spelling, option
from ledger.command_line.progress import ProgressLine
from ledger.command_line.table import as_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.admin.client_settings import ClientSettings

_INT64_MAX = 2**63 - 1
_COMMIT_S = 600.0
_SHOWN_MAX = 20  # losses in the summary


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
    "--commit-size",
    type=Value("size", units.size(1, _INT64_MAX)),
    help="With --follow: wait until about this many bytes of keys and values can be committed.",
)
@option(
    "--commit-time",
    type=seconds_type(),
    shown="10m with --commit-size, otherwise the --interval",
    help="With --follow: commit at the latest after this time; a bare number is seconds.",
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
    metavar="TOPIC",
    multiple=True,
    help="Continue this topic without records that were deleted before they were archived, are "
    "lost, or cannot be represented in Spark. If it was recreated, archive the new topic beside "
    "the old one. Repeat for several.",
)
@option(
    "--allow-gaps",
    is_flag=True,
    help="Accept offsets without a record that no transaction explains, as compaction leaves them.",
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
@option(
    "--metrics-port",
    type=Value("port", units.whole(0, 65_535)),
    help="Serve the metrics of the job on this HTTP port while it runs; 0 takes a free one.",
)
@option(
    "--metrics-host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address on which --metrics-port listens; 0.0.0.0 is every address.",
)
@kafka_option
@job_options(ARCHIVED)
def archive(
    topics: Sequence[str],
    pattern: str,
    to: str,
    kind: ArchiveFormat,
    begin: str,
    follow: bool,
    interval: float,
    commit_size: int | None,
    commit_time: float | None,
    offsets_max: int,
    accept_loss: Sequence[str],
    allow_gaps: bool,
    metadata: str,
    compact: bool,
    file_size: int,
    isolation: Isolation,
    timeout: float,
    metrics_port: int | None,
    metrics_host: str,
    options: Sequence[str],
    bootstrap: str,
    master: str,
    conf: Sequence[str],
    output: Output,
) -> None:
    """Copy topics to Parquet files or to an Iceberg table.

    A later run continues after the last archived offset.
    """
    if not topics and not pattern:
        usage("name a topic, or a --pattern", output)
    _check_accepted(accept_loss, topics, pattern, output)
    wanted = ArchiveRequest(
        topics=tuple(topics),
        pattern=pattern,
        start=_start(begin, output),
        offsets_per_round_max=offsets_max,
        accept_loss=frozenset(accept_loss),
        allow_gaps=allow_gaps,
        isolation=isolation,
        interval_s=interval,
        commit_bytes=commit_size or 0,
        commit_s=commit_time if commit_time is not None else _COMMIT_S if commit_size else 0.0,
        timeout_s=timeout,
        file_bytes=file_size if compact else 0,
        metadata=metadata,
    )

    servers = servers_of(bootstrap, options, output)
    where = _Where(to, kind, servers, follow, metrics_host, metrics_port)
    report = _report(wanted, where, master, conf, output)
    output.done(_as_data(report, to, kind), _as_text(report, to))
    if report.set_aside:
        _fail(report.set_aside, output)


class _Where(NamedTuple):
    """The archive, the servers, and how the job runs."""

    to: str
    kind: ArchiveFormat
    servers: ClientSettings
    follow: bool
    metrics_host: str
    metrics_port: int | None


def _report(
    request: ArchiveRequest, where: _Where, master: str, conf: Sequence[str], output: Output
) -> ArchiveReport:
    """Run the job on Spark. Ends the command if it fails."""

    def work(spark: SparkSession) -> ArchiveReport:
        return _run(spark, request, where)

    return run_job("archive", master, conf, output, work, (where.to,), (where.servers.keys,))


def _run(spark: SparkSession, request: ArchiveRequest, where: _Where) -> ArchiveReport:
    from gateway.pipelines.archives import open_archive

    target = open_archive(spark, where.to, where.kind.value)
    with _ending(where.follow) as ending, _watchers(where) as watcher:
        job = ArchiveJob(
            spark, target, where.servers, request, watcher=watcher, stop=lambda: ending.asked
        )
        return job.follow() if where.follow else job.run()


@contextmanager
def _watchers(where: _Where) -> Generator[ArchiveWatcher]:
    """Show the progress, and serve the metrics if a port is given."""
    with _Progress(where.follow) as progress, ExitStack() as stack:
        if where.metrics_port is None:
            yield progress
            return
        # Imported here because most jobs have no page.
        from gateway.pipelines.archive_metrics import ArchiveMetrics, served

        metrics = ArchiveMetrics(SystemClock())
        page = stack.enter_context(served(metrics, where.metrics_host, where.metrics_port))
        print(f"gateway: metrics: {page}", file=sys.stderr)
        yield ArchiveWatchers(progress, metrics)


def _check_accepted(
    accepted: Sequence[str], topics: Sequence[str], pattern: str, output: Output
) -> None:
    """End the command if a topic of --accept-loss is not one that it archives."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        usage(f"--pattern {pattern!r}: {error}", output)
    for name in accepted:
        if name not in topics and not (pattern and compiled.fullmatch(name)):
            usage(f"--accept-loss {name}: the command names no such topic", output)


def _fail(set_aside: Mapping[str, JobError], output: Output) -> NoReturn:
    """End the command because of these topics, with one line on stderr.

    The exit code is 77 if each of them was refused.
    """
    if len(set_aside) == 1:
        (error,) = set_aside.values()
        fail(exit_code_of(error.code), str(error), error.code, output)
    codes = {exit_code_of(error.code) for error in set_aside.values()}
    exit_code = codes.pop() if len(codes) == 1 else EXIT_FAILED
    each = "; ".join(f"{topic}: {error}" for topic, error in sorted(set_aside.items()))
    fail(exit_code, f"{len(set_aside)} topics are set aside: {each}", "SET_ASIDE", output)


def _start(word: str, output: Output) -> str | int:
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
    """A progress line on stderr, if stderr is a terminal. Retried errors are always printed.

    With `follow`, topics that are set aside are printed at once; other jobs end soon and report
    them. With --verbose, every commit is printed.
    """

    def __init__(self, follow: bool) -> None:
        self._line = ProgressLine()
        self._follow = follow
        self._verbose = is_verbose()
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
        if self._verbose:
            lost = sum(each.range.length for each in done.lost)
            self._print(
                f"committed {done.offsets} offsets of {len(done.partitions)} partitions, {lost}"
                " lost or skipped"
            )
        self._show()

    def on_retry(self, error: JobError, wait_s: float) -> None:
        self._print(f"{error}; retrying in {wait_s:.0f} s")

    def on_set_aside(self, topic: str, error: JobError) -> None:
        if self._follow or self._verbose:
            self._print(f"topic {topic} is set aside: {error}")

    def on_recovered(self, topic: str, error: JobError) -> None:
        if self._follow or self._verbose:
            self._print(f"topic {topic} is archived again")

    def _print(self, text: str) -> None:
        self._line.clear()
        note(f"gateway: {text}")

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
    """Return the report in the form of `ARCHIVED`."""
    return {
        "archive": to,
        "format": kind.value,
        "commits": report.commits,
        "offsets": report.offsets,
        "lost": report.lost,
        "skipped": report.skipped,
        "losses": [{**each.range._asdict(), "reason": each.reason} for each in report.losses],
        "set_aside": [
            {"topic": topic, "code": error.code, "reason": str(error)}
            for topic, error in sorted(report.set_aside.items())
        ],
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
        lines.append(f"{report.lost} offsets are lost:")
        lines += _listed(each for each in report.losses if each.reason != SKIPPED)
    if report.skipped:
        lines.append(f"{report.skipped} offsets of later topics are before the start (--from):")
        lines += _listed(each for each in report.losses if each.reason == SKIPPED)
    for topic, error in sorted(report.set_aside.items()):
        lines.append(f"Topic {topic} is set aside ({error.code})")
    if report.compacted:
        lines.append("{} files before compaction, {} after".format(*report.compacted))
    return "\n".join(lines)


def _listed(losses: Iterable[LostOffsets]) -> list[str]:
    """Return a line for each of the first losses."""
    found = list(losses)
    lines = [f"  {each.range}: {each.reason}" for each in found[:_SHOWN_MAX]]
    return lines if len(found) <= _SHOWN_MAX else [*lines, f"  and {len(found) - _SHOWN_MAX} more"]
