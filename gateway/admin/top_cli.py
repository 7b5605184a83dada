"""The command `gateway top`."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.admin.requests import ask, storage_option, storage_settings, tls_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_TERMINATED
from ledger.command_line.output import Format, Output, emit, note, output_option, usage
from ledger.command_line.program import Command, Value, option
from ledger.command_line.progress import stop_waiting
from ledger.command_line.shape import Column, Kind, Shape, pairs, rows, text, whole
from ledger.command_line.terminal import columns, is_terminal, wants_color

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.top_figures import LiveFigures

_INTERVAL_S_MIN: Final = 0.2
_HOUR_S: Final = 3600.0
_CANNOT_MOVE: Final = ("", "dumb", "unknown")  # values of TERM
_ROWS: Final = 50
_ROWS_MAX: Final = 10_000
_RETRY_S: Final = 1.0  # for a leader or coordinator that moves; the next look comes soon
_ANSWER_S: Final = 10.0

TOP: Final = Shape(
    fields=(
        text("at", "Time of the look, in UTC by the clock of this machine."),
        whole("at_ms", "The same in milliseconds since 1970."),
        Column(
            "over_s",
            Kind.number,
            "Seconds over which the rates are: 60 by the timestamps of records in the first look, "
            "later the time since the look before.",
        ),
        whole("topic_count", "Number of topics."),
        rows(
            "topics",
            "The topics with the highest rates.",
            text("name", "Name of the topic."),
            whole("partitions", "Number of its partitions."),
            Column(
                "records_per_s",
                Kind.number,
                "Records per second; null if a leader did not answer, or the topic is new.",
                nullable=True,
            ),
            Column(
                "bytes_per_s",
                Kind.number,
                "Bytes per second of one copy over the last 5 to 20 s, as the gateways measure "
                "them; null at Apache Kafka, if a gateway did not answer, and if it has only begun "
                "to measure.",
                nullable=True,
            ),
        ),
        whole("group_count", "Number of groups; null if unknown.", nullable=True),
        rows(
            "groups",
            "The groups with the largest lags; null if unknown.",
            text("group", "Id of the group."),
            text("state", "Its state; null on servers that do not list it.", nullable=True),
            whole("partitions", "Number of partitions for which it committed an offset."),
            whole(
                "lag",
                "Records from its committed offsets, or from the start of the log, to the end; "
                "null if it committed none, or if unknown.",
                nullable=True,
            ),
            nullable=True,
        ),
        rows(
            "bookies",
            "The bookies; null if the metadata of the ledgers are not within reach.",
            text("bookie", "Id of the bookie."),
            text("address", "Its host and port; null if it is not registered.", nullable=True),
            text("rack", "Its rack; null if it is not registered.", nullable=True),
            text("status", "As in `gateway bookie list`."),
            whole("disk_bytes", "Size of its disk; null if it did not answer.", nullable=True),
            whole("free_bytes", "Free bytes; null if it did not answer.", nullable=True),
            nullable=True,
        ),
        rows(
            "slow",
            "The slowest requests of the last hour, of at least 500 ms; null if unknown.",
            text("request", "Kafka's name of the request, and its first topic."),
            Column("total_ms", Kind.number, "Milliseconds until its reply was ready."),
            whole("age_s", "Seconds since it began."),
            text("client_id", "Client id; null without one.", nullable=True),
            text("address", "Address of the client."),
            nullable=True,
        ),
        pairs("missing", "Why groups, bookies or slow requests are null, by that name."),
    )
)


@click.command("top", cls=Command)
@option("--once", is_flag=True, help="Print one view, and end.")
@option(
    "--interval",
    type=Value("duration", units.duration(_INTERVAL_S_MIN, _HOUR_S)),
    default="2s",
    help="Time from the end of one look to the next.",
)
@option(
    "--rows",
    "rows_max",
    type=Value("count", units.whole(1, _ROWS_MAX)),
    default=_ROWS,
    help="Show at most this many topics, and as many groups.",
)
@option("--internal", is_flag=True, help="Show Kafka's own topics as well.")
@storage_option
@tls_option
@output_option(TOP)
def top(
    once: bool,
    interval: float,
    rows_max: int,
    internal: bool,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Show topics by rate, groups by lag, and bookies, again and again until Ctrl-C.

    Below are the slowest requests of the last hour, if any took half a second; `gateway slow`
    shows others, and where their time went.

    The first view has the records whose timestamps are of the last minute; later views have what
    was written since the view before.
    """
    _check(once, output)
    settings = storage_settings(bootstrap, zookeeper, tls, output)

    from gateway.admin.top_figures import LiveFigures

    ended: list[int] = []

    async def work(client: AdminClient) -> None:
        figures = LiveFigures(client, settings, rows_max, internal=internal)
        try:
            if once:
                _show(await figures.look(), output)
            elif output.is_table:
                await _draw(figures, interval, output, ended)
            else:
                await _repeat(figures, interval, output)
        except asyncio.CancelledError:
            if not ended:
                raise
        finally:
            await figures.close()

    ask(bootstrap, output, work, retry_s_max=_RETRY_S, answer_s_max=_ANSWER_S)
    if ended:
        raise click.exceptions.Exit(EXIT_TERMINATED)


def _check(once: bool, output: Output) -> None:
    """End the command if nothing can be shown in this form again and again."""
    if once:
        return
    if output.form is Format.json:
        usage("--output json: an array has an end; use --output jsonl, or --once", output)
    if not output.is_table:
        return
    if output.chosen:
        usage("--columns: the live view has none; use --once, or --output jsonl", output)
    if not is_terminal(sys.stdout) or os.environ.get("TERM", "dumb") in _CANNOT_MOVE:
        usage("the live view needs a terminal; use --once, or --output jsonl", output)


def _show(look: dict[str, object], output: Output) -> None:
    from gateway.admin.top_view import picture

    if not output.is_table or output.chosen:
        output.show(look)
        return
    lines = picture(look, [], columns(sys.stdout), None, header=output.header)
    emit("\n".join(line.text for line in lines))


async def _draw(figures: LiveFigures, interval_s: float, output: Output, ended: list[int]) -> None:
    from gateway.admin.top_screen import show

    stop_waiting()
    await show(figures, interval_s, wants_color(output.color), lambda: ended.append(1))


async def _repeat(figures: LiveFigures, interval_s: float, output: Output) -> None:
    """Print a look each interval, for ever. One that fails is a line on stderr."""
    from gateway.admin.client import AdminError, Unreachable

    fault, reached = "", False
    while True:
        try:
            look = await figures.look()
        except (AdminError, Unreachable) as error:
            if not reached:
                raise
            if not fault:
                note(f"no figures, trying again: {error}")
            fault = str(error)
        else:
            fault = ""
            output.show(look)
            output = replace(output, header=False)
            reached = True
            stop_waiting()
        await asyncio.sleep(interval_s)
