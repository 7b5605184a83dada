"""The command `gateway topic produce`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gateway.admin import record_shapes
from gateway.admin.avro_options import avro_target, target_options
from gateway.admin.consume_cli import topic
from gateway.admin.requests import ask, bootstrap_option, fail_request
from ledger.command_line import units
from ledger.command_line.exit_codes import (
    EXIT_CLOSED_PIPE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
)
from ledger.command_line.output import (
    Format,
    as_json,
    emit,
    fail,
    note,
    usage,
)
from ledger.command_line.program import (
    Flags,
    Value,
    close_stdout,
    flags_given,
    option,
    program_name,
)
from ledger.command_line.progress import ProgressLine
from ledger.command_line.shape import prints

if TYPE_CHECKING:
    from gateway.admin.avro_input import AvroTarget
    from gateway.admin.produce import Outcome, Plan
    from gateway.admin.record_writer import Acknowledged, Totals

__all__ = ["topic"]

_FORMS = ("lines", "jsonl", "csv", "avro", "raw")
_STDIN = "-"
_SHOWN_MAX = 20  # bad lines that --skip-bad reports one by one
_PROGRESS_S = 0.2
_RATE_MAX = 10_000_000


class RecordFormat(StrEnum):
    """The form in which a command prints what it wrote."""

    table = "table"
    json = "json"
    jsonl = "jsonl"


def _timestamp(word: object) -> int:
    from gateway.admin.record_input import read_timestamp

    return read_timestamp(str(word))


@topic.command("produce")
@click.argument("name", metavar="TOPIC", help="Name of the topic.")
@click.argument(
    "files",
    metavar="[FILE]...",
    nargs=-1,
    help="Files to read, one after the other; - is stdin, as is no FILE at all.",
)
@option(
    "--input",
    "-i",
    "form",
    type=Value("form", units.one_of(*_FORMS)),
    default="lines",
    help="Form of the input: lines; jsonl, as `topic consume -o jsonl` prints; csv, whose header "
    "row names key, value, partition, timestamp, header.NAME; avro, a value of JSON on each line, "
    "or an Avro file; or raw, one record per FILE.",
)
@target_options
@option(
    "--key-separator",
    "-K",
    "separator",
    metavar="TEXT",
    help="Split a line at the first TEXT into key and value; \\t is a tab.",
)
@option("--key", metavar="TEXT", help="Key of the records that have none.")
@option(
    "--header",
    "-H",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Header to add to each record; repeat for several.",
)
@option(
    "--partition",
    "-p",
    type=Value("partition", units.whole(0, units.INT32_MAX)),
    shown="by key, as Kafka's clients choose it",
    help="Partition of the records that name none.",
)
@option(
    "--timestamp",
    type=Value("time", _timestamp),
    shown="now",
    help="Time of the records that have none: milliseconds since 1970, or 2026-05-01T12:00:00Z.",
)
@option(
    "--tombstone",
    is_flag=True,
    help="Write null values: each line is a key; in jsonl and csv, values are ignored. With --key "
    "and no FILE, write one such record and read nothing.",
)
@option(
    "--compression",
    type=Value("codec", units.one_of("none", "gzip", "snappy", "lz4", "zstd")),
    default="none",
    help="Codec: none, gzip, snappy, lz4 or zstd.",
)
@option(
    "--acks",
    type=Value("acks", units.one_of("all", "1", "0")),
    default="all",
    help="Acknowledgements to wait for: all, 1 or 0. With 0, records may be lost; with 1, a crash "
    "of the leader may lose them. With both, a retry may write a record twice.",
)
@option(
    "--rate",
    type=Value("count", units.whole(1, _RATE_MAX)),
    shown="no limit",
    help="Most records per second.",
)
@option(
    "--timeout",
    type=Value("duration", units.duration(0.1, 86_400.0)),
    default="2m",
    help="How long a record may wait for its acknowledgement.",
)
@option(
    "--skip-bad",
    is_flag=True,
    help="Report lines that cannot be written, and go on; the exit code is then 0.",
)
@option("--quiet", "-q", is_flag=True, help="Show no progress on a terminal.")
@bootstrap_option
@option(
    "--output",
    "-o",
    type=Value("format", units.member(RecordFormat)),
    default="table",
    help="Form of the result: table, json (a summary), or jsonl (an object per record).",
)
@prints(record_shapes.PRODUCED, record_shapes.ACKNOWLEDGED)
def _produce(**_: Any) -> int:
    """Write records to a topic, from files or stdin.

    A topic that does not exist is created if the server creates topics by itself, as `dev` does.
    On a terminal, each line is answered with its offset. A line that is no record ends the command
    with 65, once all records before it are written.
    """
    flags = flags_given()
    output = Format.table if flags.output is RecordFormat.table else Format.json
    _check(flags, output)
    plan = _plan(flags, output, avro_target(flags, output))

    from gateway.admin.produce import produce
    from gateway.admin.record_writer import Totals

    totals = Totals()
    report = _Report(flags, plan)
    try:
        outcome = ask(
            flags.bootstrap,
            output,
            lambda client: produce(client, plan, totals, report.watch()),
            shows_wait=False,
        )
    except click.exceptions.Exit as ended:  # a second Ctrl-C, or a failure before the first record
        if ended.exit_code == EXIT_INTERRUPTED and totals.started:
            report.interrupted(totals)
        raise
    return report.end(outcome, totals, output)


def _check(flags: Flags, output: Format) -> None:
    """End the command if options do not fit each other, or a file cannot be read."""
    if not flags.name:
        usage("the name of the topic is empty", output)
    if sys.stdout is None and flags.output is not RecordFormat.table:
        usage(f"stdout is closed, and --output {flags.output} prints to it", output)
    if flags.separator is not None:
        if flags.form != "lines":
            usage(f"--key-separator is for lines, and --input is {flags.form}", output)
        if flags.key is not None or flags.tombstone:
            other = "--tombstone" if flags.tombstone else "--key"
            usage(f"--key-separator and {other}: pass only one of them", output)
        if not flags.separator:
            usage("--key-separator must not be empty", output)
    if flags.tombstone and flags.form == "raw":
        usage("--tombstone and --input raw: a tombstone has no value", output)
    if flags.tombstone and flags.form == "lines" and flags.key is not None and flags.files:
        usage("--tombstone: pass --key, or a FILE whose lines are the keys", output)
    _check_files(flags, output)


def _check_files(flags: Flags, output: Format) -> None:
    if sys.stdin is None and _STDIN in (flags.files or (_STDIN,)):
        usage("stdin is closed; name a FILE", output)
    for path in flags.files:
        reason = None if path == _STDIN else _unreadable(path)
        if reason is not None:
            usage(f"{path}: {reason}", output)


def _unreadable(path: str) -> str | None:
    """Return the system's reason for which the file cannot be read."""
    import errno
    from pathlib import Path

    try:
        if Path(path).stat() and Path(path).is_dir():
            return os.strerror(errno.EISDIR)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def _plan(flags: Flags, output: Format, avro: AvroTarget | None) -> Plan:
    from gateway.admin.produce import Plan
    from gateway.admin.record_input import Defaults, InputFormat
    from gateway.admin.record_json import Record

    key = None if flags.key is None else flags.key.encode()
    headers = [_header(word, output) for word in flags.headers]
    alone = flags.tombstone and key is not None and flags.form == "lines"
    single = Record(None, key, headers, None, flags.partition, None, flags.timestamp)
    return Plan(
        topic=flags.name,
        files=flags.files or [_STDIN],
        form=InputFormat(flags.form),
        defaults=Defaults(
            key=key,
            partition=flags.partition,
            timestamp=flags.timestamp,
            headers=headers,
            separator=(flags.separator or "").replace("\\t", "\t").encode(),
            tombstone=flags.tombstone,
        ),
        compression=None if flags.compression == "none" else flags.compression,
        acks="all" if flags.acks == "all" else int(flags.acks),
        rate=flags.rate,
        skip_bad=flags.skip_bad,
        timeout_s=flags.timeout,
        single=single if alone else None,
        avro=avro,
    )


