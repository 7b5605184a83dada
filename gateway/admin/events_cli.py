"""The command `gateway events`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Final

import click

from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line import units
from ledger.command_line.output import Format, Output, note, output_option, usage
from ledger.command_line.program import Command, Value, option
from ledger.command_line.progress import stop_waiting
from ledger.command_line.shape import Shape, Tone, pairs, text, whole

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.events import EventReader

_KINDS: Final = (
    "roll",
    "ensemble-change",
    "fence",
    "recovery",
    "takeover",
    "repair",
    "loss",
    "change",
)
_NEWEST: Final = 100
_FOLLOW_S: Final = 1.0  # between two requests to each gateway

EVENTS: Final = Shape(
    (
        text("at", "Time of the event, in UTC by the clock of its gateway."),
        whole("at_ms", "The same in milliseconds since 1970.", json_only=True),
        whole("node_id", "Node id of the gateway.", heading="GATEWAY"),
        whole(
            "number",
            "Number of the event since the process of the gateway began, without holes.",
            wide=True,
        ),
        text(
            "kind",
            f"What happened: {units.listed(_KINDS)}.",
            tones={"loss": Tone.bad, "ensemble-change": Tone.warning, "fence": Tone.warning},
        ),
        text("topic", "Topic that it happened to; null if it is not about one.", nullable=True),
        whole("partition", "Partition of the topic.", nullable=True),
        whole("ledger", "Ledger that it happened to.", nullable=True),
        pairs("facts", "What else is known, by name; the names depend on the kind."),
    )
)


@click.command("events", cls=Command)
@option("--follow", "-f", is_flag=True, help="Go on with new events until Ctrl-C.")
@option(
    "--kind",
    "kinds",
    type=Value("kind", units.one_of(*_KINDS)),
    multiple=True,
    help=f"Show only this kind: {units.listed(_KINDS)}; repeat for several.",
)
@option(
    "--since",
    metavar="TIME",
    help="Show only later events: a time such as 2026-05-01T12:00:00 (UTC unless it has a zone), "
    "or how long ago, such as 2h.",
)
@option(
    "--newest",
    "-n",
    type=Value("count", units.whole(0, 2**31 - 1)),
    default=_NEWEST,
    help="Show the newest events only, this many; 0: all.",
)
@bootstrap_option
@output_option(EVENTS)
def events(
    follow: bool,
    kinds: Sequence[str],
    since: str | None,
    newest: int,
    bootstrap: str,
    output: Output,
) -> None:
    """Show what happened in the gateways: rolls, ensemble changes, fences, takeovers, losses.

    Each gateway keeps its newest 10,000 events in memory, until it ends.
    """
    since_ms = _moment(since, output)
    if follow and output.form is Format.json:
        usage("--follow and --output json: an array has an end; use --output jsonl", output)

    from gateway.admin.events import EventReader, chosen

    reader = EventReader()

    async def work(client: AdminClient) -> None:
        rows = chosen(await reader.more(client), kinds, since_ms, newest or None)
        output.show(rows)
        _warn(reader, set())
        if follow:
            await _until_read(_follow(client, reader, kinds, output))

    ask(bootstrap, output, work)


async def _until_read(work: Coroutine[None, None, None]) -> None:
    """Do this work, but end it with BrokenPipeError once the reader of stdout has ended."""
    from gateway.admin.consume_stdout import Stdout

    out = Stdout()
    try:
        with out.ending_with_reader():
            await work
    except asyncio.CancelledError:
        if out.closed:
            raise BrokenPipeError from None
        raise


async def _follow(
    client: AdminClient, reader: EventReader, kinds: Sequence[str], output: Output
) -> None:
    from dataclasses import replace

    from gateway.admin.client import Unreachable
    from gateway.admin.events import chosen

    stop_waiting()
    below = replace(output, header=False)
    warned = set(reader.silent)
    reached = True
    while True:
        await asyncio.sleep(_FOLLOW_S)
        try:
            rows = chosen(await reader.more(client), kinds, 0, None)
        except Unreachable as error:
            if reached:
                note(f"no gateway answers, trying again: {error}")
            reached = False
            continue
        reached = True
        if rows:
            below.show(rows)
        warned = _warn(reader, warned)


def _warn(reader: EventReader, warned: set[int]) -> set[int]:
    """Name gateways that became silent since `warned`. Returns those that are silent now."""
    for node_id, count in reader.dropped.items():
        note(f"gateway {node_id} dropped {count} events before they were read")
    for node_id, reason in reader.silent.items():
        if node_id not in warned:
            note(f"gateway {node_id} is silent: {reason}")
    return set(reader.silent)


def _moment(word: str | None, output: Output) -> int:
    if word is None:
        return 0
    from gateway.admin.notation import read_moment

    try:
        return read_moment(word, time.time_ns() // 1_000_000)
    except ValueError as error:
        usage(f"--since: {error}", output)
