"""Reports of the faults that keep a bookie process from running."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.command_line.failure import print_failure


def print_faults(faults: Iterable[str], *, code: str = "CONFIG", as_json: bool = False) -> None:
    """Print each fault as a line on stderr: text, or an object with `error` and `code`."""
    for fault in faults:
        print_failure("bookie", fault, code, as_json=as_json)
