"""`gateway job audit`: its options and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.admin.cli import DEFAULT_BOOTSTRAP, EXIT_FAILED, usage
from gateway.admin.group_words import read_moment
from gateway.admin.output import Format, as_json, emit
from gateway.pipelines.audits.audit_job import AuditRequest, Step
from gateway.pipelines.audits.audit_job import audit as compared
from gateway.pipelines.audits.counting import TimeRange
from gateway.pipelines.audits.model import Align, AuditReport
from gateway.pipelines.audits.report import as_data, as_text
from gateway.pipelines.audits.sources import SourceAccess, open_sides, parse_source
from gateway.pipelines.job import Bootstrap, Conf, Master, Output, run_job
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GRAMMAR = "topic:NAME, segments:NAME, archive:PATH[#TOPIC] or iceberg:CATALOG.NS.TABLE[#TOPIC]."
_Left = Annotated[str, typer.Argument(help=_GRAMMAR)]
_Right = Annotated[str, typer.Argument(help="What it is compared with: another of these.")]
_RightBootstrap = Annotated[
    str, typer.Option("--right-bootstrap", help="Servers of the right topic, if others.")
]
_Metadata = Annotated[
    str,
    typer.Option("--metadata", help="Of segments: zk://host:port,... or grpc://127.0.0.1:3181."),
]
_Align = Annotated[
    Align,
    typer.Option(
        "--align", help="offset: same offsets; rank: the n-th record of each (replayed topics)."
    ),
]
_Isolation = Annotated[Isolation, typer.Option("--isolation", help="Which records are read.")]
_Common = Annotated[
    bool,
    typer.Option("--common", help="Only what lies in the offsets of both sides must be on both."),
]
_AllowGaps = Annotated[
    bool,
    typer.Option("--allow-gaps", help="Offsets without a record are fine: transactions make them."),
]
_StartTime = Annotated[
    str, typer.Option("--start-time", help="Only records from then on: ISO time, or 2h ago.")
]
_EndTime = Annotated[str, typer.Option("--end-time", help="Only records before then.")]
_LeftOffsets = Annotated[
    str,
    typer.Option("--left-offsets", help='Only these of the left: {"topic":{"0":[first,end]}}.'),
]
_RightOffsets = Annotated[str, typer.Option("--right-offsets", help="The same of the right.")]
_Examples = Annotated[
    int, typer.Option("--examples", min=0, max=1000, help="How many differences are shown.")
]


def audit(
    left: _Left,
    right: _Right,
    align: _Align = Align.offset,
    common: _Common = False,
    allow_gaps: _AllowGaps = False,
    start_time: _StartTime = "",
    end_time: _EndTime = "",
    left_offsets: _LeftOffsets = "",
    right_offsets: _RightOffsets = "",
    examples: _Examples = 10,
    isolation: _Isolation = Isolation.read_committed,
    metadata: _Metadata = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    right_bootstrap: _RightBootstrap = "",
    master: Master = "",
    conf: Conf = None,
    output: Output = Format.table,
) -> None:
    """Compare two of topic, segments and archive; ends with 1 when records are LOST or differ."""
    try:
        sources = parse_source(left), parse_source(right)
        wanted = AuditRequest(
            align,
            examples,
            common,
            allow_gaps,
            TimeRange(_moment("--start-time", start_time), _moment("--end-time", end_time)),
            _offsets("--left-offsets", left_offsets),
            _offsets("--right-offsets", right_offsets),
        )
    except JobError as error:
        usage(str(error), output)
    access = SourceAccess(bootstrap, metadata, isolation)
    others = access._replace(bootstrap=right_bootstrap or bootstrap)

    def work(spark: SparkSession) -> AuditReport:
        with _progress() as on_step:
            on_step("asking what there is")
            sides = open_sides(spark, *sources, access, others)
            return compared(spark, *sides, wanted, on_step)

    report = run_job("audit", master, conf, output, work)
    emit(as_json(as_data(report)) if output is Format.json else as_text(report))
    if report.differences:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _progress() -> Generator[Step]:
    """What is being done, on stderr when somebody looks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


def _moment(option: str, word: str) -> int | None:
    if not word:
        return None
    try:
        return read_moment(word, SystemClock().now_ms())
    except ValueError as error:
        raise JobError(f"{option}: {error}", "USAGE") from None


def _offsets(option: str, text: str) -> dict[TopicPartition, OffsetBounds] | None:
    """{"topic":{"0":[first,end]}}; None for nothing."""
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
