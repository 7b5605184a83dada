"""The commands `gateway user ...`: users that log in by SCRAM or PLAIN."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gateway.admin import user_shapes
from gateway.admin.confirm import confirm
from gateway.admin.requests import (
    ask,
    bootstrap_option,
    check_servers,
    yes_option,
    zookeeper_option,
)
from gateway.core.stored_names import is_too_long
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_REFUSED, EXIT_UNREACHABLE
from ledger.command_line.output import Output, fail, output_option, usage
from ledger.command_line.program import CommandGroup, Value, option

if TYPE_CHECKING:
    from ledger.errors import LedgerError

F = TypeVar("F", bound=Callable[..., Any])
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")

user = CommandGroup("user", "Add, list and delete users, and write the first one of a cluster.")

_name_argument = click.argument("name", metavar="USER", help="Name of the user.")


def _password_option(function: F) -> F:
    return option(
        "--password",
        metavar="SECRET",
        help="Where the password is: file:PATH, whose file only its owner may read, or env:NAME. "
        "Without it, a terminal is asked.",
    )(function)


def _mechanism_option(text: str) -> Callable[[F], F]:
    return option(
        "--mechanism",
        "mechanisms",
        multiple=True,
        type=Value("mechanism", units.one_of(*MECHANISMS)),
        shown="both",
        help=f"{text}: SCRAM-SHA-256 or SCRAM-SHA-512; repeatable.",
    )


@user.command("list")
@bootstrap_option
@output_option(user_shapes.LISTED)
def _list(bootstrap: str, output: Output) -> None:
    """List the users with their mechanisms."""
    from gateway.admin.users import list_users

    output.show(ask(bootstrap, output, list_users))


@user.command("add")
@_name_argument
@_password_option
@_mechanism_option("Mechanism to log in by")
@bootstrap_option
@output_option(user_shapes.ADDED)
def _add(
    name: str, password: str | None, mechanisms: Sequence[str], bootstrap: str, output: Output
) -> None:
    """Add a user, or change its password. Its connections end within a minute."""
    from gateway.admin.users import add_user

    _check_name(name, output)
    secret, chosen = _password(password, output), mechanisms or MECHANISMS
    ask(bootstrap, output, lambda client: add_user(client, name, secret, chosen))
    _done(name, chosen, "can log in", output)


@user.command("delete")
@_name_argument
@_mechanism_option("Mechanism to delete")
@yes_option
@bootstrap_option
@output_option(user_shapes.DELETED)
def _delete(
    name: str, mechanisms: Sequence[str], yes: bool, bootstrap: str, output: Output
) -> None:
    """Delete a user. Its connections end within a minute."""
    from gateway.admin.users import delete_user

    confirm(yes, f"deletes user {name}", name, output)
    found = ask(bootstrap, output, lambda client: delete_user(client, name, mechanisms))
    _done(name, found, "was deleted", output)


@user.command("bootstrap")
@_name_argument
@_password_option
@_mechanism_option("Mechanism to log in by")
@option("--data", type=Value("dir", units.path), help="Directory of a stopped `gateway dev`.")
@zookeeper_option("Metadata of the cluster. ", envvar="GATEWAY_ZOOKEEPER", show_envvar=True)
@output_option(user_shapes.ADDED)
def _bootstrap(
    name: str,
    password: str | None,
    mechanisms: Sequence[str],
    data: Path | None,
    zookeeper: str | None,
    output: Output,
) -> None:
    """Write a user straight to the metadata of a cluster, before any listener is open."""
    _check_name(name, output)
    if (data is None) == (zookeeper is None):
        usage("pass --data for a `gateway dev`, or --zookeeper for a cluster", output)
    if zookeeper is not None:
        if "://" in zookeeper:
            usage("pass --zookeeper host:port,host:port/chroot of a cluster", output)
        check_servers(zookeeper, output)
    secret, chosen = _password(password, output), mechanisms or MECHANISMS
    asyncio.run(_write(name, secret, chosen, data, zookeeper, output))
    _done(name, chosen, "can log in", output)


async def _write(
    name: str,
    secret: str,
    mechanisms: Sequence[str],
    data: Path | None,
    zookeeper: str | None,
    output: Output,
) -> None:
    from gateway.admin.users import bootstrap_user, metadata_file
    from gateway.admin.zookeeper_access import REFUSED, command_access
    from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
    from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
    from ledger.errors import AccessDenied, InvalidArgument, LedgerError

    place = f"--data {data}" if data is not None else f"--zookeeper {zookeeper}"
    try:
        if data is not None:
            file = metadata_file(data)
            if not file.exists():
                text = "has no metadata of a gateway; start `gateway dev` there once, and stop it"
                fail(EXIT_CONFIG, f"{place}: {text}", "CONFIG", output)
            store: Any = SqliteMetadata(file)
        else:
            store = await connect_zookeeper(
                str(zookeeper), make_root=False, access=command_access()
            )
        try:
            await bootstrap_user(store, name, secret, mechanisms)
        finally:
            await store.close()
    except AccessDenied as error:
        fail(EXIT_REFUSED, f"{place}: {error}", REFUSED, output)
    except InvalidArgument as error:
        fail(EXIT_CONFIG, str(error), "CONFIG", output)
    except LedgerError as error:
        fail(EXIT_UNREACHABLE, _why_not_stored(place, zookeeper, error), "UNREACHABLE", output)


def _why_not_stored(place: str, zookeeper: str | None, error: LedgerError) -> str:
    from ledger.command_line.zookeeper_settings import unreachable
    from ledger.errors import MetadataUnavailable, NoNode

    if zookeeper is not None and isinstance(error, MetadataUnavailable):
        return unreachable(place, zookeeper, error)
    if zookeeper is not None and isinstance(error, NoNode):
        _, _, chroot = zookeeper.partition("/")
        fix = "correct it, or start `bookie serve` first, with this --zookeeper"
        return f"{place}: the chroot /{chroot} does not exist; {fix}"
    return f"{place}: {error}"


def _check_name(name: str, output: Output) -> None:
    if not name or is_too_long(name):
        usage("USER must have 1 to 1024 bytes", output)
    if not (name.isascii() and name.isprintable()):
        usage("USER must be of printable ASCII: SCRAM takes no other name", output)


def _password(reference: str | None, output: Output) -> str:
    """Return the password, from its place or from a terminal. It fits PLAIN too."""
    from gateway.core.sasl_session import PASSWORD_BYTES_MAX

    found = _read_password(reference, output)
    if "\0" in found or len(found.encode(errors="surrogateescape")) > PASSWORD_BYTES_MAX:
        text = f"the password must have at most {PASSWORD_BYTES_MAX} bytes, and no NUL character"
        fail(EXIT_CONFIG, text, "CONFIG", output)
    return found


def _read_password(reference: str | None, output: Output) -> str:
    from ledger.command_line.secret_values import SecretFault, is_reference, resolve_line

    if reference is None:
        if not sys.stdin.isatty():
            usage("--password is missing: pass file:PATH or env:NAME", output)
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if not is_reference(reference):
        usage("--password: must be file:PATH or env:NAME; a password itself is seen by ps", output)
    try:
        return resolve_line(reference)
    except SecretFault as fault:
        fail(EXIT_CONFIG, f"--password {fault}", "CONFIG", output)


def _done(name: str, mechanisms: Sequence[str], what: str, output: Output) -> None:
    rows = [{"user": name, "mechanism": each} for each in mechanisms]
    sentence = f"User {name} {what} by {' and '.join(mechanisms)}."
    output.done({output.shape.rows: rows}, sentence)
