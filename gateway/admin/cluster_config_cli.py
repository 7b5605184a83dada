"""The commands `gateway cluster config ...`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import config_shapes
from gateway.admin.config_output import explained_text, key_values, show_change, show_settings
from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line import units
from ledger.command_line.output import Output, output_option
from ledger.command_line.program import CommandGroup, Value, option

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.topics import Row

config = CommandGroup(
    "config", "Show, set, unset and explain the settings of all brokers or of one."
)

_NODE = Value("id", units.whole(0, units.INT32_MAX))
_change_option = option(
    "--node",
    "-n",
    type=_NODE,
    shown="all brokers: cluster-wide defaults",
    help="Node id of the broker whose own settings are changed.",
)


@config.command("show")
@option(
    "--node",
    "-n",
    type=_NODE,
    shown="the one with the lowest id",
    help="Node id of the broker whose settings are shown.",
)
@option("--all", "every", is_flag=True, help="Also show settings that have their defaults.")
@bootstrap_option
@output_option(config_shapes.SHOWN)
def _show(node: int | None, every: bool, bootstrap: str, output: Output) -> None:
    """Show the settings of a broker, with their origins; cluster is a default for all brokers."""
    from gateway.admin import configs

    async def work(client: AdminClient) -> list[Row]:
        chosen = min(each.node_id for each in await client.brokers()) if node is None else node
        return await configs.describe(client, configs.broker(chosen), None)

    show_settings(ask(bootstrap, output, work), every, output)


@config.command("set")
@click.argument(
    "pairs", metavar="KEY=VALUE...", nargs=-1, required=True, help="Settings and their new values."
)
@_change_option
@bootstrap_option
@output_option(config_shapes.CHANGED)
def _set(pairs: Sequence[str], node: int | None, bootstrap: str, output: Output) -> None:
    """Set settings of all brokers or of one, all of them or none."""
    _change(key_values(pairs, output), node, bootstrap, output)


@config.command("unset")
@click.argument(
    "keys", metavar="KEY...", nargs=-1, required=True, help="Settings to reset to their defaults."
)
@_change_option
@bootstrap_option
@output_option(config_shapes.CHANGED)
def _unset(keys: Sequence[str], node: int | None, bootstrap: str, output: Output) -> None:
    """Reset settings of all brokers or of one, all of them or none."""
    _change(dict.fromkeys(keys), node, bootstrap, output)


def _change(values: dict[str, Any], node: int | None, bootstrap: str, output: Output) -> None:
    from gateway.admin import configs

    resource = configs.broker(node)
    show_change(ask(bootstrap, output, lambda c: configs.change(c, resource, values)), output)


@config.command("explain")
@click.argument("key", metavar="KEY", help="Setting to explain.")
@bootstrap_option
@output_option(config_shapes.EXPLAINED_AT_BROKERS)
def _explain(key: str, bootstrap: str, output: Output) -> None:
    """Explain a setting of brokers: value, origin and meaning, and the value of each broker."""
    from gateway.admin import configs

    async def work(client: AdminClient) -> Row:
        nodes = sorted(each.node_id for each in await client.brokers())
        rows = {node: await configs.explain(client, configs.broker(node), key) for node in nodes}
        own = ("value", "origin")
        brokers = [{"node": node, **{each: rows[node][each] for each in own}} for node in nodes]
        return {**rows[nodes[0]], "brokers": brokers}

    found = ask(bootstrap, output, work)
    output.show(found, before=f"{explained_text(found)}\n")
