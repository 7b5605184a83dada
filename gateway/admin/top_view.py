"""The picture of `gateway top`: a look and the size of a screen in, lines out.

No line is wider than the screen: columns are left out from the right, and names are cut. There are
never more lines than the screen has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gateway.admin.topic_shapes import show_rate
from ledger.command_line.output import show_bytes
from ledger.command_line.terminal import cut, text_width
from ledger.escapes import escape_line

Row = Mapping[str, Any]
_GAP: Final = 2
_NAME_MIN: Final = 18  # columns that a name keeps
_NAME_MAX: Final = 48
_NO_LIMIT: Final = 1 << 30
_BLANKS_FROM: Final = 5  # lines for each part of the picture, to part them by empty lines
_MINUTES_FROM_S: Final = 120
_WELL: Final = ("rw", "Stable", "Empty", "-")  # states that need no look


class Part(StrEnum):
    """What a line of the picture is."""

    head = "head"
    note = "note"
    heading = "heading"
    row = "row"
    warning = "warning"


class ScreenLine(NamedTuple):
    """A line of the picture: printable text, and what it is."""

    text: str
    part: Part = Part.row


class _Field(NamedTuple):
    """A column: its heading, its key, its width on a screen, and how its value is shown."""

    title: str
    key: str
    width: int
    show: Callable[[Any], Any] = str
    left: bool = False


class _Table(NamedTuple):
    """A part of the picture: the column of names, then others, the most important first."""

    key: str
    total: str  # the key with the number of all rows; empty if the rows are all
    name: _Field
    fields: Sequence[_Field]
    if_any: bool = False  # left out if there are no rows


def _count(value: int) -> str:
    return f"{value:,}"


def _bytes_per_s(value: float) -> Any:
    return show_bytes(round(value))


def _tenths(value: float) -> str:
    return f"{value:,.1f}"


def _age(value_s: int) -> str:
    """Return an age in whole seconds, or in minutes from two minutes on."""
    return f"{value_s}s" if value_s < _MINUTES_FROM_S else f"{value_s // 60}min"


_TABLES: Final = (
    _Table(
        "topics",
        "topic_count",
        _Field("TOPIC", "name", 0),
        (
            _Field("RATE", "records_per_s", 11, show_rate),
            _Field("BYTES/S", "bytes_per_s", 10, _bytes_per_s),
            _Field("PARTITIONS", "partitions", 10, _count),
        ),
    ),
    _Table(
        "groups",
        "group_count",
        _Field("GROUP", "group", 0),
        (
            _Field("LAG", "lag", 11, _count),
            _Field("PARTITIONS", "partitions", 10, _count),
            _Field("STATE", "state", 18, left=True),
        ),
    ),
    _Table(
        "bookies",
        "",
        _Field("BOOKIE", "bookie", 0),
        (
            _Field("STATUS", "status", 9, left=True),
            _Field("FREE", "free_bytes", 9, show_bytes),
            _Field("DISK", "disk_bytes", 9, show_bytes),
            _Field("RACK", "rack", 14, left=True),
        ),
    ),
    _Table(
        "slow",
        "",
        _Field("SLOW REQUEST", "request", 0),
        (
            _Field("MS", "total_ms", 11, _tenths),
            _Field("AGO", "age_s", 6, _age),
            _Field("CLIENT", "client_id", 16, left=True),
            _Field("ADDRESS", "address", 21, left=True),
        ),
        if_any=True,
    ),
)


def picture(
    look: Row | None,
    notes: Sequence[str],
    width: int | None,
    height: int | None,
    *,
    header: bool = True,
) -> list[ScreenLine]:
    """Return the lines for a screen of this size; without a size nothing is cut or left out.

    `look` is None before the first one has come. `notes` are lines below the first one. `header`
    says whether there are headings, and the first line.
    """
    width = _NO_LIMIT if width is None else width
    lines = [ScreenLine(_head(look, width), Part.head)] if header else []
    lines += [ScreenLine(_cut(note, width), Part.note) for note in notes]
    if look is not None:
        lines += _tables(look, width, None if height is None else height - len(lines), header)
    return lines if height is None else lines[: max(0, height)]


def _head(look: Row | None, width: int) -> str:
    """Return the first line: as many facts as fit."""
    if look is None:
        return _cut("gateway top", width)
    facts = [f"{look['at'][11:19]} UTC", _many(look["topic_count"], "topic")]
    if look["group_count"] is not None:
        facts.append(_many(look["group_count"], "group"))
    if look["bookies"] is not None:
        facts.append(_many(len(look["bookies"]), "bookie"))
    facts.append(f"rates of the last {look['over_s']:.3g} s")
    line = facts[0]
    for fact in facts[1:]:
        if text_width(line) + _GAP + text_width(fact) <= width:
            line += " " * _GAP + fact
    return _cut(line, width)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _tables(look: Row, width: int, height: int | None, header: bool) -> list[ScreenLine]:
    tables = [table for table in _TABLES if not table.if_any or look.get(table.key)]
    blank = height is None or height >= _BLANKS_FROM * len(tables)
    sizes = [len(look[table.key] or ()) for table in tables]
    if height is not None:
        # Each table has a line besides its rows, also if it has none.
        fixed = sum(int(header or not size) + int(blank) for size in sizes)
        sizes = shares(sizes, height - fixed)
    lines: list[ScreenLine] = []
    for table, size in zip(tables, sizes, strict=True):
        if blank and (header or lines):
            lines.append(ScreenLine(""))
        lines += _drawn(look, table, size, width, header)
    return lines


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` lines: each part gets what it wants, or as much as the others."""
    given = [0] * len(wanted)
    while room > 0 and given != list(wanted):
        for number, want in enumerate(wanted):
            if given[number] < want and room > 0:
                given[number] += 1
                room -= 1
    return given


