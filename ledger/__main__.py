"""The `bookie` command line. Only what a command needs is imported: starting fast is a feature."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

_EXIT_USAGE: Final = 2
_EXIT_CONFIG: Final = 78  # sysexits.h: EX_CONFIG
_COMMANDS: Final = {
    "serve": ("ledger.node.serve", "run", "run one storage node"),
    "audit": ("ledger.node.audit", "run", "watch over the copies of all ledgers, and mend them"),
    "check-config": (
        "ledger.node.serve",
        "check_config",
        "say what is wrong with serve's settings",
    ),
}
_HELP: Final = "\n".join(
    [
        "usage: bookie COMMAND [--help] ...",
        "",
        "The storage tier of a streaming gateway.",
        "",
        *(f"  {name:14}{said}" for name, (_, _, said) in _COMMANDS.items()),
    ]
)


def main() -> None:
    """The console script."""
    if not __debug__:
        print("bookie: python -O removes the assertions that guard the data", file=sys.stderr)
        sys.exit(_EXIT_CONFIG)
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("--help", "-h"):
        print(_HELP)
        sys.exit(0)
    if command not in _COMMANDS:
        print(f"bookie: no command {command!r}; bookie --help lists them", file=sys.stderr)
        sys.exit(_EXIT_USAGE)
    module, function, _ = _COMMANDS[command]
    sys.exit(getattr(import_module(module), function)(arguments))


if __name__ == "__main__":
    main()
