"""`gateway job replay`: its options and its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gateway.admin.notation import read_time
from gateway.pipelines.archives import ArchiveFormat
from gateway.pipelines.job import job_options, run_job, seconds_type
from gateway.pipelines.replays.model import ReplayReport, ReplayRequest, default_state
from gateway.pipelines.replays.plan import parse_offsets
from gateway.pipelines.shared.errors import JobError
from ledger.command_line import units
from ledger.command_line.output import Format, as_json, as_table, emit, headings, usage
from ledger.command_line.program import Command, Value, option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999. Spark and Python agree on times up to this one."""

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command(cls=Command)
@option(
    "--from",
    "source",
    metavar="PLACE",
    required=True,
    help="Archive to read: a directory, or catalog.namespace.table with --format iceberg.",
)
@option("--topic", "-t", metavar="TOPIC", required=True, help="Archived topic to replay.")
@option(
    "--to-topic",
    metavar="TOPIC",
    default="",
    shown="the same name",
    help="Topic to write to.",
)
@option(
    "--format",
    "kind",
    type=Value("format", units.member(ArchiveFormat)),
    default="parquet",
    help="Format of the archive: parquet or iceberg.",
)
@option(
    "--start-time",
    metavar="TIME",
    default="",
    help="Only replay records from this time on: 2024-01-31T12:00:00Z, or milliseconds since 1970.",
)
@option("--end-time", metavar="TIME", default="", help="Only replay records before this time.")
@option(
    "--offsets",
    metavar="JSON",
    default="",
    shown="all",
    help='Only replay these offsets: {"0": [100, 200]} is 100 to 199 of partition 0.',
)
@option(
    "--state",
    metavar="DIR",
    default="",
    shown="inside the archive",
    help="Directory for the state of the replay, from which a later run resumes.",
)
@option("--create", is_flag=True, help="Create the topic if it does not exist.")
@option(
    "--compression",
    type=Value("codec", units.one_of(*_CODECS)),
    default="none",
    help=f"Compression of the batches: {units.listed(_CODECS)}.",
)
@option(
    "--transactional/--idempotent",
    default=False,
    shown="idempotent",
    help="Kind of producer. Both write each record exactly once; transactions are not served yet.",
)
@option(
    "--timeout",
    type=seconds_type(),
    default="2m",
    help="Give up after this time without progress; a bare number is seconds.",
)
@job_options
def replay(
    source: str,
    topic: str,
    to_topic: str,
    kind: ArchiveFormat,
    start_time: str,
    end_time: str,
    offsets: str,
    state: str,
    create: bool,
    compression: str,
    transactional: bool,
    timeout: float,
    bootstrap: str,
    master: str,
    conf: Sequence[str],
    output: Format,
) -> None:
    """Write archived records to a topic, each exactly once.

    A run that was interrupted is resumed by the same command.
    """
    if transactional:
        usage(
            "--transactional: transactions are not served yet; --idempotent, the default, writes "
            "each record exactly once as well",
            output,
        )
    if kind is ArchiveFormat.iceberg and not state:
        usage("--state is missing: pass a directory on a disk, NFS or HDFS", output)
    if offsets and (start_time or end_time):
        usage("--offsets, and --start-time or --end-time: pass one or the other", output)
    request = ReplayRequest(
        topic,
        to_topic or topic,
        start_ms=_time("--start-time", start_time, output),
        end_ms=_time("--end-time", end_time, output),
        offsets=_offsets(offsets, topic, output),
        create=create,
        codec=compression,
        stall_s_max=timeout,
    )

    def work(spark: SparkSession) -> ReplayReport:
        from gateway.pipelines.archives import open_archive
        from gateway.pipelines.replays.progress import show_progress
        from gateway.pipelines.replays.replay_job import check_other_topic
        from gateway.pipelines.replays.replay_job import replay as run_replay

        archive = open_archive(spark, source, kind.value)
        if not to_topic:
            check_other_topic(archive, bootstrap, topic)
        partition = state or default_state(source, request)
        with show_progress(spark, bootstrap) as watcher:
            return run_replay(spark, archive, bootstrap, request, partition, watcher=watcher)

    report = run_job("replay", master, conf, output, work)
    emit(_text(report) if output is Format.table else as_json(_data(report)))


def _offsets(text: str, topic: str, output: Format) -> dict[int, tuple[int, int]] | None:
    try:
        return parse_offsets(text, topic) if text else None
    except JobError as error:
        usage(str(error), output)


def _time(option: str, text: str, output: Format) -> int | None:
    """Return the time as milliseconds since 1970.

    A time relative to now is refused, because a later run must select the same records.
    """
    if not text:
        return None
    if text.isdecimal() and int(text) > _TIME_MS_MAX:
        usage(f"{option}: {text} ms is after the year 9999", output)
    if text.isdecimal():
        return int(text)
    try:
        return read_time(text)
    except ValueError as error:
        usage(f"{option}: {error}, or milliseconds since 1970", output)


def _data(report: ReplayReport) -> dict[str, object]:
    """Return the report for JSON, as docs/spark.md describes it."""
    return {
        "topic": report.topic,
        "to_topic": report.target,
        "state": report.state,
        "resumed": report.resumed,
        "records": sum(each.records for each in report.partitions),
        "written": sum(each.written for each in report.partitions),
        "partitions": [each._asdict() for each in report.partitions],
    }


def _text(report: ReplayReport) -> str:
    rows = [each._asdict() for each in report.partitions]
    columns = headings("partition", "records", "written", "base_offset", "end_offset", "looks")
    written = sum(each.written for each in report.partitions)
    records = sum(each.records for each in report.partitions)
    ended = f"Topic {report.target} has all {records} records of {report.topic}; "
    ended += f"this run wrote {written}."
    return f"{as_table(columns, rows)}\n{ended}\nState: {report.state}"
