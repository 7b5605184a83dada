"""The commands `gateway ledger ...`. They ask the metadata store and the bookies.

A gateway is only asked for the address of the metadata, and only without `--zookeeper`.
`verify` exits with 1 if it found damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import ledger_shapes
from gateway.admin.confirm import confirm, will_ask
from gateway.admin.requests import ask_storage, metadata_at, storage_option, tls_option, yes_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_OK
from ledger.command_line.output import Output, emit, output_option, show_bytes, usage
from ledger.command_line.program import CommandGroup, Value, option
from ledger.command_line.progress import counting

if TYPE_CHECKING:
    from gateway.admin.storage import Storage

Row = dict[str, Any]
_STATES = ("OPEN", "IN_RECOVERY", "CLOSED")
_ID = Value("id", units.whole(0, 2**63 - 1))

ledger = CommandGroup("ledger", "List, show, verify, recover and explain ledgers.")

_ledger_argument = click.argument("ledger", type=_ID, metavar="LEDGER", help="Id of the ledger.")


@ledger.command("list")
@option("--lacking-copies", "lacking", is_flag=True, help="List only under-replicated ledgers.")
@option(
    "--state", metavar="STATE", help="List only ledgers in this state: OPEN, IN_RECOVERY or CLOSED."
)
@storage_option
@tls_option
@output_option(ledger_shapes.LISTED)
def _list(
    lacking: bool,
    state: str | None,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """List ledgers."""
    wanted = None if state is None else state.upper()
    if wanted is not None and wanted not in _STATES:
        usage(f"--state {state}: must be {units.listed(_STATES)}", output)

    from gateway.admin.ledgers import list_ledgers

    rows = ask_storage(
        metadata_at(zookeeper, bootstrap, output),
        tls,
        output,
        lambda storage: list_ledgers(storage, marked_only=lacking, state=wanted),
    )
    output.show(rows)


@ledger.command("show")
@_ledger_argument
@storage_option
@tls_option
@output_option(ledger_shapes.SHOWN)
def _show(
    ledger: int, zookeeper: str | None, bootstrap: str, tls: Path | None, output: Output
) -> None:
    """Show the metadata of a ledger, its fragments, and how much of it each bookie holds."""
    from gateway.admin.ledgers import show_ledger
    from ledger.ids import LedgerId

    found = ask_storage(
        metadata_at(zookeeper, bootstrap, output),
        tls,
        output,
        lambda storage: show_ledger(storage, LedgerId(ledger)),
    )
    custom = ",".join(f"{key}={value}" for key, value in found["custom"].items())
    last = found["last_entry"]
    owner = [(name, found[name.lower()]) for name in ("Topic", "Partition", "Group")]
    parts = [
        f"Ledger: {ledger}",
        *(f"{name}: {value}" for name, value in owner if value is not None),
        f"State: {found['state']}",
        f"Quorum: {found['quorum']}",
        f"LastEntry: {'-' if last is None else last}",
        f"LastAddConfirmed: {found['last_add_confirmed']}",
        f"Size: {show_bytes(found['bytes']) or '-'}",
        f"Digest: {found['digest']}",
        f"Created: {found['created'] or '-'}",
        f"LacksCopies: {'true' if found['lacks_copies'] else 'false'}",
        f"Custom: {custom or '-'}",
    ]
    output.show(found, before="  ".join(parts) + "\n")


@ledger.command("verify")
@click.argument(
    "ledgers", type=_ID, nargs=-1, metavar="[LEDGER]...", help="Ids of ledgers; none: all ledgers."
)
@option("--repair", is_flag=True, help="Mark damaged ledgers, so that `bookie audit` repairs them.")
@storage_option
@tls_option
@output_option(ledger_shapes.VERIFIED)
def _verify(
    ledgers: Sequence[int],
    repair: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> int:
    """Read every copy of every entry and check its digest.

    Exits with 1 if there is damage.
    """
    from gateway.admin.ledgers import verify
    from ledger.ids import LedgerId

    chosen = None if not ledgers else [LedgerId(ledger) for ledger in ledgers]

    async def work(storage: Storage) -> Row:
        with counting("copies read") as show:
            return await verify(storage, chosen, mark=repair, on_progress=show)

    found = ask_storage(metadata_at(zookeeper, bootstrap, output), tls, output, work)
    if output.framed:
        _print_verified(found, output)
    else:
        output.show(found)
    return EXIT_OK if found["clean"] else EXIT_FAILED


def _print_verified(found: Row, output: Output) -> None:
    if found["damage"]:
        output.show(found)
        emit("")
    if found["accepted"]:
        emit("Accepted losses, which are no damage:")
        output.show(found["accepted"], shape=ledger_shapes.ACCEPTED)
        emit("")
    for row in found["unreadable"]:
        emit(f"The accepted losses of ledger {row['ledger']} cannot be read: {row['reason']}")
    verdict = "clean" if found["clean"] else "DAMAGED, see above"
    read = f"{found['copies_read']} copies, {show_bytes(found['bytes_read'])} read"
    emit(f"{found['ledgers']} ledgers, {read}: {verdict}")


@ledger.command("recover")
@_ledger_argument
@option(
    "--accept-loss",
    is_flag=True,
    help="Close the ledger without the entries that are lost, and report which these are.",
)
@yes_option
@storage_option
@tls_option
@output_option(ledger_shapes.RECOVERED, ledger_shapes.GIVEN_UP)
def _recover(
    ledger: int,
    accept_loss: bool,
    yes: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Fence the writer of a ledger, recover the last entries, and close it."""
    from gateway.admin.ledgers import recover
    from ledger.ids import LedgerId

    output = output.of(ledger_shapes.GIVEN_UP if accept_loss else ledger_shapes.RECOVERED)
    action = f"permanently fences the writer of ledger {ledger} and closes the ledger"
    if accept_loss:
        action += (
            ", and gives up every entry that is lost (first stop the gateway that writes it: with "
            "too few bookies left it may not be fenced)"
        )
    address = None
    if accept_loss and will_ask(yes, output):
        from gateway.admin.losses import preview_recovery

        address = metadata_at(zookeeper, bootstrap, output)
        lost = ask_storage(
            address, tls, output, lambda storage: preview_recovery(storage, LedgerId(ledger))
        )
        action += f": {lost}" if lost else ": nothing is lost now"
    confirm(yes, action, str(ledger), output)

    found = ask_storage(
        address or metadata_at(zookeeper, bootstrap, output),
        tls,
        output,
        lambda storage: recover(storage, LedgerId(ledger), accept_loss=accept_loss),
    )
    closed = (
        f"Ledger {ledger} is closed at entry {found['last_entry']}, {show_bytes(found['bytes'])}."
    )
    output.done(found, "\n".join([closed, *(_given_up(found) if accept_loss else ())]))


