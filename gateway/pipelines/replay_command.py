"""`gateway job replay`: its options and what it prints."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.admin.cli import DEFAULT_BOOTSTRAP, usage
from gateway.admin.group_words import read_time
from gateway.admin.output import Format, as_json, as_table, emit, headings
from gateway.pipelines.archives import ArchiveFormat
from gateway.pipelines.job import Bootstrap, Conf, Master, Output, run_job
from gateway.pipelines.replays.model import ReplayReport, ReplayRequest, default_state
from gateway.pipelines.replays.plan import parse_offsets
from gateway.pipelines.shared.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, of which Spark's and Python's days are the same."""


class Compression(StrEnum):
    """Of the batches that are written."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


_From = Annotated[
    str, typer.Option("--from", help="The archive: a directory, or catalog.namespace.table.")
]
_Topic = Annotated[str, typer.Option("--topic", "-t", help="The archived topic.")]
_ToTopic = Annotated[
    str, typer.Option("--to-topic", help="Where to; else a topic of the same name.")
]
_Kind = Annotated[ArchiveFormat, typer.Option("--format", help="parquet or iceberg.")]
_StartTime = Annotated[
    str, typer.Option("--start-time", help="Not older: 2024-01-31T12:00:00Z, or ms.")
]
_EndTime = Annotated[str, typer.Option("--end-time", help="Older than this.")]
_Offsets = Annotated[
    str, typer.Option("--offsets", help='{"0": [100, 200]}: partition 0, 100 to 199.')
]
_State = Annotated[
    str, typer.Option("--state", help="Where it is kept what was begun; else in the archive.")
]
_Create = Annotated[bool, typer.Option("--create", help="Make the topic if it does not exist.")]
_Compression = Annotated[
    Compression, typer.Option("--compression", help="none, gzip, snappy, lz4 or zstd.")
]
_Transactional = Annotated[
    bool,
    typer.Option(
        "--transactional/--idempotent",
        help="Idempotent is exactly once too; transactions are not served yet.",
    ),
]
_Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds without progress before it gives up.")
]


def replay(
    source: _From,
    topic: _Topic,
    to_topic: _ToTopic = "",
    kind: _Kind = ArchiveFormat.parquet,
    start_time: _StartTime = "",
    end_time: _EndTime = "",
    offsets: _Offsets = "",
    state: _State = "",
    create: _Create = False,
    compression: _Compression = Compression.none,
    transactional: _Transactional = False,
    timeout_s: _Timeout = 120.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "",
    conf: Conf = None,
    output: Output = Format.table,
) -> None:
    """Write archived records into a topic: as they were, once each, resumable."""

    if transactional:
        usage(
            "transactions are not served yet; --idempotent, the default, is exactly once as well:"
            " records are told apart by producer id and sequence",
            output,
        )
    if kind is ArchiveFormat.iceberg and not state:
        usage("--state: name a directory for it, on a disk, NFS or HDFS", output)
    if offsets and (start_time or end_time):
        usage("--offsets and times: give one or the other", output)
    request = ReplayRequest(
        topic,
        to_topic or topic,
        start_ms=_time("--start-time", start_time, output),
        end_ms=_time("--end-time", end_time, output),
        offsets=_offsets(offsets, topic, output),
        create=create,
        codec=compression.value,
        stall_s_max=timeout_s,
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
    """Milliseconds since 1970. No "2h ago": a rerun must mean the same records."""
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
    """Documented in docs/spark.md."""
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
