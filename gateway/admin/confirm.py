"""The question before a change that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from gateway.admin.connection_settings import selection
from ledger.command_line import units
from ledger.command_line.output import Output, usage
from ledger.command_line.program import Value, option
from ledger.escapes import escape_line

F = TypeVar("F", bound=Callable[..., Any])

_YES_ON: Final = f"{__name__}.yes_on"  # its key in the context of a command


def _note_name(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_YES_ON] = value


yes_on_option = option(
    "--yes-on",
    metavar="PROFILE",
    type=Value("name", units.name),
    expose_value=False,
    callback=_note_name,
    help="Confirm, if this is the profile in use; a protected profile needs it in scripts.",
)


def may_ask(output: Output) -> bool:
    """Return whether a person can answer a question."""
    return output.is_table and sys.stdin.isatty() and sys.stderr.isatty()


def will_ask(yes: bool, output: Output) -> bool:
    """Return whether `confirm` would ask a question."""
    agreed = _agreed_on(output) or (yes and not selection().protected)
    return not agreed and may_ask(output)


def confirm(
    yes: bool, action: str, name: str, output: Output, fix: str = "add --yes to do it"
) -> None:
    """End the command unless the user agreed, by `--yes` or by typing the name on a terminal.

    Without a terminal, and with `-o json`, nothing is asked: the command ends with 2 and `fix`. On
    a protected profile, `--yes` does not suffice, and the name to type is that of the profile.
    """
    if selection().protected:
        confirm_protected(action, output)
    elif not (_agreed_on(output) or yes):
        _ask(action, name, output, fix)


def confirm_protected(action: str, output: Output) -> None:
    """End the command if the profile is protected, and the user did not agree by its name."""
    agreed, profile = _agreed_on(output), selection().profile
    if profile is None or not profile.protected or agreed:
        return
    fix = f"add --yes-on {profile.name} to do it"
    _ask(f"{action}, on the protected profile {profile.name}", profile.name, output, fix)


def _agreed_on(output: Output) -> bool:
    """Return whether `--yes-on` names the profile in use. End the command if it names another."""
    name = click.get_current_context().meta.get(_YES_ON)
    profile = selection().profile
    if name is None:
        return False
    if profile is None:
        usage(f"--yes-on {name}: nothing was done, because no profile is in use", output)
    if name != profile.name:
        usage(f"--yes-on {name}: nothing was done, because the profile is {profile.name}", output)
    return True


def _ask(action: str, name: str, output: Output, fix: str) -> None:
    if not may_ask(output):
        usage(f"this {action}; {fix}", output)
    shown = escape_line(name)  # clients choose names freely, and this is what a person can type
    question = f"{escape_line(f'This {action}.')}\nType {shown} to do it: "
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() not in (name, shown):
        usage(f"nothing was done: the answer was not {shown}", output)