def _given_up(found: Row) -> Iterator[str]:
    from gateway.admin.loss_table import show_entries, show_offsets

    for bookie in found["limbo_ended"]:
        yield f"Limbo of this ledger ended at bookie {bookie}."
    if found["forced"]:
        yield "It was closed without the quorum of bookies that a recovery needs."
    if found["given_up_entries"]:
        yield f"Given up: {found['given_up_entries']} entries: {found['given_up']}."
    else:
        yield "No entry that is known to have existed was given up."
    for row in found["accepted"]:
        yield f"Accepted: entries {show_entries(row['entries'])}, offsets {show_offsets(row)}."
    for row in found["waiting"]:
        entries = show_entries(row["entries"])
        yield (
            f"Not given up: entries {entries}, because a bookie that is registered may have them."
        )


@ledger.command("why")
@_ledger_argument
@click.argument("entry", type=_ID, required=False, metavar="[ENTRY]", help="Id of one entry.")
@storage_option
@tls_option
@output_option(ledger_shapes.EXPLAINED, ledger_shapes.ENTRY_EXPLAINED)
def _why(
    ledger: int,
    entry: int | None,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Explain why a ledger or an entry can or cannot be read, is open, or lacks copies."""
    from gateway.admin.ledgers import why
    from ledger.ids import EntryId, LedgerId

    output = output.of(ledger_shapes.EXPLAINED if entry is None else ledger_shapes.ENTRY_EXPLAINED)
    wanted = None if entry is None else EntryId(entry)
    found = ask_storage(
        metadata_at(zookeeper, bootstrap, output),
        tls,
        output,
        lambda storage: why(storage, LedgerId(ledger), wanted),
    )
    output.done(found, "\n".join(found["because"]))
