"""The question before a change that cannot be undone."""

from __future__ import annotations

import sys

from ledger.command_line.output import Format, usage
from ledger.escapes import escape_lines


def may_ask(output: Format) -> bool:
    """Return whether a person can answer a question."""
    return output is Format.table and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(
    yes: bool, action: str, name: str, output: Format, fix: str = "add --yes to do it"
) -> None:
    """End the command unless the user agreed, by `--yes` or by typing the name on a terminal.

    Without a terminal, and with `-o json`, nothing is asked: the command ends with 2 and `fix`.
    """
    if yes:
        return
    if may_ask(output):
        question = f"This {action}.\nType {name} to do it: "
        print(escape_lines(question), end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() == name:
            return
        usage(f"nothing was done: the answer was not {name}", output)
    usage(f"this {action}; {fix}", output)
