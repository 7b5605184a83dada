"""How a process of the ledger tier says what is wrong, and its exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Final

EXIT_UNREACHABLE: Final = 69  # sysexits.h: EX_UNAVAILABLE
EXIT_DISK: Final = 74  # sysexits.h: EX_IOERR
EXIT_CONFIG: Final = 78  # sysexits.h: EX_CONFIG


def say_faults(faults: Iterable[str]) -> None:
    """One line each, on stderr."""
    for fault in faults:
        with contextlib.suppress(OSError):  # the exit code says it too
            print(f"bookie: {' '.join(fault.split())}", file=sys.stderr, flush=True)
