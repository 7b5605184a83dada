"""Common options of the admin commands, and requests that end a command if they fail.

A failed request prints one line on stderr (JSON with `-o json`) and ends the command. The exit code
is 1 if the server refused the request, 69 if no server was reached, 77 if the request was not
authorized, and 130 after Ctrl-C. It is 78 if the connection needs a protocol that is not supported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click
from click.core import ParameterSource

from gateway.admin.addresses import check_metadata_address
from gateway.admin.confirm import yes_on_option
from gateway.admin.connection_settings import client_settings, profile_option, refuse_unsupported
from ledger.command_line import units
from ledger.command_line.exit_codes import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
)
from ledger.command_line.output import FailureForm, fail, usage
from ledger.command_line.program import Value, option
from ledger.command_line.progress import waiting
from ledger.ports.bookies import BookieTransport

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient, AdminError, Unreachable
    from gateway.admin.client_settings import ClientSettings
    from gateway.admin.storage import Storage
    from ledger.adapters.links.link_config import TlsFiles

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_TRANSPORT = f"{__name__}.bookie_transport"  # its key in the context of a command
_ROLES = f"{__name__}.bookie_tls_roles"
_ERRORS_SHOWN = 5  # errors of a partial result that one line shows
_FIXES = {  # by the code of an error: how its text ends, and what to do then
    "UNKNOWN_TOPIC_OR_PARTITION": ("' does not exist.", "see `gateway topic list`"),
    "GROUP_ID_NOT_FOUND": ("' does not exist.", "see `gateway group list`"),
    "TRANSACTIONAL_ID_NOT_FOUND": (" does not exist", "see `gateway transaction list`"),
    "TOPIC_ALREADY_EXISTS": (" already exists.", "pass --if-not-exists to leave it as it is"),
}
START_FIX = "start one with `gateway dev`, or name it with --bootstrap host:port"

_bootstrap_option = option(
    "--bootstrap",
    "-b",
    metavar="SERVERS",
    envvar="GATEWAY_BOOTSTRAP",
    show_envvar=True,
    default="127.0.0.1:9092",
    help="Servers to connect to: host:port,host:port.",
)
tls_directory_option = option(
    "--tls",
    type=Value("dir", units.path),
    envvar="GATEWAY_TLS",
    show_envvar=True,
    help="Directory with tls.crt, tls.key and ca.crt, if the bookies require certificates.",
)


def bootstrap_option(function: F) -> F:
    """Add `--bootstrap` and `--profile` to a command."""
    return _bootstrap_option(profile_option(function))


def yes_option(function: F) -> F:
    """Add `--yes` and `--yes-on` to a command that calls `confirm`."""
    yes = option("--yes", is_flag=True, help="Confirm; it cannot be undone.")
    return yes(yes_on_option(function))


def _note_transport(context: click.Context, _: click.Parameter, value: str) -> None:
    context.meta[_TRANSPORT] = value


_transport_option = option(
    "--bookie-transport",
    type=Value("transport", units.one_of(*BookieTransport)),
    default=BookieTransport.TCP.value,
    envvar="GATEWAY_BOOKIE_TRANSPORT",
    show_envvar=True,
    expose_value=False,
    callback=_note_transport,
    help="How to reach bookies: tcp or grpc.",
)


def _note_roles(context: click.Context, _: click.Parameter, value: str) -> None:
    context.meta[_ROLES] = value


_roles_option = option(
    "--bookie-tls-roles",
    type=Value("mode", units.one_of("required", "off")),
    default="required",
    envvar="GATEWAY_BOOKIE_TLS_ROLES",
    show_envvar=True,
    expose_value=False,
    callback=_note_roles,
    help="required: certificates of bookies need a role; off: they do not, yet.",
)


def tls_option(function: F) -> F:
    """Add `--tls`, `--bookie-transport` and `--bookie-tls-roles` to a command that calls
    `ask_storage`.
    """
    return tls_directory_option(_transport_option(_roles_option(function)))


def zookeeper_option(text: str = "", **attributes: Any) -> Callable[[F], F]:
    """Add `--zookeeper` and `--profile` to a command; `text` begins the help of the first."""
    servers = "ZooKeeper servers: host:port,host:port, with an optional /chroot at the end; or "
    servers += "grpc://127.0.0.1:3181, the ledger port of `gateway dev`."
    add = option("--zookeeper", "-z", metavar="SERVERS", help=text + servers, **attributes)
    return lambda function: add(profile_option(function))


def storage_option(function: F) -> F:
    """Add `--zookeeper` and `--bootstrap` to a command that reads ledgers; see `metadata_at`."""
    shown = "the one of the gateways"
    zookeeper = zookeeper_option(envvar="GATEWAY_ZOOKEEPER", show_envvar=True, shown=shown)
    return zookeeper(bootstrap_option(function))


def metadata_at(zookeeper: str | None, bootstrap: str, output: FailureForm) -> str:
    """Return `--zookeeper`, or the address at which the gateways' metadata are read."""
    if zookeeper is not None:
        return zookeeper
    from gateway.admin.metadata_address import metadata_address

    fix = "name a gateway with --bootstrap host:port, or its metadata with --zookeeper host:port"
    return ask(bootstrap, output, metadata_address, fix)


