"""The `gateway` command line. Only what a command needs is imported, so that it starts fast."""

from __future__ import annotations

import sys

from ledger.command_line.exit_codes import EXIT_CONFIG


def main() -> None:
    """Run the console script."""
    if not __debug__:
        print("gateway: python -O removes the assertions that guard the data", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    from gateway.process.cli import program

    program(prog_name="gateway")


if __name__ == "__main__":
    main()
