"""How a bookie process reports the faults that keep it from running."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable


def print_faults(faults: Iterable[str]) -> None:
    """Print each fault as a line on stderr."""
    for fault in faults:
        with contextlib.suppress(OSError):  # stderr is closed; the exit code remains
            print(f"bookie: {' '.join(fault.split())}", file=sys.stderr, flush=True)
