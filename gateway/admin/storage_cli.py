"""The admin commands of the storage tier: `gateway ledger ...` and `gateway bookie ...`.

They ask ZooKeeper and the bookies, no gateway. Exit codes and failures are those of `cli`;
`ledger verify` also exits with 1 when it found damage.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gateway.admin.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNREACHABLE, fail, usage
from gateway.admin.output import Format, as_json, as_table, emit, headings

if TYPE_CHECKING:
    from gateway.admin.storage import Storage
    from ledger.adapters.grpc.grpc_config import TlsFiles

DEFAULT_ZOOKEEPER = "127.0.0.1:2181"
LEDGER_ID_MAX = 2**63 - 1
_BAR_WIDTH = 30
_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_SERVERS = re.compile(
    rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/[^/,\s\0]+)*|grpc://{_HOST}:\d{{1,5}}"
)

T = TypeVar("T")
Row = dict[str, Any]

ledger_app = typer.Typer(
    help="See, verify and recover ledgers, and ask why they are as they are.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
bookie_app = typer.Typer(
    help="List storage nodes, and take one out of the cluster.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ZooKeeper = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        "-z",
        envvar="GATEWAY_ZOOKEEPER",
        help="ZooKeeper: host:port by commas; /chroot at the end. Or grpc://127.0.0.1:3181, the "
        "ledger port of `gateway dev`.",
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="table or json.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; there is no way back.")]
TlsDirectory = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        envvar="GATEWAY_TLS",
        help="Directory with tls.crt, tls.key and ca.crt, where bookies want certificates.",
    ),
]
LedgerArgument = Annotated[int, typer.Argument(help="The ledger's id.", min=0, max=LEDGER_ID_MAX)]


def ask_storage(
    zookeeper: str,
    tls: Path | None,
    output: Format,
    work: Callable[[Storage], Awaitable[T]],
) -> T:
    """What `work` brought back from the storage tier."""
    import asyncio

    from gateway.admin.client import AdminError, Unreachable
    from gateway.admin.storage import Connection
    from ledger.errors import LedgerError, MetadataUnavailable

    if not _SERVERS.fullmatch(zookeeper):
        wanted = "must be host:port, or several by commas, and perhaps a /chroot"
        usage(f"--zookeeper {zookeeper}: {wanted}", output)
    files = _tls_files(tls, output)

    async def main() -> T:
        async with Connection(zookeeper, files) as storage:
            return await work(storage)

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
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
    from ledger.adapters.grpc.grpc_config import TlsFiles

    files = [directory / name for name in ("tls.crt", "tls.key", "ca.crt")]
    for file in files:
        if not file.is_file():
            usage(f"--tls {directory}: {file.name} is missing", output)
    return TlsFiles(cert=files[0], key=files[1], ca=files[2])


def _confirm(yes: bool, what: str, name: str, output: Format) -> None:
    """The user agreed, by `--yes` or by typing the name."""
    if yes:
        return
    if output is Format.table and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"This {what}.\nType {name} to do it: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() == name:
            return
        usage("not done: that was something else", output)
    usage(f"this {what}; add --yes to do it", output)


def _bar(unit: str) -> Callable[[int, int], None] | None:
    """A line that is written over, where stderr is a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, whole: int) -> None:
        share = min(1.0, done / whole) if whole else 1.0
        filled = int(_BAR_WIDTH * share)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        end = "\n" if share >= 1 else ""
        text = f"\r[{bar}] {share:4.0%}  {done} of {whole} {unit} "
        print(text, end=end, file=sys.stderr, flush=True)

    return show


