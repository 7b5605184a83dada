"""`gateway job replay`: its options and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gateway.admin.notation import read_time
from gateway.pipelines.archives import ArchiveFormat
from gateway.pipelines.archives.lives import base_name, select_life
from gateway.pipelines.job import job_options, kafka_option, run_job, seconds_type, servers_of
from gateway.pipelines.replays.model import ReplayReport, ReplayRequest
from gateway.pipelines.replays.plan import parse_offsets
from gateway.pipelines.replays.plan_store import FilePlans, PlanStore, TablePlans, default_state
from gateway.pipelines.replays.shapes import REPLAYED
from gateway.pipelines.shared.errors import JobError
from ledger.command_line import units
from ledger.command_line.output import Output, headings, usage
from ledger.command_line.program import Command, Value, option
from ledger.command_line.table import as_table

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
    "--topic-id",
    metavar="ID",
    default="",
    shown="the only one",
    help="Id of the topic, if it was recreated and the archive holds several topics of that name.",
)
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
@option(
    "--continue",
    "extend",
    is_flag=True,
    help="Also write the records that were archived after the replay began.",
)
@option("--create", is_flag=True, help="Create the topic if it does not exist.")
@option(
    "--append",
    is_flag=True,
    help="Write after records that the topic already has, of other producers.",
)
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
    help="Kind of producer. Both write each record exactly once; transactions appear as a whole.",
)
@option(
    "--timeout",
    type=seconds_type(),
    default="2m",
    help="Give up after this time without progress; a bare number is seconds.",
)
@kafka_option
@job_options(REPLAYED)
def replay(
    source: str,
    topic: str,
    topic_id: str,
    to_topic: str,
    kind: ArchiveFormat,
    start_time: str,
    end_time: str,
    offsets: str,
    state: str,
    extend: bool,
    create: bool,
    append: bool,
    compression: str,
    transactional: bool,
    timeout: float,
    options: Sequence[str],
    bootstrap: str,
    master: str,
    conf: Sequence[str],
    output: Output,
) -> None:
    """Write archived records to a topic, each exactly once.

    A run that was interrupted is resumed by the same command. The target must be empty at first.
    """
    _check_options(bool(offsets and (start_time or end_time)), output)
    servers = servers_of(bootstrap, options, output)
    request = ReplayRequest(
        topic,
        to_topic or base_name(topic),
        start_ms=_time("--start-time", start_time, output),
        end_ms=_time("--end-time", end_time, output),
        offsets=_offsets(offsets, topic, output),
        create=create,
        codec=compression,
        stall_s_max=timeout,
        append=append,
        extend=extend,
        transactional=transactional,
    )

    def work(spark: SparkSession) -> ReplayReport:
        from gateway.pipelines.archives import open_archive
        from gateway.pipelines.replays import replay_job, target
        from gateway.pipelines.replays.progress import show_progress

        archive = open_archive(spark, source, kind.value)
        state_now = archive.state()
        held = {partition.topic for partition in state_now.ends}
        life = select_life(held, state_now.topic_ids, topic, topic_id)
        if not to_topic:
            replay_job.check_other_topic(state_now.topic_ids.get(life), servers, base_name(topic))
        wanted = replace(request, topic=life, cluster=target.cluster_id(servers))
        plans = _open_plans(spark, source, kind, state, wanted)
        with show_progress(spark, servers) as watcher:
            return replay_job.replay(spark, archive, servers, wanted, plans, watcher=watcher)

    report = run_job("replay", master, conf, output, work, (source, state), (servers.keys,))
    output.done(_data(report), _text(report))


def _check_options(both: bool, output: Output) -> None:
    """End the command if it asks for `both` offsets and times."""
    if both:
        usage("--offsets, and --start-time or --end-time: pass one or the other", output)


def _open_plans(
    spark: SparkSession, source: str, kind: ArchiveFormat, state: str, request: ReplayRequest
) -> PlanStore:
    """Open the state: in the directory `state`, or in the archive."""
    if state:
        return FilePlans(spark, state)
    if kind is ArchiveFormat.iceberg:
        return TablePlans(spark, source, request.digest())
    return FilePlans(spark, default_state(source, request.digest()))


def _offsets(text: str, topic: str, output: Output) -> dict[int, tuple[int, int]] | None:
    try:
        return parse_offsets(text, topic) if text else None
    except JobError as error:
        usage(str(error), output)


def _time(option: str, text: str, output: Output) -> int | None:
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
    """Return the report in the form of `REPLAYED`."""
    return {
        "topic": report.topic,
        "to_topic": report.target,
        "state": report.state,
        "resumed": report.resumed,
        "records": report.records,
        "written": report.written,
        "beyond": report.beyond,
        "plan": report.number,
        "records_unproved": report.unproved,
        "partitions": [each._asdict() for each in report.partitions],
    }


def _text(report: ReplayReport) -> str:
    rows = [each._asdict() for each in report.partitions]
    columns = headings("partition", "records", "written", "base_offset", "end_offset", "looks")
    parts = [as_table(columns, rows)]
    if report.earlier:
        parts.append(f"Earlier plans of this replay wrote {report.earlier} records.")
    parts.append(
        f"Topic {report.target} has the {report.records} records of this replay of {report.topic};"
        f" this run wrote {report.written}."
    )
    if report.beyond:
        parts.append(
            f"The archive holds {report.beyond} offsets more, archived after this replay began;"
            " add --continue to replay them too."
        )
    if report.unproved:
        parts.append(
            f"{report.unproved} archived records have no sums and could not be proved: they were"
            " archived by an earlier version."
        )
    parts.append(f"State: {report.state}")
    return "\n".join(parts)
