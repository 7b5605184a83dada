"""The output of `--print-config`: each setting with its value and origin; secrets are hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger.command_line.output import as_json
from ledger.command_line.settings import HIDDEN, Setting, Settings
from ledger.command_line.table import as_table

_COLUMNS = {"setting": "SETTING", "value": "VALUE", "origin": "ORIGIN"}


def report(settings: Settings, form: str) -> str:
    """Return all settings as `table`, `json` or `toml`.

    TOML used as a file gives the same settings, except for secrets. Defaults are comments there, so
    that they stay defaults.
    """
    if form == "toml":
        rows = [*settings.table, *settings.of_parts]
        return "\n".join(_toml_line(settings, row) for row in rows)
    rows = [
        {"setting": row.name, "value": value, "origin": settings.origin(row.name)}
        for row, value in _values(settings)
    ]
    return as_json({"settings": rows}) if form == "json" else as_table(_COLUMNS, rows)


def _values(settings: Settings) -> Iterator[tuple[Setting, Any]]:
    for row in (*settings.table, *settings.of_parts):
        value = row.plain(settings[row.name])
        yield row, value if value is None or not row.secret else HIDDEN


def _toml_line(settings: Settings, row: Setting) -> str:
    value, origin = row.plain(settings[row.name]), settings.origin(row.name)
    if value is None:
        return f"# {row.name} is not set"
    if row.secret:
        return f"# {row.name} = {HIDDEN}  # {_in_comment(origin)}"
    begin = "# " if settings.is_default(row.name) else ""
    name = f'"{row.name}"' if "." in row.name else row.name
    return f"{begin}{name} = {_toml(value)}  # {_in_comment(origin)}"


def _toml(value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{"".join(map(_toml_character, value))}"' if isinstance(value, str) else str(value)


def _toml_character(character: str) -> str:
    if character in ('"', "\\"):
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _in_comment(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
