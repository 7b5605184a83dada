"""Common options of the admin commands, and requests that end a command if they fail.

A failed request prints one line on stderr (JSON with `-o json`) and ends the command. The exit code
is 1 if the server refused the request, 69 if no server was reached, 77 if the request was not
authorized, and 130 after Ctrl-C.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from ledger.command_line import units
from ledger.command_line.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
)
from ledger.command_line.output import Format, fail, usage
from ledger.command_line.program import Value, option
from ledger.ports.bookies import BookieTransport

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient, AdminError
    from gateway.admin.storage import Storage
    from ledger.adapters.links.link_config import TlsFiles

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_PORT_MAX = 65_535
_TRANSPORT = f"{__name__}.bookie_transport"  # its key in the context of a command
_ERRORS_SHOWN = 5  # errors of a partial result that one line shows
_START_FIX = "start one with `gateway dev`, or name it with --bootstrap host:port"
_SERVERS = re.compile(
    rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/[^/,\s\0]+)*|grpc://{_HOST}:\d{{1,5}}"
)

bootstrap_option = option(
    "--bootstrap",
    "-b",
    metavar="SERVERS",
    envvar="GATEWAY_BOOTSTRAP",
    show_envvar=True,
    default="127.0.0.1:9092",
    help="Servers to connect to: host:port,host:port.",
)
yes_option = option("--yes", is_flag=True, help="Confirm; it cannot be undone.")
_tls_option = option(
    "--tls",
    type=Value("dir", units.path),
    envvar="GATEWAY_TLS",
    show_envvar=True,
    help="Directory with tls.crt, tls.key and ca.crt, if the bookies require certificates.",
)


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


def tls_option(function: F) -> F:
    """Add `--tls` and `--bookie-transport` to a command that calls `ask_storage`."""
    return _tls_option(_transport_option(function))


def zookeeper_option(text: str = "", **attributes: Any) -> Callable[[F], F]:
    """Add `--zookeeper` to a command; `text` begins its help."""
    servers = "ZooKeeper servers: host:port,host:port, with an optional /chroot at the end; or "
    servers += "grpc://127.0.0.1:3181, the ledger port of `gateway dev`."
    return option("--zookeeper", "-z", metavar="SERVERS", help=text + servers, **attributes)


def storage_option(function: F) -> F:
    """Add `--zookeeper` and `--bootstrap` to a command that reads ledgers; see `metadata_at`."""
    shown = "the one of the gateways"
    zookeeper = zookeeper_option(envvar="GATEWAY_ZOOKEEPER", show_envvar=True, shown=shown)
    return zookeeper(bootstrap_option(function))


def metadata_at(zookeeper: str | None, bootstrap: str, output: Format) -> str:
    """Return `--zookeeper`, or the address at which the gateways' metadata are read."""
    if zookeeper is not None:
        return zookeeper
    from gateway.admin.metadata_address import metadata_address

    fix = "name a gateway with --bootstrap host:port, or its metadata with --zookeeper host:port"
    return ask(bootstrap, output, metadata_address, fix)


def ask(
    bootstrap: str,
    output: Format,
    work: Callable[[AdminClient], Awaitable[T]],
    fix: str = _START_FIX,
) -> T:
    """Return the result of `work` with a client of these servers."""
    from gateway.admin.client import AdminClient, AdminError, Unreachable, parse_bootstrap
    from gateway.interrupt import run_interruptibly

    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        usage(f"--bootstrap: {error}", output)

    async def main() -> T:
        async with AdminClient(bootstrap) as client:
            return await work(client)

    try:
        return run_interruptibly(main())
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except Unreachable as error:
        fail_request(error, output, f"; {fix}")
    except AdminError as error:
        fail_request(error, output)


def fail_request(error: Exception, output: Format, more: str = "") -> NoReturn:
    """End the command after AdminError or Unreachable; `more` follows its text."""
    from gateway.admin.client import AdminError

    if not isinstance(error, AdminError):
        fail(EXIT_UNREACHABLE, f"{error}{more}", "UNREACHABLE", output)
    refused = error.code.endswith("_AUTHORIZATION_FAILED")
    fail(EXIT_REFUSED if refused else EXIT_FAILED, f"{error}{more}", error.code, output)


def fail_incomplete(what: str, errors: Sequence[AdminError], output: Format) -> None:
    """End the command behind a partial result, if there are errors."""
    if not errors:
        return
    shown = "; ".join(map(str, errors[:_ERRORS_SHOWN]))
    more = len(errors) - _ERRORS_SHOWN
    shown += f"; and {more} more" if more > 0 else ""
    fail(EXIT_FAILED, f"{what}: {shown}", errors[0].code, output)


def _ports_hold(zookeeper: str) -> bool:
    servers = zookeeper.removeprefix("grpc://").partition("/")[0].split(",")
    return all(0 < int(each.rpartition(":")[2]) <= _PORT_MAX for each in servers)


def ask_storage(
    zookeeper: str, tls: Path | None, output: Format, work: Callable[[Storage], Awaitable[T]]
) -> T:
    """Return the result of `work` with a connection to the storage tier."""
    from gateway.admin.client import AdminError, Unreachable
    from gateway.admin.storage import StorageConnection
    from gateway.interrupt import run_interruptibly
    from ledger.errors import LedgerError, MetadataUnavailable

    if not _SERVERS.fullmatch(zookeeper) or not _ports_hold(zookeeper):
        form = "must be host:port, or several separated by commas, with an optional /chroot"
        usage(f"--zookeeper {zookeeper}: {form}", output)
    files = _tls_files(tls, output)
    transport = BookieTransport(click.get_current_context().meta[_TRANSPORT])

    async def main() -> T:
        async with StorageConnection(zookeeper, files, transport) as storage:
            return await work(storage)

    try:
        return run_interruptibly(main())
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except (Unreachable, MetadataUnavailable) as error:
        fix = "name the cluster's with --zookeeper host:port, or grpc://127.0.0.1:3181 of `dev`"
        fail(EXIT_UNREACHABLE, f"{error}; {fix}", "UNREACHABLE", output)
    except AdminError as error:
        fail(EXIT_FAILED, str(error), error.code, output)
    except LedgerError as error:
        fail(EXIT_FAILED, str(error), type(error).__name__, output)


def _tls_files(directory: Path | None, output: Format) -> TlsFiles | None:
    if directory is None:
        return None
    from ledger.adapters.links.link_config import TlsFiles

    files = [directory / name for name in ("tls.crt", "tls.key", "ca.crt")]
    for file in files:
        if not file.is_file():
            usage(f"--tls {directory}: {file.name} is missing", output)
    return TlsFiles(cert=files[0], key=files[1], ca=files[2])
