"""The commands `gateway ledger gaps` and `gateway ledger read`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gateway.admin.ledger_cli import ledger
from gateway.admin.requests import ask_storage, metadata_at, storage_option, tls_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_OK
from ledger.command_line.output import (
    Format,
    as_json,
    as_table,
    emit,
    headings,
    output_option,
    show_bytes,
    usage,
)
from ledger.command_line.program import Value, option

__all__ = ["ledger"]

_ID = Value("id", units.whole(0, 2**63 - 1))

_ledger_argument = click.argument("number", type=_ID, metavar="LEDGER", help="Id of the ledger.")


@ledger.command("gaps")
@_ledger_argument
@option("--deep", is_flag=True, help="Read every copy of every entry, to find damaged ones.")
@option("--all", "every", is_flag=True, help="Also list the end of the segment (BRIDGE).")
@storage_option
@tls_option
@output_option
def _gaps(
    number: int,
    deep: bool,
    every: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Format,
) -> int:
    """List the gaps of a ledger: lost, waited for, accepted.

    Exits with 1 if there is a loss that is not accepted.
    """
    from gateway.admin.loss_table import loss_table
    from gateway.admin.losses import is_unaccepted_loss, ledger_gaps
    from ledger.ids import LedgerId

    rows = ask_storage(
        metadata_at(zookeeper, bootstrap, output),
        tls,
        output,
        lambda storage: ledger_gaps(storage, LedgerId(number), deep=deep, every=every),
    )
    emit(as_json(rows) if output is Format.json else loss_table(rows))
    return EXIT_FAILED if any(map(is_unaccepted_loss, rows)) else EXIT_OK


@ledger.command("read")
@_ledger_argument
@option("--first", type=_ID, default=0, shown="0", help="First entry to read.")
@option("--until", type=_ID, shown="the last entry", help="Last entry to read.")
@option("--follow", is_flag=True, help="Wait for further entries, until Ctrl-C.")
@option("--stats", is_flag=True, help="Print the bytes that each bookie served, at the end.")
@storage_option
@tls_option
@output_option
def _read(
    number: int,
    first: int,
    until: int | None,
    follow: bool,
    stats: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Format,
) -> None:
    """Read a ledger as a reader does: a line for each entry and each gap.

    With -o json each line is an object.
    """
    if until is not None and until < first:
        usage(f"--until {until}: is before --first {first}", output)

    from gateway.admin.ledger_read import LedgerLines
    from ledger.ids import EntryId, LedgerId

    def show(row: dict[str, Any]) -> None:
        emit(_one_line(row) if output is Format.json else _text(row))

    lines = LedgerLines(LedgerId(number), show)
    wanted = EntryId(first), None if until is None else EntryId(until)
    try:
        ask_storage(
            metadata_at(zookeeper, bootstrap, output),
            tls,
            output,
            lambda storage: lines.read(storage, *wanted, follow=follow),
        )
    finally:
        if stats:
            served: list[dict[str, Any]] = [
                {"bookie": name, "bytes": size} for name, size in sorted(lines.served.items())
            ]
            if output is Format.json:
                emit(_one_line({"kind": "stats", "served": served}))
            else:
                shown = [{**row, "served": show_bytes(row["bytes"])} for row in served]
                emit("\n" + as_table(headings("bookie", "bytes", "served"), shown))


def _one_line(row: dict[str, Any]) -> str:
    return " ".join(as_json(row).split())


def _text(row: dict[str, Any]) -> str:
    from gateway.admin.loss_table import show_entries, show_offsets

    if row["kind"] == "entry":
        if row["records"] is None:
            return f"entry {row['entry']}  {row['bytes']} bytes"
        kind = f"{row['records']} records" if row["records"] else "control records"
        offsets = "" if not row["records"] else f"  offsets {show_offsets(row)}"
        return f"entry {row['entry']}  {row['bytes']} bytes  {kind}{offsets}"
    accepted = f"  accepted by {row['accepted_by']}" if row.get("accepted_by") else ""
    entries, offsets = show_entries(row["entries"]), show_offsets(row)
    return f"{row['kind']}  entries {entries}  offsets {offsets}{accepted}"
