"""The `gateway` command line. Only what a command needs is imported, so that it starts fast."""

from __future__ import annotations

import atexit
import sys
from importlib import import_module

from ledger.command_line.exit_codes import EXIT_CONFIG
from ledger.command_line.failure import drop_unwritten_lines


def main() -> None:
    """Run the console script."""
    atexit.register(drop_unwritten_lines)
    if not __debug__:
        print("gateway: python -O removes the assertions that guard the data", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    # By name: this module is above all layers, in the folder of the settings below all layers.
    import_module("gateway.process.cli").program(prog_name="gateway")


if __name__ == "__main__":
    main()
