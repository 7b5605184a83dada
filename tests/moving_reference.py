"""docs/moving-from-kafka.md: its second half, written from the rest of the tree.

The clients come from the FINDINGS of tests/compat/, Kafka's keys from the tables of settings, and
the differences from docs/NOT_DONE.md. `python -m tests.moving_reference` rewrites them;
tests/test_house.py compares them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.process.server_settings import dev_table, serve_table
from ledger.command_line.settings import Setting
from tests.house import ROOT

PAGE: Final = ROOT / "docs/moving-from-kafka.md"
NOT_DONE: Final = ROOT / "docs/NOT_DONE.md"
FINDINGS: Final = "tests/compat/*/*.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
_FOR_KAFKA: Final = re.compile(r"<!-- kafka: begin -->\n(.*?)<!-- kafka: end -->", re.DOTALL)
_ROW: Final = re.compile(r"^\| \d+ \| (\[.*?\)) \| (.*?) \|(.*)\|$")
_OUTSIDE: Final = "bookkeeper"  # its classes are no client of ours
_CLIENTS: Final = """\
## Clients that were tried

Each of them runs unchanged, against the gateway and against Apache Kafka 4.3. Other releases speak
the same protocol and were not tried.

| client | not tried with it |
|---|---|"""
_KEYS: Final = """
## Settings by Kafka's names

`gateway dev` and `gateway serve` take these keys from a `server.properties` and from the variables
of Kafka's images ([how](settings.md#the-file)). Any other key of Kafka is a warning, or is refused
if it promises protection. Settings of topics keep Kafka's names; [below](#topics) are those with an
effect.

| Kafka's key | flag | variable | meaning |
|---|---|---|---|"""
_DIFFERENCES: Final = """
## Differences

The same differences, and those that users of Kafka do not notice, are in
[NOT_DONE.md](NOT_DONE.md). [kafka-api.md](kafka-api.md) compares the answers of each API field by
field.
"""


def clients(root: Path = ROOT) -> Iterator[str]:
    """Yield a row for each client with a version, in the order of their names."""
    rows: list[str] = []
    for path in root.glob(FINDINGS):
        if path.parent.name != _OUTSIDE:
            rows += _rows_of(path, path.relative_to(root).as_posix())
    yield from sorted(rows, key=lambda row: row.strip("|[ ").lower())


def _rows_of(path: Path, place: str) -> Iterator[str]:
    """Yield a row for each heading that names a version, with what was not tried."""
    title = ""
    lacks: dict[str, str] = {}
    for part in re.split(r"\n\n", path.read_text()):
        heading = re.match(r"#+ (.*)", part)
        if heading and re.search(r"\d\.\d", heading[1]):
            title = heading[1]
            lacks[title] = "-"
        found = re.match(r"Not covered: (.*)\.\Z", " ".join(part.split()))
        if found and title:
            lacks[title] = found[1]
    for name, lack in lacks.items():
        yield f"| [{name}](../{place}) | {lack} |"


def keys() -> Iterator[str]:
    """Yield a row for each key of Kafka that sets something, by its name."""
    found: dict[str, Setting] = {}
    for table in (dev_table(), serve_table()):
        for row in table:
            found |= {key.name: row for key in row.kafka}
    for name, row in sorted(found.items()):
        yield f"| `{name}` | `--{row.name}` | `{row.environment}` | {row.help.replace('|', 'or')} |"


def differences(text: str) -> Iterator[str]:
    """Yield the lines of NOT_DONE.md that users of Kafka notice, one level of headings lower.

    Of the table of APIs only the rows with a difference are left.
    """
    for part in _FOR_KAFKA.findall(text):
        for line in part.strip().splitlines():
            row = _ROW.match(line)
            if line.startswith("| key |"):
                yield "| API | served | not done |"
            elif line == "|---|---|---|---|":
                yield "|---|---|---|"
            elif row is None:
                yield f"#{line}" if line.startswith("## ") else line
            elif row[3].strip():
                yield f"| {row[1]} | {row[2]} | {row[3].strip()} |"
        yield ""


def reference() -> str:
    """Return the generated half of the page."""
    parts = [
        _CLIENTS,
        *clients(),
        _KEYS,
        *keys(),
        _DIFFERENCES,
        *differences(NOT_DONE.read_text()),
    ]
    return "\n".join(parts).strip()


def page(text: str) -> str:
    """Return the page with its second half written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def main() -> int:
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
