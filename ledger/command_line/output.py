"""What commands print: tables for people, JSON and CSV for programs, one line for a failure."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NoReturn, Protocol, TypeVar, cast

import click

from ledger.command_line.exit_codes import EXIT_USAGE
from ledger.command_line.failure import print_failure
from ledger.command_line.program import Value, nearest, option, program_name
from ledger.command_line.progress import be_quiet
from ledger.command_line.shape import Column, Shape, prints
from ledger.command_line.table import Look, draw_fields, draw_table
from ledger.command_line.terminal import (
    Color,
    columns,
    is_terminal,
    wants_color,
    write_stderr,
)
from ledger.command_line.units import member
from ledger.escapes import escape_json, escape_line, escape_lines

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]
_KIB = 1024
_CSV_QUOTED = frozenset(',"\r\n')


class Format(StrEnum):
    """The form in which a command prints its result."""

    table = "table"
    wide = "wide"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"

    @property
    def is_json(self) -> bool:
        """Whether failures, too, are printed as JSON."""
        return self in (Format.json, Format.jsonl)


class FailureForm(Protocol):
    """What decides whether a failure is printed as text or as JSON."""

    @property
    def is_json(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Output:
    """How a command prints its result: what its user asked for, and the shape of the result."""

    form: Format
    shape: Shape
    chosen: tuple[str, ...] = ()  # keys of columns; empty: all that the form has
    header: bool = True
    color: Color = Color.auto
    quiet: bool = False

    @property
    def is_json(self) -> bool:
        return self.form.is_json

    @property
    def is_table(self) -> bool:
        """Whether people read the result."""
        return self.form in (Format.table, Format.wide)

    @property
    def framed(self) -> bool:
        """Whether there is text around the rows; programs, which choose columns, want none."""
        return self.is_table and self.header and not self.chosen

    def of(self, shape: Shape) -> Output:
        """Return this output for a value of another shape of the command.

        Ends the command as wrongly used if the shape lacks a chosen column, so call it before any
        request.
        """
        self.require_columns(shape)
        return replace(self, shape=shape)

    def require_columns(self, *shapes: Shape) -> None:
        """End the command as wrongly used unless one of these shapes has all chosen columns."""
        lacks = [[key for key in self.chosen if key not in self._keys(each)] for each in shapes]
        if [] in lacks:
            return
        found = min(lacks, key=len)
        key, shape = found[0], shapes[lacks.index(found)]
        keys = ", ".join(self._keys(shape))
        if any(each.key == key for each in shape.keyed):
            usage(f"--columns {key}: only -o json and jsonl have {key!r}; a table has {keys}", self)
        usage(f"--columns {key}: this view has no column {key!r}; it has {keys}", self)

    def _keys(self, shape: Shape) -> Sequence[str]:
        return [each.key for each in (shape.keyed if self.is_json else shape.cells)]

    def show(
        self,
        value: Any,
        *,
        before: str = "",
        after: str = "",
        shape: Shape | None = None,
        width_min: int = 0,
        blank_first: bool = False,
    ) -> None:
        """Print rows, an object with rows, or an object.

        `before` and `after` are lines around a table; with `blank_first` an empty line comes first.
        No column of a table is narrower than `width_min` characters, if a terminal has the room.
        """
        shape = self.shape if shape is None else shape
        self.require_columns(shape)
        if not self.is_table:
            self._show_data(value, shape)
            return
        if blank_first and self.framed:
            emit("")
        if before and self.framed:
            emit(before)
        if text := self._drawn(value, shape, width_min):
            print(text, flush=True)
        if after and self.framed:
            emit(after)

    def done(self, value: Row, sentence: str, *, shape: Shape | None = None) -> None:
        """Print an object, for people as this sentence."""
        if self.is_table and not self.chosen:
            emit(sentence)
        else:
            self.show(value, shape=shape)

    def _drawn(self, value: Any, shape: Shape, width_min: int) -> str:
        """Return the table of the rows; of an object alone, a line for each field."""
        rows = _rows(value, shape)
        look = Look(self.header, width_min, columns(sys.stdout), wants_color(self.color))
        cells = self._columns(shape, rows)
        if shape.columns or self.chosen:
            return draw_table(cells, rows, look)
        return draw_fields(cells, rows[0], look)

    def _columns(self, shape: Shape, rows: Sequence[Row]) -> Sequence[Column]:
        if self.chosen:
            return self._chosen_cells(shape)
        return [
            each
            for each in shape.cells
            if (self.form is Format.wide or not each.wide)
            and not (each.if_any and all(row.get(each.key) is None for row in rows))
        ]

    def _show_data(self, value: Any, shape: Shape) -> None:
        if self.form is Format.csv:
            _write_csv(self._chosen_cells(shape), _rows(value, shape), header=self.header)
            return
        value = self._narrowed(value, shape)
        if self.form is Format.json and not shape.lines:
            emit_json(value)
            return
        lines: Sequence[Any] = _rows(value, shape) if not shape.rows else [value]
        for each in lines:
            emit_json(each, indent=None)

    def _chosen_cells(self, shape: Shape) -> Sequence[Column]:
        by_key = {each.key: each for each in shape.cells}
        return [by_key[key] for key in self.chosen or by_key]

    def _narrowed(self, value: Any, shape: Shape) -> Any:
        """Return the value with the chosen keys of its rows only."""
        if not self.chosen:
            return value
        if shape.rows:
            rows = [self._chosen_keys(row) for row in value[shape.rows]]
            return {**value, shape.rows: rows}
        if isinstance(value, Mapping):
            return self._chosen_keys(cast("Row", value))
        return [self._chosen_keys(row) for row in value]

    def _chosen_keys(self, row: Row) -> Row:
        return {key: row[key] for key in self.chosen if key in row}


def output_option(*shapes: Shape) -> Callable[[F], F]:
    """Add `--output`, `--columns`, `--no-header`, `--color` and `--quiet` to a command.

    The command gets them as one argument `output`. It prints the first of these shapes unless it
    says otherwise.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*arguments: Any, **values: Any) -> Any:
            output = Output(
                values.pop("output"),
                shapes[0],
                values.pop("chosen"),
                not values.pop("no_header"),
                values.pop("color"),
                values.pop("quiet"),
            )
            output.require_columns(*shapes)
            be_quiet(output.quiet)
            return function(*arguments, output=output, **values)

        found: Any = command
        for add in reversed(_output_options(shapes)):
            found = add(found)
        return prints(*shapes)(found)

    return decorate


