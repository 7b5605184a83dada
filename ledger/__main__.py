"""The `bookie` command line. Only what a command needs is imported, so that it starts fast."""

from __future__ import annotations

import atexit
import sys
from typing import Final

from ledger.command_line.exit_codes import EXIT_CONFIG
from ledger.command_line.failure import drop_unwritten_lines
from ledger.command_line.program import CommandGroup, Deferred

program: Final = CommandGroup(
    "bookie",
    "The storage tier of a streaming gateway.",
    {
        "serve": Deferred(
            "ledger.node.serve", "serve", "Store entries of ledgers, as one bookie of a cluster."
        ),
        "audit": Deferred(
            "ledger.node.audit", "audit", "Find under-replicated ledgers and re-replicate them."
        ),
        "check-config": Deferred(
            "ledger.node.serve", "check_config", "Check the settings of `bookie serve`."
        ),
    },
)


def main() -> None:
    """Run the console script."""
    atexit.register(drop_unwritten_lines)
    if not __debug__:
        print("bookie: python -O removes the assertions that guard the data", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    program(args=sys.argv[1:] or ["--help"], prog_name="bookie")


if __name__ == "__main__":
    main()