def _connection(bootstrap: str, output: FailureForm) -> ClientSettings:
    """Return how to connect to these servers. Ends the command if that is wrong or unsupported."""

    refuse_unsupported(output)
    settings = client_settings(bootstrap)
    try:
        settings.servers  # noqa: B018 (read for its errors)
    except ValueError as error:
        source = click.get_current_context().get_parameter_source("bootstrap")
        variable = source is ParameterSource.ENVIRONMENT
        usage(f"{'GATEWAY_BOOTSTRAP' if variable else '--bootstrap'}: {error}", output)
    return settings


def ask(
    bootstrap: str,
    output: FailureForm,
    work: Callable[[AdminClient], Awaitable[T]],
    fix: str = START_FIX,
    *,
    shows_wait: bool = True,
    **waits_s: float,
) -> T:
    """Return the result of `work` with a client of these servers.

    Pass `shows_wait` as false for work that goes on for long, or shows its own progress. `waits_s`
    are arguments of AdminClient: how long it waits.
    """
    from gateway.admin.client import AdminClient, AdminError, Unreachable
    from gateway.interrupt import run_interruptibly

    settings = _connection(bootstrap, output)

    async def main() -> T:
        with waiting(f"waiting for {bootstrap}") if shows_wait else nullcontext():
            async with AdminClient(settings, **waits_s) as client:
                return await work(client)

    try:
        return run_interruptibly(main())
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except Unreachable as error:
        fail_request(error, output, fix_after(error, fix))
    except AdminError as error:
        fail_request(error, output)


def fix_after(error: Unreachable, fix: str) -> str:
    """Return what follows Unreachable: the fix, unless the server was reached."""
    from gateway.wire.client_link import NoToken

    return "" if isinstance(error, NoToken) else f"; {error.fix or fix}"


def fail_request(error: Exception, output: FailureForm, more: str = "") -> NoReturn:
    """End the command after AdminError or Unreachable; `more` follows its text."""
    from gateway.admin.client import AdminError

    if not isinstance(error, AdminError):
        fail(EXIT_UNREACHABLE, f"{error}{more}", "UNREACHABLE", output)
    fail(exit_code_of(error.code), f"{with_fix(error)}{more}", error.code, output)


def exit_code_of(code: str) -> int:
    """Return the exit code after a server returned this error: 77 if it denied a login or right."""
    from gateway.wire.client_link import is_refusal

    return EXIT_REFUSED if is_refusal(code) else EXIT_FAILED


