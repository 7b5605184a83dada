"""`gateway job replay`: its options and what it prints."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.admin.cli import DEFAULT_BOOTSTRAP
from gateway.admin.output import Format, as_json, as_table, emit, headings
from gateway.pipelines.job import Bootstrap, Conf, Master, Output, run_job
from gateway.pipelines.model import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipelines.archives.port import Archive
    from gateway.pipelines.replay import Report, Request


class Source(StrEnum):
    """What kind of archive."""

    parquet = "parquet"
    iceberg = "iceberg"


class Compression(StrEnum):
    """Of the batches that are written."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


def replay(
    source: Annotated[
        str, typer.Option("--from", help="The archive: a directory, or catalog.namespace.table.")
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The archived topic.")],
    to_topic: Annotated[
        str, typer.Option("--to-topic", help="Where to; else a topic of the same name.")
    ] = "",
    kind: Annotated[Source, typer.Option("--format", help="parquet or iceberg.")] = Source.parquet,
    start_time: Annotated[
        str, typer.Option("--start-time", help="Not older: 2024-01-31T12:00:00Z, or ms.")
    ] = "",
    end_time: Annotated[str, typer.Option("--end-time", help="Older than this.")] = "",
    offsets: Annotated[
        str, typer.Option("--offsets", help='{"0": [100, 200]}: partition 0, 100 to 199.')
    ] = "",
    state: Annotated[
        str, typer.Option("--state", help="Where it is kept what was begun; else in the archive.")
    ] = "",
    create: Annotated[
        bool, typer.Option("--create", help="Make the topic if it does not exist.")
    ] = False,
    compression: Annotated[
        Compression, typer.Option("--compression", help="none, gzip, snappy, lz4 or zstd.")
    ] = Compression.none,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional/--idempotent",
            help="Idempotent is exactly once too; transactions are not served yet.",
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds without progress before it gives up.")
    ] = 120.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "",
    conf: Conf = None,
    output: Output = Format.table,
) -> None:
    """Write archived records into a topic: as they were, once each, resumable."""

    def work(spark: SparkSession) -> Report:
        from gateway.pipelines.replay import Request, default_state, replay

        if transactional:
            raise JobError(
                "transactions are not served yet; --idempotent, the default, is exactly once as"
                " well: records are told apart by producer id and sequence",
                "NO_TRANSACTIONS",
            )
        request = Request(
            topic,
            to_topic or topic,
            start_ms=_time("--start-time", start_time),
            end_ms=_time("--end-time", end_time),
            offsets=_offsets(offsets, topic, bool(start_time or end_time)),
            create=create,
            codec=compression.value,
            stall_s_max=timeout_s,
        )
        archive = _archive(spark, source, kind, bootstrap, request, named=bool(to_topic))
        if not state and kind is Source.iceberg:
            raise JobError(
                "--state: name a directory; one on a disk, NFS or HDFS that stays", "USAGE"
            )
        return replay(spark, archive, bootstrap, request, state or default_state(source, request))

    report = run_job("replay", master, conf, output, work)
    emit(_text(report) if output is Format.table else as_json(_data(report)))


def _archive(
    spark: SparkSession,
    source: str,
    kind: Source,
    bootstrap: str,
    request: Request,
    *,
    named: bool,
) -> Archive:
    from gateway.pipelines.archives import open_archive
    from gateway.pipelines.replay import check_other_topic

    archive = open_archive(spark, source, kind.value)
    if not named:
        check_other_topic(archive, bootstrap, request.topic)
    return archive


def _offsets(text: str, topic: str, times: bool) -> dict[int, tuple[int, int]] | None:
    from gateway.pipelines.replays.plan import parse_offsets

    if text and times:
        raise JobError("--offsets and times: give one or the other", "USAGE")
    return parse_offsets(text, topic) if text else None


def _time(option: str, text: str) -> int | None:
    """Milliseconds since 1970 of `text`; without a zone it is UTC. Raises JobError."""
    if not text:
        return None
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise JobError(
            f"{option} {text!r}: write 2024-01-31T12:00:00Z, or milliseconds since 1970", "USAGE"
        ) from None
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _data(report: Report) -> dict[str, object]:
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


def _text(report: Report) -> str:
    rows = [each._asdict() for each in report.partitions]
    columns = headings("partition", "records", "written", "base_offset", "end_offset", "looks")
    written = sum(each.written for each in report.partitions)
    records = sum(each.records for each in report.partitions)
    ended = f"Topic {report.target} has all {records} records of {report.topic}; "
    ended += f"this run wrote {written}."
    return f"{as_table(columns, rows)}\n{ended}\nState: {report.state}"
