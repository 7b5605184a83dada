"""What admin commands print: aligned columns for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class Format(StrEnum):
    """How a command prints."""

    table = "table"
    json = "json"


def emit(text: str) -> None:
    """The text is on stdout. A closed pipe raises here, not when the process ends."""
    print(text, flush=True)


def as_json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=2)


def headings(*keys: str) -> dict[str, str]:
    """Columns whose heading is their key in Kafka's spelling: `log_end_offset` LOG-END-OFFSET."""
    return {key: key.upper().replace("_", "-") for key in keys}


def as_table(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], width_min: int = 0
) -> str:
    """Rows under the headings of `columns` (key: heading); `-` means nothing.

    `width_min` is in characters. Numbers stand to the left, as in Kafka's own tools.
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
    return str(value)