def _output_options(shapes: Sequence[Shape]) -> list[Callable[[Any], Any]]:
    return [
        option(
            "--output",
            "-o",
            type=Value("format", member(Format)),
            default=Format.table,
            help="Form of the result: table, wide, json, jsonl or csv.",
        ),
        option(
            "--columns",
            "chosen",
            type=Value("names", _columns_of(shapes)),
            default=(),
            shown="all",
            help="Columns to print, separated by commas, in this order.",
        ),
        option("--no-header", is_flag=True, help="Print no headings."),
        option(
            "--color",
            type=Value("when", member(Color)),
            default=Color.auto,
            help="Print in colour: auto (on a terminal), always or never.",
        ),
        option("--quiet", "-q", is_flag=True, help="Show no progress on stderr."),
    ]


def _columns_of(shapes: Sequence[Shape]) -> Callable[[object], tuple[str, ...]]:
    known = {each.key for shape in shapes for each in shape.keyed}
    by_heading = {_name(each.title): each.key for shape in shapes for each in shape.keyed}
    by_name = by_heading | {key: key for key in known}

    def parse(value: object) -> tuple[str, ...]:
        words = [word.strip() for word in str(value).split(",")]
        for word in words:
            if (name := _name(word)) not in by_name:
                hint = nearest(name, sorted(by_name)) or f"; there are {', '.join(sorted(known))}"
                raise ValueError(f"there is no column {word!r}{hint}")
        return tuple(dict.fromkeys(by_name[_name(word)] for word in words))

    return parse


def _name(word: str) -> str:
    """Return a key, or a heading, in the form of a key."""
    return word.lower().replace("-", "_")


def _rows(value: Any, shape: Shape) -> Sequence[Row]:
    if shape.rows:
        return value[shape.rows]
    return [cast("Row", value)] if isinstance(value, Mapping) else value


def _write_csv(cells: Sequence[Column], rows: Sequence[Row], *, header: bool) -> None:
    """Print RFC 4180 with LF: null is empty, what has parts is JSON.

    Text is exact in a pipe or file; on a terminal it is escaped.
    """
    shown = escape_line if is_terminal(sys.stdout) else str
    lines = [[each.key for each in cells]] if header else []
    lines += [[shown(_csv_text(row.get(each.key))) for each in cells] for row in rows]
    print("".join(map(_csv_line, lines)), end="", flush=True)


def _csv_line(texts: Sequence[str]) -> str:
    if len(texts) == 1 and not texts[0]:
        return '""\n'  # readers skip an empty line
    return ",".join(map(_csv_cell, texts)) + "\n"


def _csv_cell(text: str) -> str:
    # The module csv of Python 3.11 does not quote a CR, on which other readers end a line.
    if _CSV_QUOTED.isdisjoint(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return as_json(value, indent=None)
    return str(value)


def emit(text: str) -> None:
    """Print to stdout. A closed pipe raises here, not when the process ends."""
    print(escape_lines(text), flush=True)


def emit_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON, indented unless `indent` is None."""
    print(as_json(value, indent), flush=True)


def note(text: str) -> None:
    """Print one line beside the result, to stderr."""
    write_stderr(f"{escape_line(text)}\n")


def as_json(value: Any, indent: int | None = 2) -> str:
    """Return the value as JSON, indented unless `indent` is None."""
    import json

    return escape_json(json.dumps(value, ensure_ascii=False, indent=indent))


def headings(*keys: str) -> dict[str, str]:
    """Return columns with their headings in Kafka's form: `log_end_offset` is LOG-END-OFFSET."""
    return {key: key.upper().replace("_", "-") for key in keys}


def show_bytes(value: int | None) -> str | None:
    """Return a number of bytes for people, such as 1.5MiB. None stays None."""
    if value is None or value < _KIB:
        return None if value is None else f"{value}B"
    scaled = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        scaled /= _KIB
        if scaled < _KIB - 0.05:  # else it would be rounded to 1024.0
            return f"{scaled:.1f}{unit}"
    return f"{scaled / _KIB:.1f}TiB"


# failures


def fail(exit_code: int, message: str, code: str, output: FailureForm) -> NoReturn:
    """End the command with one line on stderr."""
    program = program_name(click.get_current_context(silent=True))
    print_failure(program, message, code, as_json=output.is_json)
    raise click.exceptions.Exit(exit_code)


def usage(message: str, output: FailureForm) -> NoReturn:
    """End the command as wrongly used."""
    fail(EXIT_USAGE, message, "USAGE", output)
