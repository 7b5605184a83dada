"""The commands `gateway bookie ...`. They ask the metadata store and the bookies.

A gateway is asked for the address of the metadata, unless `--zookeeper` is passed. `status` asks
all gateways, because each has its own list of bookies to avoid.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import bookie_shapes
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
from ledger.command_line.output import Output, emit, note, output_option
from ledger.command_line.program import CommandGroup, Value, old_spelling, option
from ledger.command_line.progress import counting

if TYPE_CHECKING:
    from gateway.admin.storage import Storage

Row = dict[str, Any]
_TIMEOUT_S_MAX = 10 * 365 * 86_400

bookie = CommandGroup("bookie", "List bookies, show which are avoided, and remove one.")


@bookie.command("list")
@storage_option
@tls_option
@output_option(bookie_shapes.LISTED)
def _list(zookeeper: str | None, bootstrap: str, tls: Path | None, output: Output) -> None:
    """List bookies with their address, state and disk space."""
    from gateway.admin.bookies import list_bookies

    place = metadata_at(zookeeper, bootstrap, output)
    output.show(ask_storage(place, tls, output, list_bookies))


@bookie.command("status")
@bootstrap_option
@output_option(bookie_shapes.STATUS, bookie_shapes.AVOIDED)
def _status(bootstrap: str, output: Output) -> None:
    """List the bookies that gateways avoid because they fail or are slow."""
    from gateway.admin.bookie_status import bookie_status, remarks, table_rows

    output = output.of(bookie_shapes.STATUS if output.is_json else bookie_shapes.AVOIDED)
    found = ask(bootstrap, output, bookie_status)
    if output.is_json:
        output.show(found)
        return
    rows = table_rows(found)
    for remark in remarks(found):
        note(f"note: {remark}")
    if rows or not output.framed:
        output.show(rows)
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
@output_option(bookie_shapes.DECOMMISSIONED, bookie_shapes.KEPT)
def _decommission(
    bookie: str,
    yes: bool,
    even_if_writable: bool,
    cancel: bool,
    timeout: float | None,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Move all copies off a bookie, then remove it from the cluster."""
    from gateway.admin.bookies import decommission, keep
    from ledger.ids import BookieId

    name = BookieId(bookie)
    output = output.of(bookie_shapes.KEPT if cancel else bookie_shapes.DECOMMISSIONED)
    if cancel:
        place = metadata_at(zookeeper, bootstrap, output)
        ask_storage(place, tls, output, lambda storage: keep(storage, name))
        output.done({"kept": bookie}, f"Kept bookie {bookie}.")
        return
    confirm(yes, f"moves all copies off bookie {bookie} and removes its cookie", bookie, output)
    place = metadata_at(zookeeper, bootstrap, output)

    async def work(storage: Storage) -> Row:
        with counting("ledgers moved") as show:
            return await decommission(
                storage,
                name,
                even_if_writable=even_if_writable,
                timeout_s=timeout,
                on_drained=lambda moved, left: show(moved, moved + left),
            )

    found = ask_storage(place, tls, output, work)
    sentence = f"Bookie {bookie} is out of the cluster; {found['moved_ledgers']} ledgers moved."
    output.done(found, sentence)
