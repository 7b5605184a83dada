"""The command `gateway http-password`."""

from __future__ import annotations

import sys
from typing import Final

import click

from ledger.command_line.exit_codes import EXIT_BAD_INPUT
from ledger.command_line.failure import print_failure
from ledger.command_line.program import Command

_LINE_MAX: Final = 4096  # characters of a password on stdin


@click.command("http-password", cls=Command)
@click.argument("name", metavar="NAME", help="Name of the user, as the browser asks for it.")
def http_password(name: str) -> int:
    """Print the line of a name for the file of --http-password-file.

    The password is asked for, or read as one line from stdin. The file must be readable by its
    owner alone: (umask 077; gateway http-password alice >> passwords)
    """
    from gateway.http.password_file import PasswordFault, line_of

    try:
        print(line_of(name, _password()), flush=True)
    except PasswordFault as fault:
        print_failure("gateway", f"http-password: {fault}", "BAD_INPUT", as_json=False)
        return EXIT_BAD_INPUT
    return 0


def _password() -> str:
    """Ask for the password twice on a terminal, else read it. Raises PasswordFault."""
    from gateway.http.password_file import PasswordFault

    if not sys.stdin.isatty():
        try:
            return sys.stdin.readline(_LINE_MAX).rstrip("\r\n")
        except UnicodeDecodeError:
            raise PasswordFault("the password is not valid UTF-8") from None
    from getpass import getpass

    password = getpass("Password: ")
    if getpass("The same again: ") != password:
        raise PasswordFault("the two passwords differ; run the command again")
    return password
