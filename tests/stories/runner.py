"""Plays a story: a text file of commands, each with the lines that it is to print.

    # What this story shows.
    > a command
      what it printed

The lines below a command are compared; `REWRITE=1` writes what was printed instead: then read the
diff. Text after `#`, and empty lines, stay as they are.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

PROMPT = "> "
INDENT = "  "
STORIES = Path(__file__).parent


async def play(name: str, execute: Callable[[str], Awaitable[Iterable[str]]]) -> None:
    """Every command of `<name>.txt` prints what the file says. `execute` returns the lines."""
    path = STORIES / f"{name}.txt"
    told = path.read_text().splitlines()
    heard: list[str] = []
    for line in told:
        if line.startswith(PROMPT):
            heard.append(line)
            command = line.removeprefix(PROMPT).partition("#")[0].strip()
            heard += [INDENT + printed for printed in await execute(command)]
        elif not line.startswith(INDENT):
            heard.append(line)
    if os.environ.get("REWRITE"):
        path.write_text("\n".join(heard) + "\n")
        return
    difference = list(difflib.unified_diff(told, heard, str(path), "what happened", lineterm=""))
    assert not difference, "\n".join([*difference, "", "if this is right: REWRITE=1, then read"])


def names(prefix: str) -> list[str]:
    """The stories whose file name begins so."""
    return sorted(path.stem for path in STORIES.glob(f"{prefix}*.txt"))
