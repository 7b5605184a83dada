"""The commands `gateway transaction ...`, modelled on kafka-transactions.sh."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line import units
from ledger.command_line.output import Format, as_json, as_table, emit, headings, output_option
from ledger.command_line.program import CommandGroup, Value, option

_LONGEST_S = 2**31

transaction = CommandGroup("transaction", "List and describe transactions.")


@transaction.command("list")
@option("--state", "states", metavar="STATE", multiple=True, help="Only this state, as Ongoing.")
@option(
    "--producer-id",
    "producer_ids",
    type=Value("id", units.integer),
    multiple=True,
    help="Only transactions of this producer id.",
)
@option(
    "--longer-than",
    type=Value("duration", units.duration(0, _LONGEST_S)),
    help="Only transactions that have been open for longer.",
)
@bootstrap_option
@output_option
def _list(
    states: Sequence[str],
    producer_ids: Sequence[int],
    longer_than: float | None,
    bootstrap: str,
    output: Format,
) -> None:
    """List transactional ids with their producer id and state."""
    from gateway.admin.transactions import list_transactions

    longer_ms = -1 if longer_than is None else round(longer_than * 1000)
    rows, unknown = ask(
        bootstrap,
        output,
        lambda client: list_transactions(client, states, producer_ids, longer_ms),
    )
    for state in unknown:
        print(f"gateway: no transaction has the state {state}", file=sys.stderr)
    if output is Format.json:
        emit(as_json(rows))
    else:
        emit(as_table(headings("transactional_id", "producer_id", "state"), rows))


@transaction.command("describe")
@click.argument("name", metavar="TRANSACTIONAL_ID", help="Transactional id of a producer.")
@bootstrap_option
@output_option
def _describe(name: str, bootstrap: str, output: Format) -> None:
    """Show the producer, the state and the partitions of a transaction.

    A prepared transaction shows the partitions that have no marker yet.
    """
    from gateway.admin.transactions import describe_transaction

    row = ask(bootstrap, output, lambda client: describe_transaction(client, name))
    if output is Format.json:
        emit(as_json(row))
        return
    columns = headings("field", "value")
    shown = {**row, "partitions": ",".join(row["partitions"])}
    emit(as_table(columns, [{"field": field, "value": value} for field, value in shown.items()]))
