"""What commands print: aligned columns for people, JSON for programs, one line for a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import click

from ledger.command_line.exit_codes import EXIT_USAGE
from ledger.command_line.failure import print_failure
from ledger.command_line.program import Value, option, program_name
from ledger.command_line.units import member
from ledger.escapes import escape_json, escape_line, escape_lines

F = TypeVar("F", bound=Callable[..., Any])
_BAR_WIDTH = 30  # characters
_KIB = 1024


class Format(StrEnum):
    """The form in which a command prints its result."""

    table = "table"
    json = "json"


def output_option(function: F) -> F:
    """Add `--output` to a command."""
    return option(
        "--output",
        "-o",
        type=Value("format", member(Format)),
        default="table",
        help="Form of the result: table or json.",
    )(function)


def emit(text: str) -> None:
    """Print to stdout. A closed pipe raises here, not when the process ends."""
    print(escape_lines(text), flush=True)


def note(text: str) -> None:
    """Print one line beside the result, to stderr."""
    print(escape_line(text), file=sys.stderr)


def as_json(value: Any, indent: int | None = 2) -> str:
    """Return the value as JSON, indented unless `indent` is None."""
    import json

    return escape_json(json.dumps(value, ensure_ascii=False, indent=indent))


def headings(*keys: str) -> dict[str, str]:
    """Return columns with their headings in Kafka's form: `log_end_offset` is LOG-END-OFFSET."""
    return {key: key.upper().replace("_", "-") for key in keys}


def as_table(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], width_min: int = 0
) -> str:
    """Return the rows below the headings of `columns`, which maps keys to headings.

    A value that is missing is printed as `-`. No column is narrower than `width_min` characters.
    Numbers are aligned to the left, as in Kafka's own tools.
    """
    lines = [list(columns.values())]
    lines += [[_cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(width_min, *(len(line[at]) for line in lines)) for at in range(len(columns))]
    return "\n".join(
        " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape_line(str(value))


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


def fail(exit_code: int, message: str, code: str, output: Format) -> NoReturn:
    """End the command with one line on stderr."""
    program = program_name(click.get_current_context(silent=True))
    print_failure(program, message, code, as_json=output is Format.json)
    raise click.exceptions.Exit(exit_code)


def usage(message: str, output: Format) -> NoReturn:
    """End the command as wrongly used."""
    fail(EXIT_USAGE, message, "USAGE", output)


# progress


class ProgressLine:
    """A line on stderr that is written over; nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._width = 0  # characters of the line as it is now; 0 if there is none

    def bar(self, done: int, whole: int, unit: str) -> None:
        """Show that `done` of `whole` units are done."""
        share = min(1.0, done / whole) if whole else 1.0
        filled = int(_BAR_WIDTH * share)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        self.text(f"[{bar}] {share:4.0%}  {done} of {whole} {unit}")

    def text(self, text: str) -> None:
        """Show this text."""
        if self._shown:
            text = escape_line(text)
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def end(self) -> None:
        """Leave the line as it is; what is printed next begins below it."""
        if self._width:
            print(file=sys.stderr, flush=True)
            self._width = 0

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            self.text("")
            print("\r", end="", file=sys.stderr, flush=True)
            self._width = 0
