"""The command line. Only what a command needs is imported: starting fast is a feature."""

from __future__ import annotations

import sys

EXIT_CONFIG = 78  # sysexits.h: EX_CONFIG


def main() -> None:
    """The console script."""
    if not __debug__:
        print("gateway: python -O removes the assertions that guard the data", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    arguments = sys.argv[1:]
    # The servers not through typer: it costs 200 ms, as much as everything else together.
    if arguments[:1] == ["dev"]:
        from gateway.process.dev import run

        sys.exit(run(arguments[1:]))
    if arguments[:1] == ["serve"]:
        from gateway.process.serve import run

        sys.exit(run(arguments[1:]))
    from gateway.process.cli import app

    app()


if __name__ == "__main__":
    main()
