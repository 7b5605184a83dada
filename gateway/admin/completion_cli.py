"""The command `gateway completion`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

import click

from ledger.command_line import units
from ledger.command_line.program import Command, Value

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument(
    "shell",
    metavar="SHELL",
    type=Value("shell", units.one_of(*_SHELLS)),
    help="Name of the shell: bash, zsh or fish.",
)
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands, flags, topics and groups.

    In ~/.bashrc: eval "$(gateway completion bash)". In ~/.zshrc, after compinit: eval "$(gateway
    completion zsh)". For fish: gateway completion fish > ~/.config/fish/completions/gateway.fish
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    program = root.info_name or "gateway"
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    template = kind(root.command, {}, program, variable)
    script = template.source_template % template.source_vars()
    if shell == "bash":
        script = _without_patterns(script)
    if Path(sys.argv[0]).name == "__main__.py":
        script = _by_interpreter(script, shell, program)
    print(script, flush=True)


def _without_patterns(script: str) -> str:
    """Return the script of bash so that it never replaces a name by the files that match it."""
    script = script.replace("    local response\n", "    local response -\n    set -f\n", 1)
    return script.replace("COMPREPLY+=($value)", 'COMPREPLY+=("$value")')


def _by_interpreter(script: str, shell: str, program: str) -> str:
    """Return the script for a program that is started by `python -m`, and need not be on the PATH.

    It may be a function of the shell, which the script cannot call as a program. `-P` keeps the
    interpreter from importing what lies in the current directory; the path is that of this program.
    """
    before = {"bash": "=bash_complete ", "zsh": "=zsh_complete ", "fish": "(commandline -t) "}[
        shell
    ]
    name = "$1" if shell == "bash" else program
    tree = shlex.quote(str(Path(__file__).resolve().parents[2]))
    command = f"PYTHONPATH={tree} {shlex.quote(sys.executable)} -P -m {program}"
    script = script.replace(f"{before}{name})", f"{before}{command})")
    return script.replace(f"    (( ! $+commands[{program}] )) && return 1\n", "")
