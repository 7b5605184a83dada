"""The commands `gateway transaction ...`, modelled on kafka-transactions.sh."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gateway.admin import transaction_shapes
from gateway.admin.confirm import confirm
from gateway.admin.requests import ask, bootstrap_option, fail_incomplete, yes_option
from ledger.command_line import units
from ledger.command_line.output import Output, output_option, usage
from ledger.command_line.program import CommandGroup, Value, option

_LONGEST_S = 2**31
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""The names of `TransactionState`, here so that no command imports the server."""

transaction = CommandGroup("transaction", "List and describe transactions, and abort hanging ones.")


@transaction.command("list")
@option(
    "--state",
    "states",
    type=Value("state", units.one_of_any_case(*STATES)),
    multiple=True,
    help="Only this state, such as Ongoing; repeat for several.",
)
@option(
    "--producer-id",
    "producer_ids",
    type=Value("id", units.whole(0, units.INT64_MAX)),
    multiple=True,
    help="Only transactions of this producer id; repeat for several.",
)
@option(
    "--longer-than",
    type=Value("duration", units.duration(0, _LONGEST_S)),
    help="Only transactions that have been open for longer.",
)
@option("--pattern", help="Only ids that match this regular expression as a whole (RE2).")
@bootstrap_option
@output_option(transaction_shapes.LISTED)
def _list(
    states: Sequence[str],
    producer_ids: Sequence[int],
    longer_than: float | None,
    pattern: str | None,
    bootstrap: str,
    output: Output,
) -> None:
    """List transactional ids with their producer id and state."""
    from gateway.admin.transactions import list_transactions

    longer_ms = -1 if longer_than is None else round(longer_than * 1000)
    rows = ask(
        bootstrap,
        output,
        lambda client: list_transactions(client, states, producer_ids, longer_ms, pattern),
    )
    output.show(rows)


@transaction.command("describe")
@click.argument("name", metavar="TRANSACTIONAL_ID", help="Transactional id of a producer.")
@bootstrap_option
@output_option(transaction_shapes.DESCRIBED)
def _describe(name: str, bootstrap: str, output: Output) -> None:
    """Show the producer, the state and the partitions of a transaction.

    A prepared transaction shows the partitions that have no marker yet.
    """
    from gateway.admin.transactions import describe_transaction

    output.show(ask(bootstrap, output, lambda client: describe_transaction(client, name)))


@transaction.command("find-hanging")
@option("--topic", help="Only partitions of this topic.")
@option(
    "--partition",
    type=Value("number", units.whole(0, units.INT32_MAX)),
    help="Only this partition of --topic.",
)
@option(
    "--idle",
    type=Value("duration", units.duration(0, _LONGEST_S)),
    default="15m",
    help="Only transactions without a new record for this time.",
)
@bootstrap_option
@output_option(transaction_shapes.FOUND_HANGING)
def _find_hanging(
    topic: str | None, partition: int | None, idle: float, bootstrap: str, output: Output
) -> None:
    """Find open transactions that no coordinator will end.

    Readers in read_committed stop in front of them, until they are aborted.
    """
    from gateway.admin.hanging_transactions import find_hanging

    if partition is not None and topic is None:
        usage("--partition needs --topic", output)
    idle_ms = round(idle * 1000)
    rows, unread = ask(
        bootstrap, output, lambda client: find_hanging(client, topic, partition, idle_ms)
    )
    output.show(rows)
    fail_incomplete("some partitions were not searched", unread, output)


@transaction.command("abort")
@click.argument("topic", metavar="TOPIC", help="Name of the topic.")
@click.argument(
    "partition",
    type=Value("number", units.whole(0, units.INT32_MAX)),
    metavar="PARTITION",
    help="Its partition.",
)
@option(
    "--start-offset",
    type=Value("offset", units.whole(0, units.INT64_MAX)),
    required=True,
    help="First offset of the transaction, as find-hanging shows it.",
)
@yes_option
@bootstrap_option
@output_option(transaction_shapes.ABORTED)
def _abort(
    topic: str, partition: int, start_offset: int, yes: bool, bootstrap: str, output: Output
) -> None:
    """Abort a hanging transaction in one partition.

    If its coordinator commits it in other partitions, its records here are lost.
    """
    from gateway.admin.hanging_transactions import abort

    name = f"{topic}-{partition}"
    confirm(yes, f"aborts the transaction of {name} from offset {start_offset} on", name, output)
    row = ask(bootstrap, output, lambda client: abort(client, topic, partition, start_offset))
    sentence = f"Aborted the transaction of {name} that began at offset {start_offset}."
    output.done(row, sentence)
