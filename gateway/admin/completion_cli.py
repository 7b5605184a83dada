"""The command `gateway completion`."""

from __future__ import annotations

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

    In ~/.bashrc: eval "$(gateway completion bash)". In ~/.zshrc, behind compinit: eval "$(gateway
    completion zsh)". For fish: gateway completion fish > ~/.config/fish/completions/gateway.fish
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    program = root.info_name or "gateway"
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    template = kind(root.command, {}, program, variable)
    print(template.source_template % template.source_vars(), flush=True)
