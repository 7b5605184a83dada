"""The commands `gateway ledger gaps` and `gateway ledger read`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.admin import ledger_shapes, topic_loss_shapes
from gateway.admin.ledger_cli import ledger
from gateway.admin.requests import ask_storage, metadata_at, storage_option, tls_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_OK
from ledger.command_line.output import Output, emit, emit_json, note, output_option, usage
from ledger.command_line.program import Value, option

__all__ = ["ledger"]

Row = dict[str, Any]
_WIDTH_MIN = 10  # characters of a column, because no row knows the widths of the later ones
_ID = Value("id", units.whole(0, 2**63 - 1))

_ledger_argument = click.argument("number", type=_ID, metavar="LEDGER", help="Id of the ledger.")


@ledger.command("gaps")
@_ledger_argument
@option("--deep", is_flag=True, help="Read every copy of every entry, to find damaged ones.")
@option("--all", "every", is_flag=True, help="Also list the end of the segment (BRIDGE).")
@storage_option
@tls_option
@output_option(topic_loss_shapes.OF_LEDGER)
def _gaps(
    number: int,
    deep: bool,
    every: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> int:
    """List the gaps of a ledger: lost, waited for, accepted.

    Exits with 1 if there is a loss that is not accepted.
    """
    from gateway.admin.losses import is_unaccepted_loss, ledger_gaps
    from ledger.ids import LedgerId

    rows = ask_storage(
        metadata_at(zookeeper, bootstrap, output),
        tls,
        output,
        lambda storage: ledger_gaps(storage, LedgerId(number), deep=deep, every=every),
    )
    output.show(rows)
    return EXIT_FAILED if any(map(is_unaccepted_loss, rows)) else EXIT_OK


@ledger.command("read")
@_ledger_argument
@option("--first", type=_ID, default=0, shown="0", help="First entry to read.")
@option("--until", type=_ID, shown="the last entry", help="Last entry to read.")
@option("--follow", is_flag=True, help="Wait for further entries, until Ctrl-C.")
@option("--stats", is_flag=True, help="Print the bytes that each bookie served, at the end.")
@storage_option
@tls_option
@output_option(
    ledger_shapes.READ,
    ledger_shapes.PASSED,
    ledger_shapes.ENDED,
    ledger_shapes.SERVED,
    ledger_shapes.LINE,
)
def _read(
    number: int,
    first: int,
    until: int | None,
    follow: bool,
    stats: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Read a ledger as a reader does: a line for each entry and each gap.

    With -o json each line is an object.
    """
    if until is not None and until < first:
        usage(f"--until {until}: is before --first {first}", output)

    from gateway.admin.ledger_read import LedgerLines
    from ledger.ids import EntryId, LedgerId

    printer = _Printer(output)
    lines = LedgerLines(LedgerId(number), printer.show)
    wanted = EntryId(first), None if until is None else EntryId(until)
    try:
        ask_storage(
            metadata_at(zookeeper, bootstrap, output),
            tls,
            output,
            lambda storage: lines.read(storage, *wanted, follow=follow),
            shows_wait=False,
        )
    finally:
        if stats:
            printer.show_served({str(name): size for name, size in lines.served.items()})


class _Printer:
    """Prints a row for each entry and each gap, as it comes."""

    def __init__(self, output: Output) -> None:
        self._output = output  # without headings behind the first row
        self._as_text = output.is_table and not output.chosen

    def show(self, row: Row) -> None:
        if self._as_text:
            emit(_text(row))
            return
        self._output.show(row, shape=ledger_shapes.LINE, width_min=_WIDTH_MIN)
        self._output = replace(self._output, header=False)

    def show_served(self, served: dict[str, int]) -> None:
        """Print the bytes that each bookie returned."""
        rows = [{"bookie": name, "bytes": size} for name, size in sorted(served.items())]
        if self._output.is_json:
            emit_json({"kind": "stats", "served": rows}, indent=None)
        elif self._as_text:
            emit("")
            self._output.show(rows, shape=ledger_shapes.STATS)
        else:  # stdout has rows of another kind
            for row in rows:
                note(f"bookie {row['bookie']} served {row['bytes']} bytes")


def _text(row: Row) -> str:
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