def with_fix(error: AdminError) -> str:
    """Return the text of the error, with what to do where one command or flag is the answer."""
    text = str(error)
    end, fix = _FIXES.get(error.code, ("", ""))
    return f"{text.removesuffix('.')}; {fix}" if fix and text.endswith(end) else text


def fail_incomplete(what: str, errors: Sequence[AdminError], output: FailureForm) -> None:
    """End the command behind a partial result, if there are errors."""
    if not errors:
        return
    shown = "; ".join(map(str, errors[:_ERRORS_SHOWN]))
    more = len(errors) - _ERRORS_SHOWN
    shown += f"; and {more} more" if more > 0 else ""
    fail(EXIT_FAILED, f"{what}: {shown}", errors[0].code, output)


def check_servers(zookeeper: str, output: FailureForm) -> None:
    """End the command if this cannot be `--zookeeper`."""
    try:
        check_metadata_address(zookeeper)
    except ValueError as error:
        usage(f"--zookeeper {zookeeper}: {error}", output)


class StorageSettings(NamedTuple):
    """The checked options of a command that connects by itself."""

    servers: ClientSettings
    zookeeper: str | None
    tls: TlsFiles | None
    transport: BookieTransport


def storage_settings(
    bootstrap: str, zookeeper: str | None, tls: Path | None, output: FailureForm
) -> StorageSettings:
    """Check the options of `storage_option` and `tls_option`. Ends the command if one is wrong."""
    servers = _connection(bootstrap, output)
    if zookeeper is not None:
        check_servers(zookeeper, output)
    transport = BookieTransport(click.get_current_context().meta[_TRANSPORT])
    return StorageSettings(servers, zookeeper, _tls_files(tls, output), transport)


def ask_storage(
    zookeeper: str,
    tls: Path | None,
    output: FailureForm,
    work: Callable[[Storage], Awaitable[T]],
    *,
    shows_wait: bool = True,
) -> T:
    """Return the result of `work` with a connection to the storage tier.

    `shows_wait` is that of `ask`.
    """
    from gateway.admin.client import AdminError, Unreachable
    from gateway.admin.storage import StorageConnection
    from gateway.admin.zookeeper_access import REFUSED
    from gateway.interrupt import run_interruptibly
    from ledger.errors import AccessDenied, LedgerError, MetadataUnavailable

    check_servers(zookeeper, output)
    files = _tls_files(tls, output)
    transport = BookieTransport(click.get_current_context().meta[_TRANSPORT])

    async def main() -> T:
        with waiting(f"waiting for {zookeeper}") if shows_wait else nullcontext():
            async with StorageConnection(zookeeper, files, transport) as storage:
                return await work(storage)

    try:
        return run_interruptibly(main())
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except AccessDenied as error:
        fail(EXIT_REFUSED, str(error), REFUSED, output)
    except (Unreachable, MetadataUnavailable) as error:
        fix = "name the cluster's with --zookeeper host:port, or grpc://127.0.0.1:3181 of `dev`"
        fail(EXIT_UNREACHABLE, f"{error}; {fix}", "UNREACHABLE", output)
    except AdminError as error:
        codes = {REFUSED: EXIT_REFUSED, "CONFIG": EXIT_CONFIG}
        fail(codes.get(error.code, EXIT_FAILED), str(error), error.code, output)
    except LedgerError as error:
        fail(EXIT_FAILED, str(error), type(error).__name__, output)


def _tls_files(directory: Path | None, output: FailureForm) -> TlsFiles | None:
    if directory is None:
        return None
    from ledger.adapters.links.link_config import TlsFiles

    files = [directory / name for name in ("tls.crt", "tls.key", "ca.crt")]
    for file in files:
        if not file.is_file():
            usage(f"--tls {directory}: {file.name} is missing", output)
    roles = click.get_current_context().meta.get(_ROLES) != "off"
    return TlsFiles(cert=files[0], key=files[1], ca=files[2], roles=roles)
