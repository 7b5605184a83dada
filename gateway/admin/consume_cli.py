"""The command `gateway topic consume`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gateway.admin import record_shapes
from gateway.admin.avro_options import avro_values, schema_registry_option
from gateway.admin.requests import ask, bootstrap_option
from gateway.admin.topic_cleaning_cli import topic
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CLOSED_PIPE, EXIT_INTERRUPTED
from ledger.command_line.output import Format, fail, note, usage
from ledger.command_line.program import Value, option
from ledger.command_line.shape import prints

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.consume import Printer, Wanted
    from gateway.admin.consume_avro import AvroValues
    from gateway.admin.consume_filters import Filter
    from gateway.admin.consume_output import Printed
    from gateway.admin.consume_stdout import Stdout
    from gateway.admin.consume_where import Where

__all__ = ["topic"]

_OUTPUTS = ("raw", "table", "jsonl", "json", "csv")
_JSON_OUTPUTS = ("jsonl", "json")
_VALUES = ("text", "json", "hex", "base64", "avro", "auto")
_ISOLATION = ("read_committed", "read_uncommitted")
_RETRY_S_MAX = 86_400.0
_START, _END = "start", "end"


@topic.command("consume")
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, help="Topics, or /regex/ (RE2)."
)
@option("--partition", "-p", "partitions", metavar="LIST", help="Partitions, such as 0,2-4.")
@option(
    "--from",
    "start",
    metavar="PLACE",
    default=_START,
    help="First record: start, end, an offset, -N before the end, +N after the start, "
    "@2026-05-01T12:00 (UTC) or @-1h.",
)
@option(
    "--to",
    "stop",
    metavar="PLACE",
    default=_END,
    help="Stop before this place; it takes the same forms as --from.",
)
@option("--follow", is_flag=True, help="Go on at the end, and print new records.")
@option(
    "--count",
    "-n",
    "most",
    type=Value("count", units.whole(1, units.INT64_MAX)),
    help="Stop after this many printed records.",
)
@option("--group", "-g", metavar="GROUP", help="Read as a member of a group, and commit.")
@option(
    "--isolation",
    type=Value("level", units.one_of(*_ISOLATION)),
    default=_ISOLATION[0],
    help="Transactions: read_committed or read_uncommitted.",
)
@option("--key", metavar="GLOB", help="Only records whose key matches, such as 'ann*'.")
@option("--grep", metavar="REGEX", help="Only records whose value has a match (RE2).")
@option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Only records with this header, or with NAME; repeat for several.",
)
@option(
    "--where",
    metavar="CEL",
    help="Only records for which an expression is true, such as 'value.total > 100'. It has key, "
    "value, headers, topic, partition, offset, timestamp, time, key_size and value_size.",
)
@option(
    "--value",
    "shown",
    type=Value("form", units.one_of(*_VALUES)),
    default="text",
    help="How to print values: text, json, hex, base64, avro (as JSON), or auto: Avro if a "
    "registry is named and has the schema, else text, or base64 where bytes are not UTF-8.",
)
@option("--schema", metavar="FILE", help="Schema of values in Avro (.avsc).")
@schema_registry_option
@option(
    "--output",
    "-o",
    type=Value("format", units.one_of(*_OUTPUTS)),
    default="raw",
    help="Form of the records: raw, table, jsonl, json or csv.",
)
@option(
    "--format",
    "-f",
    "template",
    metavar="FORMAT",
    help="Form of a record, as kcat's: '%o %k %s\\n', or {headers[NAME]}, {value.order.id}.",
)
@option("--no-header", is_flag=True, help="Print no first row with -o csv.")
@option(
    "--retry",
    type=Value("duration", units.duration(0, _RETRY_S_MAX)),
    default="20s",
    help="How long to look for a server or a leader that went away.",
)
@option("--quiet", "-q", is_flag=True, help="Show no progress on stderr.")
@bootstrap_option
@prints(record_shapes.CONSUMED)
def _consume(bootstrap: str, topics: Sequence[str], **words: Any) -> int:
    """Print the records of topics.

    Stops at the end that each partition has when the command starts, unless --follow is given.
    """
    flags = _Flags(topics, **words)
    form = Format.json if flags.output in _JSON_OUTPUTS else Format.table
    if sys.stdout is None:
        usage("stdout is closed, and records are printed to it", form)
    _check_combination(flags, form)
    wanted = _wanted(flags, form)

    if flags.start == _END and not flags.follow and not flags.quiet:
        note("--from end without --follow ends at once; pass --follow to wait for new records")

    values = avro_values(flags, form)
    where = _where(flags.where, form)
    try:
        return _print_records(bootstrap, flags, wanted, form, where, values)
    finally:
        if where is not None:
            where.close()


def _print_records(
    bootstrap: str,
    flags: _Flags,
    wanted: Wanted,
    form: Format,
    where: Where | None,
    values: AvroValues | None,
) -> int:
    from gateway.admin.bad_input import BadInput
    from gateway.admin.consume import Printer
    from gateway.admin.consume_stdout import Stdout

    out = Stdout()
    decode = None if values is None else values.decode
    printed, filters = _printed(flags, out, form), _filters(flags, form)
    printer = Printer(out, printed, filters, flags.most, where, decode)
    try:
        ask(bootstrap, form, _work(flags, wanted, printer), shows_wait=False)
    except BrokenPipeError:
        return EXIT_CLOSED_PIPE
    except click.exceptions.Exit as ended:
        if ended.exit_code == EXIT_INTERRUPTED:
            note(f"read {printer.read} records of {', '.join(flags.topics)}")
            _note_failures(where)
        raise
    except BadInput as error:
        fail(error.exit_code, str(error), error.code, form)
    _note_failures(where)
    return 0


def _where(expression: str | None, form: Format) -> Where | None:
    if expression is None:
        return None
    from gateway.admin.consume_where import CelMissing, InvalidExpression, Where

    try:
        return Where(expression)
    except InvalidExpression as error:
        usage(f"--where: {error}", form)
    except CelMissing as error:
        usage(str(error), form)


def _note_failures(where: Where | None) -> None:
    """Report the records for which --where failed, which would be missed in silence."""
    if where is not None and where.failed:
        note(where.summary())


class _Flags(NamedTuple):
    """The options of the command."""

    topics: Sequence[str]
    partitions: str | None
    start: str
    stop: str
    follow: bool
    most: int | None
    group: str | None
    isolation: str
    key: str | None
    grep: str | None
    headers: Sequence[str]
    where: str | None
    shown: str
    schema: str | None
    schema_registry: str | None
    output: str
    template: str | None
    no_header: bool
    retry: float
    quiet: bool

    @property
    def committed(self) -> bool:
        return self.isolation == _ISOLATION[0]


def _check_combination(flags: _Flags, form: Format) -> None:
    given = {
        "--from": flags.start != _START,
        "--to": flags.stop != _END,
        "--partition": flags.partitions is not None,
    }
    if flags.group is not None:
        for name, is_given in given.items():
            if is_given:
                usage(f"{name} and --group exclude each other: a group has its own offsets", form)
        if not flags.group:
            usage("--group must not be empty", form)
    if flags.follow and given["--to"]:
        usage("--follow and --to exclude each other", form)
    if flags.template is not None and flags.output != "raw":
        usage(f"--format and --output {flags.output} exclude each other", form)
    if flags.no_header and flags.output != "csv":
        usage("--no-header needs --output csv", form)
    if flags.shown not in ("text", "avro") and flags.output in _JSON_OUTPUTS:
        message = f"--value {flags.shown} and --output {flags.output} exclude each other: JSON"
        usage(f"{message} has text, or base64 where bytes are not UTF-8", form)


def _wanted(flags: _Flags, form: Format) -> Wanted:
    from gateway.admin.consume import Wanted
    from gateway.admin.consume_bounds import is_behind, read_bound, read_partitions
    from gateway.admin.consume_filters import check_topic

    for topic_or_pattern in flags.topics:
        _read("TOPIC", topic_or_pattern, check_topic, form)
    now_ms = round(time.time() * 1000)
    partitions = flags.partitions
    start = _read("--from", flags.start, lambda word: read_bound(word, now_ms), form)
    stop = _read("--to", flags.stop, lambda word: read_bound(word, now_ms), form)
    if is_behind(start, stop):
        usage(f"--from {flags.start} is behind --to {flags.stop}", form)
    return Wanted(
        flags.topics,
        () if partitions is None else _read("--partition", partitions, read_partitions, form),
        start,
        stop,
        flags.follow,
        flags.committed,
        flags.retry,
    )


def _read(name: str, word: str, parse: Callable[[str], Any], form: Format) -> Any:
    try:
        return parse(word)
    except ValueError as error:
        usage(f"{name} {word}: {error}", form)


def _filters(flags: _Flags, form: Format) -> list[Filter]:
    from gateway.admin.consume_filters import by_header, by_key, by_value

    filters: list[Filter] = []
    if flags.key is not None:
        filters.append(by_key(flags.key))
    filters += [_read("--header", word, by_header, form) for word in flags.headers]
    if flags.grep is not None:
        filters.append(_read("--grep", flags.grep, by_value, form))
    return filters


def _printed(flags: _Flags, out: Stdout, form: Format) -> Printed:
    from gateway.admin import consume_output
    from gateway.admin.consume_format import compile_format
    from gateway.admin.consume_values import ValueForm, escaped_text, plain_bytes, value_show

    terminal = out.is_terminal
    form_of_values = ValueForm(flags.shown)
    show = value_show(form_of_values, escaped=terminal)
    if flags.template is not None:
        key = escaped_text if terminal else plain_bytes
        template = flags.template
        formatter = _read("--format", template, lambda text: compile_format(text, show, key), form)
        return consume_output.Printed(formatter)
    if flags.output == "table":
        return consume_output.table(show, flags.topics, out.columns())
    if flags.output == "jsonl":
        return consume_output.json_lines()
    if flags.output == "json":
        return consume_output.json_array()
    if flags.output == "csv":
        return consume_output.csv(form_of_values, header=not flags.no_header, escaped=terminal)
    return consume_output.raw(show, exact=show is plain_bytes)


def _work(flags: _Flags, wanted: Wanted, printer: Printer) -> Callable[[AdminClient], Any]:
    import asyncio

    from gateway.admin.bad_input import BadInput
    from gateway.admin.client import AdminError, Unreachable
    from gateway.admin.consume import consume, progress_shown

    async def read(client: AdminClient) -> None:
        if flags.group is None:
            await consume(client, wanted, printer)
            return
        from gateway.admin.consume_group import consume_as_member

        await consume_as_member(client, flags.group, wanted, printer)

    async def work(client: AdminClient) -> None:
        async with progress_shown(printer, quiet=flags.quiet):
            try:
                with printer.out.ending_with_reader():
                    await read(client)
            except asyncio.CancelledError:
                if printer.out.closed:
                    raise BrokenPipeError from None
                await printer.end_soon()
                raise
            except (AdminError, BadInput, Unreachable):
                await printer.end()
                raise
            await printer.end()

    return work
