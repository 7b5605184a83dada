"""The shapes of what `--print-config` prints as JSON."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Kind, Shape, text

_COLUMNS: Final = (
    text("setting", "Name of the setting."),
    Column(
        "value",
        Kind.scalar,
        "Its value; null if it has none. Secrets are hidden.",
        nullable=True,
    ),
    text("origin", "Where it comes from: a flag, a variable, a line of a file, the default."),
)
PRINTED: Final = Shape(rows="settings", columns=_COLUMNS, when="with --print-config")
SHOWN: Final = Shape(rows="settings", columns=_COLUMNS)
