"""Aligned columns for people: cut to a terminal's width, and in colour where that is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ledger.command_line.shape import Column, Tone
from ledger.command_line.terminal import cut, text_width
from ledger.escapes import escape_line

_CUT_MIN: Final = 8  # characters that are left of a column that is cut
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Look:
    """How a table is drawn."""

    header: bool = True
    width_min: int = 0  # of each column, if the terminal has the room
    width_max: int | None = None  # of a line; None: there is no limit
    color: bool = False


class _Cell(NamedTuple):
    """A value in a table, and its colour."""

    text: str
    tone: Tone | None = None


def as_table(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], width_min: int = 0
) -> str:
    """Return the rows below the headings of `columns`, which maps keys to headings.

    A value that is missing is printed as `-`. No column is narrower than `width_min` characters.
    Numbers are aligned to the left, as in Kafka's own tools.
    """
    head = [_Cell(title) for title in columns.values()]
    lines = [[_Cell(cell(row.get(key))) for key in columns] for row in rows]
    return _draw(head, lines, Look(width_min=width_min))


def draw_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], look: Look) -> str:
    """Return the rows in these columns, each line at most `look.width_max` wide if possible.

    The longest column is cut first, and each cut ends with an ellipsis. Every character that is
    not printable is escaped, so a row is one line.
    """
    head = [_Cell(each.title) for each in columns]
    return _draw(head, [[_cell_of(each, row) for each in columns] for row in rows], look)


def draw_fields(columns: Sequence[Column], value: Mapping[str, Any], look: Look) -> str:
    """Return the fields of one object, a line for each, as `draw_table` returns rows."""
    head = [_Cell("FIELD"), _Cell("VALUE")]
    return _draw(head, [[_Cell(each.key), _cell_of(each, value)] for each in columns], look)


def cell(value: Any) -> str:
    """Return the text of a value in a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        pairs = [f"{key}={each}" for key, each in value.items()]  # pyright: ignore[reportUnknownVariableType]
        return escape_line(",".join(pairs)) or "-"
    if isinstance(value, (list, tuple)):
        return escape_line(",".join(str(each) for each in value)) or "-"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return escape_line(str(value))


def _cell_of(column: Column, row: Mapping[str, Any]) -> _Cell:
    text = cell(column.text(row))
    return _Cell(text, column.tones.get(text))


def _draw(head: Sequence[_Cell], rows: Sequence[Sequence[_Cell]], look: Look) -> str:
    lines = [head, *rows] if look.header else rows
    if not lines:
        return ""
    widths = _widths(lines, look)
    drawn = [_line(line, widths, look.color) for line in lines]
    if look.header and look.color:
        drawn[0] = _BOLD + drawn[0] + _PLAIN
    return "\n".join(drawn)


def _line(line: Sequence[_Cell], widths: Sequence[int], color: bool) -> str:
    shown: list[str] = []
    for (text, tone), width in zip(line, widths, strict=True):
        text = cut(text, width)
        blank = " " * (width - text_width(text))
        if color and tone is not None:
            text = f"\x1b[{tone.value}m{text}{_PLAIN}"
        shown.append(text + blank)
    return " ".join(shown).rstrip()


def _widths(lines: Sequence[Sequence[_Cell]], look: Look) -> Sequence[int]:
    widths = [max(text_width(each.text) for each in column) for column in zip(*lines, strict=True)]
    wide = [max(width, look.width_min) for width in widths]
    if look.width_max is None:
        return wide
    room = look.width_max - (len(widths) - 1)
    return wide if sum(wide) <= room else _within(widths, room)


def _within(widths: Sequence[int], room: int) -> Sequence[int]:
    """Return widths whose sum is `room` at most, if each column keeps its least width.

    The longest column is cut down to the next longest, then both of them, and so on.
    """
    found = list(widths)
    while (excess := sum(found) - room) > 0:
        longest = max(found)
        if longest <= _CUT_MIN:
            break
        at = [number for number, width in enumerate(found) if width == longest]
        floor = max([_CUT_MIN, *(width for width in found if width < longest)])
        step = min(longest - floor, -(-excess // len(at)))
        spare = max(0, step * len(at) - excess)  # columns that need one character less to go
        for number in at:
            found[number] -= step
        for number in at[:spare]:
            found[number] += 1
    return found
