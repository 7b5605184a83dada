"""docs/settings.md: the settings of all servers, written from their rows.

`python -m tests.settings_table` rewrites it; tests/test_house.py compares it with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.process.server_settings import dev_table, serve_table
from ledger.command_line.settings import KafkaKey, Setting, Table
from ledger.node.options import AUDIT_OPTIONS, OPTIONS
from tests.house import ROOT

PAGE: Final = ROOT / "docs/settings.md"
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
_HEAD: Final = (
    "| flag | value | default | variable | Kafka's key | meaning |\n|---|---|---|---|---|---|"
)
# Values outside of the bounds of each kind; the fault of one shows what is accepted.
_PROBES: Final[Sequence[Any]] = ("-1s", "9999999TiB", "1000%", "\0", ())


def _tables() -> Iterator[tuple[str, Table]]:
    yield "gateway dev", dev_table()
    yield "gateway serve", serve_table()
    yield "bookie serve", OPTIONS
    yield "bookie audit", AUDIT_OPTIONS


def accepted(row: Setting) -> str:
    """Return what the row accepts, as its faults describe it."""
    if row.is_switch:
        return "true or false"
    faults: list[str] = []
    for probe in _PROBES:
        try:
            row.parse(probe)
        except ValueError as fault:
            faults.append(str(fault).removeprefix(f"{probe}: "))
    bounds = [each for each in faults if each.startswith("must be between")]
    forms = [each for each in faults if each != "must be text"]
    text = (*bounds, *forms, "must be text")[0].removeprefix("must be ")
    return f"{text}, or off" if row.off else text


def _default(row: Setting) -> str:
    if row.shown is not None:
        return row.shown
    written = row.write(row.default)
    return f"`{written}`" if written else "none"


def _kafka(key: KafkaKey) -> str:
    return f"`{key.name}`" + (f" ({key.unit})" if key.unit else "")


def _line(row: Setting) -> str:
    flag = f"`--{row.name}`"
    if row.is_switch or row.off:
        flag += f", `--no-{row.name}`"
    cells = (
        flag,
        accepted(row),
        _default(row),
        f"`{row.environment}`",
        ", ".join(map(_kafka, row.kafka)) or "-",
        row.help + (" Secret." if row.secret else ""),
    )
    return f"| {' | '.join(cell.replace('|', ' or ') for cell in cells)} |"


def reference() -> str:
    """Return the sections of all commands."""
    parts = [
        "\n".join([f"## {command}", "", _HEAD, *map(_line, table)]) for command, table in _tables()
    ]
    return "\n\n".join(parts)


def page(text: str) -> str:
    """Return the page with its sections written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"
