"""The line that a failed command prints."""

from __future__ import annotations

import contextlib
import os
import sys

from ledger.command_line.terminal import write_stderr
from ledger.escapes import escape_json, escape_line


def print_failure(program: str, message: str, code: str, *, as_json: bool) -> None:
    """Print one line to stderr: text, or an object with `error` and `code` for programs."""
    line = escape_line(f"{program}: {' '.join(message.split())}")
    if as_json:
        import json

        line = escape_json(json.dumps({"error": message, "code": code}, ensure_ascii=False))
    write_stderr(f"{line}\n")


def drop_unwritten_lines() -> None:
    """Drop what stderr did not take, at the end of the process, so that its exit code stays.

    Python keeps such lines, tries them again at its end, and exits with 120 if that fails too.
    """
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