@ledger_app.command("list")
def ledger_list(
    lacking: Annotated[
        bool, typer.Option("--lacking-copies", help="Only those on the repair list.")
    ] = False,
    state: Annotated[
        str | None, typer.Option("--state", help="Only OPEN, IN_RECOVERY or CLOSED ones.")
    ] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """List ledgers."""
    states = ("OPEN", "IN_RECOVERY", "CLOSED")
    if state is not None and state.upper() not in states:
        usage(f"--state {state}: must be one of {', '.join(states)}", output)

    from gateway.admin.ledgers import list_ledgers

    wanted = None if state is None else state.upper()
    rows = ask_storage(
        zookeeper,
        tls,
        output,
        lambda storage: list_ledgers(storage, marked_only=lacking, state=wanted),
    )
    if output is Format.json:
        emit(as_json(rows))
        return
    columns = ("ledger", "state", "quorum", "entries", "bytes", "fragments", "created")
    emit(as_table(headings(*columns, "lacks_copies"), rows))


@ledger_app.command("show")
def ledger_show(
    ledger: LedgerArgument,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """Show a ledger's metadata, its fragments, and which bookie holds how much."""
    from gateway.admin.ledgers import show_ledger
    from ledger.ids import LedgerId

    found = ask_storage(
        zookeeper, tls, output, lambda storage: show_ledger(storage, LedgerId(ledger))
    )
    if output is Format.json:
        emit(as_json(found))
        return
    custom = ",".join(f"{key}={value}" for key, value in found["custom"].items())
    last = found["last_entry"]
    parts = [
        f"Ledger: {ledger}",
        f"State: {found['state']}",
        f"Quorum: {found['quorum']}",
        f"LastEntry: {'-' if last is None else last}",
        f"LastAddConfirmed: {found['last_add_confirmed']}",
        f"Bytes: {'-' if found['bytes'] is None else found['bytes']}",
        f"Digest: {found['digest']}",
        f"Created: {found['created'] or '-'}",
        f"LacksCopies: {'true' if found['lacks_copies'] else 'false'}",
        f"Custom: {custom or '-'}",
    ]
    emit("  ".join(parts) + "\n")
    columns = ("fragment", "to", "bookie", "status", "should_hold", "holds", "missing")
    emit(as_table(headings(*columns), found["copies"]))


@ledger_app.command("verify")
def ledger_verify(
    ledgers: Annotated[
        list[int] | None, typer.Argument(help="Ids; all ledgers if none is given.", min=0)
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put ledgers with damage on the repair list.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """Read every copy of every entry and check its digest. Exits with 1 on damage."""
    from gateway.admin.ledgers import verify
    from ledger.ids import LedgerId

    chosen = None if not ledgers else [LedgerId(ledger) for ledger in ledgers]
    bar = _bar("copies read") if output is Format.table else None
    found = ask_storage(
        zookeeper,
        tls,
        output,
        lambda storage: verify(storage, chosen, mark=repair, on_progress=bar),
    )
    if output is Format.json:
        emit(as_json(found))
    else:
        if found["damage"]:
            columns = ("ledger", "fragment", "bookie", "status", "missing", "damaged", "unknown")
            emit(as_table(headings(*columns, "shown_by_nobody"), found["damage"]) + "\n")
        emit(
            f"{found['ledgers']} ledgers, {found['copies_read']} copies, {found['bytes_read']} "
            f"bytes read: {'clean' if found['clean'] else 'DAMAGED, see above'}"
        )
    if not found["clean"]:
        raise typer.Exit(EXIT_FAILED)


@ledger_app.command("recover")
def ledger_recover(
    ledger: LedgerArgument,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on without what is lost, and say what was given up."
        ),
    ] = False,
    yes: Yes = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """Take a ledger over from its writer, and close it."""
    what = f"fences the writer of ledger {ledger} for ever and closes it"
    if accept_loss:
        what += (
            ", and gives up every entry that no bookie shows now (stop the gateway that writes "
            "it first: with too few bookies left it is not surely fenced)"
        )
    _confirm(yes, what, str(ledger), output)

    from gateway.admin.ledgers import recover
    from ledger.ids import LedgerId

    found = ask_storage(
        zookeeper,
        tls,
        output,
        lambda storage: recover(storage, LedgerId(ledger), accept_loss=accept_loss),
    )
    if output is Format.json:
        emit(as_json(found))
        return
    emit(f"Ledger {ledger} is closed at entry {found['last_entry']}, {found['bytes']} bytes.")
    if accept_loss:
        _say_loss(found)


def _say_loss(found: Row) -> None:
    for bookie in found["limbo_ended"]:
        emit(f"Bookie {bookie} is out of limbo for it.")
    if found["forced"]:
        emit("It was closed without the bookies that a recovery needs.")
    if found["given_up_entries"]:
        emit(f"Given up: {found['given_up_entries']} entries: {found['given_up']}.")
    else:
        emit("Nothing that is known to have existed was given up.")


@ledger_app.command("why")
def ledger_why(
    ledger: LedgerArgument,
    entry: Annotated[int | None, typer.Argument(help="One entry's id.", min=0)] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """Say in words why a ledger, or an entry, can or cannot be read, is open, or lacks copies."""
    from gateway.admin.ledgers import why
    from ledger.ids import EntryId, LedgerId

    wanted = None if entry is None else EntryId(entry)
    found = ask_storage(
        zookeeper, tls, output, lambda storage: why(storage, LedgerId(ledger), wanted)
    )
    if output is Format.json:
        emit(as_json(found))
    else:
        emit("\n".join(found["because"]))


@bookie_app.command("list")
def bookie_list(
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """List bookies: where they are, whether they take entries, and how full they are."""
    from gateway.admin.bookies import list_bookies

    rows = ask_storage(zookeeper, tls, output, list_bookies)
    if output is Format.json:
        emit(as_json(rows))
    else:
        columns = ("bookie", "address", "rack", "status", "ledgers", "disk_bytes", "free_bytes")
        emit(as_table(headings(*columns), rows))


@bookie_app.command("decommission")
def bookie_decommission(
    bookie: Annotated[str, typer.Argument(help="The bookie's id, as `bookie list` shows it.")],
    yes: Yes = False,
    even_if_writable: Annotated[
        bool, typer.Option("--even-if-writable", help="Empty it though it still takes entries.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop emptying it; what moved stays moved.")
    ] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", help="Give up after so long.", min=0.0)
    ] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """Move all copies off a bookie, then remove it from the cluster."""
    from gateway.admin.bookies import decommission, keep
    from ledger.ids import BookieId

    name = BookieId(bookie)
    if cancel:
        ask_storage(zookeeper, tls, output, lambda storage: keep(storage, name))
        emit(as_json({"kept": bookie}) if output is Format.json else f"Kept bookie {bookie}.")
        return
    _confirm(yes, f"moves all copies off bookie {bookie} and removes its cookie", bookie, output)
    bar = _bar("ledgers moved") if output is Format.table else None

    def show(moved: int, left: int) -> None:
        if bar is not None:
            bar(moved, moved + left)

    found = ask_storage(
        zookeeper,
        tls,
        output,
        lambda storage: decommission(
            storage,
            name,
            even_if_writable=even_if_writable,
            timeout_s=timeout_s,
            on_drained=show,
        ),
    )
    if output is Format.json:
        emit(as_json(found))
    else:
        emit(f"Bookie {bookie} is out of the cluster; {found['moved_ledgers']} ledgers moved.")
