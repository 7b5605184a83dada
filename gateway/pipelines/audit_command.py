"""`gateway job audit`: its options and its output."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gateway.admin.notation import read_moment
from gateway.pipelines.archives.port import ArchiveProof
from gateway.pipelines.audits.audit_job import AuditRequest, Step
from gateway.pipelines.audits.audit_job import audit as compared
from gateway.pipelines.audits.counting import TimeRange
from gateway.pipelines.audits.model import Align, AuditReport
from gateway.pipelines.audits.report import as_data, as_text, proof_data, proof_text, side_rows
from gateway.pipelines.audits.shapes import AUDITED, PROVED, SIDE
from gateway.pipelines.audits.sources import (
    AuditSource,
    SourceAccess,
    check_alone,
    open_sides,
    parse_source,
    prove_archive,
)
from gateway.pipelines.job import fail_job, job_options, run_job, servers_of
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_DIFFERS, EXIT_OK
from ledger.command_line.output import Output, emit
from ledger.command_line.program import Command, Value, option
from ledger.command_line.progress import ProgressLine
from ledger.command_line.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCE = "topic:NAME, segments:NAME, archive:PATH[#TOPIC] or iceberg:CATALOG.NS.TABLE[#TOPIC]."


@click.command(cls=Command)
@click.argument("left", metavar="LEFT", help=_SOURCE)
@click.argument(
    "right",
    metavar="[RIGHT]",
    required=False,
    default="",
    help="The source to compare it with, in the same form. Leave it out to compare an archive with "
    "its own log.",
)
@option(
    "--align",
    type=Value("by", units.member(Align)),
    default="offset",
    help="Compare records of the same offset, or with rank the n-th records of both partitions, as "
    "for replayed topics.",
)
@option("--common", is_flag=True, help="Only compare offsets that both sides cover.")
@option(
    "--allow-gaps",
    is_flag=True,
    help="Accept offsets without a record, which transactions and compaction leave.",
)
@option(
    "--strict",
    is_flag=True,
    help="Count truncated and expired records as differences.",
)
@option(
    "--any-timestamp-type",
    is_flag=True,
    help="Accept another timestampType, as in the replay of a topic with LogAppendTime.",
)
@option(
    "--start-time",
    metavar="TIME",
    default="",
    help="Only compare records from this time on: 2026-05-01T12:00:00, or how long ago, such as "
    "2h.",
)
@option("--end-time", metavar="TIME", default="", help="Only compare records before this time.")
@option(
    "--left-offsets",
    metavar="JSON",
    default="",
    shown="all",
    help='Only compare these offsets of LEFT: {"topic":{"0":[first,end]}}.',
)
@option(
    "--right-offsets",
    metavar="JSON",
    default="",
    shown="all",
    help="Only compare these offsets of RIGHT, in the same form.",
)
@option(
    "--examples",
    type=Value("count", units.whole(0, 1000)),
    default=10,
    help="Number of differences to show.",
)
@option(
    "--isolation",
    type=Value("level", units.member(Isolation)),
    default="read_committed",
    help="Records to read: read_committed or read_uncommitted.",
)
@option(
    "--metadata",
    metavar="URL",
    default="",
    help="Metadata of segments: zk://host:port,... or grpc://127.0.0.1:3181.",
)
@option(
    "--right-bootstrap",
    metavar="SERVERS",
    default="",
    shown="those of --bootstrap",
    help="Servers of the topic on the right.",
)
@option(
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Option of the sources: tls.ca, tls.certificate, tls.key, tls.roles and bookieTransport "
    "of segments, or kafka.* of topics, such as kafka.security.protocol; repeat for several.",
)
@option(
    "--right-option",
    "right_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Option of the right side only, instead of the same --option; repeat for several.",
)
@job_options(AUDITED, PROVED, SIDE)
def audit(
    left: str,
    right: str,
    align: Align,
    common: bool,
    allow_gaps: bool,
    strict: bool,
    any_timestamp_type: bool,
    start_time: str,
    end_time: str,
    left_offsets: str,
    right_offsets: str,
    examples: int,
    isolation: Isolation,
    metadata: str,
    right_bootstrap: str,
    options: Sequence[str],
    right_options: Sequence[str],
    bootstrap: str,
    master: str,
    conf: Sequence[str],
    output: Output,
) -> int:
    """Compare two of: a topic, its segments, an archive; or an archive with its own log.

    Exits with 3 if records are LOST or differ.
    """
    output = output.of(_shape(right, output))
    try:
        wanted = AuditRequest(
            align,
            examples,
            common,
            allow_gaps,
            TimeRange(_moment("--start-time", start_time), _moment("--end-time", end_time)),
            _offsets("--left-offsets", left_offsets),
            _offsets("--right-offsets", right_offsets),
            strict,
            any_timestamp_type,
        )
        keys = servers_of(bootstrap, (), output).keys
        both = SourceAccess(bootstrap, metadata, isolation)
        both = both.with_options(_settings("--option", options))
        own = _settings("--right-option", right_options)
        access, others = accesses_of(both, keys, right_bootstrap, own)
        source = parse_source(left)
        if not right:
            check_alone(source)
            return _prove(source, master, conf, output)
        sources = source, parse_source(right)
    except JobError as error:
        fail_job(error, output)

    def work(spark: SparkSession) -> AuditReport:
        with _progress() as on_step:
            on_step("reading the bounds of both sides")
            return compared(spark, *open_sides(spark, *sources, access, others), wanted, on_step)

    clients = (access.client, others.client)
    return _print(run_job("audit", master, conf, output, work, (left, right), clients), output)


def _shape(right: str, output: Output) -> Shape:
    if not right:
        return PROVED
    return AUDITED if output.is_json else SIDE


def _print(report: AuditReport, output: Output) -> int:
    """Print the result and return the exit code."""
    if output.framed:
        emit(as_text(report))
    else:
        output.show(as_data(report) if output.is_json else side_rows(report))
    return EXIT_DIFFERS if report.differences else EXIT_OK


def accesses_of(
    shared: SourceAccess,
    keys: Mapping[str, str],
    right_bootstrap: str,
    right_options: Mapping[str, str],
) -> tuple[SourceAccess, SourceAccess]:
    """Return the access to the left source and to the right one. Raises JobError.

    `keys` are of the servers that `shared` names: the secrets of one cluster are not sent to
    another. Options win over them.
    """
    options = {f"kafka.{key}": value for key, value in shared.client.items()}
    left = shared._replace(client=keys).with_options(options)
    right = shared._replace(bootstrap=right_bootstrap) if right_bootstrap else left
    right = right.with_options(right_options)
    return left.with_portable_login(), right.with_portable_login()


def _prove(source: AuditSource, master: str, conf: Sequence[str], output: Output) -> int:
    """Compare an archive with its own log and print the result."""

    def work(spark: SparkSession) -> ArchiveProof:
        with _progress() as on_step:
            on_step("reading the archive")
            return prove_archive(spark, source)

    proof = run_job("audit", master, conf, output, work)
    place = str(source)
    output.done(proof_data(place, proof), proof_text(place, proof))
    return EXIT_DIFFERS if proof.problems else EXIT_OK


@contextmanager
def _progress() -> Generator[Step]:
    """Show the current step on stderr, if stderr is a terminal."""
    line = ProgressLine()
    try:
        yield line.text
    finally:
        line.clear()


def _moment(option: str, word: str) -> int | None:
    if not word:
        return None
    try:
        return read_moment(word, SystemClock().now_ms())
    except ValueError as error:
        raise JobError(f"{option}: {error}", "USAGE") from None


def _settings(option: str, words: Sequence[str]) -> dict[str, str]:
    """Parse `KEY=VALUE`. Raises JobError."""
    found: dict[str, str] = {}
    for each in words:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise JobError(f"{option} {each!r}: must be key=value", "USAGE")
        found[key] = value
    return found


def _offsets(option: str, text: str) -> dict[TopicPartition, OffsetBounds] | None:
    """Parse `{"topic":{"0":[first,end]}}`. Returns None if the text is empty."""
    if not text:
        return None
    try:
        found = {
            TopicPartition(topic, int(partition)): OffsetBounds(int(first), int(end))
            for topic, partitions in json.loads(text).items()
            for partition, (first, end) in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        found = {}
    if not found or any(not 0 <= first <= end for first, end in found.values()):
        raise JobError(f'{option} {text!r}: must be like {{"topic":{{"0":[0,100]}}}}', "USAGE")
    return found
