"""The command `gateway slow`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line import units
from ledger.command_line.output import Output, note, output_option, show_bytes
from ledger.command_line.program import Command, Value, option
from ledger.command_line.shape import Column, Kind, Shape, Tone, text, whole

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

_COUNT: Final = 20
_COUNT_MAX: Final = 500


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _stage(name: str, meaning: str) -> Column:
    return Column(
        f"{name}_ms",
        Kind.number,
        f"{meaning}; null if unknown.",
        nullable=True,
        heading=name.upper(),
        show=_ms,
    )


SLOW: Final = Shape(
    (
        text("at", "Begin of the request, in UTC by the clock of its gateway."),
        whole("at_ms", "The same in milliseconds since 1970.", json_only=True),
        whole("node_id", "Node id of the gateway.", heading="GATEWAY"),
        text("api", "Kafka's name of the request."),
        whole("version", "Its version.", wide=True),
        Column(
            "total_ms",
            Kind.number,
            "Milliseconds from the whole request until its reply was ready.",
            heading="MS",
            show=_ms,
        ),
        Column(
            "wait_ms",
            Kind.number,
            "Of a Fetch that waited for records: how long its client let it wait, which does not "
            "count as slow; otherwise null.",
            nullable=True,
            heading="WAIT",
            show=_ms,
        ),
        _stage("queue", "Of these, behind earlier requests of the connection"),
        _stage("decode", "Of these, to decode it"),
        _stage("append", "Of a Produce, to check its batches and queue them for the writer"),
        _stage("journal", "Of a Produce, until the first bookie had synced its batches"),
        _stage("quorum", "Of a Produce, until enough bookies had synced its batches"),
        _stage("write", "After these, until the reply was handed to the socket"),
        text("client_id", "Client id; null without one.", nullable=True, heading="CLIENT"),
        text("address", "Address of the client."),
        text("topic", "First topic that it names, or its id; null without one.", nullable=True),
        whole("topics", "Number of topics that it names.", wide=True),
        whole(
            "bytes", "Bytes of the records of a Produce, otherwise of the reply.", show=show_bytes
        ),
        text(
            "error",
            "Kafka's name of the first error in the reply, or NONE.",
            wide=True,
            tones={"NONE": Tone.good},
        ),
    )
)


@click.command("slow", cls=Command)
@option("--api", metavar="NAME", help="Show only requests of this API, such as Produce or Fetch.")
@option(
    "--count",
    "-n",
    type=Value("count", units.whole(1, _COUNT_MAX)),
    default=_COUNT,
    help="Show at most this many, the slowest.",
)
@bootstrap_option
@output_option(SLOW)
def slow(api: str | None, count: int, bootstrap: str, output: Output) -> None:
    """Show the slowest requests of the last hour, and where their time went.

    Each gateway keeps the 100 slowest of each API of the last 30 to 60 minutes in memory. A Fetch
    counts without the time for which it may wait for records. A JoinGroup or SyncGroup that took
    long mostly waited for other members of its group.
    """
    from gateway.admin.slow import slowest

    async def work(client: AdminClient) -> None:
        found = await slowest(client, api, count)
        output.show(found.rows)
        if api is not None and not found.rows:
            kept = {row["api"] for row in (await slowest(client, None, _COUNT_MAX)).rows}
            others = f"there are some of {', '.join(sorted(kept))}" if kept else "nor any other"
            note(f"no request of {api} is kept; {others}")
        for node_id, reason in found.silent.items():
            note(f"gateway {node_id} is silent: {reason}")

    ask(bootstrap, output, work)
