"""The commands `gateway bookie ...`. They ask the metadata store and the bookies.

A gateway is asked for the address of the metadata, unless `--zookeeper` is passed. `status` asks
all gateways, because each has its own list of bookies to avoid.
"""

from __future__ import annotations

from pathlib import Path

import click

from gateway.admin.confirm import confirm
from gateway.admin.requests import (
    ask,
    ask_storage,
    bootstrap_option,
    metadata_at,
    storage_option,
    tls_option,
    yes_option,
)
from ledger.command_line import units
from ledger.command_line.output import (
    Format,
    ProgressLine,
    as_json,
    as_table,
    emit,
    headings,
    note,
    output_option,
    show_bytes,
)
from ledger.command_line.program import CommandGroup, Value, old_spelling, option

_TIMEOUT_S_MAX = 10 * 365 * 86_400

bookie = CommandGroup("bookie", "List bookies, show which are avoided, and remove one.")


@bookie.command("list")
@storage_option
@tls_option
@output_option
def _list(zookeeper: str | None, bootstrap: str, tls: Path | None, output: Format) -> None:
    """List bookies with their address, state and disk space."""
    from gateway.admin.bookies import list_bookies

    place = metadata_at(zookeeper, bootstrap, output)
    rows = ask_storage(place, tls, output, list_bookies)
    if output is Format.json:
        emit(as_json(rows))
    else:
        columns = ("bookie", "address", "rack", "status", "ledgers", "disk", "free")
        sizes = [{key: show_bytes(row[f"{key}_bytes"]) for key in ("disk", "free")} for row in rows]
        shown = [row | size for row, size in zip(rows, sizes, strict=True)]
        emit(as_table(headings(*columns), shown))


@bookie.command("status")
@bootstrap_option
@output_option
def _status(bootstrap: str, output: Format) -> None:
    """List the bookies that gateways avoid because they fail or are slow."""
    from gateway.admin.bookie_status import bookie_status, remarks, table_rows

    found = ask(bootstrap, output, bookie_status)
    if output is Format.json:
        emit(as_json(found))
        return
    rows = table_rows(found)
    for remark in remarks(found):
        note(f"note: {remark}")
    if rows:
        columns = ("gateway", "address", "bookie", "reason", "since", "until", "why")
        emit(as_table(headings(*columns), rows))
    else:
        emit("No bookie is greylisted.")


@bookie.command("decommission")
@click.argument(
    "bookie", metavar="BOOKIE", help="Id of the bookie, as `gateway bookie list` shows it."
)
@yes_option
@option(
    "--even-if-writable", is_flag=True, help="Move its copies even if it still accepts entries."
)
@option(
    "--cancel", is_flag=True, help="Stop an earlier decommission; copies that moved stay moved."
)
@option(
    "--timeout",
    type=Value("duration", units.duration(0, _TIMEOUT_S_MAX)),
    help="Give up after this time.",
)
@old_spelling("--timeout-s", of="timeout", unit="s")
@storage_option
@tls_option
@output_option
def _decommission(
    bookie: str,
    yes: bool,
    even_if_writable: bool,
    cancel: bool,
    timeout: float | None,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Format,
) -> None:
    """Move all copies off a bookie, then remove it from the cluster."""
    from gateway.admin.bookies import decommission, keep
    from ledger.ids import BookieId

    name = BookieId(bookie)
    if cancel:
        place = metadata_at(zookeeper, bootstrap, output)
        ask_storage(place, tls, output, lambda storage: keep(storage, name))
        emit(as_json({"kept": bookie}) if output is Format.json else f"Kept bookie {bookie}.")
        return
    confirm(yes, f"moves all copies off bookie {bookie} and removes its cookie", bookie, output)
    place = metadata_at(zookeeper, bootstrap, output)
    progress = ProgressLine() if output is Format.table else None

    def show(moved: int, left: int) -> None:
        if progress is not None:
            progress.bar(moved, moved + left, "ledgers moved")

    found = ask_storage(
        place,
        tls,
        output,
        lambda storage: decommission(
            storage,
            name,
            even_if_writable=even_if_writable,
            timeout_s=timeout,
            on_drained=show,
        ),
    )
    if progress is not None:
        progress.end()
    if output is Format.json:
        emit(as_json(found))
    else:
        emit(f"Bookie {bookie} is out of the cluster; {found['moved_ledgers']} ledgers moved.")