def _header(word: str, output: Format) -> tuple[str, bytes]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        usage(f"--header {word!r} is not name=value, for example trace=a1", output)
    return name, value.encode()


class _Report:
    """What the command prints while it works and at its end."""

    def __init__(self, flags: Flags, plan: Plan) -> None:
        self._plan = plan
        # Without acknowledgements, the server has confirmed nothing.
        self._done, self._shown = ("sent", "sent") if plan.acks == 0 else ("wrote", "written")
        self._format: RecordFormat = flags.output
        self._program = program_name(click.get_current_context())
        reads_terminal = plan.single is None and _STDIN in plan.files and _is_terminal(sys.stdin)
        # Whether each line of a person is answered.
        self._answers = (
            self._format is RecordFormat.table and reads_terminal and _is_terminal(sys.stdout)
        )
        shows = not (flags.quiet or reads_terminal)
        if self._format is RecordFormat.jsonl and _is_terminal(sys.stdout):
            shows = False
        # The line of progress; None if there is none.
        self._progress = ProgressLine() if shows else None
        self._shown_s = time.monotonic()
        self._records = 0
        self._bad_lines = 0

    def watch(self) -> Any:
        from gateway.admin.record_writer import Watch

        timestamps = self._format is RecordFormat.jsonl
        return Watch(self._on_acknowledged, self._on_skipped, self._on_noted, timestamps)

    def _on_acknowledged(self, found: Acknowledged) -> None:
        self._records += found.records
        if self._answers:
            emit("\n".join(_answers(self._plan.topic, found)))
        elif self._format is RecordFormat.jsonl:
            emit("\n".join(_objects(self._plan.topic, found)))
        now_s = time.monotonic()
        if self._progress is not None and now_s > self._shown_s + _PROGRESS_S:
            self._shown_s = now_s
            self._progress.text(f"{self._records} records {self._shown}")

    def _on_skipped(self, message: str) -> None:
        self._bad_lines += 1
        if self._bad_lines <= _SHOWN_MAX:
            self._clear()
            with suppress(OSError):  # stderr is closed or full, which is no reason to end
                note(f"{self._program}: {message}; skipped")

    def _on_noted(self, message: str) -> None:
        with suppress(OSError):
            note(f"{self._program}: {message}")

    def _clear(self) -> None:
        if self._progress is not None:
            self._progress.clear()

    def interrupted(self, totals: Totals) -> None:
        """Print to stderr what was written before Ctrl-C."""
        self._clear()
        if self._format is RecordFormat.table:
            note(f"{self._summary(totals)}{_unknown(totals)}")
        else:
            note(as_json(self._object(totals), indent=None))

    def end(self, outcome: Outcome, totals: Totals, output: Format) -> int:
        """Print the result, and the error if there is one."""
        self._clear()
        if self._bad_lines > _SHOWN_MAX:
            note(f"{self._program}: {self._bad_lines - _SHOWN_MAX} more bad lines were skipped")
        if outcome.interrupted:
            if totals.started:
                self.interrupted(totals)
            return EXIT_TERMINATED if outcome.terminated else EXIT_INTERRUPTED
        try:
            if isinstance(outcome.error, OSError):
                raise outcome.error
            self._print_summary(totals)
        except BrokenPipeError:
            close_stdout()
            return EXIT_CLOSED_PIPE
        if outcome.error is not None:
            self._fail(outcome.error, totals, output)
        return EXIT_OK

    def _print_summary(self, totals: Totals) -> None:
        if self._format is RecordFormat.json:
            emit(as_json(self._object(totals)))
        elif self._format is RecordFormat.table and not self._answers:
            emit(self._summary(totals))

    def _fail(self, error: Exception, totals: Totals, output: Format) -> NoReturn:
        from gateway.admin.bad_input import BadInput

        unknown = _unknown(totals)
        if isinstance(error, BadInput):
            fail(error.exit_code, f"{error}{unknown}", error.code, output)
        fail_request(error, output, unknown)

    def _summary(self, totals: Totals) -> str:
        text = f"{self._done} {_count(totals.records, 'record')} to {self._plan.topic}"
        return text + (f", skipped {_count(totals.skipped, 'bad line')}" if totals.skipped else "")

    def _object(self, totals: Totals) -> dict[str, Any]:
        return {
            "topic": self._plan.topic,
            "records": totals.records,
            "bytes": totals.bytes,
            "skipped": totals.skipped,
            "unacknowledged": totals.unacknowledged,
            "partitions": {
                str(index): {
                    "first_offset": spread.first_offset,
                    "last_offset": spread.last_offset,
                    "records": spread.records,
                }
                for index, spread in sorted(totals.partitions.items())
            },
        }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _unknown(totals: Totals) -> str:
    if not totals.unacknowledged:
        return ""
    return f"; {_count(totals.unacknowledged, 'record')} without acknowledgement may be written"


def _answers(name: str, found: Acknowledged) -> list[str]:
    place = f"{name}/{found.partition}"
    if found.offset is None:
        return [f"{place} sent"] * found.records
    return [f"{place} offset {found.offset + at}" for at in range(found.records)]


def _objects(name: str, found: Acknowledged) -> list[str]:
    return [
        as_json(
            {
                "topic": name,
                "partition": found.partition,
                "offset": None if found.offset is None else found.offset + at,
                "timestamp": timestamp,
            },
            indent=None,
        )
        for at, timestamp in enumerate(found.timestamps)
    ]


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
