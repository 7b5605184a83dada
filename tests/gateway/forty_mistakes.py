"""The document of mistakes, docs/mistakes.md, and the comparison of what a command printed.

`python -m tests.gateway.forty_mistakes` writes the document from the rows of `mistake_rows.py`.
`test_forty_mistakes.py` makes each mistake.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from tests.gateway.mistake_rows import SERVER, TABLE, VARIES, Mistake
from tests.house import ROOT

DOCUMENT = ROOT / "docs/mistakes.md"
_SHOWN_SERVER = "127.0.0.1:9092"
_HEAD = """\
# Mistakes

The lines that commands print after frequent mistakes, and their exit codes. This page is written
from [a table](../tests/gateway/mistake_rows.py) by `python -m tests.gateway.forty_mistakes`, and a
test makes each mistake. The server has the topics `orders`, with three records, `inbox`, and one
with a long name. `...` is text that varies. [errors.md](errors.md#exit-codes) lists all exit codes.
"""


def all_mistakes() -> list[Mistake]:
    """Return the rows of all parts."""
    return [each for part in TABLE.values() for each in part]


def matches(expected: str, printed: str) -> bool:
    """Return whether this was printed, where `...` stands for any text of one line."""
    parts = map(re.escape, expected.split(VARIES))
    return re.fullmatch("[^\n]*".join(parts), printed) is not None


def document() -> str:
    """Return the text of docs/mistakes.md."""
    parts = [f"\n## {name}\n\n" + "\n".join(map(_section, part)) for name, part in TABLE.items()]
    return _HEAD + "".join(parts)


def _section(mistake: Mistake) -> str:
    lines = "\n".join(_lines(mistake))
    return f"{mistake.title}:\n\n```text\n{lines}\n```\n"


def _lines(mistake: Mistake) -> Iterator[str]:
    if mistake.profiles:
        yield f"$ cat ~/.config/ledger-gateway/config.toml   # mode {mistake.mode:04o}"
        yield from mistake.profiles.splitlines()
    variables = "".join(f"{name}={value} " for name, value in mistake.env.items())
    shown = mistake.command.replace(f"--port {SERVER}", "--port 9092").replace(
        SERVER, _SHOWN_SERVER
    )
    stdin = " <<'END'" if mistake.stdin else ""
    yield f"$ {variables}gateway {shown}{stdin}{mistake.where.value}".rstrip()
    if mistake.stdin:
        yield from mistake.stdin.splitlines()
        yield "END"
    yield from mistake.out.replace("\x1b", "␛").splitlines()
    yield from mistake.err.splitlines()
    yield f"exit code {mistake.code}"


def differences() -> list[str]:
    """Return what to do if the document is not as the table."""
    if DOCUMENT.exists() and DOCUMENT.read_text() == document():
        return []
    return ["docs/mistakes.md: run `python -m tests.gateway.forty_mistakes`"]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    sys.exit(0)
