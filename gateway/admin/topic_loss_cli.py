"""The commands `gateway topic gaps` and `gateway topic accept-loss`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import topic_loss_shapes
from gateway.admin.confirm import confirm
from gateway.admin.requests import ask_storage, metadata_at, storage_option, tls_option, yes_option
from gateway.admin.topic_cli import topic
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_OK
from ledger.command_line.output import Output, emit, output_option, usage
from ledger.command_line.program import Value, option
from ledger.command_line.progress import counting

if TYPE_CHECKING:
    from gateway.admin.storage import Storage
    from ledger.core.gaps import OffsetRange

__all__ = ["topic"]

Row = dict[str, Any]
_OFFSETS = re.compile(r"(\d{1,19})-(\d{1,19})", re.ASCII)

_name_argument = click.argument("name", metavar="TOPIC", help="Name of the topic.")


@topic.command("gaps")
@_name_argument
@option(
    "--partition",
    "-p",
    "partitions",
    type=Value("partition", units.whole(0, units.INT32_MAX)),
    multiple=True,
    help="Show only this partition; repeat for several.",
)
@option("--deep", is_flag=True, help="Read every copy of every entry, to find damaged ones.")
@option("--all", "every", is_flag=True, help="Also list the ends of segments (BRIDGE).")
@storage_option
@tls_option
@output_option(topic_loss_shapes.LISTED)
def _gaps(
    name: str,
    partitions: Sequence[int],
    deep: bool,
    every: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> int:
    """List the gaps of a topic: lost, waited for, accepted, trimmed.

    Exits with 1 if there is a loss that is not accepted.
    """
    from gateway.admin.losses import is_unaccepted_loss, topic_gaps

    async def work(storage: Storage) -> list[Row]:
        with counting("segments") as show:
            return await topic_gaps(
                storage, name, partitions, deep=deep, every=every, on_progress=show
            )

    rows = ask_storage(metadata_at(zookeeper, bootstrap, output), tls, output, work)
    output.show(rows)
    return EXIT_FAILED if any(map(is_unaccepted_loss, rows)) else EXIT_OK


@topic.command("accept-loss")
@_name_argument
@option(
    "--partition",
    "-p",
    type=Value("partition", units.whole(0, units.INT32_MAX)),
    required=True,
    help="The partition.",
)
@option(
    "--offsets",
    metavar="FIRST-LAST",
    required=True,
    help="The lost offsets, both ends inclusive, as `topic gaps` shows them.",
)
@option(
    "--give-up",
    "give_up",
    metavar="BOOKIE",
    multiple=True,
    help="Count the copies on this bookie as lost; it must not be registered. Repeat for several.",
)
@yes_option
@storage_option
@tls_option
@output_option(topic_loss_shapes.ACCEPTED)
def _accept_loss(
    name: str,
    partition: int,
    offsets: str,
    give_up: Sequence[str],
    yes: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Give up lost offsets, so that readers pass them. They stay lost if a copy turns up.

    Refuses offsets that are not proved lost. Copies with a wrong digest count as lost.
    """
    wanted = _offsets(offsets, output)

    from gateway.admin.losses import accept_loss, propose_loss

    address = metadata_at(zookeeper, bootstrap, output)
    if address.startswith("grpc://"):
        text = (
            f"{address} is the ledger port of `gateway dev`, for reading only: stop `gateway dev`"
        )
        usage(f"{text} and start it with --accept-loss", output)
    loss = name, partition, wanted, give_up
    proposal = ask_storage(address, tls, output, lambda storage: propose_loss(storage, *loss))
    if not proposal.losses:
        sentence = f"Offsets {offsets} were accepted before: no change."
        output.done({"accepted": []}, sentence)
        return
    accepted = {"accepted": proposal.rows}
    if output.is_table:
        output.show(accepted)
    if output.framed:
        emit("")
    action = f"gives up offsets {offsets} of partition {partition} of topic {name} for ever"
    confirm(yes, action, name, output)
    ask_storage(address, tls, output, lambda storage: accept_loss(storage, *loss, proposal))
    if output.framed:
        emit(f"Accepted the loss of offsets {offsets}.")
    elif not output.is_table:
        output.show(accepted)


def _offsets(text: str, output: Output) -> OffsetRange:
    from ledger.core.gaps import OFFSET_MAX, OffsetRange

    match = _OFFSETS.fullmatch(text)
    if match is None:
        usage(f"--offsets {text!r}: must be FIRST-LAST, for example 120-134", output)
    first, last = int(match[1]), int(match[2])
    if last < first:
        usage(f"--offsets {text}: {last} is before {first}", output)
    if last >= OFFSET_MAX:
        usage(f"--offsets {text}: offsets are below {OFFSET_MAX}", output)
    return OffsetRange(first, last)