def _drawn(look: Row, table: _Table, size: int, width: int, header: bool) -> list[ScreenLine]:
    """Return the heading of a table and `size` of its rows; one line if there are none."""
    rows = look[table.key]
    if rows is None:
        why = look["missing"].get(table.key, "unknown")
        return [ScreenLine(_cut(f"{table.name.title}  not known: {why}", width), Part.note)]
    if not rows:
        return [ScreenLine(_cut(f"{table.name.title}  none", width), Part.heading)]
    total = look[table.total] if table.total else len(rows)
    title = table.name.title if size == total else f"{table.name.title} {size:,} of {total:,}"
    fields = _fitting(table.fields, width)
    names = [escape_line(row[table.name.key]) for row in rows[:size]]
    name_width = min(_NAME_MAX, width - sum(_GAP + each.width for each in fields))
    if width == _NO_LIMIT:
        fields = [_widened(each, rows[:size]) for each in fields]
        name_width = max(map(text_width, [title, *names]))
    titles = [each.title for each in fields]
    lines = [ScreenLine(_line(title, titles, fields, name_width), Part.heading)] if header else []
    for row, name in zip(rows, names, strict=False):
        cells = [_cell(row, each) for each in fields]
        text = _line(name, cells, fields, name_width)
        lines.append(ScreenLine(text, _part_of(row)))
    return lines


def _widened(field: _Field, rows: Sequence[Row]) -> _Field:
    """Return the column as wide as its widest value."""
    widths = [text_width(escape_line(_cell(row, field))) for row in rows]
    return field._replace(width=max([field.width, *widths]))


def _fitting(fields: Sequence[_Field], width: int) -> list[_Field]:
    """Return the first columns that leave room for a name."""
    found: list[_Field] = []
    room = width - _NAME_MIN
    for each in fields:
        room -= _GAP + each.width
        if room < 0:
            break
        found.append(each)
    return found


def _line(name: str, cells: Sequence[str], fields: Sequence[_Field], name_width: int) -> str:
    texts = [_padded(_cut(name, name_width), name_width)]
    for cell, each in zip(cells, fields, strict=True):
        texts.append(_padded(_cut(cell, each.width), each.width, left=each.left))
    return (" " * _GAP).join(texts).rstrip()


def _cell(row: Row, field: _Field) -> str:
    value = row[field.key]
    return "-" if value is None else str(field.show(value))


def _part_of(row: Row) -> Part:
    """Return whether a bookie or a group is in a state that needs a look."""
    state = row.get("status", row.get("state")) or "-"
    return Part.row if state in _WELL else Part.warning


def _padded(text: str, width: int, *, left: bool = True) -> str:
    spaces = " " * max(0, width - text_width(text))
    return text + spaces if left else spaces + text


def _cut(text: str, width: int) -> str:
    """Return the text in one printable line of at most `width` columns."""
    return cut(escape_line(text), width) if width > 0 else ""
