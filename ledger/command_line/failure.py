"""The line that a failed command prints."""

from __future__ import annotations

import contextlib
import sys

from ledger.escapes import escape_json, escape_line


def print_failure(program: str, message: str, code: str, *, as_json: bool) -> None:
    """Print one line to stderr: text, or an object with `error` and `code` for programs."""
    line = escape_line(f"{program}: {' '.join(message.split())}")
    if as_json:
        import json

        line = escape_json(json.dumps({"error": message, "code": code}, ensure_ascii=False))
    with contextlib.suppress(OSError):  # stderr is closed or full; the exit code remains
        print(line, file=sys.stderr)
