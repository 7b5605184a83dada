"""The command `gateway health`, for the health check of a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_OK
from ledger.command_line.output import Output, output_option
from ledger.command_line.program import Command
from ledger.command_line.shape import Column, Kind, Shape, truth, whole

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 3.0

HEALTH: Final = Shape(
    fields=(
        whole("node_id", "Node id of the gateway that answered."),
        truth("ready", "Whether it takes requests."),
        Column(
            "reasons",
            Kind.texts,
            "Why not: starting, draining, without-lease, too-few-bookies.",
        ),
    )
)


@click.command("health", cls=Command)
@bootstrap_option
@output_option(HEALTH)
def health(bootstrap: str, output: Output) -> int:
    """Exit with 0 if the gateway at --bootstrap takes requests, and with 1 and the reasons if not.

    It asks that gateway alone, on its Kafka port, and exits with 69 if nothing answers there.
    """

    async def work(client: AdminClient) -> dict[str, Any]:
        return await client.ask_gateway({"ask": "health"})

    found = ask(
        bootstrap,
        output,
        work,
        shows_wait=False,
        connect_s_max=_CONNECT_S,
        answer_s_max=_ANSWER_S,
        retry_s_max=0.0,
    )
    reasons: list[str] = [str(each) for each in found["reasons"]]
    row = {"node_id": found["node_id"], "ready": not reasons, "reasons": reasons}
    sentences = "; ".join(map(str, found["sentences"]))
    state = f"is not ready: {sentences}" if reasons else "is ready"
    output.done(row, f"gateway {found['node_id']} {state}")
    return EXIT_FAILED if reasons else EXIT_OK
